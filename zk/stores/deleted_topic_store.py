"""What is remembered of deleted topics in ``/regent/deleted_topics``, and how they come back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from regent.core.errors import BadDataError, UnreadableError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import DeletedTopic, WriteError
from regent.core.protocol.control import TopicId
from regent.zk.client.operations import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.fenced_writes import Write, WriteRefused, fits_a_multi
from regent.zk.stores.znode_store import WatchingStore, decode_each
from regent.zk.znodes import (
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityZNode,
    DeletedTopicsZNode,
    DeletedTopicZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicPartitionZNode,
    TopicZNode,
)

_PARENTS = ("/regent", DeletedTopicsZNode.PATH)


def read_deleted_topics(
    zookeeper: ZooKeeper, topic_ids: Collection[TopicId] | None = None
) -> dict[TopicId, DeletedTopic | BadDataError]:
    """Read what is remembered of deleted topics; None: of all, sorted by their ids.

    If an ACL hides the list, it is empty: a controller must start without it.
    """
    if topic_ids is None:
        try:
            topic_ids = sorted(zookeeper.children(DeletedTopicsZNode.PATH) or ())
        except UnreadableError:
            topic_ids = ()
    nodes = zookeeper.get_many(list(map(DeletedTopicZNode.path, topic_ids)))
    return decode_each(topic_ids, nodes, _deleted_topic)


class ZkDeletedTopicStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about deleted topics."""

    def read_deleted_topics(
        self, topic_ids: Collection[TopicId] | None = None
    ) -> Mapping[TopicId, DeletedTopic | BadDataError]:
        """Read what is remembered of deleted topics; None: of all."""
        return read_deleted_topics(self._zookeeper, topic_ids)

    def remember_deleted_topics(
        self, topics: Collection[DeletedTopic], epoch_zk_version: int
    ) -> frozenset[TopicId]:
        """Write what is needed to bring topics back, with their present settings."""
        if self._zookeeper.get(DeletedTopicsZNode.PATH) is None:
            self._write_fenced([[Create(path)] for path in _PARENTS], epoch_zk_version)
        writes: dict[TopicId, Write] = {}
        earlier = self._zookeeper.get_many([DeletedTopicZNode.path(t.topic_id) for t in topics])
        configs = self._zookeeper.get_many([_config_path(t.topic) for t in topics])
        for deleted, node, config in zip(topics, earlier, configs, strict=True):
            write = _remembering(deleted, node, config)
            if write is not None and fits_a_multi(self._zookeeper, _largest(deleted)):
                writes[deleted.topic_id] = write
        outcomes = self._write_fenced(list(writes.values()), epoch_zk_version)
        too_large = WriteRefused(WriteError.TOO_LARGE, 0)
        return frozenset(i for i, of in zip(writes, outcomes, strict=True) if of != too_large)

    def forget_deleted_topics(self, topic_ids: Collection[TopicId], epoch_zk_version: int) -> None:
        """Forget deleted topics; absent ones are skipped."""
        writes = [[Delete(DeletedTopicZNode.path(i), ANY_VERSION)] for i in topic_ids]
        self._write_fenced(writes, epoch_zk_version)

    def restore_topic(
        self,
        deleted: DeletedTopic,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
    ) -> WriteError | None:
        """Write a topic, its settings and states, and forget its deletion."""
        config = self._zookeeper.get(_config_path(deleted.topic))
        write = _restoring(deleted, states, has_config=config is not None)
        (outcome,) = self._write_fenced([write], epoch_zk_version)
        return outcome.error if isinstance(outcome, WriteRefused) else None


def _deleted_topic(_: TopicId, node: Znode) -> DeletedTopic:
    return DeletedTopicZNode.decode(node.data, node.stat.mzxid)


def _config_path(topic: str) -> str:
    return ConfigEntityZNode.path("topics", topic)


def _remembering(deleted: DeletedTopic, node: Znode | None, config: Znode | None) -> Write | None:
    """Return the write that remembers a topic; None: it cannot be, or its settings cannot be read.

    If it is remembered already, its znode is changed.
    """
    path = DeletedTopicZNode.path(deleted.topic_id)
    if isinstance(node, UnreadableZnode) or isinstance(config, UnreadableZnode):
        return None
    if node is not None:
        return [SetData(path, DeletedTopicZNode.encode(deleted), node.stat.version)]
    try:
        settings = {} if config is None else ConfigEntityZNode.decode(config.data)
    except BadDataError:
        return None
    return [Create(path, DeletedTopicZNode.encode(replace(deleted, config=settings)))]


def _largest(deleted: DeletedTopic) -> Write:
    """Return the largest write that may bring a topic back."""
    states = {
        TopicPartition(deleted.topic, number): LeaderIsrAndControllerEpoch(
            LeaderAndIsr(NO_LEADER, row.replicas, MAX_LEADER_EPOCH), MAX_LEADER_EPOCH
        )
        for number, row in deleted.partitions.items()
    }
    return _restoring(deleted, states, has_config=False)


def _restoring(
    deleted: DeletedTopic,
    states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
    *,
    has_config: bool,
) -> Write:
    topic, topic_id = deleted.topic, deleted.topic_id
    path, config = _config_path(topic), ConfigEntityZNode.encode(deleted.config)
    change = ConfigEntityChangeNotificationSequenceZNode
    partitions = {
        number: ReplicaAssignment(row.replicas) for number, row in deleted.partitions.items()
    }
    write: list[Operation] = [
        Create(TopicZNode.path(topic), TopicZNode.encode(topic_id, partitions)),
        Delete(DeletedTopicZNode.path(topic_id), ANY_VERSION),
        SetData(path, config, ANY_VERSION) if has_config else Create(path, config),
        Create(change.PATH_PREFIX, change.encode(f"topics/{topic}"), sequential=True),
        Create(TopicPartitionsZNode.path(topic), TopicPartitionsZNode.encode(topic_id)),
    ]
    for topic_partition, state in states.items():
        write.append(Create(TopicPartitionZNode.path(topic_partition)))
        data = TopicPartitionStateZNode.encode(state)
        write.append(Create(TopicPartitionStateZNode.path(topic_partition), data))
    return write
