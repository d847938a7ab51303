"""The two ways in which the replicas of a partition agree on a leader through ZooKeeper.

``NameLock``: the first that creates the ephemeral node leads; all others watch that node, so all
of them wake when it disappears, and all but one wake in vain. ``SequentialLock``: each creates a
numbered ephemeral node and watches only the one before its own; the lowest number leads. Then one
wakes, but the others must ask who leads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from typing import Any

from pykka import ActorRef

from regent.core.model import BrokerId
from regent.designs.watched_zookeeper import WatchedZooKeeper
from regent.zk.client.operations import Znode


class LeaderLock(ABC):
    """The lock of one partition, seen by one replica. Its calls ask ZooKeeper and block."""

    tells_everybody: bool
    """Whether every replica hears of every change; if not, it must ask who leads."""

    is_queued = False
    """Whether this replica has a place in a queue, so that it need not let others go first."""

    @property
    @abstractmethod
    def paths(self) -> Container[str]:
        """The nodes that ``watch`` and ``take`` listen to at present."""

    def __init__(
        self, zookeeper: WatchedZooKeeper, path: str, broker_id: BrokerId, listener: ActorRef[Any]
    ) -> None:
        self._zookeeper = zookeeper
        self._path = path
        self._broker_id = broker_id
        self._listener = listener

    @abstractmethod
    def watch(self) -> BrokerId | None:
        """Listen for the moment to call ``take``; return who leads, None when nobody does."""

    @abstractmethod
    def take(self) -> bool:
        """Try to lead; return whether this replica leads."""

    @abstractmethod
    def leader(self) -> BrokerId | None:
        """Read who leads; None when nobody does."""

    @abstractmethod
    def leader_in(self, znode: Znode) -> BrokerId | None:
        """Return the leader that a changed node names; None when the change tells nothing."""

    @abstractmethod
    def release(self) -> None:
        """Leave the lock: another replica may take it."""


class NameLock(LeaderLock):
    """``path`` is the lock: ephemeral, with the id of the leader."""

    tells_everybody = True

    @property
    def paths(self) -> Container[str]:
        return (self._path,)

    def watch(self) -> BrokerId | None:
        return _holder(self._zookeeper.listen_to_data(self._path, self._listener))

    def take(self) -> bool:
        return self._zookeeper.create(self._path, b"%d" % self._broker_id, ephemeral=True)

    def leader(self) -> BrokerId | None:
        return _holder(self._zookeeper.get(self._path))

    def leader_in(self, znode: Znode) -> BrokerId | None:
        return _holder(znode)

    def release(self) -> None:
        if self.leader() == self._broker_id:
            self._zookeeper.delete(self._path)


class SequentialLock(LeaderLock):
    """The children of ``path`` are the queue of candidates: ephemeral, numbered, with their ids."""

    tells_everybody = False
    paths: tuple[str, ...] = ()  # the candidate before this one, if there is one
    _own: str | None = None  # the name of this candidate

    def watch(self) -> BrokerId | None:
        """Queue up behind the leader, if there is one; see ``LeaderLock.watch``."""
        names = self._zookeeper.children(self._path)
        if self._own not in names:  # never queued up, or in a session that is over
            self._own, self.is_queued = None, False
        return self._queue_up() if names else None

    def take(self) -> bool:
        """See ``LeaderLock.take``: this replica leads when no candidate is before it."""
        return self._queue_up() is not None and not self.paths

    def leader(self) -> BrokerId | None:
        names = self._zookeeper.children(self._path)
        return self._id_of(names[0]) if names else None

    def leader_in(self, znode: Znode) -> BrokerId | None:
        """See ``LeaderLock.leader_in``: the candidate before this one may not be the leader."""
        del znode
        return None

    def release(self) -> None:
        if self._own is not None:
            self._unwatch()
            self._zookeeper.delete(f"{self._path}/{self._own}")
            self._own, self.is_queued = None, False

    def _queue_up(self) -> BrokerId | None:
        """Create the candidate if it is missing, and watch the one before it; return the first."""
        if self._own is None:
            created = self._zookeeper.create_sequential(
                f"{self._path}/candidate-", b"%d" % self._broker_id, ephemeral=True
            )
            if created is None:  # the partition was deleted
                return None
            self._own, self.is_queued = created.rpartition("/")[2], True
        while True:
            self._unwatch()
            names = self._zookeeper.children(self._path)
            before = [name for name in names if name < self._own]
            if not before:
                return self._broker_id
            self.paths = (f"{self._path}/{before[-1]}",)
            if self._zookeeper.listen_to_data(self.paths[0], self._listener) is not None:
                return self._id_of(before[0])

    def _unwatch(self) -> None:
        for path in self.paths:
            self._zookeeper.unlisten(path, self._listener)
        self.paths = ()

    def _id_of(self, name: str) -> BrokerId | None:
        return _holder(self._zookeeper.get(f"{self._path}/{name}"))


def _holder(znode: Znode | None) -> BrokerId | None:
    return None if znode is None else int(znode.data)
