"""Reads parts of segments into memory before they are needed under a lock.

The memory is the kernel's page cache. A thread that holds a lock, or that serves many connections,
must not wait for the disk: it asks first, and another thread reads. Both read nothing else than the
reader needs: the batches, and for a segment without its indexes in memory the index files.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from regent.core.errors import BadDataError
from regent.storage.log.log_file import LogFile
from regent.storage.log.segment_indexes import OffsetIndex

SMALL_BYTES: Final = 64 * 1024
"""So little is not worth another thread: the disk needs about as long as for one page."""

_WITHOUT_WAITING: Final = getattr(os, "RWF_NOWAIT", 0)  # Linux
_PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Reads a part of a file. The file is open, so it may be deleted meanwhile."""

    file: LogFile
    position: int
    size: int

    def __call__(self) -> None:
        """Read it; errors are those of the later read."""
        with suppress(OSError):
            read_into_cache(self.file.fileno(), self.position, self.size)

    @property
    def is_needed(self) -> bool:
        """Whether the bytes are many, and not in memory."""
        return self.size > SMALL_BYTES and not is_cached(
            self.file.fileno(), self.position, self.size
        )


@dataclass(frozen=True, slots=True)
class IndexedPrefetch:
    """Reads the index files of a segment, and the batches from ``offset`` on."""

    file: LogFile
    index: Path
    time_index: Path
    base_offset: int
    size: int
    offset: int
    room: int

    def __call__(self) -> None:
        """Read them; errors are those of the later read."""
        with suppress(OSError, BadDataError):
            self.time_index.read_bytes()
            index = OffsetIndex.decode(self.base_offset, self.index.read_bytes(), self.size)
            first, last = index.look_up(self.offset), index.last
            for position, room in ((first.position, self.room), (last.position, SMALL_BYTES)):
                Prefetch(self.file, position, min(room, self.size - position))()


def is_cached(fd: int, position: int, size: int) -> bool:
    """Whether the first and the last of some bytes are in memory.

    Files come into the cache and leave it in long pieces, so these two tell enough. True where the
    system cannot tell.
    """
    return all(_is_byte_cached(fd, at) for at in (position, position + size - 1))


def read_into_cache(fd: int, position: int, size: int) -> None:
    """Let the kernel read bytes of a file, without a copy, and wait for it. Raises ``OSError``."""
    if sys.platform != "linux":
        return
    os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
    end = position + size
    while position < end:
        position = min(position + _PIECE_BYTES, end)
        os.pread(fd, 1, position - 1)


def _is_byte_cached(fd: int, position: int) -> bool:
    if not _WITHOUT_WAITING:
        return True
    try:
        os.preadv(fd, [bytearray(1)], position, _WITHOUT_WAITING)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system cannot tell, or the read itself reports the error
    return True
