"""What every part of the controller's store does: reads that watch, writes that survive a loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from regent.core.errors import SessionExpiredError, UnreadableError
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    ConnectionLossError,
    MultiResult,
    Operation,
    UnreadableZnode,
    Znode,
    ZooKeeper,
)
from regent.zk.codecs.znodes import ControllerEpochZNode
from regent.zk.stores.fenced_writes import Outcome, Write, write_fenced

log = logging.getLogger(__name__)


class WatchingStore:
    """Remembers what it watches, so that all of it can be dropped when a term ends."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._watched: set[str] = set()
        self._kept: set[str] = set()  # what is watched under every controller
        self._term: str | None = None  # the znode of the term that our last election began
        self.unreadable: dict[str, str] = {}
        """Watched lists and nodes that ZooKeeper refused to show when last asked, and why."""

    def unwatch_all_but_controller(self) -> None:
        """Drop the watches this store armed, but for ``/controller`` and our own registration."""
        watched, self._watched = sorted(self._watched - self._kept), set()
        self.unreadable.clear()
        with suppress(SessionExpiredError):  # then they are gone with the session
            self._zookeeper.unwatch(watched)

    def _watch_node(self, path: str) -> Znode | None:
        """Read a node with a request and watch it, whether it exists or not; None if refused."""
        self._watched.add(path)
        node = self._zookeeper.get(path, watch=True)
        if isinstance(node, UnreadableZnode):
            self.unreadable[path] = node.reason
            log.error("what is asked for there is not seen: %s", node.reason)
            return None
        self.unreadable.pop(path, None)
        return node

    def _watch_children(self, path: str) -> list[str]:
        """List the children and watch for others, or for the node itself where there is none.

        Raises ``UnreadableError``.
        """
        self._watched.add(path)
        try:
            while (names := self._zookeeper.children(path, watch=True)) is None:
                if self._zookeeper.get(path, watch=True) is None:
                    names = []
                    break
        except UnreadableError as error:
            self.unreadable[path] = str(error)
            raise
        self.unreadable.pop(path, None)
        return names

    def _watch_requests(self, path: str) -> list[str]:
        """List what others ask for below a node, as ``_watch_children``: nothing, if refused."""
        try:
            return self._watch_children(path)
        except UnreadableError as error:
            log.error("what is asked for there is not seen: %s", error)
            return []

    def _read_and_watch(self, paths: Sequence[str]) -> list[Znode | None]:
        self._watched.update(paths)  # first: whatever is raised in between, some may be armed
        nodes = self._zookeeper.get_many(paths, watch=True)
        absent = {path for path, node in zip(paths, nodes, strict=True) if node is None}
        if absent:  # that they come again is told by the watch on their parent
            self._zookeeper.unwatch(sorted(absent))
            self._watched -= absent
        return nodes

    def _unwatch(self, paths: Sequence[str]) -> None:
        self._zookeeper.unwatch(paths)
        self._watched.difference_update(paths)

    def _fence(self, epoch_zk_version: int) -> list[Check]:
        """Return the checks that fail as soon as another controller is elected.

        The first also fails when a tool, or a controller that knows of no terms, sets the epoch.
        """
        fence = [Check(ControllerEpochZNode.PATH, epoch_zk_version)]
        return fence if self._term is None else [*fence, Check(self._term, ANY_VERSION)]

    def _write_fenced(
        self, writes: Sequence[Write], epoch_zk_version: int, *, send_again: bool = True
    ) -> list[Outcome]:
        """Apply each write while no other controller has been elected; see ``write_fenced``."""
        fence = self._fence(epoch_zk_version)
        return write_fenced(self._zookeeper, writes, fence, send_again=send_again)

    def _apply(self, operations: Sequence[Operation]) -> MultiResult:
        """Apply one multi, again after a connection loss: the caller bears a repetition."""
        while True:
            try:
                return self._zookeeper.multi(operations)
            except ConnectionLossError:
                self._zookeeper.wait_connected()
