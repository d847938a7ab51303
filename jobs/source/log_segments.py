"""Reads the files of a log without its broker: complete batches with a valid CRC, in sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from regent.core.errors import BadDataError, StorageError
from regent.storage.log.log_file import CorruptSegmentError, LogFile, WholeBatch
from regent.storage.log.segment_indexes import OffsetIndex
from regent.storage.log_names import INDEX_SUFFIXES, base_offset_of

_BLOCK_BYTES: Final = 1024 * 1024


class SegmentFile(NamedTuple):
    """One file of a log."""

    base_offset: int
    path: Path

    def batches(self, offset: int) -> Iterator[WholeBatch]:
        """Yield the batches that end at or after ``offset``.

        Raises ``CorruptSegmentError`` at the first one that is incomplete or damaged, and
        ``StorageError``, ``OSError``.
        """
        file, size = LogFile(self.path, is_written=False), self.path.stat().st_size
        for batch in file.whole_batches(self._position_of(offset, size), size, _BLOCK_BYTES):
            if batch[1].last_offset >= offset:
                yield batch

    def blocks(self, offset: int) -> Iterator[list[WholeBatch]]:
        """As ``batches``, about a mebibyte at a time; sound batches come before an error."""
        block: list[WholeBatch] = []
        try:
            for batch in self.batches(offset):
                block.append(batch)
                if batch[0] + batch[1].size - block[0][0] >= _BLOCK_BYTES:
                    yield block
                    block = []
        except StorageError:
            yield block
            raise
        yield block

    def _position_of(self, offset: int, size: int) -> int:
        """Return the position of a batch at or before ``offset``, by the index if possible."""
        try:
            data = self.path.with_suffix(INDEX_SUFFIXES[0]).read_bytes()
            return OffsetIndex.decode(self.base_offset, data, size).look_up(offset).position
        except (OSError, BadDataError):
            return 0


def segments_of(directory: Path) -> list[SegmentFile]:
    """Return the segments of a log in sequence. Raises ``OSError``."""
    found = ((base_offset_of(path.name), path) for path in directory.iterdir())
    return sorted(SegmentFile(base, path) for base, path in found if base is not None)


def log_end_offset(segments: list[SegmentFile]) -> int:
    """Return the end offset of the valid batches of a log. Raises ``StorageError``, ``OSError``."""
    end = 0
    for last in segments[-1:]:
        end = last.base_offset
        with suppress(CorruptSegmentError):  # an incomplete write of a broker that ended
            for _, header, _ in last.batches(end):
                end = header.next_offset
    return end
