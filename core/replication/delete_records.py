"""DeleteRecords: raises log start offsets and waits until every live replica has done so.

Mirrors ``kafka.server.ReplicaManager.deleteRecords`` and ``DelayedDeleteRecords``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition

RespondToDeleteRecords: TypeAlias = Callable[[Mapping[TopicPartition, DeletedRecords]], None]

HIGH_WATERMARK = -1
"""The offset that means: delete all committed records."""


class DeleteRecordsPartitionStatus(NamedTuple):
    """The log start offset a deletion waits for, and the first leader epoch of the leadership."""

    leading_since: int
    offset: int


class DelayedDeleteRecords(DelayedOperation):
    """Waits until the live followers raised their log start offsets."""

    kind = "DeleteRecords"

    def __init__(
        self,
        deletions: DeleteRecords,
        outcomes: dict[TopicPartition, DeletedRecords],
        awaited: dict[TopicPartition, DeleteRecordsPartitionStatus],
        respond: RespondToDeleteRecords,
    ) -> None:
        super().__init__(tuple(awaited))
        self._deletions = deletions
        self._outcomes = outcomes
        self._awaited = awaited
        self._respond = respond

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Check low watermarks; return whether all reached the offsets."""
        for topic_partition in topic_partitions:
            dropped = self._awaited.get(topic_partition)
            if dropped is None:
                continue
            outcome = self._outcomes[topic_partition] = self._deletions.outcome(
                topic_partition, dropped
            )
            if outcome.error_code is not Errors.REQUEST_TIMED_OUT:
                del self._awaited[topic_partition]
        return not self._awaited

    def answer(self) -> Answer:
        """Answer with the present low watermarks; dead followers do not count."""
        self.on_changes(tuple(self._awaited))
        return partial(self._respond, self._outcomes)


class DeleteRecords:
    """Raises log start offsets. Not thread-safe."""

    def __init__(
        self,
        partitions: AllPartitions,
        leaders: LeaderPartitions,
        cache: MetadataCache,
        delayed: DelayedOperationPurgatory,
    ) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._cache = cache
        self._delayed = delayed

    def delete(
        self, offsets: Mapping[TopicPartition, int], respond: RespondToDeleteRecords
    ) -> DelayedOperation | None:
        """Delete records before these offsets; return the operation that waits for followers."""
        outcomes: dict[TopicPartition, DeletedRecords] = {}
        awaited: dict[TopicPartition, DeleteRecordsPartitionStatus] = {}
        for topic_partition, offset in offsets.items():
            partition = self._partitions.leader_or_error(topic_partition)
            if isinstance(partition, Errors):
                outcomes[topic_partition] = DeletedRecords(partition)
                continue
            try:
                dropped = self._drop(partition, offset)
            except StorageError as error:
                dropped = self._partitions.fail(topic_partition, error)
            if isinstance(dropped, Errors):
                outcomes[topic_partition] = DeletedRecords(dropped)
            else:
                awaited[topic_partition] = dropped
        operation = DelayedDeleteRecords(self, outcomes, awaited, respond)
        if operation.on_changes(operation.partitions):
            self._delayed.answer(operation.answer())
            return None
        return self._delayed.hold(operation)

    def _drop(self, partition: Partition, offset: int) -> DeleteRecordsPartitionStatus | Errors:
        log, high_watermark = partition.local_log, partition.high_watermark
        if "delete" not in log.config.cleanup_policy:
            return Errors.POLICY_VIOLATION
        offset = high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= offset <= high_watermark:
            return Errors.OFFSET_OUT_OF_RANGE
        if offset > log.log_start_offset:
            log.advance_log_start_offset(offset)
            self._leaders.on_log_start(partition)
        return DeleteRecordsPartitionStatus(partition.leading_since, offset)

    def outcome(
        self, topic_partition: TopicPartition, dropped: DeleteRecordsPartitionStatus
    ) -> DeletedRecords:
        """Return the outcome of a deletion; REQUEST_TIMED_OUT while followers lag."""
        partition = self._partitions.leader_or_error(topic_partition)
        if isinstance(partition, Errors):
            return DeletedRecords(partition)
        if partition.leading_since != dropped.leading_since:
            return DeletedRecords(Errors.NOT_LEADER_OR_FOLLOWER)
        try:
            low_watermark = partition.low_watermark(self._cache.snapshot.may_be_alive)
        except StorageError as error:
            return DeletedRecords(self._partitions.fail(topic_partition, error))
        if low_watermark < dropped.offset:
            return DeletedRecords(Errors.REQUEST_TIMED_OUT, low_watermark)
        return DeletedRecords(Errors.NONE, low_watermark)
