"""What every part of the controller's store does: reads that watch, writes that survive a loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from core.errors import SessionExpiredError
from zk.operations import ConnectionLossError, MultiResult, Operation, Znode, ZooKeeper


class WatchingStore:
    """Remembers what it watches, so that all of it can be dropped when a term ends."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._watched: set[str] = set()

    def unwatch_all_but_controller(self) -> None:
        """Drop every watch this store armed, but the one on ``/controller``."""
        watched, self._watched = sorted(self._watched), set()
        with suppress(SessionExpiredError):  # then they are gone with the session
            self._zookeeper.unwatch(watched)

    def _watch_node(self, path: str) -> Znode | None:
        """Read a node and watch it, whether it exists or not."""
        self._watched.add(path)
        return self._zookeeper.get(path, watch=True)

    def _watch_children(self, path: str) -> list[str]:
        """List the children and watch for others, or for the node itself where there is none."""
        self._watched.add(path)
        while (names := self._zookeeper.children(path, watch=True)) is None:
            if self._zookeeper.get(path, watch=True) is None:
                return []
        return names

    def _read_and_watch(self, paths: Sequence[str]) -> list[Znode | None]:
        nodes = self._zookeeper.get_many(paths, watch=True)
        absent = {path for path, node in zip(paths, nodes, strict=True) if node is None}
        self._watched.update(path for path in paths if path not in absent)
        if absent:  # that they come again is told by the watch on their parent
            self._zookeeper.unwatch(sorted(absent))
            self._watched -= absent
        return nodes

    def _unwatch(self, paths: Sequence[str]) -> None:
        self._zookeeper.unwatch(paths)
        self._watched.difference_update(paths)

    def _apply(self, operations: Sequence[Operation]) -> MultiResult:
        """Apply one multi, again after a connection loss: the caller bears a repetition."""
        while True:
            try:
                return self._zookeeper.multi(operations)
            except ConnectionLossError:
                self._zookeeper.wait_connected()
