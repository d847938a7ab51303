"""Decides what is left of a batch when its log is cleaned.

Mirrors ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. A batch of which something is left
keeps its offsets, sequence numbers, leader epoch and codec. ``CleanedTransactions`` tells which
batches were aborted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from crc32c import crc32c

from regent.core.records import RecordBytes
from regent.core.replica_logs import LastOfProducer
from regent.records.compression import compressed
from regent.records.end_transaction_marker import ABORT, COMMIT, control_type
from regent.records.record import RecordSpan, read_records, with_timestamp_delta
from regent.records.record_batch import (
    CHECKED_FROM,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    SPECIAL,
    BatchHeader,
    encode,
    read_header,
    read_header_fields,
    uncompressed,
)
from regent.storage.compaction.offset_map import GOES, TOMBSTONE, OffsetMap
from regent.storage.log.log_file import BatchOrder
from regent.storage.log.transaction_index import AbortedTransaction


class CleanedBatch(NamedTuple):
    """What is left of a batch."""

    header: BatchHeader
    data: RecordBytes


class BatchCleaning:
    """Cleans batch by batch, in the order of their offsets.

    ``offsets`` has the newest offset of each key. ``producers`` has the last batch of each live
    producer: that batch stays, even empty, because it has the producer's sequence number.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, LastOfProducer],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def clean_lone(
        self,
        data: bytes,
        at: int,
        stop: int,
        order: BatchOrder,
        keep: Callable[[BatchHeader, memoryview], None],
    ) -> int:
        """Clean batches of one record, from the place ``at`` on; ``keep`` gets those that stay.

        Return the place of the first batch that ``clean`` must deal with; compare
        ``OffsetMap.put_lone``, which has checked the CRC of those that go.
        """
        marks, start = self._offsets.all_marks()
        limit = min(start + len(marks), self._offsets.latest_offset + 1, order.end_offset)
        expected, epoch, view = max(order.expected, start), order.epoch, memoryview(data)
        producers, begun = self._producers, at
        while at + HEADER_SIZE < stop:
            base, size, leader_epoch, magic, crc, attributes, delta, _, _, producer, *_, count = (
                read_header_fields(data, at)
            )
            end = at + LENGTH_END + size
            if count != 1 or delta or attributes & SPECIAL or magic != MAGIC or end > stop:
                break
            if not expected <= base < limit or leader_epoch < epoch:
                break
            mark = marks[base - start]
            if mark == GOES:
                if producer >= 0 and (last := producers.get(producer)) and last.offset == base:
                    break
            elif mark == TOMBSTONE or crc32c(view[at + CHECKED_FROM : end]) != crc:
                break
            else:
                keep(read_header(data, at), view[at:end])
            expected, epoch, at = base + 1, leader_epoch, end
        if at > begun:
            order.expected, order.epoch = expected, epoch
        return at

    def clean(self, header: BatchHeader, data: memoryview) -> CleanedBatch | None:
        """Return what is left of a batch; None: nothing. Raises ``ValueError``."""
        if header.is_control:
            return self._clean_marker(header, data)
        if self._transactions.is_aborted(header):
            return self._emptied(header)
        if header.base_offset > self._offsets.latest_offset:
            return CleanedBatch(header, data)
        marks = self._offsets.marks(header)
        if marks is not None:
            gone = marks.count(GOES)
            if gone == header.record_count:
                return self._emptied(header)
            if gone == 0 and TOMBSTONE not in marks:
                return CleanedBatch(header, data)
        records = uncompressed(header, data)
        kept = self._kept(header, records)
        if not kept:
            return self._emptied(header)
        if self._needs_horizon(header) and not all(value_at for *_, value_at in kept):
            return self._with_horizon(header, records, kept)
        if len(kept) == header.record_count:
            return CleanedBatch(header, data)
        return _rewritten(header, kept, [records[start:end] for start, end, *_ in kept])

    # --- inside ---

    def _kept(self, header: BatchHeader, records: bytes) -> list[RecordSpan]:
        base_offset, latest = header.base_offset, self._offsets.latest_offset
        newest_of = self._offsets.get
        horizon_ms = header.delete_horizon_ms
        drops_tombstones = horizon_ms is not None and self._now_ms >= horizon_ms
        kept = []
        for record in read_records(records, header.record_count):
            _, _, _, delta, key, value_at = record
            offset = base_offset + delta
            if offset <= latest:
                if key is None or newest_of(key) > offset:
                    continue
                if not value_at and drops_tombstones:
                    continue
            kept.append(record)
        return kept

    def _needs_horizon(self, header: BatchHeader) -> bool:
        """Whether the horizon of a batch with a tombstone must be set now.

        Not if only a part of the batch was compared: the other tombstones would go too early, and
        consumers that read an older value of their keys would miss them. (Kafka sets it.)
        """
        is_new = header.delete_horizon_ms is None
        return is_new and header.last_offset <= self._offsets.latest_offset

    def _with_horizon(
        self, header: BatchHeader, records: bytes, kept: list[RecordSpan]
    ) -> CleanedBatch:
        """Return a batch with a horizon; its timestamps then count from the horizon."""
        horizon_ms = self._now_ms + self._delete_retention_ms
        shift = header.base_timestamp - horizon_ms
        shifted = [
            with_timestamp_delta(records, start, time + shift) for start, _, time, *_ in kept
        ]
        return _rewritten(header, kept, shifted, horizon_ms)

    def _clean_marker(self, header: BatchHeader, data: memoryview) -> CleanedBatch | None:
        marker = control_type(header, data)
        horizon_ms = header.delete_horizon_ms
        if not self._transactions.is_marker_done(header, marker):
            return CleanedBatch(header, data)
        if marker is None or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return self._emptied(header)
        if horizon_ms is not None:
            return CleanedBatch(header, data)
        records = uncompressed(header, data)
        return self._with_horizon(header, records, list(read_records(records, header.record_count)))

    def _emptied(self, header: BatchHeader) -> CleanedBatch | None:
        """Return an empty batch if it is the last one of a live producer."""
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return None
        if last.offset >= 0:
            is_last = header.last_offset == last.offset
        else:  # only markers are left of it
            is_last = header.is_control and header.producer_epoch == last.epoch
        return _encoded(header.emptied(), b"") if is_last else None


def _rewritten(
    header: BatchHeader,
    kept: list[RecordSpan],
    records: list[bytes],
    horizon_ms: int | None = None,
) -> CleanedBatch:
    """Return a batch with the records that are kept. ``horizon_ms``: the horizon to set."""
    greatest = header.max_timestamp
    if not header.stamps_append_time:
        greatest = header.base_timestamp + max(time for _, _, time, *_ in kept)
    changed = header._replace(max_timestamp=greatest, record_count=len(kept))
    if horizon_ms is not None:
        changed = changed.with_delete_horizon(horizon_ms)
    return _encoded(changed, compressed(header.compression, b"".join(records)))


def _encoded(header: BatchHeader, records: bytes) -> CleanedBatch:
    data = encode(header, records)
    return CleanedBatch(read_header(data), data)


class CleanedTransactions:
    """The transactions of the batches that a cleaning passes, in the order of their offsets.

    Mirrors ``CleanedTransactionMetadata``. Records of an aborted transaction go at once: they
    shadow no older value. The marker of a transaction may go when none of its batches is left. It
    then has a delete horizon like a tombstone, and goes in a later cleaning.

    The state is carried from segment to segment in one cleaning (KAFKA-8351).

    ``on_aborted`` is called with each aborted transaction of which a batch is left: the index of
    the new segment must have it, or readers would take that batch for a committed one.
    """

    def __init__(self, on_aborted: Callable[[AbortedTransaction], None] = lambda _: None) -> None:
        self._on_aborted = on_aborted
        self._committed: set[int] = set()
        self._aborted: dict[int, AbortedTransaction] = {}
        self._observed: set[int] = set()  # producers of which a batch of ``_aborted`` was seen
        self._to_come: list[tuple[int, AbortedTransaction]] = []

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the segment that comes next."""
        for one in aborted:
            heapq.heappush(self._to_come, (one.first_offset, one))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of the next batch, which is not a control batch, were aborted."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        if header.producer_id in self._aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_marker_done(self, header: BatchHeader, marker: int | None) -> bool:
        """Whether none of the batches of a marker is left. ``marker`` None: it was removed."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker == ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is None or producer_id not in self._observed:
                return True
            self._observed.discard(producer_id)
            self._on_aborted(aborted)
            return False
        if marker == COMMIT:
            is_left = producer_id in self._committed
            self._committed.discard(producer_id)
            return not is_left
        return marker is None

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            _, begun = heapq.heappop(self._to_come)
            self._aborted.setdefault(begun.producer_id, begun)
