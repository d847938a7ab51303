"""Compression of record batches, and decompression up to a limit.

A few kilobytes can decompress to gigabytes, so the size is limited. ``cramjam`` has the codecs of
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
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)  # its version, and the oldest compatible one
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")
# A frame of independent blocks of 64 KB, the only kind that Java's clients read: magic, FLG, BD, HC
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_SIZE = struct.Struct("<I")
_LZ4_IS_STORED = 1 << 31
_LZ4_END = bytes(4)
_NO_ROOM = "failed to write whole buffer"  # cramjam's error when the buffer is full


def decompressed(codec: int, data: memoryview) -> bytes:
    """Return the records of a batch; raises ``ValueError`` when they cannot be decompressed.

    Raises ``OSError`` when there is no memory for them.
    """
    if codec == NONE:
        return bytes(data)
    limit = min(max(LEAST_LIMIT, MAX_RATIO * len(data)), MOST_LIMIT)
    if codec == GZIP:
        return _gunzip(data, limit)
    if codec == SNAPPY:
        return _unsnap(data, limit)
    if codec in (LZ4, ZSTD):
        return _read_frames(codec, data, limit)
    raise ValueError(f"compression {codec} does not exist")


def compressed(codec: int, data: bytes) -> bytes:
    """Return the records of a batch, compressed so that all clients of Kafka can read them."""
    if codec == NONE:
        return data
    if codec == GZIP:
        encoder = zlib.compressobj(wbits=_GZIP_WINDOW)
        return encoder.compress(data) + encoder.flush()
    import cramjam

    if codec == SNAPPY:
        blocks = map(cramjam.snappy.compress_raw, _cut(data, _XERIAL_BLOCK_BYTES))
        sized = (_BLOCK_SIZE.pack(len(block)) + bytes(block) for block in blocks)
        return b"".join((_XERIAL_HEADER, *sized))
    if codec == LZ4:
        return b"".join((_LZ4_HEADER, *map(_lz4_block, _cut(data, _LZ4_BLOCK_BYTES)), _LZ4_END))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"compression {codec} does not exist")


def _lz4_block(data: memoryview) -> bytes:
    import cramjam

    block = bytes(cramjam.lz4.compress_block(data, store_size=False))
    if len(block) < len(data):
        return _LZ4_SIZE.pack(len(block)) + block
    return _LZ4_SIZE.pack(len(data) | _LZ4_IS_STORED) + data


def _cut(data: bytes, size: int) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[at : at + size] for at in range(0, len(data), size))


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

    pieces = []  # ``decompress_raw_into`` takes no slice of a buffer in a build without the GIL
    room = limit
    try:
        for block in _snappy_blocks(data):
            room -= cramjam.snappy.decompress_raw_len(block)
            if room < 0:
                raise _too_large(limit)
            pieces.append(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from None
    return b"".join(pieces)


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
