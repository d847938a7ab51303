"""One server of a fake ensemble: its data are those of some transaction, perhaps an old one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from regent.zk.client.operations import Create, Operation
from tests.support.data_tree import Applied, DataTree, Origin
from tests.support.watches import Watches


class Transaction(NamedTuple):
    """An applied change of the tree.

    ``operations`` are as applied: a sequential Create has its final path. The end of a session is
    one transaction that deletes its ephemeral nodes. ``put`` has session id 0.
    """

    zxid: int
    session_id: int
    operations: tuple[Operation, ...]
    ends_session: bool = False
    now_ms: int = 0


@dataclass(slots=True, eq=False)
class Replica:
    """The data of the leader or of a follower, with the watches of the sessions connected there.

    A follower is never more than ``lag`` transactions behind.
    """

    lag: int = 0
    tree: DataTree = field(default_factory=DataTree)
    watches: Watches = field(default_factory=Watches)
    zxid: int = 0
    applied: int = 0  # of all transactions

    def follow(self, transaction: Transaction) -> None:
        """Apply what the leader has applied."""
        zxid, session_id, operations, _, now_ms = transaction
        named = [_as_named(operation) for operation in operations]
        applied = self.tree.apply(named, Origin(zxid, session_id, now_ms))
        assert isinstance(applied, Applied), f"{transaction}: {applied}"
        self.zxid = zxid
        self.applied += 1

    def copy_data(self, leader: Replica) -> None:
        """Copy the leader's data."""
        self.tree, self.zxid, self.applied = deepcopy(leader.tree), leader.zxid, leader.applied


def _as_named(operation: Operation) -> Operation:
    if isinstance(operation, Create) and operation.sequential:
        return replace(operation, sequential=False)
    return operation
