"""The last batches of each idempotent producer, so that a record sent twice is written once.

Mirrors ``ProducerStateManager``. Producers number their records. A batch that does not have the
next sequence number is refused. A repetition of one of the last five batches is answered, but not
appended. The state is rebuilt from the newest snapshot and the batches after it. Transactions are
not supported, but logs that contain them can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from regent.core.errors import BadDataError, Errors, RecordsRefusedError
from regent.core.replica_logs import ActiveProducer, LastOfProducer
from regent.storage.atomic_file import write_atomically
from regent.storage.file_errors import storage_error
from regent.storage.record_batch import INT32_MAX, NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader

SNAPSHOT_SUFFIX = ".snapshot"
PRODUCER_EXPIRATION_MS = 7 * 24 * 60 * 60 * 1000
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
    def newest(self) -> AppendedBatch:
        """Its last batch for a snapshot, with the timestamp of the producer's last activity."""
        none = AppendedBatch(NO_SEQUENCE, _NO_OFFSET, 0, self.last_timestamp)
        return self.batches[-1]._replace(timestamp=self.last_timestamp) if self.batches else none

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 if none is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStateManager:
    """The producers of one log. Not thread-safe."""

    def __init__(self, directory: Path, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> None:
        self.directory = directory
        self._expiration_ms = expiration_ms
        self._producers: dict[int, ProducerStateEntry] = {}

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

    def last_of_all(self) -> Mapping[int, LastOfProducer]:
        """Return the last batch of each producer."""
        found = ((producer_id, self.last(producer_id)) for producer_id in self._producers)
        return {producer_id: last for producer_id, last in found if last is not None}

    @property
    def first_open_transaction(self) -> int | None:
        """The first offset of a transaction that has not ended; None: there is none."""
        starts = (entry.first_offset_of_transaction for entry in self._producers.values())
        return min((start for start in starts if start >= 0), default=None)

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

    def check(self, headers: Iterable[BatchHeader]) -> AppendedBatch | None:
        """Check batches from a client before they are appended; return the original of a duplicate.

        Raises ``RecordsRefusedError``: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        ahead: dict[int, tuple[int, int]] = {}  # epoch and last sequence after the batches so far
        for header in headers:
            if header.producer_id < 0:
                continue
            known = self._producers.get(header.producer_id)
            if known is not None and known.epoch == header.producer_epoch:
                for batch in known.batches:
                    if batch.is_repeated_by(header):
                        return batch
            epoch, last_sequence = ahead.get(header.producer_id) or (
                (known.epoch, known.last_sequence) if known else (NO_PRODUCER_EPOCH, NO_SEQUENCE)
            )
            _check_next(header, epoch, last_sequence)
            ahead[header.producer_id] = header.producer_epoch, header.last_sequence
        return None

    def update(self, header: BatchHeader) -> None:
        """Update the state for a batch in the log: a new one, a replicated one, or at recovery."""
        if header.producer_id < 0:
            return
        entry = self._producers.get(header.producer_id)
        if entry is None:
            entry = ProducerStateEntry(header.producer_epoch, (), header.max_timestamp)
            self._producers[header.producer_id] = entry
        elif entry.epoch != header.producer_epoch:
            entry.epoch, entry.batches = header.producer_epoch, ()
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            entry.first_offset_of_transaction = _NO_OFFSET
            return
        batch = AppendedBatch(
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
        )
        entry.batches = (*entry.batches[1 - BATCHES_TO_RETAIN :], batch)
        if header.is_transactional and entry.first_offset_of_transaction < 0:
            entry.first_offset_of_transaction = header.base_offset

    def copy_from(self, other: ProducerStateManager) -> None:
        """Take over all producers of another log, which is not used from now on."""
        self._producers = other._producers

    def remove_expired(self, now_ms: int) -> None:
        """Remove producers that wrote nothing for ``expiration_ms``."""
        expired = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.first_offset_of_transaction < 0
            and now_ms - entry.last_timestamp >= self._expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]

    # --- snapshots ---

    def restore(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> int:
        """Load the newest snapshot of an offset that is in the log.

        Return the offset from which the caller must replay the batches with ``update``. Delete
        damaged snapshots and those outside of the log. Raises ``StorageError``.
        """
        self._producers = {}
        usable = self.retain_snapshots(range(log_start_offset, log_end_offset + 1))
        for offset in reversed(usable):
            try:
                self._producers = _decode(_read(self._path(offset)))
            except BadDataError:
                self._delete(offset)
                continue
            self.remove_expired(now_ms)
            return offset
        return log_start_offset

    def take_snapshot(self, offset: int) -> None:
        """Write the state after all batches below ``offset``.

        Do not wait for the disk: the CRC reveals a snapshot that a power failure damaged, and an
        older one is used then. Raises ``StorageError``.
        """
        write_atomically(self._path(offset), _encode(self._producers), is_synced=False)

    def snapshot_offsets(self) -> list[int]:
        """Return the offsets of all snapshots, in order. Raises ``StorageError``."""
        try:
            names = [path.name for path in self.directory.iterdir()]
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
        self._producers = {}
        self.retain_snapshots(())

    def _path(self, offset: int) -> Path:
        return self.directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"

    def _delete(self, offset: int) -> None:
        path = self._path(offset)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(path, error) from None


def _check_next(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    """Raise unless a batch has the next sequence number (``ProducerAppendInfo``)."""
    if header.producer_epoch < epoch:
        raise RecordsRefusedError(
            Errors.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch} by now, not {header.producer_epoch}",
        )
    if epoch == NO_PRODUCER_EPOCH:
        return  # it is new, or its records were deleted: accept any first number
    expected = 0 if header.producer_epoch > epoch else (last_sequence + 1) & INT32_MAX
    if header.base_sequence != expected:
        raise RecordsRefusedError(
            Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sends sequence number {header.base_sequence},"
            f" but {expected} is next",
        )


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
