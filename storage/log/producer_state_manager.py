"""The last batches of each idempotent producer, and its transaction.

Mirrors ``ProducerStateManager``. Producers number their records, so that a record sent twice is
written once. A batch that does not have the next sequence number is refused. A repetition of one of
the last five batches is answered, but not appended. A transaction begins with its first batch and
ends with a marker. The state is rebuilt from the newest snapshot and the batches after it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from regent.core.errors import BadDataError, Errors, RecordsRefusedError
from regent.core.replica_logs import (
    NO_VERIFICATION,
    ActiveProducer,
    LastOfProducer,
    ProducerSummary,
)
from regent.records.end_transaction_marker import EndTransactionMarker
from regent.records.record_batch import INT32_MAX, NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader
from regent.storage.files import storage_error, write_atomically
from regent.storage.log.transaction_index import AbortedTransaction

SNAPSHOT_SUFFIX = ".snapshot"
LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000
BATCHES_TO_RETAIN = 5  # of each producer: it may have this many requests in flight

_VERSION = 1
_NO_OFFSET = -1
_PREFIX = struct.Struct(">hI")  # version, CRC-32C of what follows
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class AppendedBatch(NamedTuple):
    """A batch of a producer as it is in the log; timestamp in milliseconds."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    def is_repeated_by(self, header: BatchHeader) -> bool:
        """Whether a batch of the same producer and epoch has the same sequence numbers."""
        return (
            header.last_sequence == self.last_sequence
            and header.last_offset_delta == self.offset_delta
        )


@dataclass(slots=True)
class ProducerStateEntry:
    """What is known of one producer."""

    epoch: int
    batches: tuple[AppendedBatch, ...]  # oldest first, all of ``epoch``
    last_timestamp: int
    coordinator_epoch: int = -1
    first_offset_of_transaction: int = _NO_OFFSET

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.first_offset_of_transaction >= 0

    @property
    def newest(self) -> AppendedBatch:
        """Its last batch for a snapshot, with the timestamp of the producer's last activity."""
        none = AppendedBatch(NO_SEQUENCE, _NO_OFFSET, 0, self.last_timestamp)
        return self.batches[-1]._replace(timestamp=self.last_timestamp) if self.batches else none

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 if none is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


@dataclass(slots=True)
class _Verification:
    """A producer whose transaction is being verified, with the number of the verification.

    ``lowest_sequence``: of the batches that wait for it, all of ``epoch``.
    """

    guard: int
    epoch: int
    lowest_sequence: int
    timestamp: int


class ProducerStateManager:
    """The producers of one log. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._producers: dict[int, ProducerStateEntry] = {}
        self._transactions = PartitionTransactions()
        self._verifications: dict[int, _Verification] = {}
        self._verification_count = 0

    def __len__(self) -> int:
        return len(self._producers)

    def entry(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of a producer."""
        return self._producers.get(producer_id)

    def last(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of a producer; None: it is unknown."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return None
        newest = entry.newest
        return LastOfProducer(entry.epoch, newest.last_sequence, newest.last_offset)

    # --- transactions ---

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset that readers of committed records must not get; None: none."""
        return self._transactions.first_unstable_offset(high_watermark)

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction; None: none is open."""
        return self._transactions.first_undecided_offset

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether a transaction is open for so long that its coordinator must have lost it.

        Another thread may ask, without a lock.
        """
        producer_id = self._transactions.oldest_producer
        entry = None if producer_id is None else self._producers.get(producer_id)
        if entry is None:
            return False
        idle_ms = now_ms - entry.last_timestamp
        return idle_ms > max_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    def summary(self, now_ms: int, max_timeout_ms: int) -> ProducerSummary:
        """See ``PartitionLog.producer_summary``."""
        return ProducerSummary(len(self), self.has_late_transaction(now_ms, max_timeout_ms))

    def begin_verification(self, header: BatchHeader, now_ms: int) -> int:
        """Return the guard for ``check``; it changes when a batch or marker comes in between.

        ``NO_VERIFICATION``: the transaction of the producer is open, and needs no verification.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._producers.get(producer_id)
        if known is not None and known.has_transaction:
            return NO_VERIFICATION
        entry = self._verifications.get(producer_id)
        if entry is None:
            self._verification_count += 1
            entry = _Verification(self._verification_count, epoch, header.base_sequence, now_ms)
            self._verifications[producer_id] = entry
        elif entry.epoch < epoch:
            entry.epoch, entry.lowest_sequence = epoch, header.base_sequence
        elif entry.epoch == epoch:
            entry.lowest_sequence = min(entry.lowest_sequence, header.base_sequence)
        return entry.guard

    def last_of_all(self) -> Mapping[int, LastOfProducer]:
        """Return the last batch of each producer."""
        found = ((producer_id, self.last(producer_id)) for producer_id in self._producers)
        return {producer_id: last for producer_id, last in found if last is not None}

    def active(self) -> Sequence[ActiveProducer]:
        """Return the state of every producer."""
        return [
            ActiveProducer(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.first_offset_of_transaction,
            )
            for producer_id, entry in self._producers.items()
        ]

    # --- appending ---

    def check(
        self, headers: Iterable[BatchHeader], guard: int | None = None
    ) -> AppendedBatch | None:
        """Check batches from a client before they are appended; return the original of a duplicate.

        ``guard``: that of the verification of its transaction; None: it needs none. Raises
        ``RecordsRefusedError``: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
        INVALID_TXN_STATE.
        """
        ahead: dict[int, tuple[int, int]] = {}  # epoch and last sequence after the batches so far
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            known = self._producers.get(producer_id)
            if known is not None and known.epoch == header.producer_epoch:
                for batch in known.batches:
                    if batch.is_repeated_by(header):
                        return batch
            verification = self._check_verified(header, known, guard)
            epoch, last_sequence = ahead.get(producer_id) or (
                (known.epoch, known.last_sequence) if known else (NO_PRODUCER_EPOCH, NO_SEQUENCE)
            )
            lowest = None if verification is None else verification.lowest_sequence
            _check_next(header, epoch, last_sequence, lowest)
            _check_transaction(header, known)
            ahead[producer_id] = header.producer_epoch, header.last_sequence
        return None

    def _check_verified(
        self, header: BatchHeader, known: ProducerStateEntry | None, guard: int | None
    ) -> _Verification | None:
        """Check the first batch of a transaction here; return the verification in progress."""
        verification = self._verifications.get(header.producer_id)
        verified = None if verification is None else verification.guard
        is_open = known is not None and known.has_transaction
        if guard not in (None, verified) and header.is_transactional and not is_open:
            raise _invalid_state(header, "the transaction has ended since it was verified")
        return verification

    def check_of_coordinator(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
        guard: int | None = None,
    ) -> None:
        """Check a batch or a marker from a coordinator, whose batches need no sequence.

        ``guard`` is as in ``check``. Raises ``RecordsRefusedError``: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED or INVALID_TXN_STATE.
        """
        known = self._producers.get(header.producer_id)
        if not header.is_control:
            self._check_verified(header, known, guard)
        if known is None or header.producer_id < 0:
            return
        _check_epoch(header, known.epoch)
        if not header.is_control:
            _check_transaction(header, known)
        elif marker is not None and marker.coordinator_epoch < known.coordinator_epoch:
            raise RecordsRefusedError(
                Errors.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id} has a marker of coordinator epoch"
                f" {known.coordinator_epoch} by now, not {marker.coordinator_epoch}",
            )

    def update(
        self, header: BatchHeader, marker: EndTransactionMarker | None = None
    ) -> AbortedTransaction | None:
        """Update the state for a batch in the log: a new one, a replicated one, or at recovery.

        Return the transaction that it aborts. A control batch without a marker changes nothing.
        """
        if header.producer_id < 0 or (header.is_control and marker is None):
            return None
        entry = self._producers.get(header.producer_id)
        if entry is None:
            entry = ProducerStateEntry(header.producer_epoch, (), header.max_timestamp)
            self._producers[header.producer_id] = entry
        elif entry.epoch != header.producer_epoch:
            entry.epoch, entry.batches = header.producer_epoch, ()
        entry.last_timestamp = header.max_timestamp
        if header.is_transactional:
            self._verifications.pop(header.producer_id, None)
        if marker is not None:
            entry.coordinator_epoch = marker.coordinator_epoch
            return self._end_transaction(entry, header, marker)
        batch = AppendedBatch(
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        entry.batches = (*entry.batches[1 - BATCHES_TO_RETAIN :], batch)
        if header.is_transactional and not entry.has_transaction:
            entry.first_offset_of_transaction = header.base_offset
            self._transactions.begin(header.producer_id, header.base_offset)
        return None

    def _end_transaction(
        self, entry: ProducerStateEntry, header: BatchHeader, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        if not entry.has_transaction:  # it has no records here, or its end is repeated
            return None
        first, entry.first_offset_of_transaction = entry.first_offset_of_transaction, _NO_OFFSET
        stable = self._transactions.end(first, header.last_offset)
        if marker.is_commit:
            return None
        return AbortedTransaction(header.producer_id, first, header.last_offset, stable)

    def copy_from(self, other: ProducerStateManager) -> None:
        """Take over all producers of another log, which is not used from now on."""
        self._producers = other._producers
        self._transactions = other._transactions
        self._verifications = other._verifications
        self._verification_count = other._verification_count

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that wrote nothing for ``expiration_ms`` and have no transaction."""
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if not entry.has_transaction and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        for producer_id, verification in list(self._verifications.items()):
            if now_ms - verification.timestamp >= expiration_ms:
                del self._verifications[producer_id]

    # --- snapshots ---

    def restore(
        self, log_start_offset: int, log_end_offset: int, now_ms: int, expiration_ms: int
    ) -> int:
        """Load the newest snapshot of an offset that is in the log.

        Return the offset from which the caller must replay the batches with ``update``. Delete
        damaged snapshots and those outside of the log. Raises ``StorageError``.
        """
        retained = self.retain_snapshots(range(log_start_offset, log_end_offset + 1))
        known = self._load_newest(retained)
        self.remove_expired(now_ms, expiration_ms)
        return log_start_offset if known is None else known

    def load_before(self, offset: int) -> int | None:
        """Load the newest snapshot up to ``offset``; return its offset, or None if there is none.

        Delete damaged snapshots. Raises ``StorageError``.
        """
        return self._load_newest([known for known in self.snapshot_offsets() if known <= offset])

    def _load_newest(self, offsets: Sequence[int]) -> int | None:
        self._forget()
        for known in reversed(offsets):
            try:
                self._producers = _decode(_read(self._path(known)))
            except BadDataError:
                self._delete(known)
                continue
            starts = (
                (entry.first_offset_of_transaction, producer_id)
                for producer_id, entry in self._producers.items()
                if entry.has_transaction
            )
            for first_offset, producer_id in sorted(starts):
                self._transactions.begin(producer_id, first_offset)
            return known
        return None

    def take_snapshot(self, offset: int, of: ProducerStateManager | None = None) -> None:
        """Write the state after all batches below ``offset``; ``of``: that of another log.

        Do not wait for the disk: the CRC reveals a snapshot that a power failure damaged, and an
        older one is used then. Raises ``StorageError``.
        """
        producers = self._producers if of is None else of._producers
        write_atomically(self._path(offset), _encode(producers), is_synced=False)

    def snapshot_offsets(self) -> list[int]:
        """Return the offsets of all snapshots, in order. Raises ``StorageError``."""
        try:
            names = os.listdir(self.directory)
        except OSError as error:
            raise storage_error(self.directory, error) from None
        stems = [
            name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX)
        ]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def retain_snapshots(self, offsets: Container[int]) -> list[int]:
        """Delete all snapshots except those at ``offsets``; return the remaining ones.

        Raises ``StorageError``.
        """
        retained = []
        for offset in self.snapshot_offsets():
            if offset in offsets:
                retained.append(offset)
            else:
                self._delete(offset)
        return retained

    def remove_stray_snapshots(self, bases: Sequence[int]) -> None:
        """Delete the snapshots that are not at the base offset of a segment.

        The newest one stays if it is after the base offset of the last segment: it spares the next
        start most of the work. Raises ``StorageError``.
        """
        newest = max(self.snapshot_offsets(), default=-1)
        self.retain_snapshots({*bases, newest} if newest > max(bases, default=-1) else bases)

    def delete_snapshots_before(self, offset: int) -> None:
        """Delete the snapshots below ``offset``. Raises ``StorageError``."""
        for found in self.snapshot_offsets():
            if found < offset:
                self._delete(found)

    def delete_snapshots_at(self, offsets: Iterable[int]) -> None:
        """Delete the snapshots at these offsets. Raises ``StorageError``."""
        for offset in offsets:
            self._delete(offset)

    def clear(self) -> None:
        """Remove all producers and snapshots. Raises ``StorageError``."""
        self._forget()
        self.retain_snapshots(())

    def _forget(self) -> None:
        self._producers = {}
        self._transactions = PartitionTransactions()
        self._verifications = {}

    def _path(self, offset: int) -> Path:
        return self.directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def _delete(self, offset: int) -> None:
        path = self._path(offset)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(path, error) from None


def _check_epoch(header: BatchHeader, epoch: int) -> None:
    if header.producer_epoch < epoch:
        raise RecordsRefusedError(
            Errors.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch} by now, not {header.producer_epoch}",
        )


def _check_next(
    header: BatchHeader, epoch: int, last_sequence: int, lowest_verified: int | None
) -> None:
    """Raise unless a batch has the next sequence number (``ProducerAppendInfo``)."""
    _check_epoch(header, epoch)
    if lowest_verified is not None and header.base_sequence > lowest_verified:
        raise _out_of_order(header, lowest_verified)
    if epoch == NO_PRODUCER_EPOCH:
        return  # it is new, or its records were deleted: accept any first number
    expected = 0 if header.producer_epoch > epoch else (last_sequence + 1) & INT32_MAX
    if header.base_sequence != expected:
        raise _out_of_order(header, expected)


def _check_transaction(header: BatchHeader, known: ProducerStateEntry | None) -> None:
    if known is not None and known.has_transaction and not header.is_transactional:
        raise _invalid_state(header, "a batch outside of the transaction that is open")


def _out_of_order(header: BatchHeader, expected: int) -> RecordsRefusedError:
    return RecordsRefusedError(
        Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sends sequence number {header.base_sequence},"
        f" but {expected} is next",
    )


def _invalid_state(header: BatchHeader, why: str) -> RecordsRefusedError:
    return RecordsRefusedError(Errors.INVALID_TXN_STATE, f"producer {header.producer_id}: {why}")


def _encode(producers: dict[int, ProducerStateEntry]) -> bytes:
    """Write an entry for each batch, a producer's oldest first.

    Kafka writes an entry for the newest batch only, and uses the last entry of a producer, so it
    can read ours. With a snapshot of Kafka a repetition of an earlier batch is out of order;
    librdkafka then sends it with a new epoch, and the log has it twice.
    """
    entries: Sequence[bytes] = [
        _ENTRY.pack(
            producer_id,
            entry.epoch,
            *batch,
            entry.coordinator_epoch,
            entry.first_offset_of_transaction,
        )
        for producer_id, entry in producers.items()
        for batch in (*entry.batches[:-1], entry.newest)
    ]
    body = _COUNT.pack(len(entries)) + b"".join(entries)
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def _decode(data: bytes) -> dict[int, ProducerStateEntry]:
    head = _PREFIX.size + _COUNT.size
    if len(data) < head:
        raise BadDataError(f"a producer snapshot of {len(data)} bytes")
    version, crc = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    (count,) = _COUNT.unpack_from(body)
    if version != _VERSION or crc != crc32c(body) or len(data) != head + count * _ENTRY.size:
        raise BadDataError(f"a damaged producer snapshot of {count} entries")
    producers: dict[int, ProducerStateEntry] = {}
    for fields in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, *last, timestamp, coordinator_epoch, first_offset = fields
        sequence, offset, delta = last
        batches = (AppendedBatch(sequence, offset, delta, timestamp),) if offset >= 0 else ()
        before = producers.get(producer_id)
        if before is not None and before.epoch == epoch:
            batches = (*before.batches[1 - BATCHES_TO_RETAIN :], *batches)
        producers[producer_id] = ProducerStateEntry(
            epoch, batches, timestamp, coordinator_epoch, first_offset
        )
    return producers


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise storage_error(path, error) from None


class PartitionTransactions:
    """The transactions of a partition that may still change what is stable.

    Mirrors ``ongoingTxns`` and ``unreplicatedTxns`` of ``ProducerStateManager``. A transaction is
    open from its first record to its marker. After that it counts until the marker is committed:
    another leader may lack the marker. Not thread-safe, except ``oldest_producer``.
    """

    __slots__ = ("_open", "_unreplicated")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # first offset to producer id, in the order of the offsets
        self._unreplicated: list[tuple[int, int]] = []  # a heap of first offsets, and of markers

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note the first record of a transaction; first offsets grow from call to call."""
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Note the marker of a transaction; return the offset before which none is open."""
        del self._open[first_offset]
        heappush(self._unreplicated, (first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    @property
    def oldest_producer(self) -> int | None:
        """The producer of the open transaction that began first; any thread may ask."""
        producers = list(self._open.values())  # atomic: ``next(iter(…))`` may find a changed dict
        return producers[0] if producers else None

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction; None: none is open."""
        return next(iter(self._open), None)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset that readers of committed records must not get; None: none.

        Forget the transactions whose markers are below the high watermark.
        """
        first, unreplicated = next(iter(self._open), None), self._unreplicated
        while unreplicated and unreplicated[0][1] < high_watermark:
            heappop(unreplicated)
        if unreplicated and (first is None or unreplicated[0][0] < first):
            return unreplicated[0][0]
        return first
