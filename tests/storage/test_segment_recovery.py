"""A segment after a crash: it is cut off at the first bad batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.core.records import RecordBytes
from regent.records.record_batch import BatchHeader, batches
from regent.storage.log.log_file import CorruptSegmentError
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from tests.support.record_batches import batch, offsets_of

NOW_MS = 1_700_000_000_000
EVERYTHING = 2**63 - 1
CONFIG = replace(DEFAULT_LOG_CONFIG, index_interval_bytes=200)
FILES = OpenFiles()
BATCHES = [
    batch(*[bytes([i]) * 30] * 2, base_offset=100 + 2 * i, leader_epoch=i // 3, timestamp_ms=i)
    for i in range(8)
]
ENDS = [sum(map(len, BATCHES[:count])) for count in range(len(BATCHES) + 1)]
WHOLE = b"".join(BATCHES)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


def recover(directory: Path, data: RecordBytes) -> tuple[LogSegment, list[BatchHeader], int]:
    """Recover a segment with ``data``; return it, the reported batches, and the bytes cut off."""
    (directory / f"{100:020d}.log").write_bytes(data)
    segment = LogSegment.open(directory, 100, CONFIG, NOW_MS, FILES)
    headers: list[BatchHeader] = []
    cut = segment.recover(headers.append)
    assert cut == len(data) - segment.size
    assert segment.path.stat().st_size == segment.size
    return segment, headers, cut


def keeps(directory: Path, data: RecordBytes, count: int) -> None:
    """Check that exactly the first ``count`` of ``BATCHES`` are left, and are reported."""
    segment, headers, _ = recover(directory, data)
    assert segment.path.read_bytes() == WHOLE[: ENDS[count]]
    assert headers == [header for _, header in batches(WHOLE[: ENDS[count]])]
    assert segment.next_offset == 100 + 2 * count
    segment.close()
    for kind in ("index", "timeindex"):
        (directory / f"{100:020d}.{kind}").unlink()


def test_a_sound_segment_is_unchanged(directory: Path) -> None:
    segment, headers, cut = recover(directory, WHOLE)
    assert cut == 0
    assert [header.base_offset for header in headers] == list(range(100, 116, 2))
    assert segment.largest == (7, 115)
    keeps(directory, WHOLE, 8)
    keeps(directory, b"", 0)


def test_a_tail_torn_at_any_byte_is_cut_off(directory: Path) -> None:
    for end in range(len(WHOLE)):
        keeps(directory, WHOLE[:end], sum(end >= e for e in ENDS[1:]))


def test_any_byte_that_changed_is_found(directory: Path) -> None:
    for position in range(len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[position] ^= 0xFF
        segment, headers, _ = recover(directory, damaged)
        hit = sum(position >= end for end in ENDS[1:])
        is_unchecked = position - ENDS[hit] < 8 or 12 <= position - ENDS[hit] < 16
        if not is_unchecked or hit + 1 < len(BATCHES):
            assert segment.size <= ENDS[hit]
            assert headers == [header for _, header in batches(WHOLE[: segment.size])]
        segment.close()


@settings(deadline=None)
@given(position=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_after_a_bit_flip_only_sound_batches_in_sequence_remain(
    directory: Path, position: int, bit: int
) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] ^= 1 << bit
    segment, headers, _ = recover(directory, damaged)
    hit = sum(position >= end for end in ENDS[1:])
    if position - ENDS[hit] >= 16:
        assert segment.size == ENDS[hit]
    for header, after in pairwise(headers):
        assert after.base_offset >= header.next_offset
        assert after.partition_leader_epoch >= header.partition_leader_epoch
    assert headers == [header for _, header in batches(damaged[: segment.size])]
    segment.close()


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 61, b"\0" * 5_000, b"\xff" * 100, WHOLE[:40]])
def test_garbage_after_a_crash_is_cut_off(directory: Path, tail: bytes) -> None:
    keeps(directory, WHOLE + tail, 8)


# --- fields without a checksum --------------------------------------------------------------------


def moved(count: int, form: str, at: int, number: int) -> RecordBytes:
    """Return all batches, with a number in the header of one replaced."""
    data = bytearray(WHOLE)
    struct.pack_into(form, data, ENDS[count] + at, number)
    return data


def test_of_two_batches_out_of_sequence_both_are_cut_off(directory: Path) -> None:
    keeps(directory, moved(4, ">q", 0, 150), 4)  # ahead: the following batch is behind it
    keeps(directory, moved(4, ">q", 0, 104), 3)  # behind: or the one before it is ahead
    keeps(directory, moved(4, ">i", 12, 9), 4)
    keeps(directory, moved(4, ">i", 12, 0), 3)
    keeps(directory, moved(0, ">q", 0, 150), 0)


def test_offsets_out_of_a_segments_range_are_bad(directory: Path) -> None:
    keeps(directory, moved(0, ">q", 0, 99), 0)
    keeps(directory, moved(7, ">q", 0, 100 + 2**31 - 1), 7)
    keeps(directory, moved(7, ">q", 0, 2**62), 7)


def test_gaps_of_compaction_are_accepted(directory: Path) -> None:
    data = BATCHES[0] + BATCHES[3] + BATCHES[7]
    segment, headers, cut = recover(directory, data)
    assert cut == 0
    assert [header.base_offset for header in headers] == [100, 106, 114]
    found = segment.read(102, 2**30, EVERYTHING, at_least_one=True)
    assert found is not None
    assert offsets_of(found.read()) == [106, 107, 114, 115]
    segment.close()


# --- indexes, and files larger than one read ------------------------------------------------------


def filled(directory: Path, sizes: list[int]) -> Iterator[bytes]:
    for i, size in enumerate(sizes):
        yield batch(b"x" * size, base_offset=100 + i, timestamp_ms=i)


@pytest.mark.parametrize("sizes", [[700_000] * 4, [100] * 20_000, [3_000_000, 10, 1_048_500, 10]])
def test_recovery_builds_the_same_indexes_as_appends(tmp_path: Path, sizes: list[int]) -> None:
    segment = LogSegment.create(tmp_path, 100, DEFAULT_LOG_CONFIG, NOW_MS, FILES)
    for data in filled(tmp_path, sizes):
        segment.append(data, list(batches(data)))
    segment.close()
    files = [tmp_path / f"{100:020d}.{kind}" for kind in ("index", "timeindex")]
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"nonsense")
    one = LogSegment.open(tmp_path, 100, DEFAULT_LOG_CONFIG, NOW_MS, FILES)
    assert one.recover(lambda header: None) == 0
    assert [file.read_bytes() for file in files] == contents
    assert (one.next_offset, one.largest) == (segment.next_offset, segment.largest)


def test_damage_in_an_unrecovered_segment_is_found_by_a_read(directory: Path) -> None:
    segment, _, _ = recover(directory, WHOLE)
    segment.close()
    data = bytearray(WHOLE)
    data[ENDS[3] + 16] = 7  # the magic
    segment.path.write_bytes(data)
    one = LogSegment.open(directory, 100, CONFIG, NOW_MS, FILES)
    with pytest.raises(CorruptSegmentError, match=rf"{100:020d}.log: at {ENDS[3]}"):
        list(one.headers())
    one.close()
