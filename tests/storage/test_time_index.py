"""The time index: entries for records that are younger than all before them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.errors import BadDataError
from regent.storage.log.segment_indexes import NO_TIMESTAMP_OFFSET, TimeIndex, TimestampOffset

BASE = 10_000_000_000
TIMESTAMPS = st.lists(st.integers(0, 2**63 - 1), unique=True).map(sorted)
OFFSETS = st.lists(st.integers(0, 2**31 - 1), unique=True).map(sorted)
ENTRIES = st.builds(zip, TIMESTAMPS, OFFSETS).map(list)


def index_of(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex(BASE)
    for timestamp, offset in entries:
        index.maybe_append(TimestampOffset(timestamp, BASE + offset))
    return index


def test_a_file_holds_timestamps_of_eight_bytes_and_relative_offsets_of_four() -> None:
    assert index_of((1_600, 17), (1_700, 30)).encode() == struct.pack(">qiqi", 1_600, 17, 1_700, 30)


@given(entries=ENTRIES)
def test_an_index_is_read_as_it_was_written(entries: list[tuple[int, int]]) -> None:
    data = index_of(*entries).encode()
    index = TimeIndex.decode(BASE, data)
    assert index.encode() == data
    assert len(index) == len(entries)
    assert index.last == (
        TimestampOffset(entries[-1][0], BASE + entries[-1][1]) if entries else NO_TIMESTAMP_OFFSET
    )


def test_only_younger_records_get_an_entry() -> None:
    index = index_of((1_600, 17), (1_600, 20), (1_500, 25), (1_601, 30))
    assert len(index) == 2
    assert index.last == (1_601, BASE + 30)


def test_records_without_a_time_get_no_entry() -> None:
    assert len(index_of((-1, 17))) == 0


@given(entries=ENTRIES, timestamp=st.integers(-1, 2**63 - 1))
def test_every_record_before_the_offset_found_is_older(
    entries: list[tuple[int, int]], timestamp: int
) -> None:
    up_to = [offset for time, offset in entries if time <= timestamp]
    assert index_of(*entries).offset_before(timestamp) == BASE + (up_to[-1] if up_to else 0)


@given(entries=ENTRIES, offset=st.integers(0, 2**31 - 1))
def test_the_last_entry_before_an_offset_is_found(
    entries: list[tuple[int, int]], offset: int
) -> None:
    before = [(time, BASE + known) for time, known in entries if known < offset]
    expected = before[-1] if before else NO_TIMESTAMP_OFFSET
    assert index_of(*entries).last_before(BASE + offset) == expected


def test_removed_records_leave_no_entry() -> None:
    index = index_of((1_600, 17), (1_700, 30))
    index.truncate_to(BASE + 31)
    assert len(index) == 2
    index.truncate_to(BASE + 30)
    assert index.last == (1_600, BASE + 17)
    index.truncate_to(BASE)
    assert index.last == NO_TIMESTAMP_OFFSET


@pytest.mark.parametrize(
    "numbers",
    [(1_600, 17, 1_600, 18), (1_600, 17, 1_500, 18), (1_600, 17, 1_700, 16), (1_600, 17, 0, 0)],
)
def test_an_impossible_file_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(BadDataError):
        TimeIndex.decode(BASE, struct.pack(">" + "qi" * (len(numbers) // 2), *numbers))


@pytest.mark.parametrize("size", [1, 8, 11, 13, 20])
def test_half_an_entry_is_refused(size: int) -> None:
    with pytest.raises(BadDataError):
        TimeIndex.decode(BASE, b"\0" * size)
