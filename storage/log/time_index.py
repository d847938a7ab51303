"""Sparse index of a segment from timestamps to offsets.

Mirrors ``kafka.log.TimeIndex``. On disk an entry is 12 bytes: a timestamp in milliseconds and the
relative offset of the record that has it; every earlier record has a smaller timestamp.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import islice
from operator import le, lt
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.replica_logs import NO_TIMESTAMP, UNKNOWN_OFFSET
from regent.storage.log.offset_index import to_or_from_big_endian

_ENTRY = struct.Struct(">qi")
ENTRY_BYTES = _ENTRY.size


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
        if len(data) % ENTRY_BYTES:
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
        return b"".join(map(_ENTRY.pack, self._timestamps, self._offsets))

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
