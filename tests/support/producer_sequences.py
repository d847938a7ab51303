"""The state of idempotent producers in a log: a model of ``ProducerStateManager`` in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import ActiveProducer, LastOfProducer
from tests.support.record_checks import Header

REMEMBERED_BATCHES = 5
GREATEST_SEQUENCE = 2**31 - 1


class SequencedBatch(NamedTuple):
    """An appended batch of an idempotent producer."""

    producer_epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerSequences:
    """Every batch of every idempotent producer."""

    def __init__(self) -> None:
        self._batches: dict[int, list[SequencedBatch]] = {}

    def check(self, headers: Iterable[Header]) -> SequencedBatch | None:
        """Return the repeated batch; raises ``RecordsRefusedError`` for a wrong sequence.

        Mirrors ``ProducerAppendInfo``: without any state every sequence is accepted. There is one
        batch of each producer, as in any Produce request.
        """
        for header in headers:
            known = self._batches.get(header.producer_id)
            if not known:
                continue
            last = known[-1]
            if header.producer_epoch < last.producer_epoch:
                raise RecordsRefusedError(Errors.INVALID_PRODUCER_EPOCH, f"{last}: {header}")
            is_new_epoch = header.producer_epoch > last.producer_epoch
            if not is_new_epoch:
                for batch in known[-REMEMBERED_BATCHES:]:
                    sequences = (header.base_sequence, header.last_sequence)
                    if (
                        batch.producer_epoch == header.producer_epoch
                        and (batch.first_sequence, batch.last_sequence) == sequences
                    ):
                        return batch
            expected = 0 if is_new_epoch else successor(last.last_sequence)
            if header.base_sequence != expected:
                raise RecordsRefusedError(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{last}: {header}")
        return None

    def last(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of a producer."""
        known = self._batches.get(producer_id)
        if not known:
            return None
        return LastOfProducer(
            known[-1].producer_epoch, known[-1].last_sequence, known[-1].last_offset
        )

    def active(self) -> list[ActiveProducer]:
        """Return the state of every producer; there are no transactions."""
        return [
            ActiveProducer(
                producer_id, last.producer_epoch, last.last_sequence, last.timestamp_ms, -1, -1
            )
            for producer_id, batches in self._batches.items()
            for last in batches[-1:]
        ]

    def add(self, header: Header) -> None:
        """Store an appended batch."""
        if header.producer_id >= 0:
            self._batches.setdefault(header.producer_id, []).append(
                SequencedBatch(
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                )
            )

    def truncate_to(self, offset: int) -> None:
        """Forget the batches at or after ``offset``."""
        for producer_id, batches in list(self._batches.items()):
            self._batches[producer_id] = [b for b in batches if b.last_offset < offset]


def successor(sequence: int) -> int:
    """Return the next sequence number; after the greatest comes 0."""
    return 0 if sequence == GREATEST_SEQUENCE else sequence + 1
