"""One segment of a log: a file of record batches with its indexes.

Mirrors ``kafka.log.LogSegment``. The files are named after the base offset of the segment. Files
are opened and read only when needed, because a broker has thousands of segments; ``open_files``
closes them again.

Reads of a closed segment check the CRCs of what they return until the whole segment was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path

from regent.core.errors import ShortageError
from regent.core.log_config import LogConfig
from regent.core.records import NO_RECORDS, HasFileno, MemoryRecords, RecordBytes, Records
from regent.core.replica_logs import NO_TIMESTAMP
from regent.records.end_transaction_marker import EndTransactionMarker, marker_of
from regent.records.record_batch import INT32_MAX, BatchHeader, PlacedBatch
from regent.storage.files import storage_error
from regent.storage.log.log_file import (
    CorruptSegmentError,
    FileRecords,
    LogFile,
    ScrubState,
    check_order,
    sound_end,
)
from regent.storage.log.open_files import OpenFiles, OwnedFile
from regent.storage.log.prefetch import SMALL_BYTES, IndexedPrefetch, Prefetch
from regent.storage.log.segment_indexes import (
    NO_TIMESTAMP_OFFSET,
    OffsetIndex,
    OffsetPosition,
    SegmentIndexes,
    TimestampOffset,
    find_end,
    flush_index,
    index_size,
    last_entry,
)
from regent.storage.log.transaction_index import TransactionIndex
from regent.storage.log_names import INDEX_SUFFIXES, LOG_SUFFIX

_INDEX, _TIME_INDEX, _TRANSACTION_INDEX = INDEX_SUFFIXES
_BOUNDARIES = 8  # for the followers and a few consumers


class LogSegment:
    """Not thread-safe, but ``flush`` may run while another thread calls another method.

    ``file``: its open file, if any; ``files`` may set it to None at any time, so it is read once.
    ``is_used``: since ``files`` or ``close_idle`` looked. Every method may raise ``StorageError``.
    """

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        files: OpenFiles,
        *,
        size: int,
        created_ms: int,
    ) -> None:
        """Use ``create`` or ``open``."""
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self.size = size
        self.verified = ScrubState()
        self._created_ms = created_ms
        self._suffix = ""
        self.file: OwnedFile | None = None
        self.is_used = False
        self._files = files
        self._indexes: SegmentIndexes | None = None
        self._transactions: TransactionIndex | None = None
        self._first_timestamp: int | None = None
        self._are_indexes_flushed = True
        # Where recent reads ended, because the next reads begin there. One is the high watermark.
        self._boundaries: dict[int, int] = {}

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        files: OpenFiles,
        suffix: str = "",
    ) -> LogSegment:
        """Create the file of an empty segment; ``seal`` creates the index files.

        ``suffix``: of the names of its files, until ``rename_suffix``.
        """
        segment = cls(directory, base_offset, config, files, size=0, created_ms=now_ms)
        segment._suffix = suffix
        files.create(segment.path)
        return segment

    @classmethod
    def open(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        files: OpenFiles,
    ) -> LogSegment:
        """Open an existing segment."""
        segment = cls(directory, base_offset, config, files, size=0, created_ms=now_ms)
        try:
            segment.size = segment.path.stat().st_size
        except OSError as error:
            raise storage_error(segment.path, error) from None
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.path}, size={self.size})"

    @property
    def path(self) -> Path:
        """The file of the records."""
        return self._path(LOG_SUFFIX)

    @property
    def next_offset(self) -> int:
        """The offset after the last record; the base offset if there is none."""
        return self._known.next_offset

    @property
    def largest(self) -> TimestampOffset:
        """The greatest timestamp, and the last offset of the first batch with it; -1, -1: none.

        Retention and searches by time ask this of all segments. For a sealed segment that was not
        read yet, only the last entry of its time index is read.
        """
        if self._indexes is not None:
            return self._indexes.largest
        if self.size:
            last = last_entry(self._path(_TIME_INDEX), self.base_offset)
            if last != NO_TIMESTAMP_OFFSET:
                return last
        return self._known.largest

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp; if there is none, the modification time of the file."""
        timestamp = self.largest.timestamp
        return timestamp if timestamp >= 0 else self.modified_ms

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch; -1: there is none."""
        if self._first_timestamp is None:
            first = next(self.headers(), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    @property
    def index_bytes(self) -> tuple[int, int]:
        """The sizes of the offset index and of the time index of a sealed segment."""
        known = self._indexes  # read once: another thread may set it to None
        if known is not None:
            return known.file_bytes
        return index_size(self._path(_INDEX)), index_size(self._path(_TIME_INDEX))

    # --- writing ---

    def can_hold(self, offset: int) -> bool:
        """Whether the indexes can express an offset: relative offsets have 31 bits."""
        return self.base_offset <= offset < self._furthest

    def should_roll(
        self, incoming_bytes: int, largest_offset: int, max_timestamp: int, now_ms: int
    ) -> bool:
        """Whether batches must go to a new segment. Mirrors ``LogSegment.shouldRoll``."""
        if self.size == 0:
            return not self.can_hold(largest_offset)
        config, known = self.config, self._known
        return (
            self.size > config.segment_bytes - incoming_bytes
            or not self.can_hold(largest_offset)
            or self._waited(max_timestamp, now_ms) > config.segment_ms
            or known.is_full(config.segment_index_bytes)
        )

    def append(self, data: RecordBytes, batches: Sequence[PlacedBatch]) -> None:
        """Append all of ``data``, or nothing; ``batches`` are the headers of its batches."""
        known = self._known
        assert self.can_hold(batches[-1][1].last_offset), f"{self} must be rolled first"
        start = self.size
        self.open_file().write(start, data)
        if start == 0:
            self._first_timestamp = batches[0][1].max_timestamp
        for position, header in batches:
            known.note(start + position, header)
        self.size = start + len(data)

    def truncate_to(self, offset: int) -> int:
        """Drop the batches that end at or after ``offset``; return how many bytes were cut off."""
        found = self._find(offset)
        if found is None:
            return 0
        known, file = self._known, self.open_file()
        dropped = self.size - found[0]
        file.truncate(found[0])
        self.size = found[0]
        self._boundaries.clear()
        self._first_timestamp = None if self.size == 0 else self._first_timestamp
        known.truncate_to(offset, file, self.size)
        self.transactions.truncate_to(offset)
        self.seal()
        self.verified.forget()
        return dropped

    # --- reading ---

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: int,
        *,
        at_least_one: bool,
        check_to: int | None = None,
    ) -> Records | None:
        """Return the batches from the one that holds ``offset`` to before offset ``limit``.

        Return as many as fit in ``max_bytes``; ``at_least_one``: at least the first one. None:
        every batch here ends before ``offset``. ``check_to``: verify the batches, and return a
        limited number of them, below this offset; raises ``CorruptSegmentError`` if the first one
        is not sound. When too many files are open, the bytes are read at once.
        """
        rest = self._rest_from(offset, max_bytes, limit) if check_to is None else None
        if rest is not None:
            return self._records(rest, self.size)
        found = self._find(offset, check_to)
        if found is None:
            return None
        start, first = found
        if first.next_offset > limit or (first.size > max_bytes and not at_least_one):
            return NO_RECORDS
        if check_to is None:
            end = max(start + first.size, self._end_of(found, start + max_bytes, limit))
        else:
            end = self._remember(
                *sound_end(self.open_file(), self.size, found, max_bytes, limit, check_to)
            )
        return self._records(start, end)

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return the work after which ``read`` does not wait for the disk; None: it would not."""
        if self.size <= SMALL_BYTES:
            return None
        file, known = self.open_file(), self._indexes
        room = max(max_bytes, 0) + 2 * self.config.index_interval_bytes  # a search begins earlier
        if known is None:
            indexes = self._path(_INDEX), self._path(_TIME_INDEX)
            return IndexedPrefetch(file, *indexes, self.base_offset, self.size, offset, room)
        start = self._boundaries.get(offset)
        if start is None:
            start = known.offsets.look_up(offset).position
        prefetch = Prefetch(file, start, min(room, self.size - start))
        return prefetch if prefetch.is_needed else None

    def is_verified(self) -> bool:
        """Whether reads need no check: the whole file was verified and not written to since."""
        return self.verified.holds(self.open_file())

    def find_timestamp(self, timestamp_ms: int, from_offset: int) -> BatchHeader | None:
        """Return the first batch at or after a timestamp that ends at or after ``from_offset``."""
        known = self._known
        offset = max(from_offset, known.times.offset_before(timestamp_ms))
        for header in self.headers(offset):
            if header.max_timestamp >= timestamp_ms:
                return header
        return None

    def newest(self, from_offset: int, limit: int) -> BatchHeader | None:
        """Return the first batch with the greatest timestamp between two offsets; None: no batch.

        It ends at or after ``from_offset`` and before ``limit``.
        """
        known, largest = self._known, self._known.largest
        entry = largest if largest.offset < limit else known.times.last_before(limit)
        begin = max(from_offset, entry.offset)  # records before an entry are older than it
        headers = takewhile(lambda header: header.last_offset < limit, self.headers(begin))
        if largest == NO_TIMESTAMP_OFFSET or (entry == largest and begin == entry.offset):
            return next(headers, None)
        return max(headers, key=lambda header: header.max_timestamp, default=None)

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends at or after ``offset``."""
        found = self._find(offset)
        return self.size if found is None else found[0]

    def find_end(self) -> int:
        """Return the offset after the last record, without keeping a file or an index open.

        Raises ``CorruptSegmentError`` if the last batches are damaged.
        """
        if self._indexes is not None or self.size == 0:
            return self.next_offset
        file = self.file or LogFile(self.path)
        end = find_end(self._path(_INDEX), self.base_offset, file, self.size)
        if end is not None:
            return end
        end = self.next_offset
        self.close()
        return end

    def headers(self, from_offset: int = 0) -> Iterator[BatchHeader]:
        """Yield the headers from the batch that holds ``from_offset`` on."""
        for _, header in self._placed(from_offset):
            yield header

    def headers_and_markers(
        self, from_offset: int
    ) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
        """Yield the headers from the batch that holds ``from_offset`` on, with their markers.

        Raises ``BadDataError`` if a control batch is not well-formed.
        """
        for position, header in self._placed(from_offset):
            marker = None
            if header.is_control:
                marker = marker_of(header, self.open_file().read(position, header.size))
            yield header, marker

    @property
    def transactions(self) -> TransactionIndex:
        """The aborted transactions whose markers are here.

        Raises ``BadDataError`` if the file is damaged.
        """
        if self._transactions is None:
            path = self._path(_TRANSACTION_INDEX)
            self._transactions = TransactionIndex.load(path, self.base_offset)
        return self._transactions

    def forget_transactions(self) -> None:
        """Remove all entries of ``transactions``: they are going to be added again."""
        self._transactions = TransactionIndex()
        self._transactions.is_changed = True

    def is_open_as(self, file: HasFileno) -> bool:
        """Whether this is a file of its records, which was perhaps closed here since."""
        return isinstance(file, OwnedFile) and file.owner() is self

    def offset_from(self, position: int) -> int | None:
        """Return an offset in or after the batch at a position; None: none is indexed."""
        return self._known.offsets.offset_from(position)

    @property
    def modified_ms(self) -> int:
        """When the file was last written to. Raises ``StorageError``."""
        try:
            return self.path.stat().st_mtime_ns // 1_000_000
        except OSError as error:
            raise storage_error(self.path, error) from None

    # --- files ---

    def recover(self, on_batch: Callable[[BatchHeader], None]) -> int:
        """Keep the batches before the first bad one, and rebuild the indexes except transactions.

        Return how many bytes are cut off. ``on_batch`` is called with every batch that is kept. If
        two batches do not follow each other, one of them is wrong; both are cut off.
        """
        file = self.open_file()
        known = SegmentIndexes(self.base_offset, self.config.index_interval_bytes)
        known.is_changed = True
        end = 0
        batches = file.batches(0, self.size, is_checked=True)
        try:
            for position, header in check_order(
                batches, self.path, self.base_offset, self._furthest
            ):
                known.note(position, header)
                on_batch(header)
                end = position + header.size
        except CorruptSegmentError:
            pass
        cut = self.size - end
        if cut:
            file.truncate(end)
        self.size = end
        self._boundaries.clear()
        self._first_timestamp = None
        self._indexes = known
        self.forget_transactions()
        self.seal()
        self.verified.note(file.modified_ns())
        return cut

    def seal(self) -> None:
        """Write the indexes, because the segment is complete; it may still grow later."""
        paths = self._path(_INDEX), self._path(_TIME_INDEX)
        if self._indexes is not None and self._indexes.write(*paths):
            self._are_indexes_flushed = False
        if self._transactions is not None:
            self._transactions.write(self._path(_TRANSACTION_INDEX))

    def open_file(self) -> OwnedFile:
        """Return the open file of its records, which stays open as long as it is referenced."""
        self.is_used = True
        return self.file or self._files.open(self)

    def flush(self, file: OwnedFile | None = None) -> None:
        """Wait until all records, and the indexes if sealed, are on the disk.

        ``file``: its open file. Without it, nothing may rename the segment meanwhile.
        """
        (file or self.open_file()).flush()
        if not self._are_indexes_flushed:
            self._are_indexes_flushed = True
            try:
                flush_index(self._path(_INDEX))
                flush_index(self._path(_TIME_INDEX))
            except ShortageError:
                self._are_indexes_flushed = False
                raise

    def close(self) -> None:
        """Write the indexes, close the file and drop the indexes from memory."""
        self.seal()
        self.file = self._indexes = None
        if self._transactions is not None and self._transactions.entries:
            self._transactions = None  # without entries it takes no memory

    def close_idle(self) -> None:
        """Close the file and drop the indexes if they were not used since the last call.

        Called periodically for sealed segments: otherwise a consumer that reads a long history
        would leave an open file and some megabytes of indexes for each of them.
        """
        if not self.is_used:
            self.close()
        self.is_used = False

    def move_to(self, directory: Path) -> None:
        """Note that the directory of the log was renamed; open files stay open."""
        self.directory = directory
        file = self.file
        if file is not None:
            file.path = self.path

    def rename_suffix(self, suffix: str) -> None:
        """Append ``suffix`` to the file names, so that the next start does not load them.

        ``suffix`` replaces the one that the names have. Close the file; open ``FileRecords`` can
        still be read.
        """
        for kind in (LOG_SUFFIX, *INDEX_SUFFIXES):
            path = self._path(kind)
            try:
                path.rename(self._path(kind, suffix))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_error(path, error) from None
        self._suffix = suffix
        self.file = self._indexes = self._transactions = None

    def delete(self) -> None:
        """Delete the files; open ``FileRecords`` can still be read."""
        self.file = None
        for kind in (LOG_SUFFIX, *INDEX_SUFFIXES):
            path = self._path(kind)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise storage_error(path, error) from None

    # --- inside ---

    @property
    def _furthest(self) -> int:
        """The first offset that the indexes cannot express."""
        return self.base_offset + INT32_MAX + 1

    @property
    def _known(self) -> SegmentIndexes:
        if self._indexes is None:
            interval = self.config.index_interval_bytes
            if self.size == 0:
                self._indexes = SegmentIndexes(self.base_offset, interval)
            else:
                paths = self._path(_INDEX), self._path(_TIME_INDEX)
                self._indexes = SegmentIndexes.load(
                    *paths, self.base_offset, interval, self.open_file(), self.size
                )
        return self._indexes

    def _path(self, kind: str, suffix: str | None = None) -> Path:
        ending = self._suffix if suffix is None else suffix
        return self.directory / f"{self.base_offset:020d}{kind}{ending}"

    def _placed(self, from_offset: int) -> Iterator[PlacedBatch]:
        if self.size == 0:
            return
        for placed in self._from_entry(lambda index: index.look_up(from_offset)):
            if placed[1].last_offset >= from_offset:
                yield placed

    def _rest_from(self, offset: int, max_bytes: int, limit: int) -> int | None:
        """Return a boundary if everything after it is asked for; there is no look into the file.

        Followers and consumers at the end of the log ask so.
        """
        start, known = self._boundaries.get(offset), self._indexes
        if start is None or known is None or limit < known.next_offset:
            return None
        if not 0 < self.size - start <= max_bytes:
            return None
        self._remember(known.next_offset, self.size)
        return start

    def _records(self, start: int, end: int) -> Records:
        file, size = self.open_file(), end - start
        if self._files.are_too_many:
            data = file.read(start, size)
            if len(data) == size:  # otherwise it was truncated from outside: the reader reports it
                return MemoryRecords(data)
        return FileRecords(file, start, size)

    def _find(self, offset: int, check_to: int | None = None) -> PlacedBatch | None:
        """Return the first batch that ends at or after ``offset``.

        ``check_to``: check that the batches before it, and below this offset, are in order.
        """
        start, lowest = self._boundaries.get(offset), self.base_offset
        if start is not None:
            batches, lowest = self.open_file().batches(start, self.size), offset
        else:
            try:
                if check_to is None and offset >= self._known.next_offset:
                    return None
                batches = self._from_entry(lambda index: index.look_up(offset))
            except CorruptSegmentError:  # no index can be built, because that reads every header
                batches = self.open_file().batches(0, self.size)
        if check_to is not None:
            batches = check_order(batches, self.path, lowest, check_to)
        for placed in batches:
            if placed[1].last_offset >= offset:
                return placed
        return None

    def _end_of(self, start: PlacedBatch, furthest: int, limit: int) -> int:
        """Return the last boundary up to ``furthest`` with only offsets below ``limit`` before."""
        known = self._known
        if furthest >= self.size and limit >= known.next_offset:
            return self._remember(known.next_offset, self.size)
        remembered = self._boundaries.get(limit)
        if remembered is not None and remembered <= furthest:
            return remembered
        begin = OffsetPosition(start[1].last_offset, start[0])
        for position, header in self._from_entry(
            lambda index: max(begin, index.last_below(furthest, limit))
        ):
            if position + header.size > furthest or header.next_offset > limit:
                return self._remember(header.base_offset, position)
        return self.size

    def _from_entry(self, find: Callable[[OffsetIndex], OffsetPosition]) -> Iterator[PlacedBatch]:
        """Yield the batches from an index entry on; rebuild an index that points to no batch."""
        file, entry = self.open_file(), find(self._known.offsets)
        batches = file.batches(entry.position, self.size)
        if entry.position == 0:
            return batches
        try:
            first = next(batches)
            if first[1].last_offset == entry.offset:
                return chain((first,), batches)
        except CorruptSegmentError:
            pass
        interval = self.config.index_interval_bytes
        self._indexes = SegmentIndexes.rebuilt(self.base_offset, interval, file, self.size)
        return file.batches(find(self._indexes.offsets).position, self.size)

    def _remember(self, offset: int, position: int) -> int:
        if offset not in self._boundaries and len(self._boundaries) >= _BOUNDARIES:
            del self._boundaries[next(iter(self._boundaries))]
        self._boundaries[offset] = position
        return position

    def _waited(self, max_timestamp: int, now_ms: int) -> int:
        """Return the age of the oldest record in ms, by timestamps if the records have any."""
        if self.first_timestamp >= 0:
            return max_timestamp - self.first_timestamp
        return now_ms - self._created_ms
