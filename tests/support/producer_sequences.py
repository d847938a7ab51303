"""The state of idempotent producers in a log: a model of ``ProducerStateManager`` in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import ActiveProducer, LastOfProducer
from tests.support.record_batches import CONTROL_MASK, TRANSACTIONAL_MASK
from tests.support.record_checks import Header
from tests.support.transactions_in_memory import marker_of

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
        self._epochs: dict[int, int] = {}  # of markers, which may be newer than those of batches
        self._coordinator_epochs: dict[int, int] = {}
        self._timestamps: dict[int, int] = {}
        self._open: dict[int, int] = {}  # transactions, with their first offsets
        self._guards: dict[int, int] = {}
        self._guard_count = 0

    def begin_verification(self, header: Header) -> int:
        """Return the guard of a producer; 0 if its transaction is open."""
        producer_id = header.producer_id
        if producer_id in self._open:
            return 0
        if producer_id not in self._guards:
            self._guard_count += 1
            self._guards[producer_id] = self._guard_count
        return self._guards[producer_id]

    def check_of_coordinator(self, header: Header, batch: bytes, guard: int | None = None) -> None:
        """Raise ``RecordsRefusedError`` if a newer producer or coordinator has written."""
        producer_id = header.producer_id
        if header.producer_epoch < self._epochs.get(producer_id, -1):
            raise RecordsRefusedError(Errors.INVALID_PRODUCER_EPOCH, f"{header}")
        is_batch = not header.attributes & CONTROL_MASK and producer_id >= 0
        if is_batch and guard is not None:
            self._check_transaction(producer_id, is_transactional=True, guard=guard)
        marker = marker_of(batch) if header.attributes & CONTROL_MASK else None
        if marker is not None and marker[1] < self._coordinator_epochs.get(producer_id, -1):
            raise RecordsRefusedError(Errors.TRANSACTION_COORDINATOR_FENCED, f"{header}")

    def check(self, headers: Iterable[Header], guard: int | None = None) -> SequencedBatch | None:
        """Return the repeated batch; raises ``RecordsRefusedError`` for a wrong sequence.

        Mirrors ``ProducerAppendInfo``: without any state every sequence is accepted. There is one
        batch of each producer, as in any Produce request.
        """
        for header in headers:
            producer_id, is_transactional = header.producer_id, bool(header.attributes & 0x10)
            known = self._batches.get(producer_id)
            epoch = self._epochs.get(producer_id, -1)
            if not known:
                self._check_transaction(producer_id, is_transactional, guard)
                if header.producer_epoch < epoch:
                    raise RecordsRefusedError(Errors.INVALID_PRODUCER_EPOCH, f"{header}")
                if epoch >= 0 and header.base_sequence != 0:
                    raise RecordsRefusedError(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{header}")
                continue
            last = known[-1]
            if header.producer_epoch < epoch:
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
            self._check_transaction(producer_id, is_transactional, guard)
            expected = 0 if is_new_epoch else successor(last.last_sequence)
            if header.base_sequence != expected:
                raise RecordsRefusedError(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{last}: {header}")
        return None

    def _check_transaction(
        self, producer_id: int, is_transactional: bool, guard: int | None
    ) -> None:
        is_open = producer_id in self._open
        is_unverified = guard is not None and guard != self._guards.get(producer_id)
        if (is_open and not is_transactional) or (
            is_transactional and not is_open and is_unverified
        ):
            raise RecordsRefusedError(Errors.INVALID_TXN_STATE, f"{producer_id}")

    def last(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of a producer."""
        known = self._batches.get(producer_id)
        if not known:
            return None
        return LastOfProducer(
            known[-1].producer_epoch, known[-1].last_sequence, known[-1].last_offset
        )

    def active(self) -> list[ActiveProducer]:
        """Return the state of every producer."""
        return [
            ActiveProducer(
                producer_id,
                epoch,
                self._last_sequence(producer_id, epoch),
                self._timestamps[producer_id],
                self._coordinator_epochs.get(producer_id, -1),
                self._open.get(producer_id, -1),
            )
            for producer_id, epoch in self._epochs.items()
        ]

    def _last_sequence(self, producer_id: int, epoch: int) -> int:
        last = self._batches.get(producer_id, [])[-1:]
        return next((batch.last_sequence for batch in last if batch.producer_epoch == epoch), -1)

    def add(self, header: Header, batch: bytes) -> None:
        """Store an appended batch or marker."""
        producer_id = header.producer_id
        marker = marker_of(batch) if header.attributes & CONTROL_MASK else None
        if producer_id < 0 or (header.attributes & CONTROL_MASK and marker is None):
            return
        self._epochs[producer_id] = header.producer_epoch
        self._timestamps[producer_id] = header.max_timestamp
        if header.attributes & TRANSACTIONAL_MASK:
            self._guards.pop(producer_id, None)
            self._open.setdefault(producer_id, header.base_offset)
        if marker is not None:
            self._open.pop(producer_id, None)
            self._coordinator_epochs[producer_id] = marker[1]
        else:
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
        """Forget the batches at or after ``offset``, of a log without transactions."""
        for producer_id, batches in list(self._batches.items()):
            kept = [batch for batch in batches if batch.last_offset < offset]
            self._batches[producer_id] = kept
            if kept:
                self._epochs[producer_id] = kept[-1].producer_epoch
                self._timestamps[producer_id] = kept[-1].timestamp_ms
            else:
                del self._batches[producer_id], self._epochs[producer_id]
                del self._timestamps[producer_id]


def successor(sequence: int) -> int:
    """Return the next sequence number; after the greatest comes 0."""
    return 0 if sequence == GREATEST_SEQUENCE else sequence + 1
