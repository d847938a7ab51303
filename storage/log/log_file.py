"""The file of a segment: appends bytes, and reads and checks the batches at given positions.

Mirrors ``org.apache.kafka.common.record.FileRecords``. The CRC of a batch does not cover its base
offset and leader epoch. But both grow from batch to batch. If they do not grow, one of two adjacent
batches is wrong, and it is unknown which one: ``check_order`` finds that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from regent.core.errors import RecordsRefusedError, StorageError
from regent.core.model import NO_EPOCH
from regent.core.records import FileRange, RecordBytes
from regent.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    PlacedBatch,
    check_crc,
    check_crc_of_pieces,
    next_header,
)
from regent.storage.files import storage_error, sync

_CHUNK_BYTES = 8 * 1024  # read at once by a search: more than lies between two index entries
_BLOCK_BYTES = 1024 * 1024  # read at once by a check of the whole file
# A checked read returns no more than this, so that it takes only some milliseconds.
_MAX_CHECKED_BYTES = 1024 * 1024
_MAX_CHECKED_BATCHES = 2_000
_AT_ONCE = 8 * 1024, 256 * 1024  # the least and most bytes that it reads from the file at once
_NO_DIRECTORY = nullcontext()


WholeBatch: TypeAlias = tuple[int, BatchHeader, memoryview]
"""The position of a batch in a file, its header, and all of its bytes."""

Skim: TypeAlias = Callable[[memoryview, int], int]
"""Deals with the batches from a place on that it can; returns the place of the next one."""


class CorruptSegmentError(StorageError):
    """Bytes in the middle of a segment are not what was written: its log is damaged."""


class LogFile:
    """An open file that is closed with its last reference.

    A response that is being sent can therefore read a segment that was deleted or closed.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, *, is_new: bool = False, is_written: bool = True) -> None:
        """Open a file; if ``is_new``, create it, or truncate the file that a crash left.

        Not ``is_written``: it can only be read, which other users may do.

        Raises ``CorruptSegmentError`` if the file is missing but the directory of its log is there,
        and ``StorageError``.
        """
        self.path = path
        self._fd = -1
        access = os.O_RDWR if is_written else os.O_RDONLY
        flags = access | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if is_new else 0)
        try:
            self._fd = os.open(path, flags, 0o600)
        except FileNotFoundError as error:
            if is_new or not path.parent.is_dir():
                raise storage_error(path, error) from None
            raise CorruptSegmentError(f"{path}: the file is gone") from None
        except OSError as error:
            if is_new:  # the next start would take it for the active segment
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise storage_error(path, error) from None

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def modified_ns(self) -> int:
        """Return the modification time of the file. Raises ``StorageError``."""
        try:
            return os.fstat(self._fd).st_mtime_ns
        except OSError as error:
            raise storage_error(self.path, error) from None

    def read(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer at the end. Raises ``StorageError``."""
        try:
            return os.pread(self._fd, size, position)
        except OSError as error:
            raise storage_error(self.path, error) from None

    def write(self, position: int, data: RecordBytes) -> None:
        """Write all of ``data`` at ``position``, the end of the file, or nothing.

        Raises ``StorageError``.
        """
        size = len(data)
        try:
            written = os.pwrite(self._fd, data, position)
            while written < size:  # the disk is probably full: the next write raises that error
                written += os.pwrite(self._fd, memoryview(data)[written:], position + written)
        except OSError as error:
            if self._has_cut(position):
                raise storage_error(self.path, error) from None
            raise StorageError(f"{self.path}: {error.strerror}") from None

    def truncate(self, size: int) -> None:
        """Truncate the file. Raises ``StorageError``."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise storage_error(self.path, error) from None

    def flush(self) -> None:
        """Wait until the bytes are on the disk. Raises ``StorageError``."""
        sync(self._fd, self.path)

    def batches(
        self, position: int, end: int, *, is_checked: bool = False, at_once: int | None = None
    ) -> Iterator[PlacedBatch]:
        """Yield the batches between two positions; check their CRCs if ``is_checked``.

        Both positions are boundaries of batches. ``at_once`` is the number of bytes to read at
        once. Raises ``CorruptSegmentError`` at the first batch that is incomplete or malformed.
        """
        at_once = at_once or (_BLOCK_BYTES if is_checked else _CHUNK_BYTES)
        chunk, chunk_at = memoryview(b""), position
        while position < end:
            left = end - position
            if position + HEADER_SIZE > chunk_at + len(chunk):
                chunk, chunk_at = memoryview(self.read(position, min(at_once, left))), position
            try:
                header = next_header(chunk, position - chunk_at, left)
                size = header.size
                if not is_checked:
                    pass
                elif position + size <= chunk_at + len(chunk):
                    check_crc(chunk, position - chunk_at, header)
                elif size <= _BLOCK_BYTES:
                    chunk_at = position
                    chunk = memoryview(self.read(position, min(max(at_once, size), left)))
                    check_crc(chunk, 0, header)
                else:
                    check_crc_of_pieces(self._pieces(position, size), header)
            except RecordsRefusedError as error:
                raise CorruptSegmentError(f"{self.path}: at {position}: {error}") from None
            yield position, header
            position += size

    def whole_batches(
        self, position: int, end: int, at_once: int, skim: Skim = lambda _, at: at
    ) -> Iterator[WholeBatch]:
        """Yield the batches between two positions with their bytes, after a check of their CRCs.

        ``skim`` is called with the bytes that were read and the place of the next batch in them. It
        returns the place of the first batch that it does not deal with itself. Raises
        ``CorruptSegmentError`` at the first batch that is not sound.
        """
        wanted = at_once
        while position < end:
            chunk = memoryview(self.read(position, min(wanted, end - position)))
            at, size = 0, HEADER_SIZE
            while (at := skim(chunk, at)) < len(chunk):
                try:
                    if at + HEADER_SIZE <= len(chunk):
                        size = (header := next_header(chunk, at, end - position - at)).size
                    if at + size > len(chunk):
                        break
                    check_crc(chunk, at, header)
                except RecordsRefusedError as error:
                    raise CorruptSegmentError(f"{self.path}: at {position + at}: {error}") from None
                yield position + at, header, chunk[at : at + size]
                at, size = at + size, HEADER_SIZE
            left = end - position
            if at == 0 and (len(chunk) == left or len(chunk) < min(wanted, left)):
                raise CorruptSegmentError(f"{self.path}: at {position}: the batch is cut")
            wanted = at_once if at else size  # the first batch may be larger than the chunk
            position += at

    def _pieces(self, position: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of a batch that is too large to read at once."""
        end = position + size
        while position < end:
            piece = self.read(position, min(_BLOCK_BYTES, end - position))
            if not piece:
                return  # the file was truncated from outside
            yield piece
            position += len(piece)

    def _has_cut(self, size: int) -> bool:
        """Remove what a failed write left. If that fails too, recovery removes it."""
        try:
            os.ftruncate(self._fd, size)
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class FileRecords:
    """Implements ``core.records.Records``: a part of a segment, not read yet.

    It is read in the context of ``directory``, so a disk error takes the directory offline.
    """

    file: LogFile
    position: int
    size: int
    directory: AbstractContextManager[object] = _NO_DIRECTORY

    @property
    def file_range(self) -> FileRange:
        """The file, and the position of the part in it."""
        return FileRange(self.file, self.position)

    def read(self) -> bytes:
        """Return the bytes. Raises ``StorageError``, also if the segment has been truncated."""
        with self.directory:
            data = self.file.read(self.position, self.size)
        if len(data) < self.size:
            raise StorageError(f"{self.file.path}: truncated below {self.position + self.size}")
        return data


def check_order(
    batches: Iterable[PlacedBatch], path: Path, lowest: int, end_offset: int
) -> Iterator[PlacedBatch]:
    """Yield the batches of the file ``path`` whose offsets and epochs are in order.

    Their offsets must be at least ``lowest`` and below ``end_offset``. Raises
    ``CorruptSegmentError`` at the first violation, before it yields a batch that may be wrong.
    """
    held: PlacedBatch | None = None  # yielded once its successor is in order too
    expected, epoch = lowest, NO_EPOCH
    try:
        for placed in batches:
            position, header = placed[0], placed[1]
            base_offset = header.base_offset
            next_offset = base_offset + header.last_offset_delta + 1
            if base_offset < lowest or next_offset > end_offset:
                raise _misplaced(path, position, header)
            if base_offset < expected or header.partition_leader_epoch < epoch:
                if header.partition_leader_epoch >= NO_EPOCH:
                    held = None
                raise _misplaced(path, position, header)
            if held is not None:
                yield held
            held, expected, epoch = placed, next_offset, header.partition_leader_epoch
    except CorruptSegmentError:
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held


@dataclass(slots=True)
class BatchOrder:
    """The least offset and leader epoch that the next batch of a file may have.

    For readers that drop all that they have read after a violation; others use ``check_order``.
    """

    expected: int
    end_offset: int
    epoch: int = NO_EPOCH

    def check(self, path: Path, position: int, header: BatchHeader) -> None:
        """Go on to the next batch. Raises ``CorruptSegmentError`` if it is out of order."""
        base_offset, epoch = header.base_offset, header.partition_leader_epoch
        next_offset = base_offset + header.last_offset_delta + 1
        if base_offset < self.expected or next_offset > self.end_offset or epoch < self.epoch:
            raise _misplaced(path, position, header)
        self.expected, self.epoch = next_offset, epoch


def _misplaced(path: Path, position: int, header: BatchHeader) -> CorruptSegmentError:
    return CorruptSegmentError(
        f"{path}: at {position}: offsets {header.base_offset} to {header.last_offset} of epoch"
        f" {header.partition_leader_epoch} do not belong there"
    )


def sound_end(
    file: LogFile, size: int, start: PlacedBatch, max_bytes: int, limit: int, end_offset: int
) -> tuple[int, int]:
    """Return the last boundary before which all batches from ``start`` on are sound.

    For a reader who must not get damaged batches, of a segment that was not verified yet. A
    boundary is the next offset and its position. The file ends at ``size``; the batches are below
    offset ``limit``, and must be below ``end_offset``. At least one is returned. Raises
    ``CorruptSegmentError`` if the first one is not sound.
    """
    begin, first = start
    room = min(max_bytes, _MAX_CHECKED_BYTES)
    least, most = _AT_ONCE
    at_once = min(max(least, room), most)
    batches = file.batches(begin, size, is_checked=True, at_once=at_once)
    end, next_offset = begin, first.base_offset
    sound = check_order(batches, file.path, next_offset, end_offset)
    try:
        for position, header in islice(sound, _MAX_CHECKED_BATCHES):
            is_too_much = position + header.size - begin > room and end > begin
            if is_too_much or header.next_offset > limit:
                break
            end, next_offset = position + header.size, header.next_offset
    except CorruptSegmentError:
        if end == begin:
            raise
    return next_offset, end


class ScrubState:
    """Remembers whether a whole file was verified, and when to check it again.

    A file counts as verified from the check of all of its batches until it is written to, which its
    modification time shows. A disk may corrupt bytes long after they were written, so the file is
    checked again in the background from time to time. At first the file is not verified, and a
    check is due. ``due_ms`` is wall clock time.
    """

    __slots__ = ("_modified_ns", "due_ms")

    def __init__(self) -> None:
        self.due_ms = 0
        self._modified_ns = 0  # modification time at the last complete check; 0: none

    def note(self, modified_ns: int, due_ms: int = 0) -> None:
        """Remember that the file with this modification time is sound; next check at ``due_ms``."""
        self._modified_ns = modified_ns
        self.due_ms = due_ms

    def forget(self, due_ms: int = 0) -> None:
        """Treat the file as unchecked; next check at ``due_ms``."""
        self._modified_ns = 0
        self.due_ms = due_ms

    def holds(self, file: LogFile) -> bool:
        """Whether all of the file was checked, with no write since.

        Raises ``StorageError``.
        """
        if self._modified_ns == 0:
            return False
        if file.modified_ns() == self._modified_ns:
            return True
        self.forget()
        return False

    def is_due(self, path: Path, now_ms: int) -> bool:
        """Whether a check is due, or the file was written to. Raises ``OSError``. Thread-safe."""
        if self.due_ms <= now_ms:
            return True
        if self._modified_ns == 0:
            return False
        try:
            return path.stat().st_mtime_ns != self._modified_ns
        except FileNotFoundError:
            return True  # another thread has deleted or renamed it
