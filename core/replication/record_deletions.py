"""Records people want to be gone (DeleteRecords): waits until every living replica dropped them.

Mirrors ``kafka.server.ReplicaManager.deleteRecords`` and ``DelayedDeleteRecords``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from regent.core.replication.delayed_operations import Answer, DelayedOperation, DelayedOperations
from regent.core.replication.hosted_partitions import HostedPartitions
from regent.core.replication.led_partitions import LedPartitions
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition

RespondToDeletion: TypeAlias = Callable[[Mapping[TopicPartition, DeletedRecords]], None]

HIGH_WATERMARK = -1
"""As an offset: everything that is committed."""


class Dropped(NamedTuple):
    """What a leader dropped, and since which epoch it leads."""

    leading_since: int
    offset: int


class DelayedDeletion(DelayedOperation):
    """Waits until the followers that live have dropped what the leader did."""

    def __init__(
        self,
        deletions: RecordDeletions,
        outcomes: dict[TopicPartition, DeletedRecords],
        awaited: dict[TopicPartition, Dropped],
        respond: RespondToDeletion,
    ) -> None:
        super().__init__(tuple(awaited))
        self._deletions = deletions
        self._outcomes = outcomes
        self._awaited = awaited
        self._respond = respond

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Look where the logs start; return whether all start where they must."""
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
        """Tell how far it got; who died since is not waited for."""
        self.on_changes(tuple(self._awaited))
        return partial(self._respond, self._outcomes)


class RecordDeletions:
    """Raises log start offsets. Not thread-safe."""

    def __init__(
        self,
        hosted: HostedPartitions,
        led: LedPartitions,
        cache: MetadataCache,
        delayed: DelayedOperations,
    ) -> None:
        self._hosted = hosted
        self._led = led
        self._cache = cache
        self._delayed = delayed

    def delete(
        self, offsets: Mapping[TopicPartition, int], respond: RespondToDeletion
    ) -> DelayedOperation | None:
        """Drop what is before these offsets; return what waits for the followers to do so."""
        outcomes: dict[TopicPartition, DeletedRecords] = {}
        awaited: dict[TopicPartition, Dropped] = {}
        for topic_partition, offset in offsets.items():
            partition = self._hosted.led(topic_partition)
            if isinstance(partition, Errors):
                outcomes[topic_partition] = DeletedRecords(partition)
                continue
            try:
                dropped = self._drop(partition, offset)
            except StorageError as error:
                dropped = self._hosted.fail(topic_partition, error)
            if isinstance(dropped, Errors):
                outcomes[topic_partition] = DeletedRecords(dropped)
            else:
                awaited[topic_partition] = dropped
        operation = DelayedDeletion(self, outcomes, awaited, respond)
        if operation.on_changes(operation.partitions):
            self._delayed.answer(operation.answer())
            return None
        return self._delayed.hold(operation)

    def _drop(self, partition: Partition, offset: int) -> Dropped | Errors:
        log, high_watermark = partition.local_log, partition.high_watermark
        if "delete" not in log.config.cleanup_policy:
            return Errors.POLICY_VIOLATION
        offset = high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= offset <= high_watermark:
            return Errors.OFFSET_OUT_OF_RANGE
        if offset > log.log_start_offset:
            log.advance_log_start_offset(offset)
            self._led.on_log_start(partition)
        return Dropped(partition.leading_since, offset)

    def outcome(self, topic_partition: TopicPartition, dropped: Dropped) -> DeletedRecords:
        """Return what became of it; REQUEST_TIMED_OUT while it is under way."""
        partition = self._hosted.led(topic_partition)
        if isinstance(partition, Errors):
            return DeletedRecords(partition)
        if partition.leading_since != dropped.leading_since:
            return DeletedRecords(Errors.NOT_LEADER_OR_FOLLOWER)
        try:
            low_watermark = partition.low_watermark(self._cache.snapshot.brokers.__contains__)
        except StorageError as error:
            return DeletedRecords(self._hosted.fail(topic_partition, error))
        if low_watermark < dropped.offset:
            return DeletedRecords(Errors.REQUEST_TIMED_OUT, low_watermark)
        return DeletedRecords(Errors.NONE, low_watermark)
