"""Converts records of the message formats 0 and 1, for clients older than Kafka 0.11 (KIP-32).

Logs have only batches of magic 2. A message set of a producer becomes one batch with the same
compression. Batches become messages without compression, which every client reads; headers are
left out, transaction markers too. Mirrors ``org.apache.kafka.common.record.LegacyRecord``,
``RecordsUtil``, and the conversions of ``kafka.log.LogValidator``.

Both conversions take long: they run beside the event loop.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Final, NamedTuple

from regent.core.errors import Errors, RecordsRefusedError
from regent.records.compression import (
    LZ4,
    NONE,
    Unpack,
    compressed_pieces,
    pieces,
    unpacked_at_once,
)
from regent.records.record import encode_record
from regent.records.record_batch import BatchHeader, batches, encode, records_of

_ENTRY: Final = struct.Struct(">qiIbb")  # offset, size, CRC, magic, attributes
_SIZE_END, _CRC_END = 12, 16  # the size counts from the CRC on, the CRC from the magic on
_MAGIC_AT: Final = 16
_LEAST_BYTES: Final = 14  # of a message after its size
_CODEC, _APPEND_TIME = 0x07, 0x08
_NO_TIMESTAMP: Final = -1
_PIECE_BYTES: Final = 256 * 1024
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
_OVERFLOW: Final = struct.Struct(">qi").pack(-1, 2**31 - 1)
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES: Final = 7
_LZ4_HAS_SIZE: Final = 0x08
_XXHASH_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


class LegacyRecord(NamedTuple):
    """One message of a producer; its offset does not matter."""

    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def is_old(data: memoryview) -> bool:
    """Whether records have message format 0 or 1."""
    return len(data) > _MAGIC_AT and data[_MAGIC_AT] in (0, 1)


# --- from producers -------------------------------------------------------------------------------


def up_converted(data: memoryview, unpack: Unpack | None = unpacked_at_once) -> memoryview:
    """Return a message set of a producer as a batch of magic 2.

    Either nothing is compressed, or there is one message whose value is a compressed set. For
    ``unpack`` see ``compression.pieces``. Raises ``RecordsRefusedError``, ``LargeBatchError``.
    """
    magic = data[_MAGIC_AT]
    messages = _messages((data,), magic)
    first = next(messages)
    codec = first.attributes & _CODEC
    if codec == NONE:
        return memoryview(_batch(codec, chain((first,), messages)))
    if codec > LZ4:
        raise _invalid(f"compression {codec} in message format {magic}")
    if next(messages, None) is not None:
        raise _invalid("more messages after a compressed one")
    with closing(_unpacked(first, magic, unpack)) as inner:
        return memoryview(_batch(codec, _messages(inner, magic)))


def _messages(found: Iterable[memoryview], magic: int) -> Iterator[LegacyRecord]:
    """Yield the messages of a set that comes in pieces."""
    parts: list[memoryview] = []
    size = wanted = 0
    for piece in found:
        parts.append(piece)
        size += len(piece)
        if size < wanted:
            continue
        data, at = parts[0] if len(parts) == 1 else memoryview(b"".join(parts)), 0
        while at < size and (wanted := _size_of(data[at:])) <= size - at:
            yield _checked(data[at : at + wanted], magic)
            at += wanted
        parts, size = [data[at:]], size - at
    if size:
        raise _corrupt("a message is cut")


def _size_of(data: memoryview) -> int:
    """Return how many bytes the first message has, or must have at least."""
    if len(data) < _SIZE_END:
        return _SIZE_END + _LEAST_BYTES
    (size,) = _LENGTH.unpack_from(data, _SIZE_END - _LENGTH.size)
    if size < _LEAST_BYTES:
        raise _corrupt(f"a message of {size} bytes")
    return _SIZE_END + int(size)


def _checked(data: memoryview, magic: int) -> LegacyRecord:
    _, _, crc, own_magic, attributes = _ENTRY.unpack_from(data)
    if zlib.crc32(data[_CRC_END:]) != crc:
        raise _corrupt("the CRC of a message does not match")
    if own_magic != magic:
        raise _invalid(f"a message of magic {own_magic} in a set of magic {magic}")
    if magic == 1 and attributes & _APPEND_TIME:
        raise RecordsRefusedError(Errors.INVALID_TIMESTAMP, "producers must not set LogAppendTime")
    return _message(data[_ENTRY.size :], magic, attributes)


def _message(body: memoryview, magic: int, attributes: int) -> LegacyRecord:
    timestamp, at = _NO_TIMESTAMP, 0
    try:
        if magic == 1:
            (timestamp,) = _TIMESTAMP.unpack_from(body)
            at = _TIMESTAMP.size
        key, at = _sized(body, at)
        value, at = _sized(body, at)
    except (struct.error, ValueError):
        raise _corrupt("a key or value exceeds its message") from None
    if timestamp < _NO_TIMESTAMP:
        raise RecordsRefusedError(Errors.INVALID_TIMESTAMP, f"timestamp {timestamp}")
    return LegacyRecord(attributes, timestamp, key, value)


def _unpacked(wrapper: LegacyRecord, magic: int, unpack: Unpack | None) -> Generator[memoryview]:
    """Yield the set of messages inside a message, in pieces."""
    codec = wrapper.attributes & _CODEC
    if wrapper.value is None:
        raise _invalid("a compressed message without a value")
    data = wrapper.value
    if codec == LZ4 and magic == 0:
        data = _with_right_checksum(data)
    try:
        with closing(pieces(codec, data, unpack)) as found:
            for piece in found:
                yield memoryview(piece)
    except ValueError as error:
        raise _invalid(f"records that cannot be read: {error}") from None


def _sized(data: memoryview, at: int) -> tuple[memoryview | None, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if size < 0:
        return None, at
    if at + size > len(data):
        raise ValueError
    return data[at : at + size], at + size


class _Records:
    """Messages as records of magic 2, and what the header of their batch says."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.newest = _NO_TIMESTAMP

    def encoded(self, messages: Iterable[LegacyRecord]) -> Iterator[bytes]:
        """Yield the records in pieces."""
        piece = bytearray()
        for attributes, timestamp, key, value in messages:
            if attributes & _CODEC:
                raise _invalid("a compressed message inside a set of others")
            if self.count == 0:
                self.first = timestamp
            piece += encode_record(self.count, timestamp - self.first, key, value)
            self.count += 1
            self.newest = max(self.newest, timestamp)
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)


def _batch(codec: int, messages: Iterable[LegacyRecord]) -> bytearray:
    records = _Records()
    data = compressed_pieces(codec, records.encoded(messages))
    if not records.count:
        raise _invalid("a compressed message without messages")
    header = BatchHeader(
        attributes=codec,
        last_offset_delta=records.count - 1,
        base_timestamp=records.first,
        max_timestamp=records.newest,
        record_count=records.count,
    )
    return encode(header, data)


def _with_right_checksum(frame: memoryview) -> memoryview:
    """Return a frame of lz4 with the checksum of its header, which Kafka 0.9 computed wrongly.

    That is the second byte of the xxHash32 of what follows the frame's magic number (KAFKA-3160).
    """
    if len(frame) < _LZ4_HEADER_BYTES or bytes(frame[:4]) != _LZ4_MAGIC:
        return frame
    has_size = bool(frame[4] & _LZ4_HAS_SIZE)
    at = 14 if has_size else 6
    if len(frame) <= at:
        return frame
    repaired = bytearray(frame)
    repaired[at] = _xxhash32(bytes(frame[4:at])) >> 8 & 0xFF
    return memoryview(repaired)


def _xxhash32(data: bytes) -> int:
    """Return the hash of less than 16 bytes, with seed 0."""
    hashed = _XXHASH_PRIMES[4] + len(data)
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        hashed = _rotated(hashed + word * _XXHASH_PRIMES[2], 17) * _XXHASH_PRIMES[3]
    for byte in data[whole:]:
        hashed = _rotated(hashed + byte * _XXHASH_PRIMES[4], 11) * _XXHASH_PRIMES[0]
    hashed &= 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 15) * _XXHASH_PRIMES[1] & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * _XXHASH_PRIMES[2] & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return number << bits | number >> 32 - bits


# --- to consumers ---------------------------------------------------------------------------------


def down_converted(data: memoryview, magic: int, from_offset: int, max_bytes: int) -> bytes:
    """Return the records from an offset on as messages, as many as fit but at least one.

    If no record is left, return the beginning of a message that is too large: the client then asks
    for more bytes, and reads on behind these batches. Raises ``ValueError`` or
    ``RecordsRefusedError`` if the first records cannot be read.
    """
    converted = bytearray()
    try:
        for position, header in batches(data):
            if header.is_control:
                continue
            attributes = _APPEND_TIME if header.stamps_append_time and magic == 1 else 0
            batch = data[position : position + header.size]
            for offset, timestamp, key, value in records_of(header, batch):
                if offset < from_offset:
                    continue
                message = _encoded(offset, magic, attributes, timestamp, key, value)
                if converted and len(converted) + len(message) > max_bytes:
                    return bytes(converted)
                converted += message
    except (ValueError, RecordsRefusedError):
        if not converted:
            raise
    return bytes(converted or (_OVERFLOW if data else b""))


def _encoded(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    checked = bytes((magic, attributes)) + (_TIMESTAMP.pack(timestamp) if magic == 1 else b"")
    for data in (key, value):
        checked += _NULL if data is None else _LENGTH.pack(len(data)) + data
    head = _ENTRY.pack(offset, _CRC_END - _SIZE_END + len(checked), zlib.crc32(checked), 0, 0)
    return head[:_CRC_END] + checked


def _invalid(problem: str) -> RecordsRefusedError:
    return RecordsRefusedError(Errors.INVALID_RECORD, problem)


def _corrupt(problem: str) -> RecordsRefusedError:
    return RecordsRefusedError(Errors.CORRUPT_MESSAGE, problem)
