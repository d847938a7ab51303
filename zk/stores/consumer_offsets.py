"""Positions of groups in ZooKeeper, where consumers of Kafka 0.8.1 keep them.

Mirrors ``kafka.zk.KafkaZkClient.setOrCreateConsumerOffset`` and ``getConsumerOffset``, in bulk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regent.core.errors import BadDataError, Errors
from regent.core.model import TopicPartition
from regent.zk.client.operations import (
    ANY_VERSION,
    MAX_ATTEMPTS,
    Create,
    Operation,
    Refused,
    SetData,
    ZkError,
    Znode,
)
from regent.zk.stores.fenced_writes import apply_each
from regent.zk.stores.znode_store import ZnodeStore, decode_each
from regent.zk.znodes import ConsumerOffsetZNode


class ZkConsumerOffsets(ZnodeStore):
    """``/consumers/<group>/offsets`` over one ZooKeeper session."""

    def read(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | Errors]:
        """Return the position of each partition; UNKNOWN_TOPIC_OR_PARTITION if it has none."""
        paths = [ConsumerOffsetZNode.path(group_id, *partition) for partition in partitions]
        nodes = self._zookeeper.get_many(paths)
        found = decode_each(partitions, nodes, _position)
        absent = dict.fromkeys(partitions, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return absent | {
            partition: Errors.UNKNOWN_SERVER_ERROR if isinstance(offset, BadDataError) else offset
            for partition, offset in found.items()
        }

    def write(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Errors]:
        """Set or create positions; the last write wins."""
        errors: dict[TopicPartition, Errors] = {}
        waiting = dict(offsets)
        for attempt in range(MAX_ATTEMPTS):
            if not waiting:
                break
            refused = self._try(group_id, waiting, creates=attempt % 2 == 1)
            errors.update(dict.fromkeys(waiting, Errors.NONE))
            errors.update(dict.fromkeys(refused, Errors.UNKNOWN_SERVER_ERROR))
            waiting = {
                partition: waiting[partition]
                for partition, error in refused.items()
                if error in (ZkError.NO_NODE, ZkError.NODE_EXISTS)
            }
        return errors

    def _try(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, creates: bool
    ) -> dict[TopicPartition, ZkError]:
        """Set positions, or create them with their parents; return what was refused."""
        parents: dict[str, None] = {}
        writes: list[Operation] = []
        for partition, offset in offsets.items():
            path = ConsumerOffsetZNode.path(group_id, *partition)
            data = ConsumerOffsetZNode.encode(offset)
            if creates:
                names = path.split("/")  # ``/consumers`` first
                parents.update(dict.fromkeys("/".join(names[:n]) for n in range(2, len(names))))
            writes.append(Create(path, data) if creates else SetData(path, data, ANY_VERSION))
        # Each by itself. A repetition after a lost answer does no harm.
        applied = apply_each(self._zookeeper, [[w] for w in (*map(Create, parents), *writes)])
        results = applied[len(parents) :]
        return {
            partition: result.error
            for partition, result in zip(offsets, results, strict=True)
            if isinstance(result, Refused)
        }


def _position(topic_partition: TopicPartition, node: Znode) -> int:
    return ConsumerOffsetZNode.decode(node.data)
