"""The nodes of the fake ZooKeeper, and multis of operations on them.

Mirrors ``PrepRequestProcessor`` and ``DataTree`` of the real server: the error of each operation,
the sequence in which conditions are checked, the numbers of sequential nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    ZkError,
    Znode,
    ZnodeStat,
)

Result: TypeAlias = str | ZnodeStat | None
Undo: TypeAlias = list[Callable[[], None]]


@dataclass(slots=True)
class Node:
    """A node; ``pzxid`` is the zxid of the last creation or deletion of a child."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ephemeral_owner: int = 0
    ctime_ms: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    children_ever_created: int = 0

    def as_read(self) -> Znode:
        """Return the node as a reader gets it."""
        return Znode(
            self.data,
            ZnodeStat(self.czxid, self.mzxid, self.ctime_ms, self.version, self.ephemeral_owner),
        )


class Origin(NamedTuple):
    """The values that all changes of a transaction share."""

    zxid: int
    session_id: int
    now_ms: int


class Applied(NamedTuple):
    """A multi that was applied: results, and the operations with their final paths."""

    results: tuple[Result, ...]
    operations: tuple[Operation, ...]


class _RefusedError(Exception):
    def __init__(self, error: ZkError) -> None:
        self.error = error


class DataTree:
    """The nodes by path."""

    def __init__(self) -> None:
        self.nodes = {"/": Node(b"", czxid=0, mzxid=0, pzxid=0)}

    def apply(
        self,
        operations: Sequence[Operation],
        origin: Origin,
        read_only: Collection[str] = (),
    ) -> Applied | Refused:
        """Apply all operations or none; ``read_only`` nodes and their children cannot change."""
        undo: Undo = []
        results: list[Result] = []
        applied: list[Operation] = []
        for index, operation in enumerate(operations):
            try:
                self._check_rights(operation, read_only)
                result, final = self._apply_one(operation, origin, undo)
            except _RefusedError as refused:
                for step in reversed(undo):
                    step()
                return Refused(index, refused.error)
            results.append(result)
            applied.append(final)
        return Applied(tuple(results), tuple(applied))

    def _check_rights(self, operation: Operation, read_only: Collection[str]) -> None:
        if not read_only or isinstance(operation, Check):
            return
        path = operation.path
        changed = path if isinstance(operation, SetData) else parent_of(path)
        self._find(changed)
        if changed in read_only:
            raise _RefusedError(ZkError.NO_AUTH)

    def _apply_one(
        self, operation: Operation, origin: Origin, undo: Undo
    ) -> tuple[Result, Operation]:
        match operation:
            case Create():
                path = self._create(operation, origin, undo)
                return path, replace(operation, path=path)
            case SetData():
                return self._set_data(operation, origin, undo), operation
            case Delete():
                self._delete(operation, origin, undo)
            case Check(path, version):
                self._find(path, version)
        return None, operation

    def _create(self, operation: Create, origin: Origin, undo: Undo) -> str:
        check_path(operation.path)
        parent = self._find(parent_of(operation.path))
        path = operation.path
        if operation.sequential:
            path = f"{path}{parent.children_ever_created:010d}"
        if path in self.nodes:
            raise _RefusedError(ZkError.NODE_EXISTS)
        if parent.ephemeral_owner:
            raise _RefusedError(ZkError.NO_CHILDREN_FOR_EPHEMERALS)
        zxid, owner, now_ms = origin
        owner = owner if operation.ephemeral else 0
        self._link(path, Node(operation.data, zxid, zxid, zxid, owner, now_ms))
        pzxid, parent.pzxid = parent.pzxid, zxid
        parent.children_ever_created += 1

        def uncreate() -> None:
            self._unlink(path)
            parent.pzxid = pzxid
            parent.children_ever_created -= 1

        undo.append(uncreate)
        return path

    def _set_data(self, operation: SetData, origin: Origin, undo: Undo) -> ZnodeStat:
        node = self._find(operation.path, operation.version)
        before = node.data, node.mzxid, node.version
        node.data, node.mzxid, node.version = operation.data, origin.zxid, node.version + 1

        def unset() -> None:
            node.data, node.mzxid, node.version = before

        undo.append(unset)
        return node.as_read().stat

    def _delete(self, operation: Delete, origin: Origin, undo: Undo) -> None:
        node = self._find(operation.path, operation.version)
        if node.children:
            raise _RefusedError(ZkError.NOT_EMPTY)
        parent = self._find(parent_of(operation.path))
        self._unlink(operation.path)
        pzxid, parent.pzxid = parent.pzxid, origin.zxid

        def undelete() -> None:
            self._link(operation.path, node)
            parent.pzxid = pzxid

        undo.append(undelete)

    def _find(self, path: str, version: int = ANY_VERSION) -> Node:
        check_path(path)
        node = self.nodes.get(path)
        if node is None:
            raise _RefusedError(ZkError.NO_NODE)
        if version not in (ANY_VERSION, node.version):
            raise _RefusedError(ZkError.BAD_VERSION)
        return node

    def _link(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self.nodes[parent_of(path)].children.add(name_of(path))

    def _unlink(self, path: str) -> None:
        del self.nodes[path]
        self.nodes[parent_of(path)].children.discard(name_of(path))


@lru_cache(maxsize=10_000)
def check_path(path: str) -> None:
    """Raise ValueError for a path that the real client would not send."""
    absolute = path.startswith("/") and not path.endswith("/")
    if path != "/" and (not absolute or {"", ".", ".."} & set(path[1:].split("/"))):
        raise ValueError(f"not a znode path: {path!r}")


def parent_of(path: str) -> str:
    """Return the path of the parent."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Return the last component."""
    return path.rpartition("/")[2]
