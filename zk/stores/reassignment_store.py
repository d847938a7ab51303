"""``/admin/reassign_partitions``, and the states of partitions that are being moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.client.operations import Delete, Operation, SetData, Znode
from regent.zk.codecs.admin_znodes import ReassignPartitionsZNode
from regent.zk.codecs.znodes import TopicPartitionStateZNode
from regent.zk.stores.fenced_writes import WriteRefused
from regent.zk.stores.watching_store import WatchingStore

# Tools write the node too. After the last attempt nothing is lost: the next write fires our watch.
MAX_ROUNDS = 10


class ZkReassignmentStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about reassignments."""

    def read_reassignments(
        self,
    ) -> Mapping[TopicPartition, tuple[BrokerId, ...]] | BadDataError | None:
        """Read the requested target replicas and watch the node."""
        node = self._watch_node(ReassignPartitionsZNode.PATH)
        return None if node is None else _decode(node)

    def remove_reassignments(
        self, settled: Mapping[TopicPartition, tuple[BrokerId, ...]], epoch_zk_version: int
    ) -> None:
        """Remove the entries that still have these targets; delete the node after the last one.

        The write is conditional on the version that was read, so that no entry of a tool is lost.
        """
        for _ in range(MAX_ROUNDS):
            node = self._watch_node(ReassignPartitionsZNode.PATH)
            write = None if node is None else _without(node, settled)
            if write is None:
                return
            (outcome,) = self._write_fenced([[write]], epoch_zk_version)
            if not isinstance(outcome, WriteRefused):
                return

    def watch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Watch the ``state`` znodes that exist."""
        self._read_and_watch(
            [TopicPartitionStateZNode.path(topic_partition) for topic_partition in partitions]
        )

    def unwatch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the watches of ``watch_partition_states``."""
        self._unwatch(
            [TopicPartitionStateZNode.path(topic_partition) for topic_partition in partitions]
        )


def _decode(node: Znode) -> dict[TopicPartition, tuple[BrokerId, ...]] | BadDataError:
    try:
        return ReassignPartitionsZNode.decode(node.data)
    except BadDataError as error:
        return error


def _without(
    node: Znode, settled: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> Operation | None:
    """Return the write that removes the given entries; None if the node has none of them."""
    wanted = _decode(node)
    if isinstance(wanted, BadDataError):
        return Delete(ReassignPartitionsZNode.PATH, node.stat.version)
    left = {
        topic_partition: target
        for topic_partition, target in wanted.items()
        if settled.get(topic_partition) != target
    }
    if not left:
        return Delete(ReassignPartitionsZNode.PATH, node.stat.version)
    if len(left) == len(wanted):
        return None
    data = ReassignPartitionsZNode.encode(left)
    return SetData(ReassignPartitionsZNode.PATH, data, node.stat.version)
