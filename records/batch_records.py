"""The records of a stored batch, decoded, for the few requests that need them. May take long.

Mirrors ``org.apache.kafka.common.record.DefaultRecordBatch`` and ``DefaultRecord``. Headers of
records are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from regent.records.compression import decompressed
from regent.records.varints import read_varint, signed

_HEADER: Final = struct.Struct(">qi9xhiqq14xi")
_HEADER_BYTES, _UNCOUNTED_BYTES = 61, 12
_COMPRESSION, _APPEND_TIME, _CONTROL = 0x07, 0x08, 0x20


class BatchRecord(NamedTuple):
    """One record; its timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


class BatchOfRecords(NamedTuple):
    """One batch: what its header says, and its records, compressed or not."""

    base_offset: int
    next_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    record_count: int
    data: memoryview

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION

    @property
    def stamps_append_time(self) -> bool:
        """Whether ``max_timestamp`` is the timestamp of all records (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records."""
        return bool(self.attributes & _CONTROL)

    def records(self) -> Iterator[BatchRecord]:
        """Yield the records. Raises ``ValueError`` if they cannot be read."""
        data, at = memoryview(decompressed(self.compression, self.data)), 0
        try:
            for _ in range(self.record_count):
                size, at = _number(data, at)
                end = at + size
                timestamp_delta, at = _number(data, at + 1)  # after the unused attributes
                offset_delta, at = _number(data, at)
                key, at = _sized(data, at)
                value, at = _sized(data, at)
                timestamp = self.base_timestamp + timestamp_delta
                if self.stamps_append_time:
                    timestamp = self.max_timestamp
                yield BatchRecord(self.base_offset + offset_delta, timestamp, key, value)
                at = end
        except IndexError:
            raise ValueError("a record exceeds its batch") from None


def batches_of(data: memoryview) -> Iterator[BatchOfRecords]:
    """Yield the batches of magic 2 in ``data``. Raises ``ValueError`` if one is cut."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER_BYTES:
            raise ValueError(f"a batch header of {len(data) - at} bytes")
        base_offset, length, attributes, last_offset_delta, base_timestamp, max_timestamp, count = (
            _HEADER.unpack_from(data, at)
        )
        end = at + _UNCOUNTED_BYTES + length
        if not at + _HEADER_BYTES <= end <= len(data):
            raise ValueError(f"a batch of {end - at} bytes, of which {len(data) - at} are there")
        yield BatchOfRecords(
            base_offset,
            base_offset + last_offset_delta + 1,
            attributes,
            base_timestamp,
            max_timestamp,
            count,
            data[at + _HEADER_BYTES : end],
        )
        at = end


def _sized(data: memoryview, at: int) -> tuple[memoryview | None, int]:
    size, at = _number(data, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Return a signed number and the position after it."""
    number, at = read_varint(data, at)
    return signed(number), at
