"""Record batches of magic 2 and older messages, written and read without the code under test.

Only uncompressed ones. See ``org.apache.kafka.common.record.DefaultRecordBatch``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from regent.core.records import RecordBytes

HEADER = struct.Struct(">qiibIhiqqqhii")
CHECKED_FROM = 21  # the checksum covers what follows it: from the attributes on
_CHECKED = struct.Struct(">hiqqqhii")
UNCOUNTED_BYTES = 12  # base offset and length are not part of the length
MAGIC = 2
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
TIMESTAMP_MS = 1_600_000_000_000


class Record(NamedTuple):
    """One record of a log."""

    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None


def batch(
    *values: bytes | None,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int = TIMESTAMP_MS,
    attributes: int = 0,
    key: bytes | None = None,
) -> bytes:
    """Return a batch with a record for each value, all with the same time and key."""
    return keyed_batch(
        *((key, value) for value in values),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        timestamp_ms=timestamp_ms,
        attributes=attributes,
    )


def keyed_batch(
    *records: tuple[bytes | None, bytes | None],
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int = TIMESTAMP_MS,
    attributes: int = 0,
    time_step_ms: int = 0,
    compress: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """Return a batch of keys and values; each is ``time_step_ms`` younger than the one before."""
    last = len(records) - 1
    data = b"".join(
        _record(i, key, value, i * time_step_ms) for i, (key, value) in enumerate(records)
    )
    checked = _CHECKED.pack(
        attributes,
        last,
        timestamp_ms,
        timestamp_ms + last * time_step_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    ) + compress(data)
    length = CHECKED_FROM - UNCOUNTED_BYTES + len(checked)
    return (
        struct.pack(">qiibI", base_offset, length, leader_epoch, MAGIC, crc32c(checked)) + checked
    )


def old_message(
    body: bytes, magic: int = 1, attributes: int = 0, offset: int = 0, time_ms: int = 5
) -> bytes:
    """Return one message of format 0 or 1 with a key of null and this value."""
    checked = bytes((magic, attributes)) + (struct.pack(">q", time_ms) if magic else b"")
    checked += struct.pack(">ii", -1, len(body)) + body
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def records_of(data: RecordBytes) -> list[Record]:
    """Return the records of whole, uncompressed batches."""
    found: list[Record] = []
    position = 0
    while position < len(data):
        base_offset, length, leader_epoch, *_, count = HEADER.unpack_from(data, position)
        end = position + UNCOUNTED_BYTES + length
        assert end <= len(data), f"the batch at {position} is not whole"
        at = position + HEADER.size
        for _ in range(count):
            size, at = read_varint(data, at)
            found.append(_read_record(data, at, base_offset, leader_epoch))
            at += size
        assert at == end, f"the batch at {position} holds more than its records"
        position = end
    return found


def values_of(data: RecordBytes) -> list[bytes | None]:
    """Return only the values."""
    return [record.value for record in records_of(data)]


def offsets_of(data: RecordBytes) -> list[int]:
    """Return only the offsets."""
    return [record.offset for record in records_of(data)]


def resealed(data: RecordBytes) -> bytes:
    """Return a changed batch with a correct checksum."""
    whole = bytearray(data)
    struct.pack_into(">I", whole, CHECKED_FROM - 4, crc32c(whole[CHECKED_FROM:]))
    return bytes(whole)


def stamped(data: bytearray | memoryview, position: int, size: int, now_ms: int) -> None:
    """Set the log append time of a batch, in place."""
    (attributes,) = struct.unpack_from(">h", data, position + CHECKED_FROM)
    struct.pack_into(">h", data, position + CHECKED_FROM, attributes | LOG_APPEND_TIME_MASK)
    struct.pack_into(">q", data, position + 35, now_ms)  # the greatest timestamp
    checksum = crc32c(memoryview(data)[position + CHECKED_FROM : position + size])
    struct.pack_into(">I", data, position + CHECKED_FROM - 4, checksum)


def _record(
    offset_delta: int, key: bytes | None, value: bytes | None, timestamp_delta: int = 0
) -> bytes:
    body = b"".join(
        (b"\0", _varint(timestamp_delta), _varint(offset_delta), _sized(key), _sized(value), b"\0")
    )  # attributes … number of headers
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    written = bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def _read_record(data: RecordBytes, at: int, base_offset: int, leader_epoch: int) -> Record:
    _, at = read_varint(data, at + 1)  # after the attributes: the timestamp delta
    offset_delta, at = read_varint(data, at)
    key, at = _read_sized(data, at)
    value, at = _read_sized(data, at)
    return Record(base_offset + offset_delta, leader_epoch, key, value)


def _read_sized(data: RecordBytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def read_varint(data: RecordBytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    read = shift = 0
    while True:
        byte = data[at]
        at += 1
        read |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (read >> 1) ^ -(read & 1), at
        shift += 7
