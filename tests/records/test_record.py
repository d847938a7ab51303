"""Records and their numbers: of any size, null, cut off, and too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.records.record import (
    encode_record,
    read_records,
    read_varint,
    signed,
    value_of,
    varint,
    with_timestamp_delta,
    zigzag,
)

PARTS = st.none() | st.binary(max_size=300)
RECORDS = st.lists(st.tuples(st.integers(-(2**40), 2**40), PARTS, PARTS), max_size=20)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_a_number_is_read_as_it_was_written(number: int, after: bytes):
    written = varint(zigzag(number))
    raw, end = read_varint(b"x" + written + after, 1)
    assert (signed(raw), end) == (number, 1 + len(written))


@pytest.mark.parametrize(
    ("number", "written"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
)
def test_numbers_near_zero_are_short(number: int, written: str):
    assert varint(zigzag(number)).hex() == written


def test_a_number_that_is_cut_off_or_too_long_is_refused():
    for data in (b"", b"\x80", b"\xff" * 4):
        with pytest.raises(IndexError):
            read_varint(data, 0)
    assert read_varint(b"\xff" * 4 + b"\x0f", 0, 5) == (2**32 - 1, 5)
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_varint(b"\xff" * 5 + b"\0", 0, 5)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_varint(b"\xff" * 10 + b"\0", 0)


def found(data: bytes, count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return the timestamp deltas, offset deltas, keys and values of records."""
    return [
        (time, delta, key, value_of(data, value_at, end))
        for _, end, time, delta, key, value_at in read_records(data, count)
    ]


@given(RECORDS, st.integers(0, 2**20))
def test_records_are_read_as_they_were_written(
    records: list[tuple[int, bytes | None, bytes | None]], first: int
):
    written = [(time, first + 70 * n, key, value) for n, (time, key, value) in enumerate(records)]
    data = b"".join(encode_record(delta, time, key, value) for time, delta, key, value in written)
    assert found(data, len(records)) == written


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40), PARTS)
def test_a_record_gets_another_timestamp(former: int, time: int, value: bytes | None):
    data = encode_record(0, 1, b"before", b"it") + encode_record(1, former, b"key", value)
    start = len(encode_record(0, 1, b"before", b"it"))
    assert with_timestamp_delta(data, start, time) == encode_record(1, time, b"key", value)


@pytest.mark.parametrize("size", [-1, -2, -64, -65, -8_193])
def test_a_key_or_value_of_a_size_below_zero_is_null(size: int):
    null = varint(zigzag(size))
    for key, value in ((null, b"\x02v"), (b"\x02k", null), (null, null)):
        body = b"\0\0\0" + key + value + b"\0"
        data = varint(zigzag(len(body))) + body
        expected = None if key is null else b"k", None if value is null else b"v"
        assert found(data, 1) == [(0, 0, *expected)]
        assert found(data + encode_record(1, 2, b"a", b"b"), 2)[1] == (2, 1, b"a", b"b")


@pytest.mark.parametrize(
    "data",
    [b"\x02", b"\x80" * 11, b"\x10\0\0\0\x01\x01\0", b"\xff" * 40, b"\x0c\0\0\0\x01\x01\0\0"],
)
def test_records_that_are_not_well_formed_are_refused(data: bytes):
    with pytest.raises(ValueError, match=r"record|number"):
        list(read_records(data, 1))


def test_a_value_that_exceeds_its_record_is_refused():
    data = b"\x0c\0\0\0\x01\x06\0" + encode_record(1, 0, None, None)
    *_, (_, end, _, _, _, value_at) = read_records(data[:7], 1)
    with pytest.raises(ValueError, match="a value exceeds its record"):
        value_of(data, value_at, end)
