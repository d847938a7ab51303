"""Cleans a log: of each key, only the newest record stays. Mirrors ``kafka.log.Cleaner``.

First it reads the dirty part and notes the newest offset of each key. Then it copies all segments
up to where that part ends, from the first one on, without the records that have a newer one. It
holds the lock of the log only to list the segments, and to put each copy in its place.

Several segments become one copy: else a compacted log would have ever more and ever smaller
segments. Mirrors ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from regent.core.errors import DamagedRecordsError, StorageError
from regent.core.log_config import LogConfig
from regent.core.records import RecordBytes
from regent.records.end_transaction_marker import control_type
from regent.records.record import read_records
from regent.records.record_batch import INT32_MAX, BatchHeader, PlacedBatch, uncompressed
from regent.storage.compaction.batch_cleaning import BatchCleaning, CleanedTransactions
from regent.storage.compaction.cleanable_logs import CleanableRange
from regent.storage.compaction.offset_map import OffsetMap
from regent.storage.files import storage_error
from regent.storage.log.log_file import BatchOrder, CorruptSegmentError, LogFile, WholeBatch
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.transaction_index import AbortedTransaction, TransactionIndex
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_names import CLEANED_SUFFIX

_BYTES_AT_ONCE: Final = 4 * 1024  # the cleaner works for less than a millisecond at them
_SKIMMED_BYTES: Final = 16 * 1024  # as long, for records of a hundred bytes


_Skim: TypeAlias = Callable[[bytes, int, int, BatchOrder], int]


class CleaningAbortedError(Exception):
    """A cleaning ended early: it was told to, or its log has changed. The log is as before."""


@dataclass(slots=True)
class CleanerStats:
    """What one cleaning did. ``keyless``: records that were dropped because they have no key."""

    bytes_read: int = 0
    bytes_written: int = 0
    map_bytes_read: int = 0
    map_utilization: float = 0.0
    keyless: int = 0
    elapsed_s: float = 0.0


class Work(NamedTuple):
    """What a cleaning needs of its surroundings.

    ``on_bytes`` is called every few KB with the number of bytes that were read or written. It may
    wait, and raises ``CleaningAbortedError`` to end the cleaning. ``checkpoint`` writes up to
    where a log was cleaned.
    """

    new_map: Callable[[], OffsetMap]
    buffer_bytes: int
    on_bytes: Callable[[int], None]
    checkpoint: Callable[[UnifiedLog], None]


class Cleanable(NamedTuple):
    """A log, the part of it to clean, and how often it was truncated when that was found."""

    log: UnifiedLog
    found: CleanableRange
    truncations: int


class _Source(NamedTuple):
    """A closed segment, and where the next one begins."""

    segment: LogSegment
    end_offset: int


class Cleaning:
    """One cleaning of one log. ``stats`` counts what it did."""

    def __init__(self, cleanable: Cleanable, work: Work, now_ms: int) -> None:
        self.stats = CleanerStats()
        self._log, self._found, self._truncations = cleanable
        self._work = work
        self._now_ms = now_ms
        self._offsets = work.new_map()
        self._transactions = CleanedTransactions(self._note_aborted)
        self._index = TransactionIndex()  # of the present copy
        self._kept: list[PlacedBatch] = []  # not appended to the copy yet, and their bytes
        self._parts: list[RecordBytes] = []
        self._kept_bytes = 0
        self._modified_ns = 0  # of the segment that is being read
        with self._log.exclusively() as contents:
            self._config: LogConfig = contents.config
            self._files = contents.files
            self._sources = [
                _Source(segment, after.base_offset)
                for segment, after in zip(contents.segments, contents.segments[1:], strict=False)
            ]

    def run(self) -> int:
        """Clean a part of the log; return the offset up to which it is clean now.

        Raises ``CleaningAbortedError``, ``DamagedRecordsError``, ``StorageError`` if the directory
        failed, and ``ValueError`` if a record is not well-formed.
        """
        self._build_map()
        end = self._offsets.latest_offset + 1
        self.stats.map_utilization = self._offsets.utilization
        self.stats.keyless = self._offsets.keyless
        bound = self._found.bound
        sources = [
            s for s in self._sources if s.segment.base_offset < end and s.end_offset <= bound
        ]
        if sources:
            self._note(self._found.first_dirty)  # before the first copy has gaps
            self._copy_all(sources)
        self._note(end)
        return end

    # --- the map ---

    def _build_map(self) -> None:
        offsets, start, bound = self._offsets, self._found.first_dirty, self._found.bound
        offsets.begin(start)
        transactions = CleanedTransactions()
        transactions.add(self._aborted_between(start, bound))
        for source in self._sources:
            if start < source.end_offset <= bound:
                if not self._add_segment(source, start, transactions):
                    return  # the map is full
                offsets.latest_offset = source.end_offset - 1

    def _add_segment(self, source: _Source, start: int, transactions: CleanedTransactions) -> bool:
        """Add the keys of a segment to the map; False: it was full before the last one."""
        offsets = self._offsets

        def skim(data: bytes, at: int, stop: int, order: BatchOrder) -> int:
            end = offsets.put_lone(data, at, stop, order)
            self.stats.map_bytes_read += end - at
            return end

        for _, header, data in self._batches(source, start, skim):
            self.stats.map_bytes_read += len(data)
            if header.is_control:
                transactions.is_marker_done(header, control_type(header, data))
            elif not transactions.is_aborted(header):
                records = read_records(uncompressed(header, data), header.record_count)
                if not offsets.put_all(header, records):
                    return False
            if header.last_offset >= start:
                offsets.latest_offset = header.last_offset
        return True

    # --- the copy ---

    def _copy_all(self, sources: list[_Source]) -> None:
        ends = {source.segment: source.end_offset for source in sources}
        end = sources[-1].end_offset
        for group in group_segments(list(ends), end, self._config):
            with self._log.exclusively() as contents:
                producers = contents.producers.last_of_all()
            cleaning = BatchCleaning(
                self._offsets,
                self._transactions,
                producers,
                now_ms=self._now_ms,
                delete_retention_ms=self._config.delete_retention_ms,
            )
            self._copy_group([_Source(segment, ends[segment]) for segment in group], cleaning)

    def _copy_group(self, group: list[_Source], cleaning: BatchCleaning) -> None:
        first = group[0].segment
        copy = LogSegment.create(
            self._log.path,
            first.base_offset,
            self._config,
            self._now_ms,
            self._files,
            CLEANED_SUFFIX,
        )
        self._index = copy.transactions
        try:
            for source in group:
                self._copy_from(source, cleaning, copy)
            self._append(copy)
            self._finish(copy)
        except BaseException:
            with suppress(StorageError):
                copy.delete()
            raise
        segments = [source.segment for source in group]
        if not self._log.replace_segments(copy, segments, self._truncations):
            copy.delete()
            raise CleaningAbortedError

    def _copy_from(self, source: _Source, cleaning: BatchCleaning, copy: LogSegment) -> None:
        """Append what is left of the batches of a segment to a copy, a buffer at a time."""

        def keep(header: BatchHeader, data: RecordBytes) -> None:
            self._kept.append((self._kept_bytes, header))
            self._parts.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes >= self._work.buffer_bytes:
                self._append(copy)

        def skim(data: bytes, at: int, stop: int, order: BatchOrder) -> int:
            end = cleaning.clean_lone(data, at, stop, order, keep)
            self.stats.bytes_read += end - at
            return end

        start, end = source.segment.base_offset, source.end_offset
        self._transactions.add(self._aborted_between(start, end))
        for _, header, data in self._batches(source, start, skim):
            self.stats.bytes_read += len(data)
            left = cleaning.clean(header, data)
            if left is not None:
                keep(*left)

    def _append(self, copy: LogSegment) -> None:
        """Append what was kept since the last call."""
        if self._kept:
            copy.append(b"".join(self._parts), self._kept)
            self.stats.bytes_written += self._kept_bytes
            self._work.on_bytes(self._kept_bytes)
        self._kept, self._parts, self._kept_bytes = [], [], 0

    def _finish(self, copy: LogSegment) -> None:
        """Flush a copy, with the modification time of the last of its sources."""
        copy.seal()
        copy.flush()
        try:
            os.utime(copy.path, ns=(self._modified_ns, self._modified_ns))
        except OSError as error:
            raise storage_error(copy.path, error) from None
        copy.verified.note(self._modified_ns)

    # --- both ---

    def _aborted_between(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions with records from ``start`` to before ``end``."""
        with self._log.reading() as contents:
            return contents.aborted_between(start, end)

    def _note_aborted(self, aborted: AbortedTransaction) -> None:
        """Note an aborted transaction of which a batch is left in the copy."""
        self._index.append(aborted)

    def _batches(self, source: _Source, start: int, skim: _Skim) -> Iterator[WholeBatch]:
        """Yield the batches of a segment that end at or after ``start``, checked.

        ``skim`` is called with bytes of the segment, the place of the next batch, and a place at
        which to stop, and returns the place of the first batch that is to be yielded.
        """
        segment, path = source.segment, source.segment.path
        order = BatchOrder(segment.base_offset, source.end_offset)

        def skim_all(chunk: memoryview, at: int) -> int:
            data: bytes = chunk.obj  # type: ignore[assignment]
            while (end := skim(data, at, min(at + _SKIMMED_BYTES, len(data)), order)) > at:
                self._work.on_bytes(end - at)
                at = end
            return at

        try:
            file, position = self._open(segment, start)
            self._modified_ns = file.modified_ns()
            read = 0
            for placed in file.whole_batches(
                position, segment.size, self._work.buffer_bytes, skim_all
            ):
                order.check(path, placed[0], placed[1])
                yield placed
                read += len(placed[2])
                if read >= _BYTES_AT_ONCE:
                    self._work.on_bytes(read)
                    read = 0
            self._work.on_bytes(read)
        except CorruptSegmentError as error:
            self._check_in_use(segment)
            raise DamagedRecordsError(str(error)) from None

    def _open(self, segment: LogSegment, start: int) -> tuple[LogFile, int]:
        """Open the file of a segment; return it with the position of the first batch to read."""
        with self._log.reading() as contents:
            if segment not in contents.segments or self._log.truncations != self._truncations:
                raise CleaningAbortedError
            position = segment.position_of(start) if start > segment.base_offset else 0
            return LogFile(segment.path), position

    def _check_in_use(self, segment: LogSegment) -> None:
        """Raise ``CleaningAbortedError`` if a segment was dropped or truncated meanwhile."""
        with self._log.exclusively() as contents:
            if segment not in contents.segments or self._log.truncations != self._truncations:
                raise CleaningAbortedError

    def _note(self, first_dirty: int) -> None:
        if not self._log.note_cleaned(first_dirty, self._truncations):
            raise CleaningAbortedError
        self._work.checkpoint(self._log)


# --- groups of segments ---------------------------------------------------------------------------


class SizedSegment(Protocol):
    """What is asked of a segment here. Mirrors ``LogSegment``."""

    @property
    def base_offset(self) -> int:
        """Its first offset."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def index_bytes(self) -> tuple[int, int]:
        """The sizes of its offset index and its time index."""
        ...


_S = TypeVar("_S", bound=SizedSegment)


class _Sizes(NamedTuple):
    records: int
    offset_index: int
    time_index: int

    @classmethod
    def of(cls, segment: SizedSegment) -> _Sizes:
        return cls(segment.size, *segment.index_bytes)

    def with_one(self, other: _Sizes) -> _Sizes:
        return _Sizes(*(a + b for a, b in zip(self, other, strict=True)))

    def fit(self, config: LogConfig) -> bool:
        most = config.segment_index_bytes
        return (
            self.records <= config.segment_bytes
            and self.offset_index <= most
            and self.time_index <= most
        )


def group_segments(
    segments: Sequence[_S], end_offset: int, config: LogConfig
) -> Iterator[list[_S]]:
    """Yield the groups, in order. ``end_offset``: where the last segment ends at the latest.

    A group does not exceed the limits of one segment, also that of relative offsets (31 bits).
    """
    group: list[_S] = []
    sizes = _Sizes(0, 0, 0)
    for number, segment in enumerate(segments):
        own = _Sizes.of(segment)
        after = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        is_near = bool(group) and after - 1 - group[0].base_offset <= INT32_MAX
        if group and sizes.with_one(own).fit(config) and (is_near or segment.size == 0):
            group.append(segment)
            sizes = sizes.with_one(own)
            continue
        if group:
            yield group
        group, sizes = [segment], own
    if group:
        yield group
