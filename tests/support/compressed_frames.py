"""Ways in which the records of a batch can be compressed, written byte by byte.

Each frame has the codec, a function that writes it, and whether brokers take it: Kafka's Java
clients, librdkafka and our own readers all read the same records. Kafka 3.9 takes what its Java
code reads.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import cramjam

from tests.support.record_batches import keyed_batch

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
HALF: Final = 1_000
"""Where frames of two parts cut the records, which are longer."""


class Frame(NamedTuple):
    """One way to compress."""

    codec: int
    write: Callable[[bytes], bytes]
    is_taken: bool
    is_large: bool = False

    def batch(self) -> bytes:
        """Return a batch with the records ``values``."""
        pairs = [(b"key", value) for value in self.values]
        return keyed_batch(*pairs, attributes=self.codec, compress=self.write)

    @property
    def values(self) -> list[bytes]:
        """The values of three records, in all 3 KB, or more than 64 KB for large frames."""
        more = b"c" * 70_000 if self.is_large else b"c" * 100
        return [b"a value that compresses well " * 60, bytes(range(256)) * 4, more]


# --- checksums ------------------------------------------------------------------------------------

_PRIMES32: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_PRIMES64: Final = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def xxh32(data: bytes) -> int:
    """Return the checksum of lz4."""
    p1, p2, p3, p4, p5 = _PRIMES32
    at, hashed = 0, p5
    if len(data) >= 16:
        lanes = [p1 + p2, p2, 0, -p1]
        while at + 16 <= len(data):
            words = struct.unpack_from("<4I", data, at)
            lanes = [
                _rotated(lane + word * p2, 13, 32) * p1
                for lane, word in zip(lanes, words, strict=True)
            ]
            at += 16
        hashed = sum(_rotated(lane, by, 32) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    hashed += len(data)
    while at + 4 <= len(data):
        hashed = _rotated(hashed + int.from_bytes(data[at : at + 4], "little") * p3, 17, 32) * p4
        at += 4
    for byte in data[at:]:
        hashed = _rotated(hashed + byte * p5, 11, 32) * p1
    return _mixed(hashed, ((15, p2), (13, p3), (16, 1)), 32)


def xxh64(data: bytes) -> int:
    """Return the checksum of zstd, which keeps the lower half."""
    p1, p2, p3, p4, p5 = _PRIMES64

    def lane_of(lane: int, word: int) -> int:
        return _rotated(lane + word * p2, 31, 64) * p1

    at, hashed = 0, p5
    if len(data) >= 32:
        lanes = [p1 + p2, p2, 0, -p1]
        while at + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [lane_of(lane, int(word)) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        hashed = sum(_rotated(lane, by, 64) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            hashed = (hashed ^ lane_of(0, lane) & 2**64 - 1) * p1 + p4 & 2**64 - 1
    hashed += len(data)
    while at + 8 <= len(data):
        word = lane_of(0, int.from_bytes(data[at : at + 8], "little")) & 2**64 - 1
        hashed = _rotated((hashed & 2**64 - 1) ^ word, 27, 64) * p1 + p4
        at += 8
    if at + 4 <= len(data):
        word = int.from_bytes(data[at : at + 4], "little") * p1 & 2**64 - 1
        hashed = _rotated((hashed & 2**64 - 1) ^ word, 23, 64) * p2 + p3
        at += 4
    for byte in data[at:]:
        hashed = _rotated((hashed & 2**64 - 1) ^ byte * p5, 11, 64) * p1
    return _mixed(hashed, ((33, p2), (29, p3), (32, 1)), 64)


def _rotated(number: int, by: int, bits: int) -> int:
    mask: int = 2**bits - 1
    number &= mask
    return (number << by | number >> bits - by) & mask


def _mixed(hashed: int, steps: Iterable[tuple[int, int]], bits: int) -> int:
    hashed &= 2**bits - 1
    for shift, prime in steps:
        hashed = (hashed ^ hashed >> shift) * prime & 2**bits - 1
    return hashed


# --- gzip -----------------------------------------------------------------------------------------


def gzip(
    data: bytes,
    *,
    flags: int = 0,
    extra: bytes = b"",
    method: int = 8,
    crc: int | None = None,
    size: int | None = None,
) -> bytes:
    """Return one member; ``extra`` are the bytes that the flags promise."""
    deflate = zlib.compressobj(wbits=-15)
    head = b"\x1f\x8b" + bytes([method, flags]) + bytes(5) + b"\xff" + extra
    tail = struct.pack(
        "<II",
        zlib.crc32(data) if crc is None else crc,
        len(data) if size is None else size,
    )
    return head + deflate.compress(data) + deflate.flush() + tail


def _header_crc(flags: int, right: bool) -> bytes:
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(5) + b"\xff"
    return struct.pack("<H", (zlib.crc32(head) + (0 if right else 1)) & 0xFFFF)


# --- snappy ---------------------------------------------------------------------------------------

XERIAL: Final = b"\x82SNAPPY\x00"


def raw_snappy(data: bytes) -> bytes:
    """Return one block without a frame."""
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(
    *blocks: bytes, version: int = 1, compatible: int = 1, end: bytes = b"", magic: bytes = XERIAL
) -> bytes:
    """Return blocks as snappy-java frames them."""
    sized = b"".join(struct.pack(">i", len(block)) + block for block in map(raw_snappy, blocks))
    return magic + struct.pack(">ii", version, compatible) + sized + end


def _with_long_size(data: bytes) -> bytes:
    """Return a block whose size has more bytes than it needs: six."""
    block = raw_snappy(data)
    end = next(at for at, byte in enumerate(block) if byte < 128)
    size = block[:end] + bytes([block[end] | 128])
    return size + b"\x80" * (5 - len(size)) + b"\0" + block[end + 1 :]


# --- lz4 ------------------------------------------------------------------------------------------


def lz4(
    *blocks: bytes,
    flags: int = 0x60,
    bd: int = 0x40,
    size: int | None = None,
    fields: bytes = b"",
    header_sum: int | None = None,
    block_sum: int | None = None,
    content_sum: int | None = None,
    end: bytes = bytes(4),
    is_stored: bool = False,
) -> bytes:
    """Return a frame; numbers replace those that would be right."""
    content = b"".join(blocks)
    head = bytes([flags, bd])
    if flags & 0x08:
        head += struct.pack("<Q", len(content) if size is None else size)
    head += fields
    right = xxh32(head) >> 8 & 0xFF
    whole = b"\x04\x22\x4d\x18" + head + bytes([right if header_sum is None else header_sum])
    for block in blocks:
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        mark = 0
        if is_stored or len(packed) >= len(block):
            packed, mark = block, 1 << 31
        whole += struct.pack("<I", len(packed) | mark) + packed
        if flags & 0x10:
            whole += struct.pack("<I", xxh32(packed) if block_sum is None else block_sum)
    whole += end
    if flags & 0x04 and end == bytes(4):
        whole += struct.pack("<I", xxh32(content) if content_sum is None else content_sum)
    return whole


def _linked(data: bytes) -> bytes:
    """Return a frame whose second block refers to the first one, as python-lz4 writes by default.

    The second block is one match of the bytes at the end of the first one.
    """
    first, second = data[: 1 << 16], data[1 << 16 :]
    return lz4(first, second, flags=0x40)


# --- zstd -----------------------------------------------------------------------------------------


def zstd(
    *parts: bytes,
    window_log: int = 17,
    size: int | None = None,
    has_size: bool = False,
    is_single: bool = False,
    checksum: int | None = None,
    has_checksum: bool = False,
    dictionary: int = 0,
    reserved: int = 0,
    last: bool = True,
) -> bytes:
    """Return a frame of raw blocks."""
    content = b"".join(parts)
    size = len(content) if size is None else size
    descriptor = (0xC0 if has_size or is_single else 0) | (0x20 if is_single else 0) | reserved
    descriptor |= (0x04 if has_checksum else 0) | (1 if dictionary else 0)
    whole = b"\x28\xb5\x2f\xfd" + bytes([descriptor])
    if not is_single:
        whole += bytes([(window_log - 10) << 3])
    if dictionary:
        whole += bytes([dictionary])
    if has_size or is_single:
        whole += struct.pack("<Q", size)
    for number, part in enumerate(parts):
        is_last = last and number == len(parts) - 1
        whole += struct.pack("<I", len(part) << 3 | int(is_last))[:3] + part
    if has_checksum:
        right = xxh64(content) & 0xFFFFFFFF
        whole += struct.pack("<I", right if checksum is None else checksum)
    return whole


def skippable(size: int = 4, number: int = 0) -> bytes:
    """Return a frame of lz4 and zstd that readers skip."""
    return struct.pack("<II", 0x184D2A50 + number, size) + bytes(size)


def _zstd_library(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


# --- the table ------------------------------------------------------------------------------------

FEXTRA, FNAME, FCOMMENT, FHCRC, FTEXT = 4, 8, 16, 2, 1

FRAMES: Final[dict[str, Frame]] = {
    # gzip
    "gzip": Frame(GZIP, gzip, True),
    "gzip with an extra field": Frame(
        GZIP, lambda d: gzip(d, flags=FEXTRA, extra=b"\x02\0ab"), True
    ),
    "gzip with a name": Frame(GZIP, lambda d: gzip(d, flags=FNAME, extra=b"name\0"), True),
    "gzip with a comment": Frame(GZIP, lambda d: gzip(d, flags=FCOMMENT, extra=b"words\0"), True),
    "gzip said to be text": Frame(GZIP, lambda d: gzip(d, flags=FTEXT), True),
    "gzip with a checksum of its header": Frame(
        GZIP, lambda d: gzip(d, flags=FHCRC, extra=_header_crc(FHCRC, right=True)), True
    ),
    "gzip with a wrong checksum of its header": Frame(
        GZIP, lambda d: gzip(d, flags=FHCRC, extra=_header_crc(FHCRC, right=False)), False
    ),
    "gzip with a reserved flag": Frame(GZIP, lambda d: gzip(d, flags=0x20), False),
    "gzip with another method": Frame(GZIP, lambda d: gzip(d, method=7), False),
    "gzip with a wrong CRC": Frame(GZIP, lambda d: gzip(d, crc=1), False),
    "gzip with a wrong size": Frame(GZIP, lambda d: gzip(d, size=1), False),
    "gzip without its last byte": Frame(GZIP, lambda d: gzip(d)[:-1], False),
    "gzip without its CRC and size": Frame(GZIP, lambda d: gzip(d)[:-8], False),
    "gzip without its last block": Frame(GZIP, lambda d: gzip(d)[:-20], False),
    "records in two gzip members": Frame(GZIP, lambda d: gzip(d[:HALF]) + gzip(d[HALF:]), False),
    "an empty gzip member before the records": Frame(GZIP, lambda d: gzip(b"") + gzip(d), False),
    "an empty gzip member after the records": Frame(GZIP, lambda d: gzip(d) + gzip(b""), True),
    "a byte after gzip": Frame(GZIP, lambda d: gzip(d) + b"\0", True),
    "words after gzip": Frame(GZIP, lambda d: gzip(d) + b"more bytes than a member has", True),
    "a wrong gzip member after the records": Frame(
        GZIP, lambda d: gzip(d) + gzip(b"", crc=1), False
    ),
    "zlib": Frame(GZIP, zlib.compress, False),
    "raw deflate": Frame(GZIP, lambda d: zlib.compress(d, wbits=-15), False),
    "nothing as gzip": Frame(GZIP, lambda _: b"", False),
    "no records in gzip": Frame(GZIP, lambda _: gzip(b""), False),
    # snappy
    "snappy": Frame(SNAPPY, raw_snappy, True),
    "snappy of Java": Frame(SNAPPY, lambda d: xerial(d[:HALF], d[HALF:]), True),
    "snappy of Java in one block": Frame(SNAPPY, xerial, True),
    "snappy of Java, version 0": Frame(SNAPPY, lambda d: xerial(d, version=0), True),
    "snappy of Java, version 9": Frame(SNAPPY, lambda d: xerial(d, version=9, compatible=9), True),
    "snappy of Java with an empty block": Frame(
        SNAPPY, lambda d: xerial(d[:HALF], b"", d[HALF:]), True
    ),
    "snappy of Java with a block of no bytes": Frame(
        SNAPPY, lambda d: xerial(d, end=bytes(4)), False
    ),
    "snappy of Java twice": Frame(SNAPPY, lambda d: xerial(d[:HALF]) + xerial(d[HALF:]), False),
    "snappy of Java and an empty one": Frame(SNAPPY, lambda d: xerial(d) + xerial(), False),
    "snappy of Java and three bytes": Frame(SNAPPY, lambda d: xerial(d, end=b"abc"), False),
    "snappy of Java without its last byte": Frame(SNAPPY, lambda d: xerial(d)[:-1], False),
    "snappy of Java with another magic": Frame(
        SNAPPY, lambda d: xerial(d, magic=b"\x82SNAPPY\x01"), False
    ),
    "snappy without its last byte": Frame(SNAPPY, lambda d: raw_snappy(d)[:-1], False),
    "snappy and a byte": Frame(SNAPPY, lambda d: raw_snappy(d) + b"\0", False),
    "snappy with a long size": Frame(SNAPPY, _with_long_size, False),
    "framed snappy": Frame(SNAPPY, lambda d: bytes(cramjam.snappy.compress(d)), False),
    "nothing as snappy": Frame(SNAPPY, lambda _: b"", False),
    "no records in snappy": Frame(SNAPPY, lambda _: raw_snappy(b""), False),
    # lz4
    "lz4": Frame(LZ4, lz4, True),
    "lz4 in two blocks": Frame(LZ4, lambda d: lz4(d[:HALF], d[HALF:]), True),
    "lz4 that is stored": Frame(LZ4, lambda d: lz4(d, is_stored=True), True),
    "lz4 with a size": Frame(LZ4, lambda d: lz4(d, flags=0x68), True),
    "lz4 with a wrong size": Frame(LZ4, lambda d: lz4(d, flags=0x68, size=len(d) + 1), False),
    "lz4 with the size 0": Frame(LZ4, lambda d: lz4(d, flags=0x68, size=0), True),
    "lz4 with checksums of blocks": Frame(LZ4, lambda d: lz4(d, flags=0x70), True),
    "lz4 with a wrong checksum of a block": Frame(
        LZ4, lambda d: lz4(d, flags=0x70, block_sum=1), False
    ),
    "lz4 with a checksum": Frame(LZ4, lambda d: lz4(d, flags=0x64), True),
    "lz4 with a wrong checksum": Frame(LZ4, lambda d: lz4(d, flags=0x64, content_sum=1), False),
    "lz4 with all fields": Frame(LZ4, lambda d: lz4(d, flags=0x7C), True),
    "lz4 with a wrong checksum of its header": Frame(LZ4, lambda d: lz4(d, header_sum=0), False),
    **{
        f"lz4 with blocks of up to {name}": Frame(LZ4, lambda d, bd=bd: lz4(d, bd=bd), True)  # type: ignore[misc]
        for name, bd in (("256 KB", 0x50), ("1 MB", 0x60), ("4 MB", 0x70))
    },
    "lz4 with blocks of up to 16 KB": Frame(LZ4, lambda d: lz4(d, bd=0x30), False),
    "lz4 with reserved bits in BD": Frame(LZ4, lambda d: lz4(d, bd=0x41), False),
    "lz4 with blocks that are linked": Frame(LZ4, _linked, False, is_large=True),
    "lz4 with one block that is linked": Frame(LZ4, lambda d: lz4(d, flags=0x40), False),
    "lz4 with a dictionary": Frame(LZ4, lambda d: lz4(d, flags=0x61, fields=bytes(4)), False),
    "lz4 with a reserved flag": Frame(LZ4, lambda d: lz4(d, flags=0x62), False),
    "lz4 of version 2": Frame(LZ4, lambda d: lz4(d, flags=0xA0), False),
    "lz4 with a block larger than its maximum": Frame(LZ4, lz4, False, is_large=True),
    "lz4 with a stored block larger than its maximum": Frame(
        LZ4, lambda d: lz4(d, is_stored=True), False, is_large=True
    ),
    "records in two frames of lz4": Frame(LZ4, lambda d: lz4(d[:HALF]) + lz4(d[HALF:]), False),
    "an empty frame of lz4 after the records": Frame(LZ4, lambda d: lz4(d) + lz4(), False),
    "an empty frame of lz4 before the records": Frame(LZ4, lambda d: lz4() + lz4(d), False),
    "a skippable frame before lz4": Frame(LZ4, lambda d: skippable() + lz4(d), False),
    "a skippable frame after lz4": Frame(LZ4, lambda d: lz4(d) + skippable(), False),
    "a byte after lz4": Frame(LZ4, lambda d: lz4(d) + b"\0", False),
    "words after lz4": Frame(LZ4, lambda d: lz4(d) + b"more bytes", False),
    "lz4 without its end": Frame(LZ4, lambda d: lz4(d, end=b""), False),
    "lz4 without the last byte of its end": Frame(LZ4, lambda d: lz4(d, end=bytes(3)), False),
    "lz4 without its checksum": Frame(LZ4, lambda d: lz4(d, flags=0x64)[:-4], False),
    "lz4 with a stored block of no bytes": Frame(
        LZ4, lambda d: lz4(d, end=b"\0\0\0\x80" + bytes(4)), True
    ),
    "lz4 that ends with a stored block of no bytes": Frame(
        LZ4, lambda d: lz4(d, end=b"\0\0\0\x80"), False
    ),
    "lz4 with an empty block at the end": Frame(
        LZ4, lambda d: lz4(d, end=b"\x01\0\0\0\0" + bytes(4)), True
    ),
    "lz4 with an empty block before the records": Frame(
        LZ4, lambda d: lz4(d)[:7] + b"\x01\0\0\0\0" + lz4(d)[7:], False
    ),
    "lz4 with a stored block of no bytes before others": Frame(
        LZ4,
        lambda d: lz4(d[:HALF], end=b"\0\0\0\x80") + lz4(d[HALF:])[7:],
        False,
    ),
    "the old format of lz4": Frame(
        LZ4,
        lambda d: b"\x02\x21\x4c\x18" + lz4(d)[7:-4],
        False,
    ),
    "a block of lz4 without a frame": Frame(
        LZ4, lambda d: bytes(cramjam.lz4.compress_block(d, store_size=False)), False
    ),
    "nothing as lz4": Frame(LZ4, lambda _: b"", False),
    "no records in lz4": Frame(LZ4, lambda _: lz4(), False),
    # zstd
    "zstd": Frame(ZSTD, _zstd_library, True),
    "zstd without a size": Frame(ZSTD, zstd, True),
    "zstd with a size": Frame(ZSTD, lambda d: zstd(d, has_size=True), True),
    "zstd with a wrong size": Frame(ZSTD, lambda d: zstd(d, has_size=True, size=len(d) + 1), False),
    "zstd with a size that is too small": Frame(
        ZSTD, lambda d: zstd(d, has_size=True, size=len(d) - 1), False
    ),
    "zstd in one segment": Frame(ZSTD, lambda d: zstd(d, is_single=True), True),
    "zstd in two blocks": Frame(ZSTD, lambda d: zstd(d[:HALF], d[HALF:]), True),
    "zstd with an empty block": Frame(ZSTD, lambda d: zstd(d[:HALF], b"", d[HALF:]), True),
    "zstd with an empty block at the end": Frame(ZSTD, lambda d: zstd(d, b""), True),
    "zstd with a checksum": Frame(ZSTD, lambda d: zstd(d, has_checksum=True), True),
    "zstd with a wrong checksum": Frame(
        ZSTD, lambda d: zstd(d, has_checksum=True, checksum=1), False
    ),
    "zstd with a dictionary": Frame(ZSTD, lambda d: zstd(d, dictionary=7), False),
    "zstd with a reserved bit": Frame(ZSTD, lambda d: zstd(d, reserved=8), False),
    "zstd with a window of 8 MB": Frame(ZSTD, lambda d: zstd(d, window_log=23), True),
    "zstd with a window of 128 MB": Frame(ZSTD, lambda d: zstd(d, window_log=27), True),
    "zstd with a window of 256 MB": Frame(ZSTD, lambda d: zstd(d, window_log=28), False),
    "zstd with a window of 1 KB": Frame(ZSTD, lambda d: zstd(d, window_log=10), False),
    "records in two frames of zstd": Frame(ZSTD, lambda d: zstd(d[:HALF]) + zstd(d[HALF:]), True),
    "records in two frames of zstd with sizes": Frame(
        ZSTD, lambda d: zstd(d[:HALF], has_size=True) + zstd(d[HALF:], has_size=True), True
    ),
    "an empty frame of zstd before the records": Frame(
        ZSTD, lambda d: zstd(b"", has_size=True) + zstd(d), True
    ),
    "an empty frame of zstd after the records": Frame(ZSTD, lambda d: zstd(d) + zstd(b""), True),
    "a skippable frame before zstd": Frame(ZSTD, lambda d: skippable() + zstd(d), True),
    "a skippable frame after zstd": Frame(ZSTD, lambda d: zstd(d) + skippable(number=15), True),
    "a skippable frame of no bytes after zstd": Frame(ZSTD, lambda d: zstd(d) + skippable(0), True),
    "a skippable frame that is cut": Frame(ZSTD, lambda d: zstd(d) + skippable()[:-1], False),
    "a byte after zstd": Frame(ZSTD, lambda d: zstd(d) + b"\0", False),
    "words after zstd": Frame(ZSTD, lambda d: zstd(d) + b"more bytes", False),
    "zstd without its last block": Frame(ZSTD, lambda d: zstd(d, last=False), False),
    "zstd without its last byte": Frame(ZSTD, lambda d: zstd(d)[:-1], False),
    "zstd without its checksum": Frame(ZSTD, lambda d: zstd(d, has_checksum=True)[:-4], False),
    "zstd of version 0.7": Frame(ZSTD, lambda d: b"\x27" + zstd(d)[1:], False),
    "nothing as zstd": Frame(ZSTD, lambda _: b"", False),
    "no records in zstd": Frame(ZSTD, lambda _: zstd(b""), False),
}
