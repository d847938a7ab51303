"""Appends of producers, and the wait until they are committed.

Mirrors ``kafka.server.ReplicaManager.appendRecords`` and ``DelayedProduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors, RecordsRefusedError, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducedPartition,
    RecordRules,
)
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendOrigin, PartitionLog
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.broker_topic_stats import ResponseErrors
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
)
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.lock_slices import Slices, run_in_slices, slices_of_records
from regent.core.replication.out_of_order_batches import (
    NO_SEQUENCE,
    OutOfOrderBatches,
    ProducerSequence,
)
from regent.core.replication.partition import Partition, Role

_WITHOUT_START_OFFSET = frozenset(
    {Errors.MESSAGE_TOO_LARGE, Errors.RECORD_LIST_TOO_LARGE, Errors.CORRUPT_MESSAGE}
)
_TOO_EARLY = "earlier batches of this producer may still arrive: send all of them again"

RespondToProduce: TypeAlias = Callable[[Mapping[TopicPartition, ProducedPartition]], None]


class AppendRules(NamedTuple):
    """What an append depends on.

    ``term``: the leadership that must last, by the leader epoch with which it began; None: any.
    ``guards``: of the partitions whose transactions were verified.
    """

    term: int | None = None
    origin: AppendOrigin = AppendOrigin.CLIENT
    guards: Mapping[TopicPartition, int] = MappingProxyType({})


OF_CLIENT = AppendRules()


class ProducePartitionStatus(NamedTuple):
    """The high watermark that an ``acks=all`` request waits for, and the leadership that appended.

    A new leader epoch of the same leader (after an ISR shrink) does not fail the wait: the leader
    has truncated nothing.
    """

    partition: Partition
    leading_since: int
    required_offset: int


class DelayedProduce(DelayedOperation):
    """Waits until its records are committed, or this leader cannot commit them any more.

    ``outcomes`` are the answers once the high watermark reaches the required offsets.
    """

    kind = "Produce"

    def __init__(
        self,
        partitions: AllPartitions,
        outcomes: dict[TopicPartition, ProducedPartition],
        awaited: dict[TopicPartition, ProducePartitionStatus],
        respond: RespondToProduce,
        errors: ResponseErrors,
    ) -> None:
        super().__init__(tuple(awaited))
        self._errors = errors
        self._partitions = partitions
        self._outcomes = outcomes
        self._awaited = awaited
        self._respond = respond

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Check high watermarks; return whether all reached the required offsets."""
        for topic_partition in topic_partitions:
            awaited = self._awaited.get(topic_partition)
            error = None if awaited is None else self._outcome(awaited)
            if error is not None:
                del self._awaited[topic_partition]
                if error is not Errors.NONE:
                    self._outcomes[topic_partition] = ProducedPartition(error)
        return not self._awaited

    def answer(self) -> Answer:
        """Answer; partitions that are not committed yet have timed out."""
        for topic_partition in self._awaited:
            self._outcomes[topic_partition] = ProducedPartition(Errors.REQUEST_TIMED_OUT)
        self._errors.count(self._outcomes.values())
        return partial(self._respond, self._outcomes)

    def _outcome(self, awaited: ProducePartitionStatus) -> Errors | None:
        partition = awaited.partition
        if partition.role is Role.OFFLINE:
            return Errors.KAFKA_STORAGE_ERROR
        if (
            partition.role is not Role.LEADER
            or partition.leading_since != awaited.leading_since
            or self._partitions.get(partition.topic_partition) is not partition
        ):
            return Errors.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark < awaited.required_offset:
            return None
        is_enough = len(partition.maximal_isr) >= partition.min_isr
        return Errors.NONE if is_enough else Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class Produce:
    """One produce request. Not thread-safe."""

    def __init__(
        self,
        partitions: AllPartitions,
        leaders: LeaderPartitions,
        delayed: DelayedOperationPurgatory,
        out_of_order: OutOfOrderBatches,
        *,
        acks: int,
        records: Mapping[TopicPartition, RecordBytes],
        respond: RespondToProduce,
        rules: AppendRules = OF_CLIENT,
    ) -> None:
        self._partitions = partitions
        self._leaders = leaders
        self._delayed = delayed
        self._out_of_order = out_of_order
        self._acks = acks
        self._records = records
        self._respond = respond
        self._term, self._origin, self._guards = rules
        is_of_client = self._term is None
        self._errors = partitions.topic_stats.produce_errors if is_of_client else ResponseErrors()
        self._outcomes: dict[TopicPartition, ProducedPartition] = {}
        self._awaited: dict[TopicPartition, ProducePartitionStatus] = {}

    def append(self, now_ms: int) -> Slices[DelayedOperation | None]:
        """Append, then answer, or return the operation that waits until all is committed."""
        portions = slices_of_records(
            (topic_partition, len(data)) for topic_partition, data in self._records.items()
        )
        yield from run_in_slices(
            portions, lambda topic_partitions: self._append_to(topic_partitions, now_ms)
        )
        return self._finish()

    def _append_to(self, topic_partitions: Sequence[TopicPartition], now_ms: int) -> None:
        for topic_partition in topic_partitions:
            partition = self._leader_or_error(topic_partition)
            if self._acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
                self._outcomes[topic_partition] = ProducedPartition(Errors.INVALID_REQUIRED_ACKS)
            elif isinstance(partition, Errors):
                sequence = self._sequence_of(self._records[topic_partition])
                self._outcomes[topic_partition] = self._refuse(topic_partition, sequence, partition)
            else:
                partition.stats.total_produce_requests += 1
                try:
                    self._outcomes[topic_partition] = self._append(
                        partition, self._records[topic_partition], now_ms
                    )
                except RecordsRefusedError as refused:
                    partition.stats.failed_produce_requests += 1
                    self._outcomes[topic_partition] = _refused(
                        partition, refused.error_code, str(refused)
                    )
                except StorageError as error:
                    partition.stats.failed_produce_requests += 1
                    sequence = self._sequence_of(self._records[topic_partition])
                    refusal = self._partitions.fail(topic_partition, error)
                    self._outcomes[topic_partition] = self._refuse(
                        topic_partition, sequence, refusal
                    )

    def _leader_or_error(self, topic_partition: TopicPartition) -> Partition | Errors:
        partition = self._partitions.leader_or_error(topic_partition)
        if isinstance(partition, Errors) or self._term in (None, partition.leading_since):
            return partition
        return Errors.NOT_LEADER_OR_FOLLOWER

    def _append(self, partition: Partition, batches: RecordBytes, now_ms: int) -> ProducedPartition:
        """Append to one partition; a duplicate gets the outcome of its original.

        Raises ``RecordsRefusedError`` and ``StorageError``.
        """
        log, is_awaited = partition.local_log, self._acks == ACKS_ALL
        topic_partition, sequence = partition.topic_partition, self._sequence_of(batches)
        if is_awaited and len(partition.isr) < partition.min_isr:
            self._out_of_order.on_refused(topic_partition, sequence, Errors.NOT_ENOUGH_REPLICAS)
            return _refused(partition, Errors.NOT_ENOUGH_REPLICAS)
        # A log accepts any batch of an unknown producer as its first.
        if sequence.base_sequence > 0 and log.last_of_producer(sequence.producer_id) is None:
            refusal = self._out_of_order.refusal(partition, sequence)
            if refusal is not None:
                return _refused(partition, refusal, _TOO_EARLY)
        try:
            appended = log.append_as_leader(
                batches, partition.leader_epoch, self._origin, self._guards.get(topic_partition)
            )
        except RecordsRefusedError as refused:
            if refused.error_code is not Errors.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            refusal = self._out_of_order.refusal_of_gap(partition, sequence, now_ms)
            if refusal is None:
                raise
            return _refused(partition, refusal, _TOO_EARLY)
        if not appended.is_duplicate:  # a duplicate says nothing about later refusals
            self._out_of_order.on_appended(topic_partition, sequence)
            partition.stats.messages_in += appended.last_offset - appended.first_offset + 1
            partition.stats.bytes_in += len(batches)
        self._leaders.on_append(partition, appended, now_ms)
        if is_awaited:
            required_offset = appended.last_offset + 1
            awaited = ProducePartitionStatus(partition, partition.leading_since, required_offset)
            self._awaited[topic_partition] = awaited
        return ProducedPartition(
            Errors.NONE,
            appended.first_offset,
            appended.log_append_time_ms,
            log.log_start_offset,
        )

    def _sequence_of(self, batches: RecordBytes) -> ProducerSequence:
        """Return the producer of a batch; those of coordinators have no sequence."""
        if self._origin is AppendOrigin.COORDINATOR:
            return NO_SEQUENCE
        return ProducerSequence.of(batches)

    def _refuse(
        self, topic_partition: TopicPartition, sequence: ProducerSequence, error_code: Errors
    ) -> ProducedPartition:
        self._out_of_order.on_refused(topic_partition, sequence, error_code)
        return ProducedPartition(error_code)

    def _finish(self) -> DelayedOperation | None:
        if self._awaited:
            operation = DelayedProduce(
                self._partitions, self._outcomes, self._awaited, self._respond, self._errors
            )
            if not operation.on_changes(operation.partitions):
                return self._delayed.hold(operation)
        self._errors.count(self._outcomes.values())
        self._delayed.answer(partial(self._respond, self._outcomes))
        return None


def record_rules(log: PartitionLog) -> RecordRules:
    """Return what the topic of a log asks of records."""
    config, start_offset = log.config, log.log_start_offset
    if config.stamps_append_time:
        return RecordRules(config.is_compacted, log_start_offset=start_offset)
    return RecordRules(config.is_compacted, config.max_past_ms, config.max_future_ms, start_offset)


def _refused(partition: Partition, error_code: Errors, message: str = "") -> ProducedPartition:
    """Return the refusal of records; it names the start of the log where Kafka's does."""
    start = -1 if error_code in _WITHOUT_START_OFFSET else partition.local_log.log_start_offset
    return ProducedPartition(error_code, log_start_offset=start, message=message)


def begin_verifications(
    partitions: AllPartitions, batches: Mapping[TopicPartition, RecordBytes]
) -> Mapping[TopicPartition, int]:
    """Return the guards of batches that may be part of transactions."""
    guards: dict[TopicPartition, int] = {}
    for topic_partition, batch in batches.items():
        partition = partitions.leader_or_error(topic_partition)
        if isinstance(partition, Errors):
            continue
        try:
            guards[topic_partition] = partition.local_log.begin_verification(batch)
        except StorageError as error:
            partitions.fail(topic_partition, error)
    return guards
