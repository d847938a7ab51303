"""Reads the files of a log without its broker: complete batches with a valid CRC, in sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from regent.core.errors import BadDataError, RecordsRefusedError
from regent.storage.log_names import INDEX_SUFFIXES, base_offset_of
from regent.storage.offset_index import OffsetIndex
from regent.storage.record_batch import BatchHeader, check_crc, next_header

_BLOCK_BYTES: Final = 1024 * 1024


class SoundBatch(NamedTuple):
    """A batch with a valid CRC; ``data`` are header and records as stored."""

    header: BatchHeader
    data: memoryview


class SegmentFile(NamedTuple):
    """One file of a log."""

    base_offset: int
    path: Path

    def blocks(self, offset: int) -> Iterator[list[SoundBatch]]:
        """Yield all batches that end at or after ``offset``, about a mebibyte at a time.

        Raises ``RecordsRefusedError`` at the first incomplete or damaged batch, after those before
        it; and ``OSError``.
        """
        with self.path.open("rb") as file:
            position = self._position_of(offset)
            size = file.seek(0, 2)
            while position < size:
                block, length = _sound_batches(file, position, size)
                yield [batch for batch in block if batch.header.last_offset >= offset]
                position += length

    def _position_of(self, offset: int) -> int:
        """Return the position of a batch at or before ``offset``, by the index if possible."""
        try:
            data = self.path.with_suffix(INDEX_SUFFIXES[0]).read_bytes()
            size = self.path.stat().st_size
            return OffsetIndex.decode(self.base_offset, data, size).look_up(offset).position
        except (OSError, BadDataError):
            return 0


def _sound_batches(file: BinaryIO, position: int, size: int) -> tuple[list[SoundBatch], int]:
    """Return the batches from ``position`` on, and their size in bytes.

    Raises ``RecordsRefusedError`` when the first one is damaged.
    """
    block = _read(file, position, _BLOCK_BYTES)
    found: list[SoundBatch] = []
    at = 0
    while at < len(block):
        try:
            header = next_header(block, at, size - position - at)
            if at + header.size > len(block):
                if found:
                    break  # it is the first one of the next call
                block = _read(file, position, header.size)
            check_crc(block, at, header)
        except RecordsRefusedError:
            if found:
                break  # it is reported by the next call
            raise
        end = at + header.size
        found.append(SoundBatch(header, block[at:end]))
        at = end
    return found, at


def _read(file: BinaryIO, position: int, size: int) -> memoryview:
    file.seek(position)
    return memoryview(file.read(size))


def segments_of(directory: Path) -> list[SegmentFile]:
    """Return the segments of a log in sequence. Raises ``OSError``."""
    found = ((base_offset_of(path.name), path) for path in directory.iterdir())
    return sorted(SegmentFile(base, path) for base, path in found if base is not None)


def log_end_offset(segments: list[SegmentFile]) -> int:
    """Return the end offset of the valid batches of a log. Raises ``OSError``."""
    end = segments[-1].base_offset if segments else 0
    try:
        for block in segments[-1].blocks(end) if segments else ():
            end = block[-1].header.next_offset
    except RecordsRefusedError:
        return end  # an incomplete write of a broker that ended
    return end
