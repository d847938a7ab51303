"""The offset index: the position found is never behind the offset, and not far before."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.errors import BadDataError
from regent.storage.log.segment_indexes import OffsetIndex

BASE = 10_000_000_000
COLUMN = st.lists(st.integers(0, 2**31 - 1), unique=True).map(sorted)
ENTRIES = st.builds(zip, COLUMN, COLUMN).map(list)


def index_of(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in entries:
        index.append(BASE + offset, position)
    return index


def test_a_file_holds_relative_offsets_and_positions_of_four_bytes() -> None:
    assert index_of((17, 4_100), (30, 8_300)).encode() == struct.pack(">4i", 17, 4_100, 30, 8_300)


@given(entries=ENTRIES)
def test_an_index_is_read_as_it_was_written(entries: list[tuple[int, int]]) -> None:
    data = index_of(*entries).encode()
    index = OffsetIndex.decode(BASE, data, 2**31)
    assert index.encode() == data
    assert len(index) == len(entries)


@given(entries=ENTRIES, offset=st.integers(0, 2**31), position=st.integers(0, 2**31))
def test_look_ups_find_the_nearest_entry(
    entries: list[tuple[int, int]], offset: int, position: int
) -> None:
    index = index_of(*entries)
    begin = [(0, 0)]  # the begin of the segment, when there is no such entry
    o, p = (begin + [(o, p) for o, p in entries if o <= offset])[-1]
    assert index.look_up(BASE + offset) == (BASE + o, p)
    o, p = (begin + [(o, p) for o, p in entries if o < offset and p <= position])[-1]
    assert index.last_below(position, BASE + offset) == (BASE + o, p)


def test_offsets_far_outside_have_the_nearest_entry_too() -> None:
    index = index_of((17, 4_100))
    assert index.look_up(0) == (BASE, 0)
    assert index.look_up(2**63 - 1) == (BASE + 17, 4_100)
    assert index.last_below(2**62, 2**63 - 1) == (BASE + 17, 4_100)


def test_removed_batches_leave_no_entry() -> None:
    index = index_of((17, 4_100), (30, 8_300), (40, 12_500))
    index.truncate_to(BASE + 31)
    assert index.last == (BASE + 30, 8_300)
    index.truncate_to(BASE + 30)  # the batch that ended with 30 is not whole any more
    assert index.last == (BASE + 17, 4_100)
    index.truncate_to(BASE)
    assert index.last == (BASE, 0)
    assert len(index) == 0


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 100, 2),  # half an entry
        (1, 100, 1, 200),
        (2, 100, 1, 200),
        (1, 100, 2, 100),
        (1, 100, 0, 0, 0, 0),  # as after a crash of Kafka
        (-1, 100),
        (1, 1_000),  # beyond the segment
    ],
)
def test_an_impossible_file_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(BadDataError):
        OffsetIndex.decode(BASE, struct.pack(f">{len(numbers)}i", *numbers), 1_000)
    with pytest.raises(BadDataError):
        OffsetIndex.decode(BASE, b"\0" * 7, 1_000)
