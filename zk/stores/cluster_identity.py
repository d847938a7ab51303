"""The checks of a starting broker before it registers."""

from __future__ import annotations

import uuid

from regent.config.addresses import tcp_endpoint
from regent.core.errors import RegentError
from regent.core.model import BrokerInfo
from regent.core.replica_logs import ClusterNotes
from regent.zk.client.operations import ConnectionLossError, Create, Refused, ZkError, ZooKeeper
from regent.zk.client.requests import RequestRefusedError
from regent.zk.codecs.znodes import ClusterIdZNode, encode_topic_id
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.progress_mark import read_mark


class EndPointInUseError(RegentError):
    """Another broker advertises the same host and port."""


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


def check_end_points(zookeeper: ZooKeeper, info: BrokerInfo) -> None:
    """Raise ``EndPointInUseError`` when another broker id advertises one of our addresses."""
    ours = {(e.host, e.port) for e in info.endpoints}
    for broker_id, registration in ZkAdminStore(zookeeper).read_brokers().items():
        if broker_id == info.broker_id or isinstance(registration, Exception):
            continue
        for endpoint in registration.info.endpoints:
            if (endpoint.host, endpoint.port) in ours:
                is_control = tcp_endpoint(endpoint.host, endpoint.port) == info.control_endpoint
                raise EndPointInUseError(
                    f"{endpoint.host}:{endpoint.port} is advertised by broker {broker_id} already;"
                    f" give this broker another {'--control-port' if is_control else '--port'}"
                )
