"""Batches of idempotent producers that arrive before those their producer sent first.

A producer has several requests in flight. The first is refused because nobody leads yet, or too few
are in sync; by the time of the second the leader is ready. Or the leadership moves, and librdkafka
sends to the new leader the second batch before the first, which the old one has just refused. If
such a batch hears OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka believes records to be lost and takes
a new producer epoch, for all its partitions; under that it sends again whatever was not
acknowledged, also what an old leader appended but could not answer for any more: it is there twice.

So an early batch is refused for now, with an error after which its producer sends everything again
in the order of its sequence numbers. Kafka has no counterpart. Where nothing was refused and the
leadership has not moved, or when the batches before it do not come, a gap is a gap.

A log that does not know a producer would take any of its batches as the first one (Kafka does). It
may be an early one, also at the first leader of a partition. It may as well be the next one of a
producer whose state has expired, or was lost with a snapshot. Nobody can tell, so both are asked to
send all again, four times; then the first one that comes is taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.records import RecordBytes
from regent.core.replication.partition import Partition

MAX_PRODUCERS = 10_000  # remembered, over all partitions
_IN_FLIGHT = 5  # requests of an idempotent producer, at most
_ROUNDS = 4  # how often a producer is asked to send everything again
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43  # in the header, see ``DefaultRecordBatch``


class ProducerSequence(NamedTuple):
    """Where a batch belongs in what its producer sends; producer id -1: it is not idempotent."""

    producer_id: int
    producer_epoch: int
    base_sequence: int

    @classmethod
    def of(cls, batches: RecordBytes) -> ProducerSequence:
        """Read it from the header of the first batch, if that is there as a whole."""
        if len(batches) < _PRODUCER_AT + _PRODUCER.size:
            return cls(-1, -1, -1)
        return cls._make(_PRODUCER.unpack_from(batches, _PRODUCER_AT))


@dataclass(slots=True)
class _Awaited:
    """What a producer has still to send, and what those are told that come before it.

    Nothing up to ``base_sequence`` is early; what is behind, up to ``last_refused``, comes again.
    A *round* is what is in flight at once: when it is refused, all of it comes again, in order.
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
        """Count a batch that comes too early; False: its producer was asked often enough."""
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
    """What producers have still to send before the rest can be taken. Not thread-safe."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[TopicPartition, int], _Awaited] = {}  # by producer id

    def on_refused(
        self, topic_partition: TopicPartition, sequence: ProducerSequence, error_code: Errors
    ) -> None:
        """Await a batch that was refused for now, and nothing behind it before."""
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
        """Await what was refused behind a batch that is there now, or nothing more.

        What its producer sends next may overtake what it has not yet heard to be refused.
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
        """Return what to tell a batch that is not the next of its producer; None: it is too late.

        ``partition`` is led here.
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

    def _await(
        self, topic_partition: TopicPartition, first: ProducerSequence, error_code: Errors
    ) -> _Awaited | None:
        """Remember a producer; None: more of them than are remembered are being refused.

        Then a forgotten producer would begin its rounds again and again.
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
    """Whether what is missing may have been sent to another leader, or be still on its way."""
    last = partition.local_log.last_of_producer(sequence.producer_id)
    if last is None:
        return sequence.base_sequence > 0
    start_offset = partition.leader_epoch_start_offset
    is_ahead = sequence.base_sequence > last.sequence or last.epoch < sequence.producer_epoch
    return start_offset is not None and is_ahead and last.offset < start_offset
