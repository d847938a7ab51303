"""What tools and brokers ask of the controller in ZooKeeper, and what it remembers there.

Deletions of topics, moves of partitions, preferred elections, the notifications of brokers, and the
failures that ended controllers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from regent.core.admin.topic_settings import deletion_is_enabled, is_protected
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import ControllerFailure, IsKept
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.stores.fenced_writes import Write, WriteRefused, write_unfenced
from regent.zk.stores.znode_store import WatchingStore, decode_each
from regent.zk.znodes import (
    ConfigEntityZNode,
    ControllerFailuresZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    IsrChangeNotificationSequenceZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationSequenceZNode,
    LogDirEventNotificationZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)

log = logging.getLogger(__name__)

# Another client may create nodes below a topic while it is deleted. The deletion gives up after
# this many attempts.
MAX_DELETION_ROUNDS = 5
# Tools write the node of reassignments too. After the last attempt nothing is lost: the next write
# fires our watch.
_MAX_REASSIGNMENT_ROUNDS = 10
_MAX_FAILURE_ROUNDS = 5

NOBODY: BrokerId = -1

T = TypeVar("T")


class ZkRequestStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about requests of others."""

    # --- deletion of topics ---

    def read_topics_to_delete(self) -> Mapping[str, int]:
        """List the topics queued for deletion, and watch for new ones."""
        topics = self._watch_requests(DeleteTopicsZNode.PATH)
        requests = self._nodes([DeleteTopicsTopicZNode.path(t) for t in topics])
        return {
            topic: request.stat.czxid
            for topic, request in zip(topics, requests.values(), strict=True)
            if request is not None and not isinstance(request, UnreadableZnode)
        }

    def read_refused_deletions(
        self, requests: Mapping[str, int], broker_id: BrokerId, *, is_enabled: bool
    ) -> frozenset[str]:
        """Return the topics whose deletion was not allowed when it was requested."""
        if not requests:
            return frozenset()
        paths = [ConfigEntityZNode.path("brokers", DEFAULT_ENTITY_NAME)]
        paths.append(ConfigEntityZNode.path("brokers", str(broker_id)))
        paths += [ConfigEntityZNode.path("topics", topic) for topic in requests]
        of_all, of_one, *of_topics = map(_settings, paths, self._zookeeper.get_many(paths))
        changed = max(of_all.changed_zxid, of_one.changed_zxid)
        in_force = {**of_all.config, **of_one.config}
        is_off = not deletion_is_enabled(in_force, default=is_enabled)
        return frozenset(
            topic
            for (topic, zxid), of_topic in zip(requests.items(), of_topics, strict=True)
            if (is_off and changed < zxid)
            or (is_protected(of_topic.config) and of_topic.changed_zxid < zxid)
        )

    def delete_topic_deletions(self, topics: Collection[str], epoch_zk_version: int) -> None:
        """Delete the requests to delete these topics."""
        self._delete_children(DeleteTopicsZNode.PATH, topics, epoch_zk_version)

    def delete_topics(
        self, topics: Mapping[str, int], epoch_zk_version: int, is_kept: IsKept | None = None
    ) -> frozenset[str]:
        """Delete topics, their configuration and the request to delete them.

        After a refused write, or a lost answer, the nodes are read again: the write may have been
        applied, and a client that waited for the deletion may have created the topic again.
        ``is_kept`` is asked about what was read, and every write checks that this is still there.
        """
        remaining = dict(topics)
        for _ in range(MAX_DELETION_ROUNDS):
            writes = self._deletions(remaining, is_kept)
            try:
                refused = self._refused(writes, epoch_zk_version)
            except ConnectionLossError:
                continue
            remaining = {t: topics[t] for t in remaining if t in refused or t not in writes}
            if not remaining:
                break
        return frozenset(topics.keys() - remaining.keys())

    def _refused(self, writes: Mapping[str, Sequence[Write]], epoch_zk_version: int) -> set[str]:
        """Apply the writes of topics; return the topics that had a refused write."""
        outcomes = self._write_fenced(
            [write for of_topic in writes.values() for write in of_topic],
            epoch_zk_version,
            send_again=False,
        )
        owners = [topic for topic, of_topic in writes.items() for _ in of_topic]
        return {
            topic
            for topic, outcome in zip(owners, outcomes, strict=True)
            if isinstance(outcome, WriteRefused)
        }

    def _deletions(
        self, topics: Mapping[str, int], is_kept: IsKept | None
    ) -> dict[str, list[Write]]:
        """Return the writes for each topic, in the order in which they must be applied.

        A topic is missing when it is kept, or a later topic of its name exists, and the request is
        for that one.
        """
        # Read the requests first: a topic with a request was created before it, so it is found.
        requests = self._nodes([DeleteTopicsTopicZNode.path(topic) for topic in topics])
        found = self._nodes([TopicZNode.path(topic) for topic in topics])
        configs = self._nodes([ConfigEntityZNode.path("topics", topic) for topic in topics])
        to_delete = [
            path
            for (path, node), (topic, created_by_zxid) in zip(
                found.items(), topics.items(), strict=True
            )
            if node is not None
            and not isinstance(node, UnreadableZnode)
            and node.stat.czxid <= created_by_zxid
            and not (is_kept is not None and _is_kept(topic, node, is_kept))
        ]
        below = self._below(to_delete)
        writes: dict[str, list[Write]] = {}
        for topic, path, config, request in zip(topics, found, configs, requests, strict=True):
            node, request_node = found[path], requests[request]
            if isinstance(node, UnreadableZnode) or isinstance(request_node, UnreadableZnode):
                continue  # the request may be for an earlier topic
            if path not in below and _is_meant(request_node, node):
                continue
            last: list[Delete] = []
            if node is not None and path in below:
                last.append(Delete(path, node.stat.version))
                if configs[config] is not None:
                    last.append(Delete(config, ANY_VERSION))
            if request_node is not None:
                last.append(Delete(request, ANY_VERSION))
            decided = [] if is_kept is None or node is None else [Check(path, node.stat.version)]
            children: list[Write] = [
                [*decided, Delete(p, ANY_VERSION)] for p in below.get(path, ())
            ]
            writes[topic] = [*children, last] if last else children
        return writes

    def _nodes(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        return dict(zip(paths, self._zookeeper.get_many(paths), strict=True))

    def _below(self, roots: Sequence[str]) -> dict[str, list[str]]:
        """Return every node below each root, children first."""
        children: dict[str, list[str]] = {}
        level = list(roots)
        while level:
            names = self._zookeeper.children_many(level)
            below = {
                path: [f"{path}/{name}" for name in of_path or ()]
                for path, of_path in zip(level, names, strict=True)
            }
            children |= below
            level = [child for of_path in below.values() for child in of_path]
        return {root: [*_descendants(root, children)] for root in roots}

    # --- moves of partitions ---

    def read_reassignments(
        self,
    ) -> Mapping[TopicPartition, tuple[BrokerId, ...]] | BadDataError | None:
        """Read the requested target replicas and watch the node."""
        return self._read_request(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.decode)

    def remove_reassignments(
        self, settled: Mapping[TopicPartition, tuple[BrokerId, ...]], epoch_zk_version: int
    ) -> None:
        """Remove the entries that still have these targets; delete the node after the last one.

        The write is conditional on the version that was read, so that no entry of a tool is lost.
        """
        for _ in range(_MAX_REASSIGNMENT_ROUNDS):
            node = self._watch_node(ReassignPartitionsZNode.PATH)
            write = None if node is None else _without(node, settled)
            if write is None or self._write_one(write, epoch_zk_version):
                return

    def watch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Watch the ``state`` znodes that exist."""
        self._read_nodes([TopicPartitionStateZNode.path(name) for name in partitions])

    def unwatch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the watches of ``watch_partition_states``."""
        self._unwatch([TopicPartitionStateZNode.path(name) for name in partitions])

    # --- preferred elections ---

    def read_preferred_elections(self) -> tuple[TopicPartition, ...] | BadDataError | None:
        """Read the requested elections and watch the node."""
        path = PreferredReplicaElectionZNode.PATH
        return self._read_request(path, PreferredReplicaElectionZNode.decode)

    def delete_preferred_elections(self, epoch_zk_version: int) -> None:
        """Delete the node."""
        self._write_one(Delete(PreferredReplicaElectionZNode.PATH, ANY_VERSION), epoch_zk_version)

    def _read_request(self, path: str, decode: Callable[[bytes], T]) -> T | BadDataError | None:
        node = self._watch_node(path)
        try:
            return None if node is None else decode(node.data)
        except BadDataError as error:
            return error

    def _write_one(self, write: Operation, epoch_zk_version: int) -> bool:
        """Return whether the write was applied."""
        (outcome,) = self._write_fenced([[write]], epoch_zk_version)
        return not isinstance(outcome, WriteRefused)

    # --- notifications of brokers ---

    def read_isr_changes(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Read which partition states leaders changed, oldest first, and watch for new ones."""
        return self._read_notifications(
            IsrChangeNotificationZNode.PATH, IsrChangeNotificationSequenceZNode.decode, ()
        )

    def delete_isr_changes(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications."""
        self._delete_children(IsrChangeNotificationZNode.PATH, names, epoch_zk_version)

    def read_log_dir_events(self) -> Mapping[str, BrokerId]:
        """Read the brokers whose log directories failed, oldest first; watch for new ones."""
        return self._read_notifications(
            LogDirEventNotificationZNode.PATH, LogDirEventNotificationSequenceZNode.decode, NOBODY
        )

    def delete_log_dir_events(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications."""
        self._delete_children(LogDirEventNotificationZNode.PATH, names, epoch_zk_version)

    def _read_notifications(
        self, path: str, decode: Callable[[bytes], T], nothing: T
    ) -> dict[str, T]:
        """Read the children of ``path``: ``nothing`` for bad data; deleted ones are left out."""
        names = self._watch_requests(path)
        nodes = self._zookeeper.get_many([f"{path}/{name}" for name in names])
        found = decode_each(names, nodes, lambda _, node: decode(node.data))
        undecoded = [error for error in found.values() if isinstance(error, BadDataError)]
        if undecoded:
            log.error(
                "%d notifications cannot be decoded, the first: %s", len(undecoded), undecoded[0]
            )
        return {
            name: nothing if isinstance(note, BadDataError) else note
            for name, note in found.items()
        }

    def _delete_children(self, path: str, names: Collection[str], epoch_zk_version: int) -> None:
        deletions = [[Delete(f"{path}/{name}", ANY_VERSION)] for name in names]
        self._write_fenced(deletions, epoch_zk_version)

    # --- failures of controllers ---

    def read_failures(self) -> Sequence[ControllerFailure]:
        """Read the failures that ended controllers and watch the node; bad data counts as none."""
        return _failures_in(self._watch_node(ControllerFailuresZNode.PATH))

    def change_failures(
        self,
        change: Callable[[Sequence[ControllerFailure]], Sequence[ControllerFailure]],
        epoch_zk_version: int,
    ) -> None:
        """Replace the list by the result of ``change``, if it did not change since it was read."""
        path = ControllerFailuresZNode.PATH
        for _ in range(_MAX_FAILURE_ROUNDS):
            node = self._watch_node(path)
            failures = _failures_in(node)
            changed = change(failures)
            if list(changed) == list(failures):
                return
            data = ControllerFailuresZNode.encode(changed)
            write: Operation
            if node is None:
                self._write_one(Create(path.rpartition("/")[0]), epoch_zk_version)
                write = Create(path, data)
            else:
                write = SetData(path, data, node.stat.version)
            if self._write_one(write, epoch_zk_version):
                return
        log.warning("%s was not written: another client changed it, or it cannot be read", path)


class _Settings(NamedTuple):
    """Overrides, and the zxid of their last change, -1 for none; those that are bad are empty."""

    config: Mapping[str, str]
    changed_zxid: int


def _settings(path: str, node: Znode | None) -> _Settings:
    if node is None or isinstance(node, UnreadableZnode):
        return _Settings({}, -1)
    try:
        return _Settings(ConfigEntityZNode.decode(node.data, path), node.stat.mzxid)
    except BadDataError:
        return _Settings({}, node.stat.mzxid)


def _descendants(path: str, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for child in children[path]:
        yield from _descendants(child, children)
        yield child


def _is_kept(topic: str, node: Znode, is_kept: IsKept) -> bool:
    """Whether a topic stays; one whose znode cannot be decoded does not."""
    try:
        return is_kept(topic, TopicZNode.decode(node.data).topic_id)
    except BadDataError:
        return False


def _is_meant(request: Znode | None, topic: Znode | None) -> bool:
    """Whether the request is for the existing topic, not for an earlier one of that name."""
    return request is not None and topic is not None and request.stat.czxid >= topic.stat.czxid


def _without(
    node: Znode, settled: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> Operation | None:
    """Return the write that removes the given entries; None if the node has none of them."""
    path, version = ReassignPartitionsZNode.PATH, node.stat.version
    try:
        wanted = ReassignPartitionsZNode.decode(node.data)
    except BadDataError:
        return Delete(path, version)
    left = {name: target for name, target in wanted.items() if settled.get(name) != target}
    if not left:
        return Delete(path, version)
    if len(left) == len(wanted):
        return None
    return SetData(path, ReassignPartitionsZNode.encode(left), version)


def _failures_in(node: Znode | None) -> Sequence[ControllerFailure]:
    try:
        return () if node is None else ControllerFailuresZNode.decode(node.data)
    except BadDataError:
        return ()


def notify_controller(zookeeper: ZooKeeper, path_prefix: str, notes: Sequence[bytes]) -> None:
    """Create a sequential node with each of these data.

    After a lost answer there may be two, which is harmless. Raises ``SessionExpiredError``, and
    ``RequestRefusedError`` when ZooKeeper refuses a write.
    """
    writes = [[Create(path_prefix, data, sequential=True)] for data in notes]
    for outcome in write_unfenced(zookeeper, writes):
        if isinstance(outcome, WriteRefused):
            raise RequestRefusedError(f"cannot create {path_prefix}…: {outcome.error.name}")


def notify_log_dir_failure(zookeeper: ZooKeeper, broker_id: BrokerId) -> None:
    """Make the controller ask a broker which of its replicas are offline.

    Raises what ``notify_controller`` raises.
    """
    znode = LogDirEventNotificationSequenceZNode
    notify_controller(zookeeper, znode.PATH_PREFIX, [znode.encode(broker_id)])
