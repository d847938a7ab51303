"""The bases of the stores: reads by rows of the table of znodes, with and without watches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from regent.core.errors import BadDataError, RegentError, SessionExpiredError, UnreadableError
from regent.core.model import (
    BrokerId,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.ports import PartitionStates, TopicAssignment
from regent.zk.client.operations import ANY_VERSION, Check, UnreadableZnode, Znode
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import SuspectZnodes, decode_broker_id
from regent.zk.stores.fenced_writes import Outcome, Write, write_fenced
from regent.zk.znodes import (
    BrokerIdsZNode,
    BrokerIdZNode,
    ControllerEpochZNode,
    SuspectReplicasPartZNode,
    TopicPartitionStateZNode,
    TopicZNode,
    suspect_paths,
)

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")


def decode_each(
    keys: Iterable[K], nodes: Iterable[Znode | None], decode: Callable[[K, Znode], T]
) -> dict[K, T | BadDataError]:
    """Decode the znodes of these keys; an absent one is missing.

    One that is unreadable, or has data that cannot be decoded, is the error.
    """
    found: dict[K, T | BadDataError] = {}
    for key, node in zip(keys, nodes, strict=True):
        if node is not None:
            try:
                found[key] = decode(key, node)
            except BadDataError as error:
                found[key] = error.with_traceback(None)
    return found


def topic_assignment(topic: str, node: Znode) -> TopicAssignment:
    """Decode a topic's znode. Raises ``BadDataError``."""
    try:
        data = TopicZNode.decode(node.data)
    except BadDataError as error:
        raise type(error)(f"topic {topic}: {error}") from None
    return TopicAssignment(data.topic_id, data.partitions, node.stat.version, node.stat.czxid)


def broker_ids_of(names: Iterable[str]) -> Iterator[BrokerId]:
    """Yield the ids of registrations by the names of their znodes."""
    for name in names:
        with suppress(BadDataError):  # the node is not a registration
            yield decode_broker_id(name)


def decode_suspects(parts: Iterable[bytes]) -> SuspectReplicas:
    """Decode the data of all znodes that list a broker's suspects. Raises ``BadDataError``."""
    lists = list(map(SuspectReplicasPartZNode.decode, parts))
    ends = {name: end for listed in lists for name, end in listed.ends.items()}
    sound = [listed.sound for listed in lists if listed.sound is not None]
    return SuspectReplicas(ends, frozenset().union(*sound) if sound else None)


class NoClusterError(RegentError):
    """No broker has ever started with this ZooKeeper address."""


class ZnodeStore:
    """Reads over one session; every call raises ``SessionExpiredError`` when it is over."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def _read_nodes(self, paths: Sequence[str]) -> list[Znode | None]:
        """Read znodes; a store that watches also watches these."""
        return self._zookeeper.get_many(paths)

    def _children(self, path: str) -> list[str]:
        """List the children of a znode that every cluster has; a store that watches also watches.

        Raises ``NoClusterError``, or ``UnreadableError`` when the server refuses to list them.
        """
        names = self._zookeeper.children(path)
        if names is None:
            raise NoClusterError(
                f"it has no {path}: no broker has ever started there, or the znode was deleted"
            )
        return names

    def read_topics(self, topics: Collection[str]) -> dict[str, TopicAssignment | BadDataError]:
        """Read topic znodes, in the order of ``topics``; absent ones are missing."""
        nodes = self._read_nodes([TopicZNode.path(topic) for topic in topics])
        return decode_each(topics, nodes, topic_assignment)

    def read_partition_states(self, partitions: Collection[TopicPartition]) -> PartitionStates:
        """Read ``state`` znodes in bulk; absent ones are missing. Watches nothing."""
        nodes = self._zookeeper.get_many(list(map(TopicPartitionStateZNode.path, partitions)))
        return decode_each(partitions, nodes, partition_state)

    def read_brokers(self) -> dict[BrokerId, BrokerRegistration | BadDataError]:
        """Read every registration, ascending by id. Raises what ``_children`` raises."""
        return self._read_registrations(sorted(broker_ids_of(self._children(BrokerIdsZNode.PATH))))

    def read_broker(self, broker_id: BrokerId) -> BrokerRegistration | BadDataError | None:
        """Read one registration; None: there is none."""
        return self._read_registrations([broker_id]).get(broker_id)

    def _read_registrations(
        self, broker_ids: Sequence[BrokerId]
    ) -> dict[BrokerId, BrokerRegistration | BadDataError]:
        nodes = self._read_nodes(list(map(BrokerIdZNode.path, broker_ids)))
        return decode_each(broker_ids, nodes, self._registration)

    def _registration(self, broker_id: BrokerId, node: Znode) -> BrokerRegistration:
        while True:
            try:
                info = BrokerIdZNode.decode(node.data, broker_id)
            except BadDataError as error:
                raise type(error)(f"broker {broker_id}: {error}") from None
            try:
                suspects = self._read_suspects(broker_id, node)
            except BadDataError as error:
                (present,) = self._read_nodes([BrokerIdZNode.path(broker_id)])
                if present is not None and present.stat.mzxid != node.stat.mzxid:
                    node = present  # it names a newer list now
                    continue
                log.error("all replicas of broker %d count as suspect: %s", broker_id, error)
                suspects = SuspectReplicas(sound=frozenset())
            return BrokerRegistration(info, node.stat.czxid, suspects)

    def _read_suspects(self, broker_id: BrokerId, registration: Znode) -> SuspectReplicas:
        """Read the suspect replicas of a registered broker.

        Raises ``BadDataError`` when they cannot be read; a newer registration may name another
        list.
        """
        listed = SuspectZnodes.decode(registration.data, BrokerIdZNode.PATH)
        paths = suspect_paths(listed, broker_id, registration.stat.ephemeral_owner)
        # One reading even of no path, which sends nothing: simulated histories, found by their
        # seeds, have it.
        found = [node.data for node in self._zookeeper.get_many(paths) if node is not None]
        if len(found) < listed.count:
            parent = SuspectReplicasPartZNode.PATH_PREFIX
            raise BadDataError(f"{listed.count - len(found)} znodes below {parent} are missing")
        return decode_suspects(found)


def partition_state(topic_partition: TopicPartition, node: Znode) -> LeaderIsrAndControllerEpoch:
    """Decode a ``state`` znode. Raises ``BadDataError``."""
    return TopicPartitionStateZNode.decode(node.data, node.stat.version)


class WatchingStore(ZnodeStore):
    """Remembers its watches, so that all can be dropped when a controller's term ends."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        super().__init__(zookeeper)
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

    def _children(self, path: str) -> list[str]:
        return self._watch_children(path)

    def _read_nodes(self, paths: Sequence[str]) -> list[Znode | None]:
        self._watched.update(paths)  # first: some watches may be armed if the read raises
        nodes = self._zookeeper.get_many(paths, watch=True)
        absent = {path for path, node in zip(paths, nodes, strict=True) if node is None}
        if absent:  # the watch on their parent reports their creation
            self._unwatch(sorted(absent))
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
