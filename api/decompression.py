"""Compression and decompression of record batches; decompression up to a limit.

A few kilobytes can decompress to gigabytes, so the size is limited. ``cramjam`` has the decoders of
snappy, lz4 and zstd. They write into a mapping as large as the limit, which takes only the memory
that is written. ``cramjam`` takes 2 MB, so it is imported with the first compressed batch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

LEAST_LIMIT = 16 * 1024 * 1024
"""Bytes of records that every batch may have; producers put fewer into one."""
MAX_RATIO = 128
"""Compression ratio that every batch may have; that of text is lower."""
MOST_LIMIT = 2**31 - 1
"""Bytes of records that no batch may exceed: Kafka counts them in 31 bits."""

_GZIP_WINDOW = 31
_XERIAL = b"\x82SNAPPY\x00"  # the Java library writes this before blocks of 32 KB
_XERIAL_HEADER_BYTES = 16
_BLOCK_SIZE = struct.Struct(">i")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES = 7
_LZ4_HAS_SIZE = 0x08
_XXHASH_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_NO_ROOM = "failed to write whole buffer"  # cramjam's error when the buffer is full


def decompressed(codec: int, data: memoryview) -> bytes:
    """Return the records of a batch; raises ``ValueError`` when they cannot be decompressed.

    Raises ``OSError`` when there is no memory for them.
    """
    limit = min(max(LEAST_LIMIT, MAX_RATIO * len(data)), MOST_LIMIT)
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _gunzip(data, limit)
    if codec == SNAPPY:
        return _unsnap(data, limit)
    if codec in (LZ4, ZSTD):
        return _read_frames(codec, data, limit)
    raise ValueError(f"compression {codec} does not exist")


def compressed(codec: int, data: bytes) -> bytes:
    """Return records compressed with gzip, snappy or lz4, or unchanged with ``NONE``."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return zlib.compress(data, wbits=_GZIP_WINDOW)
    import cramjam

    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    # Java's clients read only blocks that do not depend on each other.
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def with_right_checksum(frame: memoryview) -> memoryview:
    """Return a frame of lz4 with the checksum of its header, which Kafka 0.9 computed wrongly.

    That is the second byte of the xxHash32 of what follows the frame's magic number (KAFKA-3160).
    """
    if len(frame) < _LZ4_HEADER_BYTES or frame[:4] != _LZ4_MAGIC:
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


def _gunzip(data: memoryview, limit: int) -> bytes:
    pieces: list[bytes] = []
    left, room = bytes(data), limit + 1
    while left:  # there may be several members
        decoder = zlib.decompressobj(_GZIP_WINDOW)
        try:
            pieces.append(decoder.decompress(left, room))
        except zlib.error as error:
            raise ValueError(str(error)) from None
        room -= len(pieces[-1])
        if room <= 0:
            raise _too_large(limit)
        if not decoder.eof:
            raise ValueError("truncated gzip data")
        left = decoder.unused_data
    return b"".join(pieces)


def _unsnap(data: memoryview, limit: int) -> bytes:
    import cramjam

    at = 0
    with _memory(limit) as area, memoryview(area) as room:
        try:
            for block in _snappy_blocks(data):
                if cramjam.snappy.decompress_raw_len(block) > limit - at:
                    raise _too_large(limit)
                at += cramjam.snappy.decompress_raw_into(block, room[at:])
        except cramjam.DecompressionError as error:
            raise ValueError(str(error)) from None
        return area[:at]


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of Java's clients, or the single block of other clients."""
    if data[: len(_XERIAL)] != _XERIAL:
        yield data
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        start = at + _BLOCK_SIZE.size
        size = _BLOCK_SIZE.unpack_from(data, at)[0] if start <= len(data) else -1
        if not 0 <= size <= len(data) - start:
            raise ValueError("truncated snappy data")
        yield data[start : start + size]
        at = start + size


def _read_frames(codec: int, data: memoryview, limit: int) -> bytes:
    """Decompress one frame or several, with or without a declared size."""
    import cramjam

    decoder = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    with _memory(limit) as area:
        try:
            return area[: decoder.decompress_into(data, area)]
        except cramjam.DecompressionError as error:
            if str(error) == _NO_ROOM:
                raise _too_large(limit) from None
            raise ValueError(str(error)) from None


def _memory(size: int) -> mmap:
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _too_large(limit: int) -> ValueError:
    return ValueError(f"more than {limit} bytes when decompressed")
