"""The records of a compressed batch, as far as a broker is willing to unpack them.

A few kilobytes may claim to be gigabytes: nothing is unpacked beyond a limit. ``pyarrow`` has the
decoders; it is imported when the first compressed batch comes, as it takes 40 MB.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

LEAST_LIMIT = 16 * 1024 * 1024
"""How large the records of any batch may be: more than producers put into one."""
MAX_RATIO = 128
"""How many times as large as it was sent any batch may be: more than text compresses to."""

_GZIP_WINDOW = 31
_XERIAL = b"\x82SNAPPY\x00"  # what the Java library puts before blocks of 32 KB
_XERIAL_HEADER_BYTES = 16
_BLOCK_SIZE = struct.Struct(">i")
_STREAMS = {LZ4: "lz4", ZSTD: "zstd"}


def decompressed(codec: int, data: memoryview) -> bytes:
    """Return the records of a batch; raises ``ValueError`` when there is no way to read them."""
    if codec == NONE:
        return bytes(data)
    limit = max(LEAST_LIMIT, MAX_RATIO * len(data))
    try:
        if codec == GZIP:
            records = _gunzip(data, limit)
        elif codec == SNAPPY:
            records = _unsnap(bytes(data), limit)
        elif codec in _STREAMS:
            records = _read_stream(_STREAMS[codec], data, limit)
        else:
            raise ValueError(f"compression {codec} does not exist")
    except (zlib.error, OSError, struct.error) as error:
        raise ValueError(str(error)) from None
    if len(records) > limit:
        raise ValueError(f"more than {limit} bytes when decompressed")
    return records


def _gunzip(data: memoryview, limit: int) -> bytes:
    pieces: list[bytes] = []
    left, room = bytes(data), limit + 1
    while left and room > 0:  # there may be several members
        decoder = zlib.decompressobj(_GZIP_WINDOW)
        pieces.append(decoder.decompress(left, room))
        room -= len(pieces[-1])
        if room > 0 and not decoder.eof:
            raise ValueError("truncated gzip data")
        left = decoder.unused_data
    return b"".join(pieces)


def _unsnap(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, limit)
    pieces: list[bytes] = []
    at, room = _XERIAL_HEADER_BYTES, limit
    while at < len(data):
        (size,) = _BLOCK_SIZE.unpack_from(data, at)
        at += _BLOCK_SIZE.size
        if not 0 <= size <= len(data) - at:
            raise ValueError("truncated snappy data")
        pieces.append(_unsnap_block(data[at : at + size], room))
        room -= len(pieces[-1])
        at += size
    return b"".join(pieces)


def _unsnap_block(data: bytes, room: int) -> bytes:
    """Decompress a block, which begins with how large it will be."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > room:
        raise ValueError(f"more than {room} bytes when decompressed")
    return bytes(_arrow().Codec("snappy").decompress(data, decompressed_size=size, asbytes=True))


def _read_stream(codec: str, data: memoryview, limit: int) -> bytes:
    arrow = _arrow()
    stream = arrow.CompressedInputStream(arrow.BufferReader(data), codec)
    return bytes(stream.read(limit + 1))


def _arrow() -> Any:
    import pyarrow

    return pyarrow
