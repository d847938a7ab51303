"""Sessions with watches, for the fake ZooKeeper and for a real server."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import TypeAlias

from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl

from regent.testing.waits import scaled
from regent.zk.client.operations import Committed, Create, Operation, WatchEvent, WatchKind, Znode
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

SESSION_TIMEOUT_MS = 10_000
EVENT_TIMEOUT_S = scaled(10.0)
FENCES = "/fences"


Connect: TypeAlias = Callable[[Callable[[WatchEvent], None]], ZooKeeperClient | FakeZooKeeper]


class WatchingSession:
    """A session and its events."""

    def __init__(self, connect: Connect) -> None:
        self._events: queue.SimpleQueue[WatchEvent] = queue.SimpleQueue()
        self._fences = itertools.count()
        self.zk = connect(self._events.put)

    def events(self) -> list[WatchEvent]:
        """Return all events since the last call.

        Events come in the sequence of the changes: an event of a change made now is the last.
        """
        fence = f"{FENCES}/{self.zk.session_id}-{next(self._fences)}"
        assert self.zk.get(fence, watch=True) is None
        apply(self.zk, Create(fence))
        last = WatchEvent(WatchKind.CREATED, fence)
        return list(iter(lambda: self._events.get(timeout=EVENT_TIMEOUT_S), last))


class Ensemble:
    """A ZooKeeper to open sessions with; ``close`` ends them all."""

    def __init__(
        self, connect: Connect, deny: Callable[[str], None], deny_writing: Callable[[str], None]
    ) -> None:
        self.deny = deny
        """Deny reads of a node."""
        self.deny_writing = deny_writing
        """Deny changes of a node's data, and the creation and deletion of its children."""
        self._connect = connect
        self._sessions: list[WatchingSession] = []
        apply(self.open_session().zk, Create(FENCES))

    def open_session(self) -> WatchingSession:
        """Open a session."""
        session = WatchingSession(self._connect)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.zk.close()


def fake_ensemble() -> Ensemble:
    """Return a fake ensemble."""
    server = FakeZooKeeperServer()
    return _ensemble_of(server)


def lagging_ensemble() -> Ensemble:
    """Return a fake ensemble whose sessions see others' writes after a write of their own."""
    server = FakeZooKeeperServer()
    follower = server.add_follower(lag=1_000_000)
    server.connect_to = lambda: follower
    return _ensemble_of(server)


def _ensemble_of(server: FakeZooKeeperServer) -> Ensemble:
    return Ensemble(
        lambda on_watch: FakeZooKeeper(server, on_watch), server.deny, server.deny_writing
    )


def real_ensemble(address: str) -> Ensemble:
    """Return a real ensemble; ``address`` must name a chroot of its own."""

    def connect(on_watch: Callable[[WatchEvent], None]) -> ZooKeeperClient:
        client = ZooKeeperClient(address, SESSION_TIMEOUT_MS, on_watch=on_watch)
        client.start(scaled(10.0))
        return client

    return Ensemble(
        connect,
        lambda path: deny_reading(address, path),
        lambda path: deny_writing(address, path),
    )


def deny_reading(address: str, path: str, *, allow: bool = False) -> None:
    """Set an ACL that denies reads, or allow them again; no watch fires.

    The node can still be written and deleted.
    """
    anyone = make_acl(
        "world", "anyone", read=allow, write=True, create=True, delete=True, admin=True
    )
    _set_acl(address, path, anyone)


def deny_writing(address: str, path: str, *, allow: bool = False) -> None:
    """Set an ACL that denies changes of a node and its children, or allow them again."""
    anyone = make_acl(
        "world", "anyone", read=True, write=allow, create=allow, delete=allow, admin=True
    )
    _set_acl(address, path, anyone)


def _set_acl(address: str, path: str, acl: ACL) -> None:
    client = KazooClient(address)
    client.start()
    try:
        client.set_acls(path, [acl])
    finally:
        client.stop()
        client.close()


def apply(zk: ZooKeeper, *operations: Operation) -> Committed:
    """Apply operations that must succeed."""
    result = zk.multi(operations)
    assert isinstance(result, Committed), result
    return result


def read(zk: ZooKeeper, path: str) -> Znode:
    """Read a node that exists."""
    node = zk.get(path)
    assert node is not None
    return node


def created(path: str) -> WatchEvent:
    """Return the event of a creation."""
    return WatchEvent(WatchKind.CREATED, path)


def changed(path: str) -> WatchEvent:
    """Return the event of a change of data."""
    return WatchEvent(WatchKind.CHANGED, path)


def deleted(path: str) -> WatchEvent:
    """Return the event of a deletion."""
    return WatchEvent(WatchKind.DELETED, path)


def children_changed(path: str) -> WatchEvent:
    """Return the event of children that were created or deleted."""
    return WatchEvent(WatchKind.CHILDREN, path)
