"""The walk through the records of a batch, which checks their form.

Mirrors ``DefaultRecord.readFrom`` and ``readPartiallyFrom``. Producers often send many records of
one size. After two records of the same size, the walk compares whole columns: the bytes at the same
position of all records that may be alike.

The records come in pieces. The walk keeps only the last record of a piece, if it is cut, and of a
long record nothing: so a batch of any size takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regent.records.varints import read_varint, signed

_LEAST_RECORD_BYTES = 7
_INT32_BYTES = 5  # of the longest number of 32 bits
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_FEW = 8  # records alike that are hardly worth the comparison
_MANY = 512  # records that are compared at once
_TRY_AGAIN_AFTER = 16  # records
_LONG_BYTES = 64 * 1024  # of a record that is not kept until all of it is there
# The bytes of the varints of 0, 1, 2 …: those of one byte, and both bytes of the longer ones.
_ONE_BYTE = bytes(number << 1 for number in range(64))
_LOW_BYTES = bytes(0x80 | (number << 1 & 0x7F) for number in range(8192))
_HIGH_BYTES = bytes(number >> 6 for number in range(8192))
_OFFSETS = {1: (_ONE_BYTE,), 2: (_LOW_BYTES, _HIGH_BYTES)}
# The bytes that varints of numbers from 0 on may have, by their length: zigzag makes them even.
_NUMBERS = {
    1: (bytes(range(0, 128, 2)),),
    2: (bytes(range(128, 256, 2)), bytes(range(128))),
}


class ReadRecord(NamedTuple):
    """What the rules for single records look at."""

    timestamp_delta: int
    has_key: bool


class RecordWalk:
    """A walk through the ``count`` records of a batch, and what it has found.

    ``oldest`` and ``newest`` are the smallest and the largest timestamp delta.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.oldest, self.newest = _GREATEST, _LEAST
        self.has_all_keys = True
        self._index = 0

    def read(self, pieces: Iterable[bytes]) -> None:
        """Check every record, and that nothing follows the last one.

        Raises ``ValueError`` for an invalid record and ``IndexError`` for one that exceeds the
        batch, before the next piece is taken.
        """
        cursor = _Cursor(pieces)
        while self._index < self.count:
            if not cursor.take_piece():
                raise IndexError(f"record {self._index} exceeds the batch")
            cursor.at = self.walk(cursor.data, cursor.at)
            while self._index < self.count and len(cursor.data) - cursor.at > _LONG_BYTES:
                self._add(*cursor.read_record(self._index))
                cursor.at = self.walk(cursor.data, cursor.at)
        while cursor.at == len(cursor.data):
            if not cursor.take_piece():
                return
        raise ValueError(f"bytes follow the last of {self.count} records")

    def _add(self, timestamp_delta: int, has_key: bool) -> None:
        self.oldest = min(self.oldest, timestamp_delta)
        self.newest = max(self.newest, timestamp_delta)
        self.has_all_keys &= has_key
        self._index += 1

    def walk(self, data: bytes, at: int) -> int:  # noqa: C901, PLR0915
        """Check the records that end in ``data``; return the position of the next one.

        Varints of one or two bytes, which are nearly all, are read in place: a call for each would
        take twice as long.
        """
        end, count, index = len(data), self.count, self._index
        oldest, newest = self.oldest << 1, self.newest << 1
        size_before, try_from, try_to = -1, 0, count - _FEW
        while index < count and at < end:
            start, size = at, data[at]
            at += 1
            if size > 127:
                try:
                    more = data[at]
                    at += 1
                    size += (more << 7) - 128
                    if more > 127:
                        size, at = read_varint(data, start, _INT32_BYTES)
                except IndexError:  # it is cut
                    at = start
                    break
            if size & 1:
                raise ValueError(f"the length of record {index} is wrong")
            stop = at + (size >> 1)
            if stop > end:
                at = start
                break
            raw = data[at + 1]  # after the unused attributes
            at += 2
            if raw > 127:
                raw, at = read_varint(data, at - 1)
            if raw & 1:
                raw = ~raw
            if raw > newest:
                newest = raw
            if raw < oldest:
                oldest = raw
            raw = data[at]
            at += 1
            if raw > 127:
                more = data[at]
                at += 1
                raw += (more << 7) - 128
                if more > 127:
                    raw, at = read_varint(data, at - 2, _INT32_BYTES)
            if raw != index << 1:
                raise ValueError(f"record {index} has another offset than {index}")
            raw = data[at]
            at += 1
            if raw > 127:
                raw, at = read_varint(data, at - 1, _INT32_BYTES)
            if not raw & 1:
                at += raw >> 1
            else:
                self.has_all_keys = False
            raw = data[at]
            at += 1
            if raw > 127:
                more = data[at]
                at += 1
                raw += (more << 7) - 128
                if more > 127:
                    raw, at = read_varint(data, at - 2, _INT32_BYTES)
            if not raw & 1:
                at += raw >> 1
            if data[at]:
                at = _after_headers(data, at, stop)
            else:
                at += 1
            if at != stop:
                raise ValueError(f"the length of record {index} is wrong")
            index += 1
            if size == size_before and try_from <= index <= try_to:
                alike, oldest_alike, newest_alike = _find_alike(data, start, stop, index, count)
                oldest, newest = min(oldest, oldest_alike << 1), max(newest, newest_alike << 1)
                if alike < _FEW:
                    try_from = index + _TRY_AGAIN_AFTER
                index += alike
                at += alike * (stop - start)
            size_before = size
        self._index, self.oldest, self.newest = index, oldest >> 1, newest >> 1
        return at


def read_each(pieces: Iterable[bytes], count: int) -> Iterator[ReadRecord]:
    """Yield the records one by one, which takes longer than a walk and finds the same errors."""
    cursor = _Cursor(pieces)
    for index in range(count):
        yield cursor.read_record(index)


class _Cursor:
    """A position in records that come in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.data, self.at = b"", 0

    def take_piece(self) -> bool:
        """Add a piece to what is left of the last ones; False: there is none."""
        for piece in self._pieces:
            self.data = self.data[self.at :] + piece if self.at < len(self.data) else piece
            self.at = 0
            return True
        return False

    def read_record(self, index: int) -> ReadRecord:
        """Read a record, without keeping its key and value. Raises as ``RecordWalk.read``."""
        size, _ = self._number(_INT32_BYTES)
        if size < 0:
            raise ValueError(f"the length of record {index} is wrong")
        left = size - 1
        self._skip(1)  # the unused attributes
        timestamp_delta, taken = self._number()
        left -= taken
        offset, taken = self._number(_INT32_BYTES)
        left -= taken
        if offset != index:
            raise ValueError(f"record {index} has another offset than {index}")
        key_bytes, left = self._skip_sized(left)
        _, left = self._skip_sized(left)
        headers, taken = self._number(_INT32_BYTES)
        left -= taken
        if not 0 <= headers <= max(left, 0):
            raise ValueError("the number of headers of a record is wrong")
        for _ in range(headers):
            header_key_bytes, left = self._skip_sized(left)
            if header_key_bytes < 0:
                raise ValueError("a record has a header without a key")
            _, left = self._skip_sized(left)
        if left != 0:
            raise ValueError(f"the length of record {index} is wrong")
        return ReadRecord(timestamp_delta, key_bytes >= 0)

    def _number(self, max_bytes: int = 10) -> tuple[int, int]:
        """Return a number and how many bytes it has."""
        while True:
            try:
                raw, at = read_varint(self.data, self.at, max_bytes)
            except IndexError:  # it is cut
                if not self.take_piece():
                    raise
                continue
            taken, self.at = at - self.at, at
            return signed(raw), taken

    def _skip_sized(self, left: int) -> tuple[int, int]:
        """Skip a key or a value; return its size, -1 for null, and what is left of its record."""
        size, taken = self._number(_INT32_BYTES)
        left -= taken + max(size, 0)
        if left < 0:
            raise ValueError("a key or value exceeds its record")
        self._skip(size)
        return size, left

    def _skip(self, size: int) -> None:
        while size > len(self.data) - self.at:
            size -= len(self.data) - self.at
            self.at = len(self.data)
            if not self.take_piece():
                raise IndexError
        self.at += max(size, 0)


def _after_headers(data: bytes, at: int, stop: int) -> int:
    """Return the end of the headers of a record; they begin with their number."""
    raw, at = read_varint(data, at, _INT32_BYTES)
    if raw & 1 or raw >> 1 > stop - at:
        raise ValueError("the number of headers of a record is wrong")
    for _ in range(raw >> 1):
        key_size, at = read_varint(data, at, _INT32_BYTES)
        if key_size & 1:
            raise ValueError("a record has a header without a key")
        at += key_size >> 1
        value_size, at = read_varint(data, at, _INT32_BYTES)
        if not value_size & 1:
            at += value_size >> 1
    return at


def _find_alike(data: bytes, start: int, stop: int, index: int, count: int) -> tuple[int, int, int]:
    """Return how many records like a valid one follow it; their least and largest timestamp delta.

    They differ from it only in key, value, timestamp and offset, not in a size. They have no
    headers, and the offsets ``index``, ``index + 1`` …, below ``count``. 0 if the record has
    headers or a timestamp delta below 0, or if the delta or the offset has more than two bytes.
    """
    _, at = read_varint(data, start, _INT32_BYTES)
    timestamp_at = at + 1
    _, offset_at = read_varint(data, timestamp_at)
    _, key_size_at = read_varint(data, offset_at, _INT32_BYTES)
    raw, key_at = read_varint(data, key_size_at, _INT32_BYTES)
    value_size_at = key_at if raw & 1 else key_at + (raw >> 1)
    raw, value_at = read_varint(data, value_size_at, _INT32_BYTES)
    headers_at = value_at if raw & 1 else value_at + (raw >> 1)
    offsets = _OFFSETS.get(key_size_at - offset_at)
    timestamps = _NUMBERS.get(offset_at - timestamp_at)
    if offsets is None or timestamps is None or headers_at != stop - 1:
        return 0, _GREATEST, _LEAST
    stride = stop - start
    alike = min(_MANY, count - index, len(offsets[0]) - index, (len(data) - stop) // stride)
    allowed = dict(enumerate(timestamps, timestamp_at))
    for column in (
        *range(start, offset_at),
        headers_at,
        *range(key_size_at, key_at),
        *range(value_size_at, value_at),
    ):
        if alike <= 0:
            break
        found = data[column + stride : column + alike * stride + 1 : stride]
        alike -= len(found.lstrip(allowed.get(column, data[column : column + 1])))
    if alike <= 0 or any(
        data[column + stride : column + alike * stride + 1 : stride]
        != expected[index : index + alike]
        for column, expected in enumerate(offsets, offset_at)
    ):
        return 0, _GREATEST, _LEAST
    digits = [
        data[column + stride : column + alike * stride + 1 : stride]
        for column in range(offset_at - 1, timestamp_at - 1, -1)  # the last byte is the highest
    ]
    if len(digits) == 1:
        return alike, min(digits[0]) >> 1, max(digits[0]) >> 1
    rows = list(zip(*digits, strict=True))
    oldest, _ = read_varint(bytes(reversed(min(rows))), 0)
    newest, _ = read_varint(bytes(reversed(max(rows))), 0)
    return alike, oldest >> 1, newest >> 1
