"""Logs without records: where a broker's replicas live until logs are written to disk."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core.model import NO_EPOCH, TopicPartition
from core.ports import NO_EPOCH_END_OFFSET, EpochEndOffset
from core.protocol.control import TopicId


class EmptyLogs:
    """Implements ``core.ports.ReplicaLogs``: remembers which logs exist, loses it at restart."""

    def __init__(self) -> None:
        self._topic_ids: dict[TopicPartition, TopicId | None] = {}

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return every log and the topic id it was created for."""
        return MappingProxyType(self._topic_ids)

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> TopicId | None:
        """Create the log unless it exists; ``is_new`` matters only where directories fail."""
        del is_new
        stored = self._topic_ids.get(topic_partition) or topic_id
        self._topic_ids[topic_partition] = stored
        return stored

    def delete(self, topic_partition: TopicPartition) -> None:
        """Forget the log."""
        self._topic_ids.pop(topic_partition, None)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Forget the log: it holds nothing worth keeping for a while."""
        self.delete(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Return False: memory does not fail."""
        del topic_partition
        return False

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        """Return 0."""
        del topic_partition
        return 0

    def log_end_offset(self, topic_partition: TopicPartition) -> int:
        """Return 0: nothing is ever written."""
        del topic_partition
        return 0

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        """Return -1: there is no record to have one."""
        del topic_partition
        return NO_EPOCH

    def end_offset_for_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int
    ) -> EpochEndOffset:
        """Return that no epoch is known."""
        del topic_partition, leader_epoch
        return NO_EPOCH_END_OFFSET

    def assign_epoch(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Do nothing: there will be no record of that epoch."""

    def truncate_to(self, topic_partition: TopicPartition, offset: int) -> None:
        """Do nothing: there is nothing to drop."""
