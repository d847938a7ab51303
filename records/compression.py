"""Compression of record batches, and decompression up to a limit.

A few kilobytes can decompress to gigabytes, so the size is limited. ``cramjam`` has the codecs of
snappy, lz4 and zstd. They write into a mapping as large as the limit, which takes only the memory
that is written. ``cramjam`` takes 2 MB, so it is imported with the first compressed batch.

``Unpacker`` decompresses large batches of producers beside the thread that reads their records:
``cramjam`` decompresses a frame only as a whole.

A consumer stops for ever at a batch that it cannot read. So ``pieces``, for batches of producers,
accepts what Kafka's Java clients and librdkafka both read as the same records. ``decompressed``,
for batches in logs, also accepts what brokers of Kafka and earlier versions of this one accepted.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TypeAlias

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

LEAST_LIMIT = 16 * 1024 * 1024
"""Bytes of records that every batch may have; producers put fewer into one."""
MAX_RATIO = 128
"""Compression ratio that every batch may have; that of text is lower."""
MOST_LIMIT = 2**31 - 1
"""Bytes of records that no batch may exceed: Kafka counts them in 31 bits."""

SMALL_BYTES = 2 * 1024 * 1024
"""Bytes of records that ``pieces`` decompresses without help."""

_PIECE_BYTES = 256 * 1024
_FED_BYTES = 64 * 1024  # at once: zlib copies what it has not used yet
_GZIP_WINDOW = 31
_GZIP_MAGIC = b"\x1f\x8b\x08"
_XERIAL = b"\x82SNAPPY\x00"  # the Java library writes this before blocks of 32 KB
_XERIAL_HEADER_BYTES = 16
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)  # its version, and the oldest compatible one
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_SIZE_BYTES = 5  # of the longest size of a block
_BLOCK_SIZE = struct.Struct(">i")
# A frame of independent blocks of 64 KB, the only kind that Java's clients read: magic, FLG, BD, HC
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_SIZE = struct.Struct("<I")
_LZ4_IS_STORED = 1 << 31
_LZ4_END = bytes(4)
_LZ4_FIXED_BITS, _LZ4_FIXED = 0xE3, 0x60  # version 1, independent blocks, no dictionary
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
_LZ4_BLOCK_BYTES_BY_BD = {0x40: 1 << 16, 0x50: 1 << 18, 0x60: 1 << 20, 0x70: 1 << 22}
_ZSTD_MAGIC = struct.Struct("<I")
_ZSTD_FRAME, _ZSTD_SKIPPABLE = 0xFD2FB528, 0x184D2A50
_NO_ROOM = "failed to write whole buffer"  # cramjam's error when the buffer is full


class LargeBatchError(Exception):
    """A batch has more than ``SMALL_BYTES`` of records; nothing in these is wrong."""


Unpack: TypeAlias = Callable[[int, memoryview], Generator[bytes]]
"""Yields the content of frames of lz4 or zstd in pieces. Raises ``ValueError``."""


def decompressed(codec: int, data: memoryview) -> bytes:
    """Return the records of a batch in a log.

    Raises ``ValueError`` when they cannot be decompressed, and ``OSError`` when there is no memory
    for them.
    """
    if codec == NONE:
        return bytes(data)
    limit = _limit(data)
    if codec == GZIP:
        return _gunzip_all(data, limit)
    if codec == SNAPPY:
        return b"".join(_unsnap(_snappy_blocks(data), limit))
    if codec in (LZ4, ZSTD):
        return _read_frames(codec, data, limit)
    raise ValueError(f"compression {codec} does not exist")


def unpacked_at_once(codec: int, data: memoryview) -> Generator[bytes]:
    """Yield the content of frames of lz4 or zstd in one piece; see ``Unpack``."""
    yield _read_frames(codec, data, _limit(data))


def pieces(
    codec: int, data: memoryview, unpack: Unpack | None = unpacked_at_once
) -> Generator[bytes]:
    """Yield the records of a producer's batch in pieces.

    ``unpack`` is called for frames with more than ``SMALL_BYTES``. None: raise ``LargeBatchError``
    instead, in every codec. Raises ``ValueError`` when data are wrong, and ``OSError`` when there
    is no memory.
    """
    if codec == NONE:
        yield bytes(data)
        return
    limit, size = _limit(data), 0
    for piece in _strictly_unpacked(codec, data, limit, unpack):
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if size > SMALL_BYTES and unpack is None:
            raise LargeBatchError
        yield piece


def _strictly_unpacked(
    codec: int, data: memoryview, limit: int, unpack: Unpack | None
) -> Iterator[bytes]:
    if codec == GZIP:
        return _gunzip(data, is_alone=True)
    if codec == SNAPPY:
        return _unsnap(_strict_blocks(data), limit)
    if codec == LZ4:
        _check_lz4(data)
    elif codec == ZSTD:
        _check_zstd(data)
    else:
        raise ValueError(f"compression {codec} does not exist")
    return _unframed(codec, data, limit, unpack)


def compressed(codec: int, data: bytes) -> bytes:
    """Return the records of a batch, compressed so that all clients of Kafka can read them."""
    return compressed_pieces(codec, (data,))


def compressed_pieces(codec: int, found: Iterable[bytes]) -> bytes:
    """Return records that come in pieces, compressed; see ``compressed``."""
    if codec == NONE:
        return b"".join(found)
    if codec == GZIP:
        encoder = zlib.compressobj(wbits=_GZIP_WINDOW)
        return b"".join((*map(encoder.compress, found), encoder.flush()))
    import cramjam

    if codec == SNAPPY:
        blocks = map(cramjam.snappy.compress_raw, _cut(found, _XERIAL_BLOCK_BYTES))
        sized = (_BLOCK_SIZE.pack(len(block)) + bytes(block) for block in blocks)
        return b"".join((_XERIAL_HEADER, *sized))
    if codec == LZ4:
        return b"".join((_LZ4_HEADER, *map(_lz4_block, _cut(found, _LZ4_BLOCK_BYTES)), _LZ4_END))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(b"".join(found)))
    raise ValueError(f"compression {codec} does not exist")


def _lz4_block(data: memoryview) -> bytes:
    import cramjam

    block = bytes(cramjam.lz4.compress_block(data, store_size=False))
    if len(block) < len(data):
        return _LZ4_SIZE.pack(len(block)) + block
    return _LZ4_SIZE.pack(len(data) | _LZ4_IS_STORED) + data


def _cut(found: Iterable[bytes], size: int) -> Iterator[memoryview]:
    for piece in found:
        view = memoryview(piece)
        yield from (view[at : at + size] for at in range(0, len(view), size))


def _limit(data: memoryview) -> int:
    return min(max(LEAST_LIMIT, MAX_RATIO * len(data)), MOST_LIMIT)


# --- gzip -----------------------------------------------------------------------------------------


def _gunzip(data: memoryview, *, is_alone: bool = False) -> Iterator[bytes]:
    """Yield the content of members; ``is_alone``: only the first may have any.

    Java reads all members, librdkafka the first one. Both ignore other bytes after it.
    """
    at = 0
    while at == 0 or _is_member(data[at:]):
        is_first, decoder = at == 0, zlib.decompressobj(_GZIP_WINDOW)
        while not decoder.eof:
            if at == len(data):
                raise ValueError("truncated gzip data")
            fed = bytes(data[at : at + _FED_BYTES])
            at += len(fed)
            try:
                while piece := decoder.decompress(fed, _PIECE_BYTES):
                    if is_alone and not is_first:
                        raise ValueError("a second gzip member has records")
                    yield piece
                    fed = decoder.unconsumed_tail
            except zlib.error as error:
                raise ValueError(str(error)) from None
        at -= len(decoder.unused_data)


def _gunzip_all(data: memoryview, limit: int) -> bytes:
    found, size = [], 0
    for piece in _gunzip(data):
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        found.append(piece)
    return b"".join(found)


def _is_member(data: memoryview) -> bool:
    magic = data[: len(_GZIP_MAGIC)]
    return bool(magic) and _GZIP_MAGIC.startswith(magic)


# --- snappy ---------------------------------------------------------------------------------------


def _unsnap(blocks: Iterable[memoryview], limit: int) -> Iterator[bytes]:
    import cramjam

    room = limit
    try:
        for block in blocks:
            room -= cramjam.snappy.decompress_raw_len(block)
            if room < 0:
                raise _too_large(limit)
            yield bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from None


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


def _strict_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a producer's batch. The size in front of each has a normal length."""
    for block in _snappy_blocks(data):
        if all(byte > 127 for byte in block[:_SNAPPY_SIZE_BYTES]):
            raise ValueError("the size of a block of snappy is too long")
        yield block


# --- lz4 and zstd ---------------------------------------------------------------------------------


def _check_lz4(data: memoryview) -> None:
    """Refuse all but one frame of the kind that Java reads (KIP-57)."""
    if len(data) < len(_LZ4_HEADER) or data[:4] != _LZ4_HEADER[:4]:
        raise ValueError("no frame of lz4")
    flags, most = data[4], _LZ4_BLOCK_BYTES_BY_BD.get(data[5])
    if flags & _LZ4_FIXED_BITS != _LZ4_FIXED or most is None:
        raise ValueError(
            f"a frame of lz4 with FLG {flags:#x} and BD {data[5]:#x}, which Java's clients cannot"
            " read: its blocks must be independent (block_linked=False)"
        )
    at = len(_LZ4_HEADER) + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes, is_empty = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0, False
    while at + _LZ4_SIZE.size <= len(data):
        (size,) = _LZ4_SIZE.unpack_from(data, at)
        at += _LZ4_SIZE.size
        if size == 0:
            at += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
            break
        if is_empty:  # Java ends at one that is stored, and fails after another
            raise ValueError("an empty block of lz4 before others")
        is_empty = size == _LZ4_IS_STORED or (size == 1 and bytes(data[at : at + 1]) == b"\0")
        size &= ~_LZ4_IS_STORED
        if size > most:
            raise ValueError(f"a block of {size} bytes in a frame of lz4 with blocks of {most}")
        at += size + checksum_bytes
    else:
        at = len(data) + 1
    if at != len(data):
        raise ValueError("truncated lz4 data" if at > len(data) else "bytes after a frame of lz4")


def _check_zstd(data: memoryview) -> None:
    """Refuse the formats before zstd 1.0, which not all builds of zstd read."""
    magic = _ZSTD_MAGIC.unpack_from(data)[0] if len(data) >= _ZSTD_MAGIC.size else 0
    if magic != _ZSTD_FRAME and magic & ~0xF != _ZSTD_SKIPPABLE:
        raise ValueError("no frame of zstd")


def _unframed(codec: int, data: memoryview, limit: int, unpack: Unpack | None) -> Iterator[bytes]:
    """Yield the content of frames: at once if it is small, else its first bytes and the rest."""
    room = min(limit, SMALL_BYTES)
    with _memory(room) as area:
        size = _decompress_into(codec, data, area)
        if size is None and room == limit:
            raise _too_large(limit)
        first = area[: room if size is None else size]
    yield first
    if size is not None:
        return
    if unpack is None:
        raise LargeBatchError
    with closing(unpack(codec, data)) as found:
        for piece in found:
            yield piece[room:]
            room -= min(room, len(piece))


def _read_frames(codec: int, data: memoryview, limit: int) -> bytes:
    """Decompress one frame or several, with or without a declared size."""
    with _memory(limit) as area:
        size = _decompress_into(codec, data, area)
        if size is None:
            raise _too_large(limit)
        return area[:size]


def _decompress_into(codec: int, data: memoryview, area: mmap) -> int | None:
    """Return the size of the content of frames; None: it does not fit, the area is full of it."""
    import cramjam

    decoder = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    try:
        return int(decoder.decompress_into(data, area))
    except cramjam.DecompressionError as error:
        if str(error) == _NO_ROOM:
            return None
        raise ValueError(str(error)) from None


def _memory(size: int) -> mmap:
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _too_large(limit: int) -> ValueError:
    return ValueError(f"more than {limit} bytes when decompressed")


# --- large batches, on two threads ----------------------------------------------------------------


class Unpacker:
    """Decompresses on the thread of ``executor``, which must not be the reader's.

    One reader at a time. The thread writes into a pipe, and stops when the reader has seen enough.
    Neither thread keeps more than a piece.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def unpack(self, codec: int, data: memoryview) -> Generator[bytes]:
        """Yield the content of frames of lz4 or zstd in pieces.

        Raises ``ValueError``, and ``OSError`` if there is no descriptor left.
        """
        reading, writing = os.pipe()
        written: Future[str | None] | None = None
        try:
            written = self._executor.submit(_write, codec, data, f"/dev/fd/{writing}")
            written.add_done_callback(lambda _: os.close(writing))  # also if it never runs
            while piece := os.read(reading, _PIECE_BYTES):
                yield piece
        finally:
            os.close(reading)  # this ends the writer, too, if it has not finished
            if written is None:
                os.close(writing)
            problem = None if written is None else written.result()
        if problem is not None:
            raise ValueError(problem)


def _write(codec: int, data: memoryview, path: str) -> str | None:
    """Write the content of frames of lz4 or zstd to a pipe; return what is wrong with the frames.

    Not as an exception: it would refer to the frame that waits for it, and that to all pieces.
    """
    import cramjam

    decoder = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    try:
        decoder.decompress_into(data, cramjam.File(path, read=False, write=True, truncate=False))
    except cramjam.DecompressionError as error:
        return str(error)
    return None
