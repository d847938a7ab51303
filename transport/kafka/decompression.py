"""The records of a compressed batch, as far as a broker is willing to unpack them.

A few kilobytes may claim to be gigabytes: nothing is unpacked beyond a limit, of which there is
memory for one batch at a time. ``pyarrow`` has the decoders; it is imported when the first
compressed batch comes, as it takes 40 MB.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

MAX_BYTES = 128 * 1024 * 1024
"""How large the records of a batch may be; 100 times what ``max.message.bytes`` usually allows."""

_GZIP_WINDOW = 31
_XERIAL = b"\x82SNAPPY\x00"  # what the Java library puts before blocks of 32 KB
_XERIAL_HEADER_BYTES = 16
_BLOCK_SIZE = struct.Struct(">i")
_STREAMS = {LZ4: "lz4", ZSTD: "zstd"}


def decompressed(codec: int, data: memoryview) -> bytes:
    """Return the records of a batch; raises ``ValueError`` when there is no way to read them."""
    if codec == NONE:
        return bytes(data)
    try:
        if codec == GZIP:
            records = _gunzip(data)
        elif codec == SNAPPY:
            records = _unsnap(bytes(data))
        elif codec in _STREAMS:
            records = _read_stream(_STREAMS[codec], data)
        else:
            raise ValueError(f"compression {codec} does not exist")
    except (zlib.error, OSError, struct.error) as error:
        raise ValueError(str(error)) from None
    if len(records) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes when decompressed")
    return records


def _gunzip(data: memoryview) -> bytes:
    pieces: list[bytes] = []
    left, room = bytes(data), MAX_BYTES + 1
    while left and room > 0:  # there may be several members
        decoder = zlib.decompressobj(_GZIP_WINDOW)
        pieces.append(decoder.decompress(left, room))
        room -= len(pieces[-1])
        if room > 0 and not decoder.eof:
            raise ValueError("truncated gzip data")
        left = decoder.unused_data
    return b"".join(pieces)


def _unsnap(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, MAX_BYTES)
    pieces: list[bytes] = []
    at, room = _XERIAL_HEADER_BYTES, MAX_BYTES
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
        raise ValueError(f"more than {MAX_BYTES} bytes when decompressed")
    return bytes(_arrow().Codec("snappy").decompress(data, decompressed_size=size, asbytes=True))


def _read_stream(codec: str, data: memoryview) -> bytes:
    arrow = _arrow()
    stream = arrow.CompressedInputStream(arrow.BufferReader(data), codec)
    return bytes(stream.read(MAX_BYTES + 1))


def _arrow() -> Any:
    import pyarrow

    return pyarrow
