"""Which watches of one session are armed.

ZooKeeper's watches are one-shot, and the server forgets them when the connection drops. Java's
client keeps them in three lists and sends these with SetWatches after a reconnect; kazoo drops
them. This module keeps the same lists (``org.apache.zookeeper.ZooKeeper.ZKWatchManager``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from regent.zk.client.operations import WatchKind


class EventType(IntEnum):
    """The types of a watch event on the wire."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


class ArmedWatches(NamedTuple):
    """The absolute paths of all armed watches, by list of SetWatches, sorted."""

    data: list[str]
    exist: list[str]
    child: list[str]


_KINDS = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.CHILDREN: WatchKind.CHILDREN,
}


class WatchRegistry:
    """The watches of one session, by absolute path. Safe to use from any thread.

    A watch must be added before its event can arrive: when the answer of the read that arms it is
    received on the I/O thread, or before SetWatches is sent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data: set[str] = set()  # on nodes that exist; disjoint from _exist
        self._exist: set[str] = set()  # on nodes that do not exist
        self._child: set[str] = set()

    def add(
        self, *, data: Iterable[str] = (), exist: Iterable[str] = (), child: Iterable[str] = ()
    ) -> None:
        """Remember watches."""
        with self._lock:
            for path in data:
                self._data.add(path)
                self._exist.discard(path)
            for path in exist:
                self._exist.add(path)
                self._data.discard(path)
            self._child.update(child)

    def discard(self, paths: Iterable[str]) -> list[str]:
        """Forget every watch on these paths; return the paths that had any."""
        with self._lock:
            tables = self._data, self._exist, self._child
            armed = [path for path in paths if any(path in table for table in tables)]
            for table in tables:
                table.difference_update(armed)
        return armed

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._data.clear()
            self._exist.clear()
            self._child.clear()

    def fire(self, event_type: int, path: str) -> WatchKind | None:
        """Remove the watches that an event fires; None when there were none.

        A deletion fires the data watch and the child watch of the node with one event, as the
        server sends it. SetWatches may cause a second event, which finds no watch.
        """
        try:
            kind = _KINDS[EventType(event_type)]
        except ValueError:
            return None
        tables = {
            WatchKind.CREATED: (self._data, self._exist),
            WatchKind.CHANGED: (self._data, self._exist),
            WatchKind.DELETED: (self._data, self._exist, self._child),
            WatchKind.CHILDREN: (self._child,),
        }[kind]
        fired = False
        with self._lock:
            for table in tables:
                if path in table:
                    table.discard(path)
                    fired = True
        return kind if fired else None

    def armed(self) -> ArmedWatches:
        """Return all watches."""
        with self._lock:
            return ArmedWatches(sorted(self._data), sorted(self._exist), sorted(self._child))
