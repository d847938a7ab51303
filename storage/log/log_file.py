"""The file of a segment: appends bytes, and reads the batches at given positions.

Mirrors ``org.apache.kafka.common.record.FileRecords``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from regent.core.errors import RecordsRefusedError, StorageError
from regent.core.records import FileRange, RecordBytes
from regent.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    PlacedBatch,
    check_crc,
    check_crc_of_pieces,
    next_header,
)
from regent.storage.file_errors import storage_error, sync

_CHUNK_BYTES = 8 * 1024  # read at once by a search: more than lies between two index entries
_BLOCK_BYTES = 1024 * 1024  # read at once by a check of the whole file
_NO_DIRECTORY = nullcontext()


WholeBatch: TypeAlias = tuple[int, BatchHeader, memoryview]
"""The position of a batch in a file, its header, and all of its bytes."""


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
            self._fd = os.open(path, flags, 0o644)
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

    def whole_batches(self, position: int, end: int, at_once: int) -> Iterator[WholeBatch]:
        """Yield the batches between two positions with their bytes, after a check of their CRCs.

        Raises ``CorruptSegmentError`` at the first batch that is not sound.
        """
        wanted = at_once
        while position < end:
            chunk = memoryview(self.read(position, min(wanted, end - position)))
            at, size = 0, HEADER_SIZE
            while at < len(chunk):
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
