"""Any broker handles clients' requests about elections and reassignments."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Iterator
from typing import TypeVar

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.messages import partitions as messages
from regent.core.security.session import Session
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import TIMEOUT_S, eventually, scaled
from regent.transport.kafka.api import KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import decode, encoded
from tests.transport.kafka.raw_client import framed

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_MS = round(TIMEOUT_S * 1000)
TOPIC = "t"

T = TypeVar("T")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    """Three brokers; only the tests elect preferred leaders."""
    directory = tmp_path_factory.mktemp("cluster")
    config = directory / "cluster.toml"
    config.write_text("[controller]\nauto_leader_rebalance_enable = false\n")
    with RegentCluster(directory, "--no-placement-service", "--config", str(config)) as cluster:
        yield cluster


class Client:
    """Sends flexible requests to one broker only."""

    def __init__(self, cluster: RegentCluster, broker_id: BrokerId) -> None:
        brokers = cluster.description["brokers"]
        self._port = next(broker["port"] for broker in brokers if broker["id"] == broker_id)

    def ask(self, key: KafkaApiKey, version: int, message: object, response: type[T]) -> T:
        header = struct.pack(">hhihx", key, version, 1, -1)
        with socket.create_connection(("127.0.0.1", self._port), scaled(TIMEOUT_S)) as connection:
            connection.settimeout(scaled(2 * TIMEOUT_S))
            connection.sendall(framed(header + encoded(message, version, is_flexible=True)))
            with connection.makefile("rb") as answer:
                size, _correlation_id = struct.unpack(">iix", answer.read(9))
                body = memoryview(answer.read(size - 5))
        return decode(response, KafkaRequest(key, version, 1, None, Session(""), body))

    def elect(self, partitions: tuple[int, ...] | None) -> list[Errors]:
        """Elect preferred leaders; of all partitions if None."""
        named = messages.TopicPartitions(topic=TOPIC, partitions=partitions or ())
        answer = self.ask(
            KafkaApiKey.ELECT_LEADERS,
            2,
            messages.ElectLeadersRequest(
                topic_partitions=None if partitions is None else (named,), timeout_ms=TIMEOUT_MS
            ),
            messages.ElectLeadersResponse,
        )
        assert answer.error_code == Errors.NONE
        topics = answer.replica_election_results
        return [Errors(row.error_code) for topic in topics for row in topic.partition_result]

    def reassign(self, replicas: tuple[int, ...] | None) -> Errors:
        """Move partition 0; None cancels its reassignment."""
        row = messages.ReassignablePartition(partition_index=0, replicas=replicas)
        topic = messages.ReassignableTopic(name=TOPIC, partitions=(row,))
        answer = self.ask(
            KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            messages.AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=(topic,)),
            messages.AlterPartitionReassignmentsResponse,
        )
        return Errors(answer.responses[0].partitions[0].error_code)

    def is_reassigning(self) -> bool:
        """Whether a partition is being moved."""
        answer = self.ask(
            KafkaApiKey.LIST_PARTITION_REASSIGNMENTS,
            0,
            messages.ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None),
            messages.ListPartitionReassignmentsResponse,
        )
        return bool(answer.topics)


def test_a_broker_that_is_not_the_controller_answers_for_it(cluster: RegentCluster):
    controller = cluster.await_controller()
    first, second = [broker_id for broker_id in cluster.brokers if broker_id != controller]
    cluster.create_topic_on(TOPIC, [(first, second), (controller, first)])
    client = Client(cluster, first)

    assert client.reassign((second, first)) is Errors.NONE
    eventually(lambda: not client.is_reassigning(), "the partition is reassigned")
    assert cluster.leader_of(TOPIC) == first, "it is a replica of the target, too"
    assert client.elect((0, 1)) == [Errors.NONE, Errors.ELECTION_NOT_NEEDED]
    rows = cluster.metadata(first).partitions
    known = {row.partition: row.leader for row in rows if row.topic == TOPIC}
    assert known == {0: second, 1: controller}, "the answering broker knows the leader"
    assert client.elect(None) == []
    assert client.reassign(None) is Errors.NO_REASSIGNMENT_IN_PROGRESS
    assert client.reassign((first, 99)) is Errors.INVALID_REPLICA_ASSIGNMENT

    cluster.signal(controller, signal.SIGKILL)
    assert client.elect((0,)) == [Errors.ELECTION_NOT_NEEDED], "the next controller answers"
    assert client.elect((1,)) == [Errors.PREFERRED_LEADER_NOT_AVAILABLE]
