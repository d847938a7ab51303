"""Why brokers ended: each writes it as its last act, for ``status`` on any machine.

A broker that was killed writes nothing. What it wrote at an earlier end was deleted when it
registered after that.
"""

from __future__ import annotations

from collections.abc import Mapping

from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.zk.client.operations import (
    Committed,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    ZkError,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import BrokerEnd
from regent.zk.stores.fenced_writes import apply
from regent.zk.znodes import BrokerEndsZNode, BrokerEndZNode, BrokerIdZNode, RegentZNode

_ATTEMPTS = 3  # only this broker writes it
_MAX_REASON = 2_000  # characters


def note_end(zookeeper: ZooKeeper, broker_id: BrokerId, end: BrokerEnd) -> bool:
    """Write why a broker ends. False: it is not written, or another process has the broker's id.

    Raises ``SessionExpiredError`` and ``ConnectionLossError``.
    """
    registration = zookeeper.get(BrokerIdZNode.path(broker_id))
    if registration is not None and registration.stat.ephemeral_owner != zookeeper.session_id:
        return False
    path = BrokerEndZNode.path(broker_id)
    shown = BrokerEnd(end.at_ms, end.reason[:_MAX_REASON], end.was_asked)
    data = BrokerEndZNode.encode(shown)
    for _ in range(_ATTEMPTS):
        node = zookeeper.get(path)
        write: Operation = (
            Create(path, data) if node is None else SetData(path, data, node.stat.version)
        )
        outcome = zookeeper.multi([write])
        if isinstance(outcome, Committed):
            return True
        if outcome == Refused(0, ZkError.NO_NODE):
            for parent in (RegentZNode.PATH, BrokerEndsZNode.PATH):
                zookeeper.multi([Create(parent)])  # refused if it exists
    return False


def forget_end(zookeeper: ZooKeeper, broker_id: BrokerId) -> None:
    """Delete what an earlier process of a broker wrote. Raises ``SessionExpiredError``."""
    path = BrokerEndZNode.path(broker_id)
    node = zookeeper.get(path)
    if node is not None:
        apply(zookeeper, [Delete(path, node.stat.version)])


def read_ends(zookeeper: ZooKeeper) -> Mapping[BrokerId, BrokerEnd]:
    """Return why brokers ended that have not registered since; skip what is unreadable."""
    ids = [int(name) for name in zookeeper.children(BrokerEndsZNode.PATH) or () if name.isdecimal()]
    found: dict[BrokerId, BrokerEnd] = {}
    for broker_id, node in zip(
        sorted(ids),
        zookeeper.get_many([BrokerEndZNode.path(i) for i in sorted(ids)]),
        strict=True,
    ):
        if node is not None:
            try:
                found[broker_id] = BrokerEndZNode.decode(node.data)
            except BadDataError:
                continue
    return found
