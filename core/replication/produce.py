"""Appends of producers, and the wait until they are committed.

Mirrors ``kafka.server.ReplicaManager.appendRecords`` and ``DelayedProduce``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
from regent.core.replica_logs import NOT_VERIFIED, AppendOrigin, PartitionLog
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.broker_topic_stats import ResponseErrors
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
    Slices,
    run_in_slices,
    slices_of_records,
)
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.partition import Partition, Role

_WITHOUT_START_OFFSET = frozenset(
    {Errors.MESSAGE_TOO_LARGE, Errors.RECORD_LIST_TOO_LARGE, Errors.CORRUPT_MESSAGE}
)
_TOO_EARLY = "earlier batches of this producer may still arrive: send all of them again"

MAX_PRODUCERS = 10_000  # remembered, over all partitions
_IN_FLIGHT = 5  # most requests of an idempotent producer
_ROUNDS = 4  # how often a producer is asked to send everything again
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43  # in the header, see ``DefaultRecordBatch``

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
        # With fewer replicas in sync than min.insync.replicas it does not rise.
        return None if partition.high_watermark < awaited.required_offset else Errors.NONE


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
        if isinstance(partition, Errors):
            return partition
        is_verified = self._guards.get(topic_partition) != NOT_VERIFIED
        is_same_term = self._term in (None, partition.leading_since)
        return partition if is_verified and is_same_term else Errors.NOT_LEADER_OR_FOLLOWER

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
            if refused.error_code is Errors.KAFKA_STORAGE_ERROR:  # the disk is nearly full
                self._out_of_order.on_refused(topic_partition, sequence, refused.error_code)
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
    """Return the guards of batches that may be part of transactions; see ``ReplicaManager``."""
    guards = dict.fromkeys(batches, NOT_VERIFIED)
    for topic_partition, batch in batches.items():
        partition = partitions.leader_or_error(topic_partition)
        if isinstance(partition, Errors):
            continue
        try:
            guards[topic_partition] = partition.local_log.begin_verification(batch)
        except StorageError as error:
            partitions.fail(topic_partition, error)
    return guards


class ProducerSequence(NamedTuple):
    """The producer and sequence number of a batch; producer id -1: it is not idempotent."""

    producer_id: int
    producer_epoch: int
    base_sequence: int

    @classmethod
    def of(cls, batches: RecordBytes) -> ProducerSequence:
        """Read it from the header of the first batch, if the header is complete."""
        if len(batches) < _PRODUCER_AT + _PRODUCER.size:
            return NO_SEQUENCE
        return cls._make(_PRODUCER.unpack_from(batches, _PRODUCER_AT))


NO_SEQUENCE = ProducerSequence(-1, -1, -1)


@dataclass(slots=True)
class _Awaited:
    """The batch that a producer must send first, and the refusals of those that came before it.

    Batches up to ``base_sequence`` are not early; later ones, up to ``last_refused``, will be sent
    again. A *round* is the set of batches in flight: the producer repeats all of a refused round,
    in order.
    """

    producer_epoch: int
    base_sequence: int
    error_code: Errors
    last_refused: int
    rounds_left: int = _ROUNDS
    in_round: int = 0  # how many were refused in this round
    last_in_round: int = -1

    @property
    def has_begun(self) -> bool:
        """Whether a batch that came too early was refused."""
        return self.rounds_left < _ROUNDS

    def refuse(self, base_sequence: int) -> bool:
        """Count an early batch; False: its producer has used up all rounds."""
        is_next_round = base_sequence <= self.last_in_round or self.in_round == _IN_FLIGHT
        if is_next_round or not self.has_begun:
            if not self.rounds_left:
                return False
            self.rounds_left -= 1
            self.in_round = 0
        self.in_round += 1
        self.last_in_round = base_sequence
        self.last_refused = max(self.last_refused, base_sequence)
        return True


class OutOfOrderBatches:
    """Handles early batches: those of an idempotent producer that arrive before earlier ones.

    A producer has several requests in flight. The leader may refuse the first one, because it is
    not leader yet or too few replicas are in sync, and be ready when the second one arrives. Or the
    leader moves, the old leader refuses the first batch, and librdkafka sends the second batch
    first to the new leader. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka assumes that records were
    lost. It begins a new producer epoch for all of its partitions and sends again everything that
    was not acknowledged. This includes batches that the old leader had appended but not
    acknowledged: they are then in the log twice.

    So an early batch gets a retriable error, after which its producer sends everything again in the
    order of sequence numbers. Kafka has no counterpart. If nothing was refused and the leader did
    not move, or if the earlier batches do not arrive, the batch gets OUT_OF_ORDER_SEQUENCE_NUMBER.

    The earlier batches may also be in the log of a new leader, when this one does not know yet that
    it was replaced. Members of its ISR do not fetch from it any more then, so the producer is told
    to look for the leader.

    A log accepts any batch of an unknown producer as its first, as in Kafka. This batch may be an
    early one, even at the first leader of a partition. Or it may be the next one of a producer
    whose state expired, or was lost with a snapshot. The broker cannot distinguish these cases. It
    asks the producer four times to send everything again, and then accepts the first batch that
    arrives. Not thread-safe.
    """

    def __init__(self, longest_fetch_wait_ms: int) -> None:
        self._max_silence_ms = 2 * longest_fetch_wait_ms
        self._awaited: dict[tuple[TopicPartition, int], _Awaited] = {}  # by producer id

    def on_refused(
        self, topic_partition: TopicPartition, sequence: ProducerSequence, error_code: Errors
    ) -> None:
        """Expect a batch that got a retriable error, and refuse later ones until it is appended."""
        if sequence.producer_id < 0:
            return
        awaited = self._awaited.get((topic_partition, sequence.producer_id))
        if (
            awaited is not None
            and awaited.producer_epoch == sequence.producer_epoch
            and awaited.base_sequence < sequence.base_sequence
        ):
            awaited.last_refused = max(awaited.last_refused, sequence.base_sequence)
        else:
            self._await(topic_partition, sequence, error_code)

    def on_appended(self, topic_partition: TopicPartition, sequence: ProducerSequence) -> None:
        """After an append, expect the next batch that was refused, if there is one.

        The producer's next batch may overtake one whose refusal it has not received yet.
        """
        awaited = self._awaited.get((topic_partition, sequence.producer_id))
        if awaited is None:
            return
        is_of_its_epoch = awaited.producer_epoch == sequence.producer_epoch
        if is_of_its_epoch and sequence.base_sequence < awaited.last_refused:
            awaited.base_sequence = sequence.base_sequence
        else:
            del self._awaited[topic_partition, sequence.producer_id]

    def refusal(self, partition: Partition, sequence: ProducerSequence) -> Errors | None:
        """Return the error for a batch that is not the next of its producer; None: it is not early.

        This broker leads ``partition``.
        """
        topic_partition = partition.topic_partition
        awaited = self._awaited.get((topic_partition, sequence.producer_id))
        if awaited is None or awaited.producer_epoch != sequence.producer_epoch:
            if not _may_be_early(partition, sequence):
                return None
            awaited = self._await(
                topic_partition, sequence._replace(base_sequence=-1), Errors.NOT_LEADER_OR_FOLLOWER
            )
            if awaited is None:
                return None
        is_early = awaited.base_sequence < sequence.base_sequence
        return awaited.error_code if is_early and awaited.refuse(sequence.base_sequence) else None

    def refusal_of_gap(
        self, partition: Partition, sequence: ProducerSequence, now_ms: int
    ) -> Errors | None:
        """Return the error for a batch whose predecessors are missing in the log.

        None: OUT_OF_ORDER_SEQUENCE_NUMBER, the predecessors will not arrive.
        """
        refusal = self.refusal(partition, sequence)
        if refusal is None and not partition.is_followed_since(now_ms - self._max_silence_ms):
            return Errors.NOT_LEADER_OR_FOLLOWER
        return refusal

    def _await(
        self, topic_partition: TopicPartition, first: ProducerSequence, error_code: Errors
    ) -> _Awaited | None:
        """Remember a producer; None: there are more than ``MAX_PRODUCERS``.

        A forgotten producer would begin its rounds again and again.
        """
        self._awaited.pop((topic_partition, first.producer_id), None)
        if len(self._awaited) >= MAX_PRODUCERS:
            forgotten = self._awaited.pop(next(iter(self._awaited)))
            if forgotten.has_begun:
                return None
        base_sequence = first.base_sequence
        awaited = _Awaited(first.producer_epoch, base_sequence, error_code, base_sequence)
        self._awaited[topic_partition, first.producer_id] = awaited
        return awaited


def _may_be_early(partition: Partition, sequence: ProducerSequence) -> bool:
    """Whether the missing batches may have gone to another leader, or are still in flight."""
    last = partition.local_log.last_of_producer(sequence.producer_id)
    if last is None:
        return sequence.base_sequence > 0
    start_offset = partition.leader_epoch_start_offset
    is_ahead = sequence.base_sequence > last.sequence or last.epoch < sequence.producer_epoch
    return start_offset is not None and is_ahead and last.offset < start_offset
