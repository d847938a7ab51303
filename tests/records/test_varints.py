"""Numbers of variable length: of any size, cut off, and too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.records.varints import read_varint, signed, varint, zigzag


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
