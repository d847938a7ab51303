"""The offset index, the time index and the end offset of one segment.

The indexes of the active segment grow in memory. They are written to files when it is sealed. A
missing or damaged index file is rebuilt from the headers of the batches, and one that lacks the
last batches is completed.
"""

from __future__ import annotations

import os
from pathlib import Path

from regent.core.errors import BadDataError
from regent.records.record_batch import INT32_MAX, BatchHeader
from regent.storage.file_errors import storage_error, sync
from regent.storage.log.batch_order_check import check_order
from regent.storage.log.log_file import CorruptSegmentError, LogFile
from regent.storage.log.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from regent.storage.log.offset_index import OffsetIndex
from regent.storage.log.time_index import (
    ENTRY_BYTES,
    NO_TIMESTAMP_OFFSET,
    TimeIndex,
    TimestampOffset,
)


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
            if size == 0 or size % ENTRY_BYTES:
                return NO_TIMESTAMP_OFFSET
            file.seek(size - ENTRY_BYTES)
            last = TimeIndex.decode(base_offset, file.read(ENTRY_BYTES)).last
    except (FileNotFoundError, BadDataError):
        return NO_TIMESTAMP_OFFSET
    except OSError as error:
        raise storage_error(time_index, error) from None
    return last if last.timestamp > 0 else NO_TIMESTAMP_OFFSET  # zeros: the entry was not flushed


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
