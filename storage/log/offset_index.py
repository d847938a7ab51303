"""Sparse index of a segment from offsets to positions: an entry every ``index.interval.bytes``.

Mirrors ``kafka.log.OffsetIndex``. On disk an entry is 8 bytes: the last offset of a batch, relative
to the base offset of the segment, and the position of that batch.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt
from typing import NamedTuple

from regent.core.errors import BadDataError

ENTRY_BYTES = 8


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
        if len(data) % ENTRY_BYTES:
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
        columns = array("i", bytes(ENTRY_BYTES * len(self)))
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
