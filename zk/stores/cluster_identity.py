"""The checks of a broker before it registers, and of its addresses afterwards."""

from __future__ import annotations

import uuid
from contextlib import suppress

from regent.config.addresses import bracketed
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerInfo
from regent.core.replica_logs import ClusterNotes
from regent.zk.client.operations import ConnectionLossError, Create, Refused, ZkError
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.znodes import BrokerIdsZNode, BrokerIdZNode, ClusterIdZNode, encode_topic_id
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.progress_mark import read_mark


class EndPointInUseError(RegentError):
    """Another live broker has registered the same host and port."""


def join_cluster(zookeeper: ZooKeeper) -> str:
    """Return the cluster id; the first broker of a cluster creates it.

    Raises ``BadDataError`` when ``/cluster/id`` cannot be decoded, and ``RequestRefusedError``
    when ZooKeeper refuses to create it.
    """
    parent = ClusterIdZNode.PATH.rpartition("/")[0]
    chosen = ClusterIdZNode.encode(encode_topic_id(uuid.uuid4().bytes))
    while True:
        node = zookeeper.get(ClusterIdZNode.PATH)
        if node is not None:
            return ClusterIdZNode.decode(node.data)
        for create in (Create(parent), Create(ClusterIdZNode.PATH, chosen)):
            try:
                result = zookeeper.multi([create])
            except ConnectionLossError:
                zookeeper.wait_connected()
                break
            if isinstance(result, Refused) and result.error is not ZkError.NODE_EXISTS:
                raise RequestRefusedError(f"cannot create {create.path}: {result.error.name}")


def check_cluster(zookeeper: ZooKeeper, notes: ClusterNotes) -> None:
    """Check that ZooKeeper's data is that of our cluster, and not older than data seen before.

    Call it in every new session before its first use: while the broker runs, ZooKeeper may lose its
    data, or an operator may restore older data or data of another cluster. Raises
    ``ForeignDirectoryError``, and ``BadDataError`` when ``/cluster/id`` cannot be decoded.
    """
    zookeeper.sync()  # otherwise a server that lags behind looks like one with older data
    notes.check_cluster(ZkAdminStore(zookeeper).read_cluster_id())
    notes.check_not_older(zookeeper.latest_zxid(), read_mark(zookeeper))


def check_end_points(
    zookeeper: ZooKeeper, info: BrokerInfo, broker_epoch: int | None = None
) -> None:
    """Raise ``EndPointInUseError`` when another live broker has registered one of our addresses.

    Call it before a registration, and after it with its ``broker_epoch``. Two brokers that start
    together may both find nothing before. Afterwards the one that registered later sees the other
    and must end. Registrations that no session owns, and those of our broker id, do not count.
    """
    ours = _addresses(info)
    names = zookeeper.children(BrokerIdsZNode.PATH) or []
    nodes = zookeeper.get_many([f"{BrokerIdsZNode.PATH}/{name}" for name in names])
    for name, node in zip(names, nodes, strict=True):
        with suppress(BadDataError):  # the controller does not use that one either
            broker_id = BrokerIdsZNode.decode_child(name)
            is_live = node is not None and node.stat.ephemeral_owner != 0
            if node is None or not is_live or broker_id == info.broker_id:
                continue
            if broker_epoch is not None and node.stat.czxid > broker_epoch:
                continue
            theirs = _addresses(BrokerIdZNode.decode(node.data, broker_id))
            common = [address for address in ours if address in theirs]
            if common:
                options = " and ".join(dict.fromkeys(ours[address] for address in common))
                raise EndPointInUseError(
                    f"Configured end points {', '.join(common)} in advertised listeners are already"
                    f" registered by broker {broker_id}: give this broker another {options},"
                    " or advertise another address"
                )


def _addresses(info: BrokerInfo) -> dict[str, str]:
    """Return all ``host:port`` of a registration, and the option that sets each port."""
    found = {f"{bracketed(e.host)}:{e.port}".lower(): "--port" for e in info.endpoints}
    for endpoint, option in (
        (info.control_endpoint, "--control-port"),
        (info.replication_endpoint, "--replication-port"),
    ):
        if endpoint is not None:
            found[endpoint.removeprefix("tcp://").lower()] = option
    return found
