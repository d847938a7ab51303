"""Builds the batches of records that a broker writes itself, and reads their keys and values.

Mirrors ``org.apache.kafka.common.record.MemoryRecordsBuilder`` and ``DefaultRecord``. A record has
its size, attributes, timestamp delta, offset delta, key, value and headers; numbers are varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from crc32c import crc32c

from regent.records.compression import NONE, compressed, decompressed
from regent.records.record_batch import HEADER_SIZE, MAGIC, BatchHeader
from regent.records.varints import read_varint, varint

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]
"""A record; None: a tombstone."""

NO_PRODUCER_ID: Final = -1
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_NULL: Final = b"\x01"  # the varint of -1, the length of a value that is null
_NO_HEADERS: Final = b"\x00"

_PREFIX: Final = struct.Struct(">qiibI")  # offset, length, leader epoch, magic, checksum
_CHECKED: Final = struct.Struct(">hiqqqhii")
_UNCOUNTED_BYTES: Final = 12


def build_batch(
    records: Sequence[KeyAndValue],
    timestamp_ms: int,
    *,
    codec: int = NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
) -> bytearray:
    """Return a batch, without offset and leader epoch; with a producer it is transactional."""
    data = compressed(codec, b"".join(map(_record, range(len(records)), records)))
    attributes = codec | (_TRANSACTIONAL if producer_id != NO_PRODUCER_ID else 0)
    attributes |= _CONTROL if is_control else 0
    checked = _CHECKED.pack(
        attributes,
        len(records) - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    checksum = crc32c(data, crc32c(checked))
    length = HEADER_SIZE - _UNCOUNTED_BYTES + len(data)
    return bytearray(_PREFIX.pack(0, length, -1, MAGIC, checksum) + checked + data)


def _record(offset_delta: int, record: KeyAndValue) -> bytes:
    key, value = record
    body = b"\x00\x00" + varint(offset_delta << 1) + varint(len(key) << 1) + key
    body += _NULL if value is None else varint(len(value) << 1) + value
    body += _NO_HEADERS
    return varint(len(body) << 1) + body


def keys_and_values(header: BatchHeader, batch: memoryview) -> Iterator[KeyAndValue]:
    """Yield the records of a whole batch; those without a key are left out.

    Raises ``ValueError`` or ``IndexError`` if they are not well-formed.
    """
    data = decompressed(header.compression, batch[HEADER_SIZE:])
    at = 0
    for _ in range(header.record_count):
        size, at = read_varint(data, at)
        end = at + (size >> 1)
        _, at = read_varint(data, at + 1)  # after the attributes: the timestamp
        _, at = read_varint(data, at)  # the offset
        length, at = read_varint(data, at)
        key_end = at + (length >> 1)
        is_keyless = bool(length & 1)
        key = data[at:key_end]
        length, at = read_varint(data, at if is_keyless else key_end)
        value = None if length & 1 else data[at : at + (length >> 1)]
        if end > len(data) or at + (length >> 1) > end:
            raise ValueError("a record exceeds its size")
        at = end
        if not is_keyless:
            yield key, value
