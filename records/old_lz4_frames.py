"""Frames of lz4 that clients of Kafka 0.8 and 0.9 made, with a wrong checksum (KAFKA-3160)."""

from __future__ import annotations

import struct
from typing import Final

_MAGIC: Final = b"\x04\x22\x4d\x18"
_HEADER_BYTES: Final = 7
_HAS_SIZE: Final = 0x08
_XXHASH_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def with_right_checksum(frame: memoryview) -> memoryview:
    """Return a frame of lz4 with the checksum of its header, which Kafka 0.9 computed wrongly.

    That is the second byte of the xxHash32 of what follows the frame's magic number (KAFKA-3160).
    """
    if len(frame) < _HEADER_BYTES or bytes(frame[:4]) != _MAGIC:
        return frame
    has_size = bool(frame[4] & _HAS_SIZE)
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
