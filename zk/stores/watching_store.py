"""The base of the controller's stores: reads that watch, writes that survive a connection loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from regent.core.errors import SessionExpiredError, UnreadableError
from regent.zk.client.operations import ANY_VERSION, Check, UnreadableZnode, Znode
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.fenced_writes import Outcome, Write, write_fenced
from regent.zk.znodes import ControllerEpochZNode

log = logging.getLogger(__name__)


class WatchingStore:
    """Remembers its watches, so that all can be dropped when a controller's term ends."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._watched: set[str] = set()
        self._kept: set[str] = set()  # the paths that stay watched after a term
        self._term: str | None = None  # the path of the term of our last election
        self.unreadable: dict[str, str] = {}
        """Watched lists and nodes that ZooKeeper refused to show at the last read, and why."""

    def unwatch_all_but_controller(self) -> None:
        """Drop all watches of this store except ``/controller`` and our own registration."""
        watched, self._watched = sorted(self._watched - self._kept), set()
        self.unreadable.clear()
        with suppress(SessionExpiredError):  # the watches ended with the session
            self._zookeeper.unwatch(watched)

    def _watch_node(self, path: str) -> Znode | None:
        """Read a node with a request and watch it, whether it exists or not; None if refused."""
        self._watched.add(path)
        node = self._zookeeper.get(path, watch=True)
        if isinstance(node, UnreadableZnode):
            self.unreadable[path] = node.reason
            log.error("requests in this znode cannot be read: %s", node.reason)
            return None
        self.unreadable.pop(path, None)
        return node

    def _watch_children(self, path: str) -> list[str]:
        """List the children and watch for changes; if the node is absent, watch for its creation.

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
        """List the requests below a node, as ``_watch_children``; empty if refused."""
        try:
            return self._watch_children(path)
        except UnreadableError as error:
            log.error("requests below this znode cannot be read: %s", error)
            return []

    def _read_and_watch(self, paths: Sequence[str]) -> list[Znode | None]:
        self._watched.update(paths)  # first: some watches may be armed if the read raises
        nodes = self._zookeeper.get_many(paths, watch=True)
        absent = {path for path, node in zip(paths, nodes, strict=True) if node is None}
        if absent:  # the watch on their parent reports their creation
            self._zookeeper.unwatch(sorted(absent))
            self._watched -= absent
        return nodes

    def _unwatch(self, paths: Sequence[str]) -> None:
        self._zookeeper.unwatch(paths)
        self._watched.difference_update(paths)

    def _fence(self, epoch_zk_version: int) -> list[Check]:
        """Return the checks that fail as soon as another controller is elected.

        The first also fails when a tool, or a Kafka controller, which has no terms, sets the epoch.
        """
        fence = [Check(ControllerEpochZNode.PATH, epoch_zk_version)]
        return fence if self._term is None else [*fence, Check(self._term, ANY_VERSION)]

    def _write_fenced(
        self, writes: Sequence[Write], epoch_zk_version: int, *, send_again: bool = True
    ) -> list[Outcome]:
        """Apply each write while no other controller has been elected; see ``write_fenced``."""
        fence = self._fence(epoch_zk_version)
        return write_fenced(self._zookeeper, writes, fence, send_again=send_again)
