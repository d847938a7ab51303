"""The offset index, the time index and the end offset of one segment.

Both indexes are sparse: an entry every ``index.interval.bytes``. Mirrors ``kafka.log.OffsetIndex``,
where an entry is 8 bytes: the last offset of a batch, relative to the base offset of the segment,
and the position of that batch; and ``kafka.log.TimeIndex``, where an entry is 12 bytes: a timestamp
in milliseconds and the relative offset of the record that has it. Every earlier record has a
smaller timestamp.

The indexes of the active segment grow in memory. They are written to files when it is sealed. A
missing or damaged index file is rebuilt from the headers of the batches, and one that lacks the
last batches is completed.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import le, lt
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.replica_logs import NO_TIMESTAMP, UNKNOWN_OFFSET
from regent.records.record_batch import INT32_MAX, BatchHeader
from regent.storage.files import storage_error, sync
from regent.storage.log.log_file import CorruptSegmentError, LogFile, check_order

_TIME_ENTRY = struct.Struct(">qi")

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = _TIME_ENTRY.size


class OffsetPosition(NamedTuple):
    """The last offset of a batch, and the position of that batch in the file."""

    offset: int
    position: int


class OffsetIndex:
    """The whole index in memory. Invariant: both columns grow from entry to entry."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")  # relative to the base offset
        self._positions = array("i")

    @classmethod
    def decode(cls, base_offset: int, data: bytes, segment_size: int) -> OffsetIndex:
        """Return the index in a file. Raises ``BadDataError`` if the data is not an index."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise BadDataError(f"{len(data)} bytes are not a whole number of entries")
        columns = array("i", data)
        to_or_from_big_endian(columns)
        index = cls(base_offset)
        index._offsets, index._positions = columns[0::2], columns[1::2]
        for column in (index._offsets, index._positions):
            if column and (column[0] < 0 or not all(map(lt, column, islice(column, 1, None)))):
                raise BadDataError("entries are not in order")
        if columns and index._positions[-1] >= segment_size:
            raise BadDataError(f"position {index._positions[-1]} is beyond the end")
        return index

    def encode(self) -> bytes:
        """Return the content of the file."""
        columns = array("i", bytes(OFFSET_ENTRY_BYTES * len(self)))
        columns[0::2], columns[1::2] = self._offsets, self._positions
        to_or_from_big_endian(columns)
        return columns.tobytes()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        """Add an entry for a batch that ends with ``offset``."""
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)

    def look_up(self, offset: int) -> OffsetPosition:
        """Return the last entry up to ``offset``: the batch that holds it is there or later."""
        return self._entry(bisect_right(self._offsets, offset - self.base_offset) - 1)

    def last_below(self, position: int, offset: int) -> OffsetPosition:
        """Return the last entry at or below ``position`` of a batch that ends before ``offset``."""
        return self._entry(
            min(
                bisect_right(self._positions, position),
                bisect_left(self._offsets, offset - self.base_offset),
            )
            - 1
        )

    def offset_from(self, position: int) -> int | None:
        """Return the last offset of the first indexed batch at or after ``position``."""
        number = bisect_left(self._positions, position)
        return self._entry(number).offset if number < len(self._offsets) else None

    @property
    def last(self) -> OffsetPosition:
        """The last entry."""
        return self._entry(len(self._offsets) - 1)

    def _entry(self, number: int) -> OffsetPosition:
        """Return an entry; before the first one, the start of the segment."""
        if number < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + self._offsets[number], self._positions[number])

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of batches that end at or after ``offset``."""
        keep = bisect_left(self._offsets, offset - self.base_offset)
        del self._offsets[keep:]
        del self._positions[keep:]


def to_or_from_big_endian(numbers: array[int]) -> None:
    """Convert numbers between the byte order of this machine and that of the file, in place."""
    if sys.byteorder == "little":
        numbers.byteswap()


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


NO_TIMESTAMP_OFFSET = TimestampOffset(NO_TIMESTAMP, UNKNOWN_OFFSET)


class TimeIndex:
    """The whole index in memory. Invariant: timestamps grow from entry to entry, offsets too."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")  # relative to the base offset

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Return the index in a file. Raises ``BadDataError`` if the data is not an index."""
        if len(data) % TIME_ENTRY_BYTES:
            raise BadDataError(f"{len(data)} bytes are not a whole number of entries")
        words = array("i", data)
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        index = cls(base_offset)
        index._timestamps.frombytes(halves.tobytes())
        index._offsets = words[2::3]
        timestamps, offsets = index._timestamps, index._offsets
        to_or_from_big_endian(timestamps)
        to_or_from_big_endian(offsets)
        if offsets and (
            offsets[0] < 0
            or not all(map(lt, timestamps, islice(timestamps, 1, None)))
            or not all(map(le, offsets, islice(offsets, 1, None)))
        ):
            raise BadDataError("entries are not in order")
        return index

    def encode(self) -> bytes:
        """Return the content of the file."""
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._offsets))

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> TimestampOffset:
        """The last entry; ``NO_TIMESTAMP_OFFSET`` if there is none."""
        return self._entry(len(self._timestamps) - 1)

    def maybe_append(self, entry: TimestampOffset) -> None:
        """Add an entry if its timestamp is greater than that of the last entry."""
        if entry.timestamp > self.last.timestamp:
            self._timestamps.append(entry.timestamp)
            self._offsets.append(entry.offset - self.base_offset)

    def offset_before(self, timestamp: int) -> int:
        """Return an offset before which every timestamp is smaller than ``timestamp``."""
        found = bisect_right(self._timestamps, timestamp)
        return self.base_offset + (self._offsets[found - 1] if found else 0)

    def last_before(self, offset: int) -> TimestampOffset:
        """Return the last entry of a record before an offset; ``NO_TIMESTAMP_OFFSET``: none."""
        return self._entry(bisect_right(self._offsets, offset - self.base_offset - 1) - 1)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of records from ``offset`` on."""
        keep = bisect_right(self._offsets, offset - self.base_offset - 1)
        del self._timestamps[keep:]
        del self._offsets[keep:]

    def _entry(self, number: int) -> TimestampOffset:
        if number < 0:
            return NO_TIMESTAMP_OFFSET
        return TimestampOffset(self._timestamps[number], self.base_offset + self._offsets[number])


class SegmentIndexes:
    """Not thread-safe. Entries are added every ``interval`` bytes, as Kafka does."""

    __slots__ = (
        "_bytes_since_entry",
        "interval",
        "is_changed",
        "largest",
        "next_offset",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int, interval: int) -> None:
        self.interval = interval
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.next_offset = base_offset
        self.largest = NO_TIMESTAMP_OFFSET
        self.is_changed = False  # since it was read from files or written to them
        self._bytes_since_entry = 0

    @classmethod
    def load(
        cls,
        index: Path,
        time_index: Path,
        base_offset: int,
        interval: int,
        file: LogFile,
        size: int,
    ) -> SegmentIndexes:
        """Read both files, and the batches after their last entries.

        Raises ``CorruptSegmentError`` if the batches themselves are damaged.
        """
        indexes = cls(base_offset, interval)
        try:
            indexes.offsets = OffsetIndex.decode(base_offset, index.read_bytes(), size)
            indexes.times = TimeIndex.decode(base_offset, time_index.read_bytes())
            indexes._read_on(file, size)
            indexes._check_greatest(file, size)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise storage_error(index, error) from None
        except (BadDataError, CorruptSegmentError):
            pass
        else:
            return indexes
        return cls.rebuilt(base_offset, interval, file, size)

    @classmethod
    def rebuilt(cls, base_offset: int, interval: int, file: LogFile, size: int) -> SegmentIndexes:
        """Read the headers of all batches.

        Raises ``CorruptSegmentError`` if the batches themselves are damaged.
        """
        indexes = cls(base_offset, interval)
        indexes.is_changed = True
        indexes._read_on(file, size)
        return indexes

    def note(self, position: int, header: BatchHeader) -> None:
        """Add the next batch. Mirrors ``LogSegment.append``."""
        last_offset = header.last_offset
        if header.max_timestamp > self.largest.timestamp:
            self.largest = TimestampOffset(header.max_timestamp, last_offset)
        if self._bytes_since_entry > self.interval:
            self.offsets.append(last_offset, position)
            self.times.maybe_append(self.largest)
            self._bytes_since_entry = 0
            self.is_changed = True
        self._bytes_since_entry += header.size
        self.next_offset = last_offset + 1

    @property
    def file_bytes(self) -> tuple[int, int]:
        """The sizes of both files, when they are written."""
        return len(self.offsets) * OFFSET_ENTRY_BYTES, len(self.times) * TIME_ENTRY_BYTES

    def is_full(self, max_bytes: int) -> bool:
        """Whether one of the indexes has no room for another entry."""
        return (
            len(self.offsets) >= max_bytes // OFFSET_ENTRY_BYTES
            or len(self.times) >= max_bytes // TIME_ENTRY_BYTES
        )

    def truncate_to(self, offset: int, file: LogFile, size: int) -> None:
        """Remove the batches from ``offset`` on; ``size`` is the new size of the file."""
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self.is_changed = True
        self._read_on(file, size)

    def write(self, index: Path, time_index: Path) -> bool:
        """Replace both files, with the greatest timestamp as the last entry.

        Return whether anything had changed. Raises ``StorageError``.
        """
        if self.largest.timestamp > self.times.last.timestamp:
            self.times.maybe_append(self.largest)
            self.is_changed = True
        if not self.is_changed:
            return False
        write_index(index, self.offsets.encode())
        write_index(time_index, self.times.encode())
        self.is_changed = False
        return True

    def _read_on(self, file: LogFile, size: int) -> None:
        """Add the batches from that of the last entry on, which the files do not cover."""
        self.largest = self.times.last
        self.next_offset = self.offsets.base_offset
        self._bytes_since_entry = 0
        last_entry, base_offset = self.offsets.last, self.offsets.base_offset
        batches = file.batches(last_entry.position, size)
        end_offset = base_offset + INT32_MAX + 1
        for position, header in check_order(batches, file.path, base_offset, end_offset):
            if position == last_entry.position > 0 and header.last_offset != last_entry.offset:
                raise BadDataError(f"{file.path}: the index names another batch at {position}")
            self.note(position, header)

    def _check_greatest(self, file: LogFile, size: int) -> None:
        """Raise ``BadDataError`` unless a batch has the last timestamp, which retention uses."""
        last = self.times.last
        if last == NO_TIMESTAMP_OFFSET:
            if self.offsets:
                raise BadDataError(f"{file.path}: no entries in the time index")
            return
        for _, header in file.batches(self.offsets.look_up(last.offset).position, size):
            if header.last_offset >= last.offset:
                if header.max_timestamp == last.timestamp:
                    return
                break
        raise BadDataError(f"{file.path}: no batch has timestamp {last.timestamp}")


def find_end(index: Path, base_offset: int, file: LogFile, size: int) -> int | None:
    """Return the end offset of a segment, found from the last entry of an index file.

    None: the index is unusable. Raises ``StorageError`` if a file cannot be read.
    """
    try:
        with index.open("rb", buffering=0) as entries:
            length = entries.seek(0, os.SEEK_END)
            if length % OFFSET_ENTRY_BYTES:
                return None
            entries.seek(max(0, length - OFFSET_ENTRY_BYTES))
            last = OffsetIndex.decode(base_offset, entries.read(OFFSET_ENTRY_BYTES), size).last
    except (FileNotFoundError, BadDataError):
        return None
    except OSError as error:
        raise storage_error(index, error) from None
    end = base_offset
    try:
        for position, header in file.batches(last.position, size):
            if position == last.position > 0 and header.last_offset != last.offset:
                return None
            end = header.next_offset
    except CorruptSegmentError:
        return None
    return end


def last_entry(time_index: Path, base_offset: int) -> TimestampOffset:
    """Return the last entry of a file; ``NO_TIMESTAMP_OFFSET``: it has no valid one.

    Raises ``StorageError``.
    """
    try:
        with time_index.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0 or size % TIME_ENTRY_BYTES:
                return NO_TIMESTAMP_OFFSET
            file.seek(size - TIME_ENTRY_BYTES)
            last = TimeIndex.decode(base_offset, file.read(TIME_ENTRY_BYTES)).last
    except (FileNotFoundError, BadDataError):
        return NO_TIMESTAMP_OFFSET
    except OSError as error:
        raise storage_error(time_index, error) from None
    return last if last.timestamp > 0 else NO_TIMESTAMP_OFFSET  # zeros: the entry was not flushed


def index_size(path: Path) -> int:
    """Return the size of an index file; 0 if there is none. Raises ``StorageError``."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(path, error) from None


def write_index(path: Path, data: bytes = b"") -> None:
    """Replace an index file. Raises ``StorageError``."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise storage_error(path, error) from None


def flush_index(path: Path) -> None:
    """Wait until an index is on the disk. No-op if it was deleted. Raises ``StorageError``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(fd, path)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(path, error) from None
