"""An in-memory ZooKeeper with deterministic behaviour and faults set by tests.

``FakeZooKeeperServer`` is the ensemble and ``FakeZooKeeper`` one session with it, an implementation
of ``zk.client.zookeeper.ZooKeeper`` that passes the contract tests of the real client. The test
controls time, sessions and the delivery of events; session ids and zxids count from
1.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from regent.core.errors import SessionExpiredError, UnreadableError
from regent.zk.client.operations import (
    ANY_VERSION,
    AclEntry,
    Committed,
    ConnectionLossError,
    Create,
    Delete,
    MultiResult,
    Operation,
    Permission,
    Refused,
    SetData,
    UnreadableZnode,
    WatchEvent,
    Znode,
    why_unreadable,
)
from regent.zk.client.requests import MAX_REQUEST_BYTES, RequestTooLargeError
from regent.zk.client.zookeeper import ZooKeeper
from tests.support.data_tree import Applied, DataTree, Node, Origin, check_path
from tests.support.zookeeper_replica import Replica, Transaction

MAX_READ_ATTEMPTS = 100
MAX_RECONNECT_WAIT_S = 10.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SavedData(NamedTuple):
    """The data of a server, as in a copy of its directory."""

    tree: DataTree
    zxid: int


class Moment(Enum):
    """When a hook is called during a call."""

    BEFORE = "before"  # nothing has reached the server
    BETWEEN = "between"  # two nodes of a bulk read, or two multis of multi_many
    AFTER = "after"  # everything is done, but the caller does not know it yet


class Call(NamedTuple):
    """The call that a hook interrupts, with all its paths."""

    moment: Moment
    method: str
    paths: tuple[str, ...]


Hook: TypeAlias = Callable[[Call], None]
"""Interrupts a call: it runs in the caller's thread, without a lock, and may

* raise an exception of the simulation: the caller crashes here, applied changes stay;
* raise ``ConnectionLossError``: BEFORE a write the request is lost, AFTER it the reply, BETWEEN two
  multis the rest of the pipeline; a read is repeated, as by the real client;
* do anything else (expire the session, let other sessions act, advance the
  clock) and return: the call goes on, as after a long pause of the process.
"""


class _ReadOne(Protocol[T_co]):
    def __call__(self, session_id: int, path: str, *, watch: bool) -> T_co | None: ...


@dataclass(slots=True)
class _Session:
    session_id: int
    on_watch: Callable[[WatchEvent], None]
    server: Replica
    alive: bool = True
    connected: bool = True
    zxid_at_disconnect: int = 0
    newest_zxid: int = 0  # that it has seen


class FakeZooKeeperServer:
    """An ensemble without faults of its own; sessions may use it from several threads.

    It has one server, and those that ``add_follower`` adds. A session reads from the server it is
    connected to; ``connect_to`` chooses one when a session begins and when it is connected again.
    Its writes, and ``sync``, bring that server up to date, so a session sees its own writes.

    ``now_ms`` gives the ctime of nodes. Every event is passed to ``deliver`` as a function to call:
    in the sequence of the transactions and, within one, in the sequence in which watches were set.
    By default it is called at once, outside the lock, before the change returns.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: 0,
        deliver: Callable[[Callable[[], None]], None] = lambda tell: tell(),
    ) -> None:
        self.transactions: list[Transaction] = []
        self.max_request_bytes = MAX_REQUEST_BYTES
        self.connect_to: Callable[[], Replica] = lambda: self.leader
        self.leader = Replica()
        self._followers: list[Replica] = []
        self._now_ms = now_ms
        self._deliver = deliver
        self._sessions: dict[int, _Session] = {}
        self._events: deque[tuple[_Session, WatchEvent]] = deque()
        self._delivering = False
        self._changed = threading.Condition()
        self.paths_with_lost_events: set[str] = set()  # denied paths of which an event was lost
        self._denied: set[str] = set()
        self._read_only: set[str] = set()
        self.denials = 0  # how often access to a node was denied

    @property
    def zxid(self) -> int:
        """The id of the newest transaction."""
        return self.leader.zxid

    # --- for tests --------------------------------------------------------------------------------

    def add_follower(self, lag: int) -> Replica:
        """Add a server that is ``lag`` transactions behind, unless a session needs newer ones."""
        with self._changed:
            follower = Replica(lag)
            follower.copy_data(self.leader)
            self._followers.append(follower)
            return follower

    def catch_up(self) -> None:
        """Let every server apply all transactions."""
        with self._changed:
            for follower in self._followers:
                self._bring_up(follower)
        self._deliver_events()

    def expire(self, session_id: int) -> None:
        """End a session: its ephemeral nodes vanish in one transaction, its watches are void.

        Its owner learns this from its next call, or after ``reconnect`` if disconnected.
        """
        with self._changed:
            session = self._sessions[session_id]
            if not session.alive:
                return
            session.alive = False
            session.server.watches.drop(session_id)
            ephemerals = [
                Delete(path, node.version)
                for path, node in self.leader.tree.nodes.items()
                if node.ephemeral_owner == session_id
            ]
            self._commit(session_id, ephemerals, ends_session=True)
        self._deliver_events()

    def disconnect(self, session_id: int) -> None:
        """Cut a session's connection: its writes raise ``ConnectionLossError``, its reads wait."""
        with self._changed:
            session = self._sessions[session_id]
            if session.connected:  # what it sees before the disconnection counts as seen
                session.connected = False
                session.zxid_at_disconnect = session.server.zxid

    def reconnect(self, session_id: int) -> None:
        """Restore a session's connection; its watches fire for missed changes (SetWatches).

        A server that is behind the session catches up first.
        """
        with self._changed:
            session = self._sessions[session_id]
            if not session.connected:
                session.connected = True
                before, server = session.server, self.connect_to()
                since = session.zxid_at_disconnect
                # An expired session may have seen transactions of data that are gone.
                while server.zxid < since and session.alive:
                    self._follow_one(server)
                before.watches.move(session_id, server.watches)
                session.server = server
                for event in server.watches.fire_missed(session_id, since, server.tree.nodes):
                    self._events.append((session, event))
            self._changed.notify_all()
        self._deliver_events()

    def put(self, path: str, data: bytes = b"", *, is_sequential: bool = False) -> None:
        """Create or replace a persistent node, with its parents, as a tool does."""
        check_path(path)
        with self._changed:
            parts = path.split("/")
            ancestors = ["/".join(parts[:end]) for end in range(2, len(parts))]
            nodes = self.leader.tree.nodes
            operations: list[Operation] = [
                *(Create(ancestor) for ancestor in ancestors if ancestor not in nodes),
                SetData(path, data, ANY_VERSION)
                if path in nodes
                else Create(path, data, sequential=is_sequential),
            ]
            result = self._commit(0, operations)
        assert isinstance(result, Committed), result
        self._deliver_events()

    def remove(self, path: str) -> None:
        """Delete a node if it exists, as a tool does."""
        with self._changed:
            self._commit(0, [Delete(path, ANY_VERSION)])
        self._deliver_events()

    def deny(self, path: str) -> None:
        """Deny reads of a node's data and children, as by an ACL; fires no watch."""
        with self._changed:
            self._denied.add(path)
            self.denials += 1

    def deny_writing(self, path: str) -> None:
        """Deny changes of a node and its children, as by an ACL; fires no watch."""
        with self._changed:
            self._read_only.add(path)
            self.denials += 1

    def is_denied(self, path: str) -> bool:
        """Whether reads or writes of a node are denied."""
        with self._changed:
            return path in self._denied or path in self._read_only

    def allow(self, path: str) -> None:
        """End the denials of a node; fires no watch."""
        with self._changed:
            self._allow(path)

    def expire_all(self) -> None:
        """End every session, as after a long outage."""
        for session_id in [i for i, session in self._sessions.items() if session.alive]:
            self.expire(session_id)

    def save(self) -> SavedData:
        """Copy all data."""
        with self._changed:
            return SavedData(deepcopy(self.leader.tree), self.zxid)

    def replace(self, data: SavedData | None) -> None:
        """Continue with a copy, or without data; it knows no session, and no watch fires."""
        with self._changed:
            assert not any(session.alive for session in self._sessions.values())
            self.leader.tree = DataTree() if data is None else deepcopy(data.tree)
            self.leader.zxid = 0 if data is None else data.zxid
            for follower in self._followers:
                follower.copy_data(self.leader)

    def snapshot(self) -> dict[str, Znode]:
        """Return every node but the root, by path, sorted."""
        with self._changed:
            nodes = sorted(self.leader.tree.nodes.items())
            return {path: node.as_read() for path, node in nodes if path != "/"}

    def node(self, path: str) -> Znode | None:
        """Return one node, None if absent; no session is affected."""
        with self._changed:
            node = self.leader.tree.nodes.get(path)
            return None if node is None else node.as_read()

    def children_of(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted; no session is affected."""
        with self._changed:
            node = self.leader.tree.nodes.get(path)
            return [] if node is None else sorted(node.children)

    def watched(self, session_id: int) -> set[str]:
        """Return the paths a session watches."""
        with self._changed:
            return self._sessions[session_id].server.watches.of_session(session_id)

    # --- for sessions -----------------------------------------------------------------------------

    def open_session(self, on_watch: Callable[[WatchEvent], None]) -> int:
        """Return the id of a new session: a transaction, so that its server is up to date."""
        with self._changed:
            session_id = len(self._sessions) + 1
            server = self.connect_to()
            self._bring_up(server)
            self._sessions[session_id] = _Session(session_id, on_watch, server)
        self._deliver_events()
        return session_id

    def read_data(self, session_id: int, path: str, *, watch: bool) -> Znode | None:
        """Return a node, None if absent; the watch is set in both cases."""
        with self._changed:
            node = self._read(session_id, path)
            if watch:
                watches = self._sessions[session_id].server.watches
                watches.arm_data(path, session_id, existed=node is not None)
            if node and path in self._denied:
                return UnreadableZnode.because(why_unreadable(path, "NO_AUTH"))
            return node.as_read() if node else None

    def read_children(self, session_id: int, path: str, *, watch: bool) -> list[str] | None:
        """Return a node's children, None if absent; then no watch is set."""
        with self._changed:
            node = self._read(session_id, path)
            if node and path in self._denied:
                raise UnreadableError(why_unreadable(path, "NO_AUTH"))
            if node and watch:
                self._sessions[session_id].server.watches.arm_children(path, session_id)
            return sorted(node.children) if node else None

    def read_acl(self, session_id: int, path: str, *, watch: bool) -> tuple[AclEntry, ...] | None:
        """Return a node's ACL, None if absent; ``watch`` has no effect."""
        del watch
        with self._changed:
            if self._read(session_id, path) is None:
                return None
            permissions = ~Permission(0)
            if path in self._denied:
                permissions &= ~Permission.READ
            if path in self._read_only:
                permissions &= Permission.READ | Permission.ADMIN
            return (AclEntry(permissions, "world", "anyone"),)

    def write(self, session_id: int, operations: Sequence[Operation]) -> MultiResult:
        """Apply a multi."""
        with self._changed:
            self._require(session_id)
            result = self._commit(session_id, operations)
            self._bring_up(self._sessions[session_id].server)  # even if it is refused
            self._sessions[session_id].newest_zxid = self.zxid
        self._deliver_events()
        return result

    def sync(self, session_id: int) -> None:
        """Bring the server of a session up to date."""
        with self._changed:
            self._require(session_id)
            self._bring_up(self._sessions[session_id].server)
            self._sessions[session_id].newest_zxid = self.zxid
        self._deliver_events()

    def is_behind(self, session_id: int) -> bool:
        """Whether the server of a session lacks the newest transaction."""
        return self._sessions[session_id].server.applied < self.leader.applied

    def newest_zxid(self, session_id: int) -> int:
        """Return the newest transaction that a session has seen."""
        return self._sessions[session_id].newest_zxid

    def unwatch(self, session_id: int, paths: Sequence[str]) -> None:
        """Drop a session's watches on paths."""
        with self._changed:
            self._sessions[session_id].server.watches.drop(session_id, paths)

    def is_connected(self, session_id: int, *, within_s: float = 0.0) -> bool:
        """Whether a session is connected, or becomes connected in time."""
        with self._changed:
            return self._changed.wait_for(partial(self._is_connected, session_id), within_s)

    def is_alive(self, session_id: int) -> bool:
        """Whether a session is valid."""
        return self._sessions[session_id].alive

    def check_alive(self, session_id: int) -> None:
        """Raise ``SessionExpiredError`` if a session has expired."""
        if not self._sessions[session_id].alive:
            raise SessionExpiredError(f"session {session_id} has expired")

    # --- under the lock ---------------------------------------------------------------------------

    def _require(self, session_id: int) -> None:
        if not self._sessions[session_id].connected:
            raise ConnectionLossError(f"session {session_id} is disconnected")
        self.check_alive(session_id)
        session = self._sessions[session_id]
        session.newest_zxid = session.server.zxid

    def _read(self, session_id: int, path: str) -> Node | None:
        check_path(path)
        self._require(session_id)
        return self._sessions[session_id].server.tree.nodes.get(path)

    def _commit(
        self, session_id: int, operations: Sequence[Operation], *, ends_session: bool = False
    ) -> MultiResult:
        origin = Origin(self.zxid + 1, session_id, self._now_ms())
        read_only = self._read_only if session_id else ()  # tools have all rights
        match self.leader.tree.apply(operations, origin, read_only):
            case Refused() as refused:
                return refused
            case Applied(results, applied):
                transaction = Transaction(
                    origin.zxid, session_id, applied, ends_session, origin.now_ms
                )
                self.transactions.append(transaction)
                self.leader.zxid, self.leader.applied = origin.zxid, self.leader.applied + 1
                self._fire(self.leader, transaction)
                for follower in self._followers:
                    self._bring_up(follower, follower.lag)
                return Committed(results)

    def _bring_up(self, server: Replica, lag: int = 0) -> None:
        """Let a server be at most ``lag`` transactions behind."""
        while server.applied < len(self.transactions) - lag:
            self._follow_one(server)

    def _follow_one(self, server: Replica) -> None:
        transaction = self.transactions[server.applied]
        server.follow(transaction)
        self._fire(server, transaction)

    def _fire(self, server: Replica, transaction: Transaction) -> None:
        for operation in transaction.operations:
            for watcher, event in server.watches.fire(operation, self._is_connected):
                if event.path not in self._denied:
                    self._events.append((self._sessions[watcher], event))
                else:  # no event for a denied node
                    self.paths_with_lost_events.add(event.path)
            if isinstance(operation, Delete):
                self._allow(operation.path)

    def _allow(self, path: str) -> None:
        for denied in (self._denied, self._read_only, self.paths_with_lost_events):
            denied.discard(path)

    def _is_connected(self, session_id: int) -> bool:
        return self._sessions[session_id].connected

    # --- outside the lock -------------------------------------------------------------------------

    def _deliver_events(self) -> None:
        """Deliver all events in sequence, in one thread at a time; others leave theirs to it."""
        while True:
            with self._changed:
                if self._delivering or not self._events:
                    return
                self._delivering = True
                session, event = self._events.popleft()
            try:
                self._deliver(partial(_tell, session, event))
            finally:
                self._delivering = False


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data)


def _tell(session: _Session, event: WatchEvent) -> None:
    if session.alive:
        session.on_watch(event)


def once(
    moment: Moment,
    act: Callable[[], object],
    *,
    method: str = "multi",
    path: str | None = None,
    times: int = 1,
) -> Hook:
    """Return a hook that acts at the first such moment, or several ``times``.

    It acts in calls whose method begins with ``method`` and whose paths include ``path``.
    """
    pending = [act] * times

    def hook(call: Call) -> None:
        is_call = call.method.startswith(method) and (path is None or path in call.paths)
        if pending and is_call and call.moment is moment:
            pending.pop()()

    return hook


def act_once(
    zookeeper: FakeZooKeeper,
    act: Callable[[], object],
    *,
    moment: Moment = Moment.BEFORE,
    method: str = "",
    path: str | None = None,
) -> None:
    """Hook ``act`` into the next call, or the next one of this method or with this path."""
    zookeeper.hook = once(moment, act, method=method, path=path)


def lose_connection() -> None:
    """Lose the request before a call, and the response after it."""
    raise ConnectionLossError("lost")


class FakeZooKeeper(ZooKeeper):
    """One session with a ``FakeZooKeeperServer``: its operations are those of the real client.

    ``hook`` is called at every moment of every call except ``unwatch`` and ``wait_connected``.
    ``wait`` is called repeatedly while a read waits for the connection: it must return when
    something may have changed. By default it waits for another thread to reconnect the session
    and raises ``SessionExpiredError`` after ``MAX_RECONNECT_WAIT_S``.
    """

    def __init__(
        self,
        server: FakeZooKeeperServer,
        on_watch: Callable[[WatchEvent], None] = lambda event: None,
        *,
        hook: Hook | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.server = server
        self.hook = hook
        self.wait = wait or self._wait_for_another_thread
        self._session_id = server.open_session(on_watch)

    @property
    def session_id(self) -> int:
        """The id of the session."""
        return self._session_id

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish."""
        self.server.expire(self._session_id)

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Read one node."""
        return self._read("get", [path], self.server.read_data, watch=watch)[0]

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """Read many nodes, each at its own moment."""
        return self._read("get_many", paths, self.server.read_data, watch=watch)

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """List children."""
        return self._read("children", [path], self.server.read_children, watch=watch)[0]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """List the children of many nodes."""
        return self._read("children_many", paths, self._children_if_shown, watch=False)

    def _children_if_shown(self, session_id: int, path: str, *, watch: bool) -> list[str] | None:
        with suppress(UnreadableError):
            return self.server.read_children(session_id, path, watch=watch)
        return None

    def acls_many(self, paths: Sequence[str]) -> list[tuple[AclEntry, ...] | None]:
        """Read ACLs: that of a node is open, but for what ``deny`` and ``deny_writing`` take."""
        return self._read("acls_many", paths, self.server.read_acl, watch=False)

    def sync(self) -> None:
        """Let later reads see all earlier writes."""
        self._read("sync", ["/"], self._sync, watch=False)

    def _sync(self, session_id: int, path: str, *, watch: bool) -> None:
        self.server.sync(session_id)

    @property
    def newest_zxid(self) -> int:
        """The newest transaction that this session has seen."""
        return self.server.newest_zxid(self._session_id)

    @property
    def is_behind(self) -> bool:
        """Whether this session may read old data now."""
        return self.server.is_behind(self._session_id)

    def latest_zxid(self) -> int:
        """Return the zxid of the newest transaction of the session's server."""
        self.get("/")
        return self.newest_zxid

    @property
    def max_request_bytes(self) -> int:
        """The largest request that the server accepts."""
        return self.server.max_request_bytes

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Apply all operations or none; raises ``RequestTooLargeError``."""
        return self._write("multi", [operations])[0]

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """Apply several multis in order."""
        return self._write("multi_many", batches)

    def wait_connected(self) -> None:
        """Return when connected; raise ``SessionExpiredError`` if the session has expired."""
        while not self.server.is_connected(self._session_id):
            self.wait()
        self.server.check_alive(self._session_id)

    def unwatch(self, paths: Sequence[str]) -> None:
        """Drop the watches on these paths."""
        self.server.unwatch(self._session_id, paths)

    def _read(
        self, method: str, paths: Sequence[str], read: _ReadOne[T], *, watch: bool
    ) -> list[T | None]:
        for _ in range(MAX_READ_ATTEMPTS):
            try:
                return self._call(
                    method,
                    paths,
                    [partial(read, self._session_id, path, watch=watch) for path in paths],
                )
            except ConnectionLossError:
                self.wait_connected()
        # The client repeats a read until its session ends, and then an event follows.
        self.server.expire(self._session_id)
        raise SessionExpiredError(f"session {self._session_id} ended before a read was finished")

    def _write(self, method: str, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        for batch in batches:
            if (size := sum(map(_size, batch))) > self.max_request_bytes:
                raise RequestTooLargeError(f"a multi has {size} bytes")
        return self._call(
            method,
            [operation.path for batch in batches for operation in batch],
            [partial(self.server.write, self._session_id, batch) for batch in batches],
        )

    def _call(self, method: str, paths: Sequence[str], steps: Sequence[Callable[[], T]]) -> list[T]:
        hook = self.hook
        if hook is None:
            return [step() for step in steps]
        named = tuple(paths)
        results: list[T] = []
        hook(Call(Moment.BEFORE, method, named))
        for step in steps:
            if results:
                hook(Call(Moment.BETWEEN, method, named))
            results.append(step())
        hook(Call(Moment.AFTER, method, named))
        return results

    def _wait_for_another_thread(self) -> None:
        if not self.server.is_connected(self._session_id, within_s=MAX_RECONNECT_WAIT_S):
            raise SessionExpiredError(f"session {self._session_id} was never reconnected")
