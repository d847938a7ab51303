"""Decodes the records of a batch, as far as the log cleaner needs them.

Mirrors ``org.apache.kafka.common.record.DefaultRecord``: size, attributes, timestamp delta, offset
delta, key, value, headers. Numbers are varints. A decoded record refers to its bytes, so that most
can be copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from regent.records.compression import decompressed
from regent.records.record_batch import HEADER_SIZE, BatchHeader
from regent.records.varints import read_varint, varint, zigzag

DecodedRecord: TypeAlias = tuple[int, int, int, int, bytes | None, bool]
"""Start and end of its bytes, timestamp delta, offset delta, key, and whether it is a tombstone.

A tuple, because a log has millions of them: an object with names takes several times as long.
"""

_NULL = 1  # the varint of -1, the length of a key or value that is null


def uncompressed(header: BatchHeader, batch: memoryview) -> bytes:
    """Return the records of a whole batch. Raises ``ValueError``."""
    return decompressed(header.compression, batch[HEADER_SIZE:])


def records_of(data: bytes, count: int) -> Iterator[DecodedRecord]:  # noqa: C901
    """Yield the records. Raises ``ValueError`` or ``IndexError`` if they are not well-formed.

    Varints of one or two bytes, which are nearly all, are read in place: calls would double the
    time.
    """
    at = 0
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
        if length == _NULL:
            key = None
        else:
            if length > 127:
                length, at = read_varint(data, at - 1)
            key = data[at : at + (length >> 1)]
            at += length >> 1
        is_tombstone = data[at] == _NULL
        if at >= end or end > len(data):
            raise ValueError(f"the record at {start} exceeds its size")
        at = end
        yield start, end, (time >> 1) ^ -(time & 1), delta >> 1, key, is_tombstone
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last of {count} records")


def marker_of(header: BatchHeader, batch: memoryview) -> int | None:
    """Return the type of a control batch: the second 16-bit number of its key; -1: unknown.

    None: an empty batch, which is left of a marker that a cleaning removed. Raises ``ValueError``.
    """
    records = uncompressed(header, batch)
    for _, _, _, _, key, _ in records_of(records, header.record_count):
        return -1 if key is None or len(key) < 4 else int.from_bytes(key[2:4], "big")
    return None


def with_timestamp_delta(data: bytes, start: int, delta: int) -> bytes:
    """Return the record at ``start`` with another timestamp delta."""
    size, at = read_varint(data, start)
    end = at + (size >> 1)
    _, after = read_varint(data, at + 1)
    body = data[at : at + 1] + varint(zigzag(delta)) + data[after:end]
    return varint(len(body) << 1) + body
