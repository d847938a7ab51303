"""Reads committed records for consumers, and waits until there are enough of them.

Mirrors ``kafka.server.ReplicaManager.fetchMessages`` for consumers and ``DelayedFetch``. A waiting
fetch keeps what it has read: when a partition changes, only that partition is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from regent.core.errors import DamagedRecordsError, Errors, StorageError
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.records import NO_RECORDS, Records
from regent.core.replica_logs import AbortedTransactionStart
from regent.core.replication.all_partitions import AllPartitions, Prefetches, check_position
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from regent.core.replication.partition import Partition

RespondToConsumer: TypeAlias = Callable[[Mapping[TopicPartition, ConsumedPartition]], None]


class DelayedConsumerFetch(DelayedOperation):
    """Waits for ``min_bytes`` of committed records, an error, or a diverging log."""

    kind = "Fetch"

    def __init__(
        self,
        partitions: AllPartitions,
        request: ConsumerFetch,
        respond: RespondToConsumer,
        prefetches: Prefetches | None,
    ) -> None:
        super().__init__(request.positions)
        self._prefetches = prefetches  # None: it reads at once
        self._partitions = partitions
        self._positions = request.positions
        self._min_bytes = min(request.min_bytes, request.max_bytes)
        self._max_bytes = request.max_bytes
        self._from_followers = request.from_followers
        self._is_read_committed = request.is_read_committed
        self._respond = respond
        self._answers: dict[TopicPartition, ConsumedPartition] = {}
        self._size = 0
        self._is_urgent = False  # there is an error or a diverging log
        self._absent = 0  # partitions that did not exist at first

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Read these partitions, for the first time or again, in this order."""
        for topic_partition in topic_partitions:
            before = self._answers.get(topic_partition)
            if before is not None:
                self._size -= before.records.size
            answer = self._answers[topic_partition] = self._read(
                topic_partition, self._positions[topic_partition]
            )
            self._size += answer.records.size
            error = answer.error_code
            if before is None and error is Errors.UNKNOWN_TOPIC_OR_PARTITION:
                self._absent += 1  # the others are awaited: a client would ask again at once
            elif error is not Errors.NONE or answer.diverging_epoch != NO_EPOCH:
                self._is_urgent = True
        has_any = self._absent < len(self._answers)
        return self._is_urgent or self._size >= self._min_bytes or not has_any

    def answer(self) -> Answer:
        """Answer with what was read."""
        partitions = self._partitions
        for topic_partition, answer in self._answers.items():
            partition = partitions.get(topic_partition)
            if partition is not None:
                partition.stats.total_fetch_requests += 1
                partition.stats.bytes_out += answer.records.size
        partitions.topic_stats.fetch_errors.count(self._answers.values())
        return partial(self._respond, self._answers)

    def _read(
        self, topic_partition: TopicPartition, position: ConsumerPosition
    ) -> ConsumedPartition:
        partition = self._partitions.leader_or_error(
            topic_partition,
            position.current_leader_epoch,
            position.topic_id,
            or_follower=self._from_followers,
        )
        if isinstance(partition, Errors):
            return ConsumedPartition(partition)
        try:
            return self._read_log(partition, position)
        except (StorageError, DamagedRecordsError) as error:
            partition.stats.failed_fetch_requests += 1
            return ConsumedPartition(self._partitions.on_error(topic_partition, error))

    def _read_log(self, partition: Partition, position: ConsumerPosition) -> ConsumedPartition:
        log, stable = partition.local_log, partition.last_stable_offset
        limit = stable if self._is_read_committed else partition.high_watermark
        error, diverging = check_position(log, position.fetch_offset, position.last_fetched_epoch)
        if error is not Errors.NONE:
            return ConsumedPartition(error)
        records: Records = NO_RECORDS
        if diverging.leader_epoch == NO_EPOCH and position.fetch_offset < limit:
            room = min(position.max_bytes, self._max_bytes - self._size)
            is_first = self._size == 0
            if (room > 0 or is_first) and not self._awaits(partition, position.fetch_offset, room):
                records = log.read(position.fetch_offset, room, limit, at_least_one=is_first)
                # A read ends with its segment. The bytes in later ones never come to this fetch.
                if self._size + records.size < self._min_bytes:
                    self._is_urgent |= log.end_of_segment(position.fetch_offset) < limit
        aborted: Sequence[AbortedTransactionStart] = ()
        if self._is_read_committed:
            aborted = log.aborted_transactions(position.fetch_offset, records)
        start = log.log_start_offset
        if position.fetch_offset < start and diverging.leader_epoch == NO_EPOCH:
            # Retention raised it meanwhile: records, or aborted transactions, may be missing.
            return ConsumedPartition(Errors.OFFSET_OUT_OF_RANGE)
        return ConsumedPartition(
            Errors.NONE,
            partition.high_watermark,
            start,
            records,
            *diverging,
            last_stable_offset=stable,
            aborted=aborted,
        )

    def _awaits(self, partition: Partition, offset: int, room: int) -> bool:
        """Whether the records are not in memory yet."""
        prefetches, log = self._prefetches, partition.local_log
        return prefetches is not None and prefetches.awaits(
            partition.topic_partition, log, offset, room
        )


class ConsumerFetches:
    """Answers fetches of consumers, at once or after a wait. Not thread-safe."""

    def __init__(
        self,
        partitions: AllPartitions,
        delayed: DelayedOperationPurgatory,
        prefetches: Prefetches,
    ) -> None:
        self._partitions = partitions
        self._delayed = delayed
        self._prefetches = prefetches

    def fetch(
        self, request: ConsumerFetch, respond: RespondToConsumer, *, waits: bool
    ) -> DelayedOperation | None:
        """Read all partitions in order; if there are too few records, return the waiting fetch.

        None: the fetch is answered, at once if ``waits`` is false.
        """
        prefetches = self._prefetches if waits else None
        fetch = DelayedConsumerFetch(self._partitions, request, respond, prefetches)
        if fetch.on_changes(request.positions) or not waits or not request.positions:
            self._delayed.answer(fetch.answer())
            return None
        return self._delayed.hold(fetch)
