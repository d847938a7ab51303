"""The watches of the fake ZooKeeper: each fires once, for its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from regent.zk.client.operations import (
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    WatchEvent,
    WatchKind,
)
from tests.support.data_tree import Node, parent_of


class _Table:
    """Watches of one kind: a path's sessions, in the sequence in which they set theirs.

    Each stores whether the node existed then, as clients do for SetWatches.
    """

    def __init__(self) -> None:
        self._armed: dict[str, dict[int, bool]] = {}

    def arm(self, path: str, session_id: int, *, existed: bool) -> None:
        self._armed.setdefault(path, {}).setdefault(session_id, existed)

    def disarm(self, path: str, session_id: int) -> None:
        sessions = self._armed.get(path, {})
        sessions.pop(session_id, None)
        if not sessions:
            self._armed.pop(path, None)

    def sessions(self, path: str) -> Iterable[int]:
        return self._armed.get(path, ())

    def of_session(self, session_id: int) -> dict[str, bool]:
        return {path: ids[session_id] for path, ids in self._armed.items() if session_id in ids}


class Watches:
    """The watches of all sessions; a watch that fires is removed."""

    def __init__(self) -> None:
        self._data = _Table()
        self._children = _Table()

    def arm_data(self, path: str, session_id: int, *, existed: bool) -> None:
        """Set a watch on a node: on its creation if it does not exist."""
        self._data.arm(path, session_id, existed=existed)

    def arm_children(self, path: str, session_id: int) -> None:
        """Set a watch on the children of an existing node."""
        self._children.arm(path, session_id, existed=True)

    def of_session(self, session_id: int) -> set[str]:
        """Return the paths a session watches."""
        return {*self._data.of_session(session_id), *self._children.of_session(session_id)}

    def drop(self, session_id: int, paths: Iterable[str] | None = None) -> None:
        """Drop a session's watches on ``paths``, or all."""
        for table in (self._data, self._children):
            for path in table.of_session(session_id) if paths is None else paths:
                table.disarm(path, session_id)

    def move(self, session_id: int, other: Watches) -> None:
        """Move the watches of a session to another server."""
        if other is self:
            return
        for mine, table in ((self._data, other._data), (self._children, other._children)):
            for path, existed in mine.of_session(session_id).items():
                table.arm(path, session_id, existed=existed)
        self.drop(session_id)

    def fire(
        self, operation: Operation, is_connected: Callable[[int], bool]
    ) -> Iterator[tuple[int, WatchEvent]]:
        """Yield (session id, event) for an operation; a disconnected session keeps its watch."""
        path = operation.path
        fired: list[tuple[WatchEvent, tuple[_Table, ...]]] = []
        match operation:
            case Create():
                fired.append((WatchEvent(WatchKind.CREATED, path), (self._data,)))
            case SetData():
                fired.append((WatchEvent(WatchKind.CHANGED, path), (self._data,)))
            case Delete():
                fired.append((WatchEvent(WatchKind.DELETED, path), (self._data, self._children)))
            case Check():
                pass
        if isinstance(operation, Create | Delete):
            children_changed = WatchEvent(WatchKind.CHILDREN, parent_of(path))
            fired.append((children_changed, (self._children,)))
        for event, tables in fired:
            # A session with both kinds of watches on a deleted node gets one event.
            armed = dict.fromkeys(s for table in tables for s in table.sessions(event.path))
            for session_id in filter(is_connected, armed):
                for table in tables:
                    table.disarm(event.path, session_id)
                yield session_id, event

    def fire_missed(
        self, session_id: int, since: int, nodes: Mapping[str, Node]
    ) -> Iterator[WatchEvent]:
        """Yield a session's events for changes after zxid ``since``, as SetWatches does."""
        for path, existed in self._data.of_session(session_id).items():
            node = nodes.get(path)
            if node is None and existed:
                self._children.disarm(path, session_id)
                kind = WatchKind.DELETED
            elif node is not None and not existed:
                kind = WatchKind.CREATED
            elif node is not None and node.mzxid > since:
                kind = WatchKind.CHANGED
            else:
                continue
            self._data.disarm(path, session_id)
            yield WatchEvent(kind, path)
        for path in self._children.of_session(session_id):
            node = nodes.get(path)
            if node is None or node.pzxid > since:
                self._children.disarm(path, session_id)
                yield WatchEvent(WatchKind.CHILDREN if node else WatchKind.DELETED, path)
