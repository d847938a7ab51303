"""ZooKeeper as ``ZkClient`` gave it to Kafka 0.8: listeners on paths, one operation at a time.

A watch fires once. The event thread reads the path again, which sets the next watch, and passes
what it read to every listener of the path. So a session has one watch on a path, however many
listeners wait for it; ``Counts`` tells both. When a session expires, the next operation begins
another one and is repeated in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pykka import ActorDeadError, ActorRef

from regent.core.errors import SessionExpiredError
from regent.designs.pooled_actor import Dispatcher, PooledActor
from regent.zk.client.operations import (
    ANY_VERSION,
    Committed,
    ConnectionLossError,
    Create,
    Delete,
    MultiResult,
    Operation,
    SetData,
    WatchEvent,
    Znode,
)
from regent.zk.client.zookeeper import ZooKeeper

T = TypeVar("T")


class DataChanged(NamedTuple):
    """A node was created, changed or deleted; ``znode`` is what it is now, None without it."""

    path: str
    znode: Znode | None


class ChildrenChanged(NamedTuple):
    """Children of a node were created or deleted; ``names`` are those it has now."""

    path: str
    names: frozenset[str]


class SessionBegan(NamedTuple):
    """The former session expired, and its ephemeral nodes are gone."""


Change: TypeAlias = DataChanged | ChildrenChanged
Listener: TypeAlias = ActorRef[Any]
Connect: TypeAlias = Callable[[Callable[[WatchEvent], None], Callable[[], None]], ZooKeeper]
"""Begins a session. Its arguments are to be called with every watch event, and at its end."""


@dataclass(slots=True)
class Counts:
    """What one broker asked of ZooKeeper, and what ZooKeeper told it; each since its start."""

    reads: int = 0
    writes: int = 0
    watches_set: int = 0
    watches_fired: int = 0
    listeners_called: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **more: int) -> None:
        """Add to the counts of these names; any thread may call it."""
        with self._lock:
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)


class WatchedZooKeeper:
    """Sessions with listeners, one after the other.

    Calls block until ZooKeeper answers; any actor may make them. They are repeated after a lost
    connection and in the next session, whatever has happened meanwhile, as ``ZkClient`` repeats
    them: only ``set`` with a version, ``create`` and ``delete`` notice it.
    """

    def __init__(self, dispatcher: Dispatcher, connect: Connect) -> None:
        self.counts = Counts()
        self._connect = connect
        self._connecting = threading.Lock()
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[Listener, None]] = {}
        self._of_children: set[str] = set()  # the paths whose children are listened to
        self._armed: dict[str, Change] = {}  # what was read when the present watch was set
        self._session_listeners: list[Listener] = []
        self._event_thread = EventThread.start(dispatcher)
        self._session = self._begin_session()

    @property
    def session_id(self) -> int:
        """The id of the present session."""
        return self._session.session_id

    # --- reading ---

    def get(self, path: str) -> Znode | None:
        """Read one node; None when it is absent."""
        self.counts.add(reads=1)
        return self._call(lambda session: session.get(path))

    def children(self, path: str) -> list[str]:
        """List the children of a node, sorted; an absent node has none."""
        self.counts.add(reads=1)
        return self._call(lambda session: session.children(path)) or []

    # --- writing ---

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> bool:
        """Create a node; False when it exists, and, if it is ephemeral, belongs to others."""
        if isinstance(self._write(Create(path, data, ephemeral)), Committed):
            return True
        node = self.get(path) if ephemeral else None
        return node is not None and node.stat.ephemeral_owner == self.session_id

    def create_sequential(self, path: str, data: bytes, *, ephemeral: bool = False) -> str | None:
        """Create a node whose name ends with the next ten digits; return its path.

        None when its parent is absent. When the reply is lost, an ephemeral node that exists is
        used: a second one would wait for the first in a queue of candidates, for ever.
        """
        operation = Create(path, data, ephemeral, sequential=True)
        while True:
            self.counts.add(writes=1)
            try:
                result = self._call(lambda session: session.multi([operation]), repeats=False)
            except ConnectionLossError:
                created = self._own_child(path) if ephemeral else None
                if created is not None:
                    return created
            else:
                return str(result.results[0]) if isinstance(result, Committed) else None

    def _own_child(self, prefix: str) -> str | None:
        """Return the node of this session whose path begins with ``prefix``, if there is one."""
        parent = prefix.rpartition("/")[0]
        for name in self.children(parent):
            node = self.get(f"{parent}/{name}")
            if node is not None and node.stat.ephemeral_owner == self.session_id:
                return f"{parent}/{name}"
        return None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> bool:
        """Write a node whose version is ``version``; False when it has another one, or is gone."""
        return isinstance(self._write(SetData(path, data, version)), Committed)

    def delete(self, path: str) -> bool:
        """Delete a node; False when it is gone already."""
        return isinstance(self._write(Delete(path, ANY_VERSION)), Committed)

    def _write(self, operation: Operation) -> MultiResult:
        self.counts.add(writes=1)
        return self._call(lambda session: session.multi([operation]))

    # --- listening ---

    def listen_to_data(self, path: str, listener: Listener) -> Znode | None:
        """Tell ``listener`` every change of a node from now on; return the node as it is now."""
        change = self._listen(path, listener)
        assert isinstance(change, DataChanged)
        return change.znode

    def listen_to_children(self, path: str, listener: Listener) -> frozenset[str]:
        """Tell ``listener`` every change of the children of a node; return their names."""
        with self._lock:
            self._of_children.add(path)
        change = self._listen(path, listener)
        assert isinstance(change, ChildrenChanged)
        return change.names

    def listen_to_session(self, listener: Listener) -> None:
        """Tell ``listener`` when another session has begun."""
        with self._lock:
            self._session_listeners.append(listener)

    def unlisten(self, path: str, listener: Listener) -> None:
        """Tell ``listener`` nothing of this path any more; the watch stays until it fires."""
        with self._lock:
            self._listeners.get(path, {}).pop(listener, None)

    def _listen(self, path: str, listener: Listener) -> Change:
        with self._lock:
            self._listeners.setdefault(path, {})[listener] = None
            armed = self._armed.get(path)
        return armed if armed is not None else self._read(path)

    def _read(self, path: str) -> Change:
        """Read a path and set the watch."""
        self.counts.add(reads=1, watches_set=1)
        change: Change
        if path in self._of_children:
            names = self._call(lambda session: session.children(path, watch=True))
            change = ChildrenChanged(path, frozenset(names or ()))
            if names is None:  # an absent node has no watch on its children
                return change
        else:
            change = DataChanged(path, self._call(lambda session: session.get(path, watch=True)))
        with self._lock:
            self._armed[path] = change
        return change

    # --- the event thread ---

    def _deliver(self, path: str) -> None:
        """Read a path again, and tell its listeners what was read."""
        with self._lock:
            self._armed.pop(path, None)
        self._tell_listeners(path)

    def _deliver_session(self) -> None:
        """Tell that a session began, and read every path again: it has no watches yet."""
        for listener in self._session_listeners:
            with suppress(ActorDeadError):
                listener.tell(SessionBegan())
        for path in list(self._listeners):
            self._tell_listeners(path)

    def _tell_listeners(self, path: str) -> None:
        with self._lock:
            listeners = list(self._listeners.get(path, ()))
            if not listeners:
                self._listeners.pop(path, None)
                return
        change = self._read(path)
        self.counts.add(listeners_called=len(listeners))
        for listener in listeners:
            with suppress(ActorDeadError):
                listener.tell(change)

    # --- sessions ---

    def _call(self, ask: Callable[[ZooKeeper], T], *, repeats: bool = True) -> T:
        while True:
            session = self._session
            try:
                return ask(session)
            except ConnectionLossError:  # the session waits for the next connection
                if not repeats:
                    raise
            except SessionExpiredError:
                self._renew(session)

    def _renew(self, expired: ZooKeeper) -> None:
        """Begin another session, unless another thread has done it."""
        with self._connecting:
            if self._session is not expired:
                return
            self._session = self._begin_session()
            with self._lock:
                self._armed.clear()
            self._event_thread.tell(self._deliver_session)

    def _begin_session(self) -> ZooKeeper:
        begun: list[ZooKeeper] = []

        def on_watch(event: WatchEvent) -> None:
            self.counts.add(watches_fired=1)
            self._event_thread.tell(partial(self._deliver, event.path))

        def on_expired() -> None:
            self._event_thread.tell(lambda: self._renew(begun[0]))

        begun.append(self._connect(on_watch, on_expired))
        return begun[0]


class EventThread(PooledActor):
    """Handles the events of the sessions, one after the other (``ZkEventThread``)."""

    def handle(self, message: Callable[[], None]) -> None:
        """Deliver an event."""
        message()
