"""Compressed records are decompressed up to a limit."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regent.records import compression
from regent.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compressed, decompressed
from regent.testing.waits import scaled

ROOT = Path(__file__).parents[2]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
TEXT = b"".join(b"record %d of many\n" % number for number in range(5_000))
SKIPPED = struct.pack("<II", 0x184D2A50, 4) + b"abcd"  # an empty frame of lz4 and zstd
NAMES = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
LIMIT = compression.LEAST_LIMIT


def unpacked(codec: int, data: bytes) -> bytes:
    return decompressed(codec, memoryview(data))


def packed(codec: int, data: bytes) -> bytes:
    """Return one frame, with the size of its data if the format can contain it."""
    return bytes(pyarrow.Codec(NAMES.get(codec, "snappy")).compress(data, asbytes=True))


def streamed(codec: int, data: bytes) -> bytes:
    """Return one frame written as a stream, without the size of its data."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, NAMES[codec]) as stream:
        for at in range(0, len(data), 1_000):
            stream.write(data[at : at + 1_000])
    return bytes(sink.getvalue())


def block(data: bytes) -> bytes:
    """Return one block of Java's snappy with its size."""
    compressed = packed(SNAPPY, data)
    return struct.pack(">i", len(compressed)) + compressed


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_frames_are_read_with_or_without_a_size(codec: int):
    assert unpacked(codec, packed(codec, TEXT)) == TEXT
    assert unpacked(codec, streamed(codec, TEXT)) == TEXT


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_several_frames_are_concatenated(codec: int):
    frames = [packed(codec, TEXT[:100]), packed(codec, b""), streamed(codec, TEXT[100:])]
    assert unpacked(codec, b"".join(frames)) == TEXT


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_skippable_frames_are_skipped(codec: int):
    assert unpacked(codec, SKIPPED + packed(codec, TEXT) + SKIPPED) == TEXT


@pytest.mark.parametrize("behind", [b"\0", bytes(20), b"garbage"])
def test_bytes_after_gzip_are_ignored_as_in_java(behind: bytes):
    assert unpacked(GZIP, packed(GZIP, TEXT) + behind) == TEXT


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("behind", [b"\0", bytes(20), b"garbage"])
def test_bytes_after_the_last_frame_are_refused(codec: int, behind: bytes):
    with pytest.raises(ValueError, match=r".+"):
        unpacked(codec, packed(codec, TEXT) + behind)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_truncated_frame_is_refused(codec: int):
    whole = packed(codec, TEXT[:1_000])
    for frames in (whole, whole + whole):
        for size in range(len(frames) - len(whole) + 1, len(frames)):
            with pytest.raises(ValueError, match=r".+"):
                unpacked(codec, frames[:size])


def test_snappy_blocks_are_concatenated():
    halves = block(TEXT[:777]) + block(b"") + block(TEXT[777:])
    assert unpacked(SNAPPY, XERIAL + halves) == TEXT
    assert unpacked(SNAPPY, XERIAL) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        packed(SNAPPY, TEXT)[:-1],
        packed(SNAPPY, TEXT) + b"\0",
        XERIAL + block(TEXT)[:-1],
        XERIAL + block(TEXT) + b"\0\0",
        XERIAL + block(TEXT) + struct.pack(">i", -1),
        XERIAL + struct.pack(">i", 2**31 - 1) + packed(SNAPPY, TEXT),
        XERIAL + struct.pack(">i", 0),
        b"\xff" * 20,
    ],
)
def test_invalid_snappy_data_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r".+"):
        unpacked(SNAPPY, data)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_data_up_to_the_limit_are_accepted_and_one_byte_more_is_refused(
    monkeypatch: pytest.MonkeyPatch, codec: int
):
    monkeypatch.setattr(compression, "LEAST_LIMIT", 10_000)
    monkeypatch.setattr(compression, "MAX_RATIO", 1)
    assert unpacked(codec, packed(codec, bytes(10_000))) == bytes(10_000)
    with pytest.raises(ValueError, match="more than 10000 bytes when decompressed"):
        unpacked(codec, packed(codec, bytes(10_001)))


def test_the_limit_is_for_all_frames_and_blocks_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "LEAST_LIMIT", 10_000)
    monkeypatch.setattr(compression, "MAX_RATIO", 1)
    for codec in (GZIP, LZ4, ZSTD):
        assert len(unpacked(codec, 2 * packed(codec, bytes(5_000)))) == 10_000
        with pytest.raises(ValueError, match="more than 10000 bytes"):
            unpacked(codec, 2 * packed(codec, bytes(5_000)) + packed(codec, b"x"))
    assert len(unpacked(SNAPPY, XERIAL + 2 * block(bytes(5_000)) + block(b""))) == 10_000
    with pytest.raises(ValueError, match="more than 10000 bytes"):
        unpacked(SNAPPY, XERIAL + 2 * block(bytes(5_000)) + block(b"x"))


@pytest.mark.parametrize(
    ("window_log", "content"), [(28, b""), (41, b""), (None, struct.pack("<Q", 2**62))]
)
def test_a_zstd_frame_with_a_large_window_is_refused(window_log: int | None, content: bytes):
    head = b"\xe0" if window_log is None else bytes([0, (window_log - 10) << 3])
    raw_block = struct.pack("<I", 3 << 3 | 1)[:3] + b"abc"
    with pytest.raises(ValueError, match="too much memory"):
        unpacked(ZSTD, b"\x28\xb5\x2f\xfd" + head + content + raw_block)


_MEASURE = """
import re, sys
from pathlib import Path
from regent.records.compression import decompressed
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
data, before = sys.stdin.buffer.read(), peak()
try:
    decompressed(4, memoryview(data))
except ValueError as error:
    print(peak() - before, "pyarrow" in sys.modules, error)
"""


def test_a_small_batch_that_claims_500_mb_uses_no_more_memory_than_the_limit():
    bomb = packed(ZSTD, bytes(500_000_000))
    assert len(bomb) < 16_000
    command = [sys.executable, "-c", _MEASURE]
    done = subprocess.run(
        command, input=bomb, capture_output=True, check=True, cwd=ROOT, timeout=scaled(60)
    )
    kilobytes, has_pyarrow, said = done.stdout.decode().split(maxsplit=2)
    assert said.strip() == f"more than {LIMIT} bytes when decompressed"
    assert int(kilobytes) < LIMIT // 1024 + 8 * 1024
    assert has_pyarrow == "False"


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200))
@example(SNAPPY, XERIAL[:10])
def test_random_bytes_are_decompressed_or_refused(codec: int, data: bytes):
    with suppress(ValueError):
        assert len(unpacked(codec, data)) <= LIMIT


@given(st.sampled_from([SNAPPY, LZ4, ZSTD]), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_does_not_exceed_the_limit(codec: int, at: int, byte: int):
    changed = bytearray(packed(codec, TEXT[:2_000]))
    changed[at % len(changed)] = byte
    with suppress(ValueError):
        assert len(unpacked(codec, bytes(changed))) <= LIMIT


@given(st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200))
@example(SNAPPY, TEXT)
@example(LZ4, TEXT)
@example(LZ4, TEXT + random.Random(1).randbytes(200_000))
@example(ZSTD, TEXT)
def test_compressed_data_can_be_decompressed(codec: int, data: bytes):
    assert unpacked(codec, compressed(codec, data)) == data


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_other_implementations_read_what_is_compressed(codec: int):
    compressed_text = pyarrow.BufferReader(compressed(codec, TEXT))
    assert pyarrow.CompressedInputStream(compressed_text, NAMES[codec]).read() == TEXT
