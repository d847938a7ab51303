from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.records import MemoryRecords
from regent.transport.kafka.primitives import (
    MAX_ELEMENTS,
    MalformedRequestError,
    Reader,
    Writer,
    uuid_text,
)

repeatable = settings(derandomize=True, deadline=None, database=None)
INT32 = st.integers(-(2**31), 2**31 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": INT32,
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "uuid": st.none() | st.binary(min_size=16, max_size=16).filter(any).map(uuid_text),
    "unsigned_varint": st.integers(0, 2**32 - 1),
    "string": st.text(max_size=50),
    "nullable_string": st.none() | st.text(max_size=50),
    "bytes_": st.binary(max_size=50),
    "nullable_bytes": st.none() | st.binary(max_size=50),
}
TYPED = st.sampled_from(sorted(VALUES)).flatmap(lambda n: VALUES[n].map(lambda value: (n, value)))


FORMS = pytest.mark.parametrize("is_flexible", [False, True], ids=["old", "flexible"])


def reader(data: bytes | bytearray, *, is_flexible: bool = False) -> Reader:
    return Reader(memoryview(data), is_flexible=is_flexible)


@FORMS
@repeatable
@given(values=st.lists(TYPED, max_size=10))
def test_written_values_are_read_and_no_byte_remains(
    values: list[tuple[str, Any]], is_flexible: bool
):
    writer = Writer(is_flexible=is_flexible)
    for name, value in values:
        getattr(writer, name)(value)

    read_from = reader(writer.whole(), is_flexible=is_flexible)
    assert [getattr(read_from, name)() for name, _ in values] == [value for _, value in values]
    assert read_from.remaining == 0


@FORMS
@repeatable
@given(typed=TYPED)
def test_a_value_that_is_cut_off_is_malformed_wherever_the_cut_is(
    typed: tuple[str, Any], is_flexible: bool
):
    name, value = typed
    writer = Writer(is_flexible=is_flexible)
    getattr(writer, name)(value)
    whole = writer.whole()

    for end in range(len(whole)):
        with pytest.raises(MalformedRequestError):
            getattr(reader(whole[:end], is_flexible=is_flexible), name)()


@FORMS
@repeatable
@given(data=st.binary(max_size=100), name=st.sampled_from(sorted(VALUES)))
def test_bytes_that_mean_nothing_are_malformed_and_no_other_error(
    data: bytes, name: str, is_flexible: bool
):
    read_from = reader(data, is_flexible=is_flexible)
    with suppress(MalformedRequestError):
        read_from.array(getattr(read_from, name))
        read_from.end_struct()


@FORMS
@repeatable
@given(values=st.none() | st.lists(INT32))
def test_arrays_may_be_null(values: list[int] | None, is_flexible: bool):
    writer = Writer(is_flexible=is_flexible)
    writer.nullable_array(values, writer.int32)
    read_from = reader(writer.whole(), is_flexible=is_flexible)
    assert read_from.nullable_array(read_from.int32) == values


@pytest.mark.parametrize("name", ["string", "bytes_"])
def test_a_null_is_refused_where_it_is_not_allowed(name: str):
    with pytest.raises(MalformedRequestError):
        getattr(reader(b"\xff" * 4), name)()


@pytest.mark.parametrize("count", [-2, 9, 2**31 - 1])
def test_an_array_has_no_more_elements_than_there_are_bytes(count: int):
    read_from = reader(struct.pack(">i", count) + bytes(8))
    with pytest.raises(MalformedRequestError):
        read_from.array(read_from.int8)


@repeatable
@given(st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=10), max_size=5))
def test_tagged_fields_end_a_structure_of_a_flexible_message(tagged: dict[int, bytes]):
    writer = Writer(is_flexible=True)
    writer.end_struct(tagged)
    read_from = reader(writer.whole(), is_flexible=True)
    assert read_from.end_struct() == tagged
    assert read_from.remaining == 0


def test_an_old_message_has_no_tagged_fields():
    writer = Writer()
    writer.end_struct({1: b"a"})
    assert writer.whole() == b""
    assert reader(b"").end_struct() == {}


def test_a_varint_has_at_most_five_bytes():
    with pytest.raises(MalformedRequestError, match="varint"):
        reader(b"\x80" * 5 + b"\x01").unsigned_varint()


def test_tagged_fields_count_as_elements():
    many = bytes([0xFF, 0xFF, 0x03])  # 65,535 fields
    with pytest.raises(MalformedRequestError, match="more than 50000 elements"):
        reader(many + bytes(200_000), is_flexible=True).end_struct()


def test_a_string_is_utf_8():
    with pytest.raises(MalformedRequestError):
        reader(b"\x00\x01\xff").string()


def test_byte_sequences_are_read_where_they_are():
    received = bytearray(b"\x00\x00\x00\x03abc")
    reader(received).bytes_()[1] = ord("X")
    assert received == b"\x00\x00\x00\x03aXc"


def test_records_are_written_by_reference():
    records = MemoryRecords(b"a batch")
    writer = Writer()
    writer.int8(1)
    writer.records(records)
    writer.int8(2)
    writer.records(MemoryRecords())
    assert writer.pieces() == [b"\x01\x00\x00\x00\x07", records, b"\x02\x00\x00\x00\x00"]


def test_the_total_of_elements_in_the_arrays_of_a_request_is_limited():
    half = struct.pack(">i", MAX_ELEMENTS // 2) + bytes(MAX_ELEMENTS // 2)
    reader = Reader(memoryview(half * 3))
    for _ in range(2):
        assert reader.array(reader.int8) == [0] * (MAX_ELEMENTS // 2)
    with pytest.raises(MalformedRequestError, match="more than 50000 elements"):
        reader.array(reader.int8)
