"""The records inside a batch of magic 2, and their numbers: reads and writes them one by one.

Mirrors ``org.apache.kafka.common.record.DefaultRecord`` and ``ByteUtils``. A record has its size,
attributes, timestamp delta, offset delta, key, value and headers.

Its numbers have a variable length. The lowest seven bits come first, and the highest bit of a byte
says that another one follows. A number and its sign are one number without a sign: 0, -1, 1, -2, 2
… (zigzag). So a size below 0, which is null, is odd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from regent.core.records import RecordBytes

RecordSpan: TypeAlias = tuple[int, int, int, int, bytes | None, int]
"""Start and end of its bytes, timestamp delta, offset delta, key, and where its value is.

The value begins there with its size; 0: it is null, so the record is a tombstone. A tuple, because
a log has millions of them: an object with names takes several times as long.
"""

_NULL: Final = b"\x01"  # the size -1
_NO_HEADERS: Final = b"\x00"


def read_varint(data: RecordBytes, at: int, max_bytes: int = 10) -> tuple[int, int]:
    """Return a number, before ``signed``, and the position after it.

    Raises ``ValueError`` if it is too long, and ``IndexError`` if ``data`` ends in it.
    """
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError(f"a number of more than {max_bytes} bytes")


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    if number < 128:
        return number.to_bytes()
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def signed(number: int) -> int:
    """Return what a number stands for."""
    return (number >> 1) ^ -(number & 1)


def zigzag(number: int) -> int:
    """Return the number that stands for one with a sign."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def read_records(data: bytes, count: int, *, is_exact: bool = True) -> Iterator[RecordSpan]:  # noqa: C901
    """Yield where the decompressed records of a batch are. Raises ``ValueError``.

    ``is_exact``: nothing may follow the last one. Varints of one or two bytes, which are nearly
    all, are read in place: calls would double the time.
    """
    at = 0
    try:
        for _ in range(count):
            start = at
            size = data[at]
            at += 1
            if size > 127:
                more = data[at]
                at += 1
                size += (more << 7) - 128
                if more > 127:
                    size, at = read_varint(data, start)
            end = at + (size >> 1)
            time = data[at + 1]  # after the attributes
            at += 2
            if time > 127:
                time, at = read_varint(data, at - 1)
            delta = data[at]
            at += 1
            if delta > 127:
                more = data[at]
                at += 1
                delta += (more << 7) - 128
                if more > 127:
                    delta, at = read_varint(data, at - 2)
            length = data[at]
            at += 1
            if length > 127:
                length, at = read_varint(data, at - 1)
            if length & 1:
                key = None
            else:
                key = data[at : at + (length >> 1)]
                at += length >> 1
            value_at = 0 if data[at] & 1 else at
            if at >= end or end > len(data):
                raise ValueError(f"the record at {start} exceeds its size")
            at = end
            yield start, end, (time >> 1) ^ -(time & 1), delta >> 1, key, value_at
    except IndexError:
        raise ValueError("a record exceeds its batch") from None
    if is_exact and at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last of {count} records")


def value_of(data: bytes, value_at: int, end: int) -> bytes | None:
    """Return the value of a ``RecordSpan``. Raises ``ValueError`` if it exceeds its record."""
    if not value_at:
        return None
    size, at = read_varint(data, value_at)
    if at + (size >> 1) > end:
        raise ValueError("a value exceeds its record")
    return data[at : at + (size >> 1)]


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: RecordBytes | None,
    value: RecordBytes | None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """Return a record."""
    body = b"\0" + varint(zigzag(timestamp_delta)) + varint(offset_delta << 1)
    for data in (key, value):
        body += _NULL if data is None else varint(len(data) << 1) + data
    body += varint(len(headers) << 1) if headers else _NO_HEADERS
    for pair in headers:
        for part in pair:
            body += _NULL if part is None else varint(len(part) << 1) + part
    return varint(len(body) << 1) + body


def with_timestamp_delta(data: bytes, start: int, delta: int) -> bytes:
    """Return the record at ``start`` with another timestamp delta."""
    size, at = read_varint(data, start)
    end = at + (size >> 1)
    _, after = read_varint(data, at + 1)
    body = data[at : at + 1] + varint(zigzag(delta)) + data[after:end]
    return varint(len(body) << 1) + body
