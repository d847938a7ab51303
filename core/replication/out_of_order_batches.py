"""Handles early batches: batches of an idempotent producer that arrive before earlier ones.

A producer has several requests in flight. The leader may refuse the first one, because it is not
leader yet or too few replicas are in sync, and be ready when the second one arrives. Or the leader
moves, the old leader refuses the first batch, and librdkafka sends the second batch first to the
new leader. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka assumes that records were lost. It begins
a new producer epoch for all of its partitions and sends again everything that was not acknowledged.
This includes batches that the old leader had appended but not acknowledged: they are then in the
log twice.

So an early batch gets a retriable error, after which its producer sends everything again in the
order of sequence numbers. Kafka has no counterpart. If nothing was refused and the leader did not
move, or if the earlier batches do not arrive, the batch gets OUT_OF_ORDER_SEQUENCE_NUMBER.

The earlier batches may also be in the log of a new leader, when this one does not know yet that it
was replaced. Members of its ISR do not fetch from it any more then, so the producer is told to look
for the leader.

A log accepts any batch of an unknown producer as its first, as in Kafka. This batch may be an early
one, even at the first leader of a partition. Or it may be the next one of a producer whose state
expired, or was lost with a snapshot. The broker cannot distinguish these cases. It asks the
producer four times to send everything again, and then accepts the first batch that arrives.
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
_IN_FLIGHT = 5  # most requests of an idempotent producer
_ROUNDS = 4  # how often a producer is asked to send everything again
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43  # in the header, see ``DefaultRecordBatch``


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
    """The batches that producers must send before later ones are accepted. Not thread-safe."""

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
