"""The walk through the records of a batch, which checks their form.

Mirrors ``DefaultRecord.readFrom``. Producers often send many records of one size. After two records
of the same size, the walk compares whole columns: the bytes at the same position of all records
that may be alike.
"""

from __future__ import annotations

from regent.core.varints import read_varint

_LEAST_RECORD_BYTES = 7
_INT32_BYTES = 5  # of the longest number of 32 bits
_OLDEST = -(2**63 - 1)
_FEW = 8  # records alike that are hardly worth the comparison
_MANY = 512  # records that are compared at once
_TRY_AGAIN_AFTER = 16  # records
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


def walk(data: bytes, count: int, keyless: list[int] | None) -> int:  # noqa: C901, PLR0915
    """Check each record; return the largest timestamp delta.

    Append the positions of records without a key to ``keyless``. Raises ``ValueError`` for an
    invalid record and ``IndexError`` for one that exceeds the batch. Varints of one or two bytes,
    which are nearly all, are read in place: a call for each would take twice as long.
    """
    end = len(data)
    if count * _LEAST_RECORD_BYTES > end:
        raise ValueError(f"{count} records in {end} bytes")
    index, at, newest = 0, 0, _OLDEST
    size_before, try_from, try_to = -1, 0, count - _FEW
    while index < count:
        start, size = at, data[at]
        at += 1
        if size > 127:
            more = data[at]
            at += 1
            size += (more << 7) - 128
            if more > 127:
                size, at = read_varint(data, at - 2, _INT32_BYTES)
        stop = at + (size >> 1)
        raw = data[at + 1]  # after the unused attributes
        at += 2
        if raw:
            if raw > 127:
                raw, at = read_varint(data, at - 1)
            if raw & 1:
                newest = max(newest, -(raw >> 1) - 1)
            elif raw >> 1 > newest:
                newest = raw >> 1
        elif newest < 0:
            newest = 0
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
        elif keyless is not None:
            keyless.append(index)
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
        if at != stop or size & 1:
            raise ValueError(f"the length of record {index} is wrong")
        index += 1
        if size == size_before and try_from <= index <= try_to and not keyless:
            alike, newest_alike = _find_alike(data, start, stop, index, count)
            newest = max(newest, newest_alike)
            if alike < _FEW:
                try_from = index + _TRY_AGAIN_AFTER
            index += alike
            at += alike * (stop - start)
        size_before = size
    if at != end:
        raise ValueError(f"{end - at} bytes follow the last of {count} records")
    return newest


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


def _find_alike(data: bytes, start: int, stop: int, index: int, count: int) -> tuple[int, int]:
    """Return how many records like a valid one follow it, and their largest timestamp delta.

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
        return 0, _OLDEST
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
        return 0, _OLDEST
    digits = [
        data[column + stride : column + alike * stride + 1 : stride]
        for column in range(offset_at - 1, timestamp_at - 1, -1)  # the last byte is the highest
    ]
    raw, _ = read_varint(bytes(reversed(max(zip(*digits, strict=True)))), 0)
    return alike, raw >> 1
