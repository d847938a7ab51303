"""Decompression of records, by the compression type in a batch's attributes.

Mirrors ``org.apache.kafka.common.record.CompressionType``. lz4 and zstd have their standard frames.
snappy has two forms: Java's clients write the blocks of snappy-java, librdkafka writes one block
without a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

_FRAMED: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY: Final = 2
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES: Final = 16  # the magic, its version, and the oldest that can read it
_MAX_BYTES: Final = 2**31 - 1
_LENGTH: Final = struct.Struct(">i")


class CompressionError(Exception):
    """Compressed records that cannot be read."""


def decompress(kind: int, data: memoryview) -> bytes:
    """Return the decompressed bytes. Raises ``CompressionError``."""
    try:
        if kind in _FRAMED:
            stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), _FRAMED[kind])
            whole: bytes = stream.read()
            return whole
        if kind == _SNAPPY:
            return b"".join(_snappy(block) for block in _snappy_blocks(data))
    except (OSError, ValueError, NotImplementedError, struct.error, IndexError) as error:
        raise CompressionError(f"records that cannot be decompressed: {error}") from None
    raise CompressionError(f"records of the unknown compression type {kind}")


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        yield data
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a block of {size} bytes at {at} of {len(data)}")
        yield data[at : at + size]
        at += size


def _snappy(block: memoryview) -> bytes:
    size = shift = at = 0
    while True:  # a block begins with its decompressed size, as a varint
        byte = block[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    if size > _MAX_BYTES:
        raise ValueError(f"a block of {size} bytes")
    decompressed: bytes = pa.decompress(
        pa.py_buffer(block), decompressed_size=size, codec="snappy", asbytes=True
    )
    return decompressed
