"""A cluster that is known by the addresses of some brokers only, without its ZooKeeper.

Then the console reads what any Kafka client may: the brokers and the controller by DescribeCluster,
the partitions by Metadata. There are no epochs, and nobody says why a broker is away. Journals and
the doctor ask the control ports of brokers of Regent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from regent.client.answered_tree import describe_cluster
from regent.client.cluster_connection import (
    Cluster,
    ClusterNotFoundError,
    client_settings,
)
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.partitions import DescribedPartition, Topics, read_partitions
from regent.core.errors import BadDataError
from regent.core.model import (
    NO_EPOCH,
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk.codecs.broker_znodes import BrokerEnd
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore

_TIMEOUT_S: Final = 3.0
_CLIENT_ID: Final = "regent-console"


class BootstrapSource:
    """Asks brokers what ``ZkAdminStore`` reads; all methods raise ``ClusterNotFoundError``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: Any = None
        self._controller_id = -1

    def read_brokers(self) -> dict[BrokerId, BrokerRegistration | BadDataError]:
        """Return the brokers that the cluster has now, and remember the controller."""
        _, answer = describe_cluster(self._cluster.bootstrap)
        self._controller_id = answer.controller_id
        protocol = SECURITY_OF_COMMAND.protocol.value
        return {
            row.broker_id: BrokerRegistration(
                BrokerInfo(
                    row.broker_id,
                    (EndPoint(protocol, row.host, row.port, protocol),),
                    row.rack,
                ),
                NO_EPOCH,
            )
            for row in answer.brokers
        }

    def read_controller(self) -> ActiveController | None:
        """Return the controller of the last answer; its epoch is not known."""
        return None if self._controller_id < 0 else ActiveController(self._controller_id, 0, 0, 0)

    def read_ends(self) -> Mapping[BrokerId, BrokerEnd]:
        """Return nothing: brokers write into ZooKeeper why they end."""
        return {}

    def read_moves_pause(self) -> None:
        """Return nothing: only ZooKeeper tells whether moves are paused."""

    def read_partitions(self, topics: Collection[str] | None = None) -> Topics:
        """Return partitions, None: all; leader epochs and reassignments are not known."""
        try:
            if self._client is None:
                self._client = AdminClient(client_settings(self._cluster, _CLIENT_ID))
            found = self._client.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise ClusterNotFoundError(f"the partitions: {error.args[0].str()}") from None
        rows = []
        for name in sorted(found if topics is None else found.keys() & set(topics)):
            for number, row in sorted(found[name].partitions.items()):
                state = LeaderIsrAndControllerEpoch(
                    LeaderAndIsr(row.leader, tuple(row.isrs), NO_EPOCH, NO_EPOCH), NO_EPOCH
                )
                at, replicas = TopicPartition(name, number), ReplicaAssignment(tuple(row.replicas))
                rows.append(DescribedPartition(at, None, replicas, state))
        return Topics({}, tuple(rows), ())


@contextmanager
def source_of(cluster: Cluster) -> Iterator[ZkAdminStore | BootstrapSource]:
    """Open for the block what tells of brokers: a session with ZooKeeper, or brokers."""
    if cluster.bootstrap:
        yield BootstrapSource(cluster)
        return
    with cluster.admin() as admin:
        yield admin


def partitions_of(
    source: ZkAdminStore | BootstrapSource, topics: Collection[str] | None = None
) -> Topics:
    """Return partitions, None: all."""
    if isinstance(source, BootstrapSource):
        return source.read_partitions(topics)
    return read_partitions(source, source.topics.read_topic_names() if topics is None else topics)
