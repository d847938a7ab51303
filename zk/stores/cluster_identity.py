"""The checks of a broker before it registers, and of its addresses afterwards.

``/regent/progress_mark`` is written soon after anything else is, to detect restored older data. The
transaction id of a znode's last write only grows. When the id of this znode is lower than a broker
has noted, ZooKeeper has older data than before (a restored backup, for example). The newest
transaction id of an ensemble does not show this: servers begin a new epoch when they start, and the
epoch is the upper half of all later ids, so that older data continue with higher ids.
"""

from __future__ import annotations

from contextlib import suppress

from regent.config.addresses import bracketed
from regent.core.errors import BadDataError, RegentError, UnreadableError
from regent.core.model import BrokerInfo
from regent.core.replica_logs import ClusterNotes
from regent.zk.client.operations import (
    ANY_VERSION,
    Create,
    Refused,
    SetData,
    ZkError,
    Znode,
    why_uncreated,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import decode_broker_id
from regent.zk.codecs.topic_znodes import random_uuid
from regent.zk.stores.fenced_writes import apply
from regent.zk.znodes import BrokerIdsZNode, BrokerIdZNode, ClusterIdZNode, ProgressMarkZNode

PROGRESS_MARK = ProgressMarkZNode.PATH


class EndPointInUseError(RegentError):
    """Another live broker has registered the same host and port."""


def join_cluster(zookeeper: ZooKeeper) -> str:
    """Return the cluster id; the first broker of a cluster creates it.

    Raises ``BadDataError`` when ``/cluster/id`` cannot be decoded, and ``RequestRefusedError``
    when ZooKeeper refuses to create it.
    """
    parent = ClusterIdZNode.PATH.rpartition("/")[0]
    chosen = ClusterIdZNode.encode(random_uuid())
    while True:
        cluster_id = read_cluster_id(zookeeper)
        if cluster_id is not None:
            return cluster_id
        for create in (Create(parent), Create(ClusterIdZNode.PATH, chosen)):
            result = apply(zookeeper, [create])
            if isinstance(result, Refused) and result.error is not ZkError.NODE_EXISTS:
                raise RequestRefusedError(why_uncreated(create.path, result.error))


def read_cluster_id(zookeeper: ZooKeeper) -> str | None:
    """Return the cluster id; None when there is none. Raises ``BadDataError``."""
    node = zookeeper.get(ClusterIdZNode.PATH)
    return None if node is None else ClusterIdZNode.decode(node.data)


def check_cluster(zookeeper: ZooKeeper, notes: ClusterNotes) -> None:
    """Check that ZooKeeper's data is that of our cluster, and not older than data seen before.

    Call it in every new session before its first use: while the broker runs, ZooKeeper may lose its
    data, or an operator may restore older data or data of another cluster. Raises
    ``ForeignDirectoryError``, and ``BadDataError`` when ``/cluster/id`` cannot be decoded.
    """
    zookeeper.sync()  # otherwise a server that lags behind looks like one with older data
    notes.check_cluster(read_cluster_id(zookeeper))
    notes.check_not_older(zookeeper.latest_zxid(), read_mark(zookeeper))


def write_mark(zookeeper: ZooKeeper) -> None:
    """Write the mark. A lost answer or a refusal is ignored: the mark is written again later.

    Raises ``ConnectionLossError`` and ``SessionExpiredError``.
    """
    result = zookeeper.multi([SetData(PROGRESS_MARK, b"", ANY_VERSION)])
    if isinstance(result, Refused) and result.error is ZkError.NO_NODE:
        for path in (PROGRESS_MARK.rpartition("/")[0], PROGRESS_MARK):
            zookeeper.multi([Create(path)])


def read_mark(zookeeper: ZooKeeper) -> int | None:
    """Return the id of the mark's last write; 0: there is no mark, None: it cannot be read.

    Raises ``SessionExpiredError``.
    """
    return mark_of(zookeeper.get(PROGRESS_MARK))


def mark_of(node: Znode | None) -> int | None:
    """Return the id of the last write of a mark; see ``read_mark``."""
    try:
        return 0 if node is None else node.stat.mzxid
    except UnreadableError:
        return None


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
            broker_id = decode_broker_id(name)
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
