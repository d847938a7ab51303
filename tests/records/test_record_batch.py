"""The header of a batch: reads, checks, and the fields that a broker writes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.records import RecordBytes
from regent.records.compression import GZIP, LZ4, NONE, ZSTD
from regent.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    DefaultRecord,
    RestoredRecord,
    assign,
    batches,
    check_crc,
    read_header,
    restored_batches,
    stamp_append_time,
    writable,
)
from regent.records.record_batch import records_of as decoded_records
from regent.records.record_validation import validate
from tests.support.record_batches import batch, records_of, resealed

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.builds(
    BatchHeader,
    base_offset=INT64,
    batch_length=INT32,
    partition_leader_epoch=INT32,
    magic=st.integers(-128, 127),
    crc=st.integers(0, 2**32 - 1),
    attributes=INT16,
    last_offset_delta=INT32,
    base_timestamp=INT64,
    max_timestamp=INT64,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=INT32,
    record_count=INT32,
)


def check_all(data: RecordBytes) -> None:
    for position, header in batches(data):
        check_crc(data, position, header)


def refused(data: RecordBytes) -> Errors:
    """Return the error of refused records."""
    with pytest.raises(RecordsRefusedError) as raised:
        check_all(data)
    return raised.value.error_code


# --- reading --------------------------------------------------------------------------------------


@given(header=HEADERS, before=st.binary(max_size=20))
def test_a_header_is_read_as_it_was_written(header: BatchHeader, before: bytes) -> None:
    data = before + struct.pack(">qiibIhiqqqhii", *header)
    assert len(data) == len(before) + HEADER_SIZE
    assert read_header(data, len(before)) == header
    assert read_header(memoryview(data), len(before)) == header


def test_a_header_has_the_offsets_and_the_end_of_its_batch() -> None:
    data = batch(b"a", b"b", b"c", base_offset=40, leader_epoch=7)
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.size, header.partition_leader_epoch, header.record_count) == (len(data), 7, 3)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (-1, -1, -1)


@pytest.mark.parametrize(
    ("first", "count", "last"),
    [(0, 1, 0), (5, 3, 7), (2**31 - 1, 1, 2**31 - 1), (2**31 - 1, 2, 0), (2**31 - 2, 5, 2)],
)
def test_sequence_numbers_wrap_around_to_zero(first: int, count: int, last: int) -> None:
    data = batch(*[b""] * count, producer_id=1, producer_epoch=0, base_sequence=first)
    assert read_header(data).last_sequence == last


@pytest.mark.parametrize("compression", range(5))
def test_attributes_are_decoded(compression: int) -> None:
    plain = read_header(batch(b"", attributes=compression))
    assert plain.compression == compression
    assert not any((plain.stamps_append_time, plain.is_transactional, plain.is_control))
    assert read_header(batch(b"", attributes=compression | 0x08)).stamps_append_time
    assert read_header(batch(b"", attributes=compression | 0x10)).is_transactional
    assert read_header(batch(b"", attributes=compression | 0x20)).is_control


def test_several_batches_are_read() -> None:
    parts = [batch(b"a"), batch(b"b", b"c", base_offset=1), batch(b"d" * 500, base_offset=3)]
    found = list(batches(b"".join(parts)))
    assert [position for position, _ in found] == [0, len(parts[0]), len(parts[0] + parts[1])]
    assert [header.base_offset for _, header in found] == [0, 1, 3]
    assert list(batches(b"")) == []


# --- refusing -------------------------------------------------------------------------------------


def test_a_batch_that_is_cut_anywhere_is_corrupt() -> None:
    data = batch(b"a") + batch(b"bcd", base_offset=1)
    first = len(batch(b"a"))
    for end in {*range(1, len(data))} - {first}:
        assert refused(data[:end]) is Errors.CORRUPT_MESSAGE, end


@given(bit=st.integers(0, 7), position=st.integers(16, 200))
def test_a_bit_flip_after_the_leader_epoch_is_found(bit: int, position: int) -> None:
    data = bytearray(batch(b"a" * 70, b"b" * 70))
    position = min(position, len(data) - 1)
    data[position] ^= 1 << bit
    refused(data)


@given(
    data=st.binary(max_size=300)
    | st.builds(
        lambda header, rest: struct.pack(">qiibIhiqqqhii", *header) + rest,
        HEADERS.map(lambda header: header._replace(magic=2)),
        st.binary(max_size=200),
    )
)
def test_hostile_bytes_raise_only_refusals(data: bytes) -> None:
    try:
        check_all(data)
    except RecordsRefusedError:
        return
    assert data == b""


def test_old_message_formats_are_not_supported() -> None:
    for magic in (0, 1):
        data = bytearray(batch(b"a"))
        data[16] = magic
        assert refused(data) is Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT
    data[16] = 3
    assert refused(data) is Errors.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_an_impossible_length_is_corrupt(length: int) -> None:
    data = bytearray(batch(b"a"))
    struct.pack_into(">i", data, 8, length)
    assert refused(data) is Errors.CORRUPT_MESSAGE


@pytest.mark.parametrize(("at", "form"), [(0, ">q"), (23, ">i"), (57, ">i")])
def test_negative_offsets_and_counts_are_invalid(at: int, form: str) -> None:
    data = bytearray(batch(b"a"))
    struct.pack_into(form, data, at, -1)
    assert refused(resealed(data)) is Errors.INVALID_RECORD


# --- writing --------------------------------------------------------------------------------------


@given(base_offset=st.integers(0, 2**63 - 10), leader_epoch=st.integers(0, 2**31 - 1))
def test_a_batch_gets_its_offset_and_keeps_its_checksum(
    base_offset: int, leader_epoch: int
) -> None:
    data = bytearray(b"...." + batch(b"a", b"b"))
    header = assign(data, 4, base_offset, leader_epoch)
    assert header == read_header(data, 4)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, leader_epoch)
    check_crc(data, 4, header)
    assert [record.offset for record in records_of(data[4:])] == [base_offset, base_offset + 1]


def test_a_batch_gets_its_append_time() -> None:
    data = bytearray(batch(b"a", timestamp_ms=5, attributes=3))
    header = stamp_append_time(data, 0, read_header(data), 1_234)
    assert header == read_header(data)
    assert header.stamps_append_time
    assert (header.compression, header.base_timestamp, header.max_timestamp) == (3, 5, 1_234)
    check_crc(data, 0, header)


def test_only_read_only_batches_are_copied() -> None:
    data = bytearray(b"abc")
    assert writable(data) is data
    view = memoryview(data)
    assert writable(view) is view
    for fixed in (b"abc", memoryview(b"abc")):
        copy = writable(fixed)
        assert bytes(copy) == b"abc"
        assert copy is not fixed
        copy[0] = 0


# --- records of a backup --------------------------------------------------------------------------

PARTS = st.none() | st.binary(max_size=40)
BACKED_UP = st.lists(
    st.builds(
        RestoredRecord,
        offset=st.integers(0, 200),
        timestamp=st.integers(0, 2**45),
        key=PARTS,
        value=PARTS,
        headers=st.lists(st.tuples(st.binary(max_size=5), PARTS), max_size=3),
    ),
    unique_by=lambda record: record.offset,
    max_size=40,
).map(lambda records: sorted(records, key=lambda record: record.offset))


def all_records(header: BatchHeader, data: bytearray) -> list[DefaultRecord]:
    """Return the records of one batch."""
    return list(decoded_records(header, memoryview(data)))


@given(BACKED_UP, st.sampled_from([NONE, GZIP, LZ4, ZSTD]), st.integers(1, 500))
def test_records_of_a_backup_keep_offsets_times_and_gaps(
    records: list[RestoredRecord], codec: int, max_bytes: int
):
    found = []
    for data in restored_batches(iter(records), codec, max_bytes):
        header = read_header(data)
        check_all(data)
        validate(memoryview(data), needs_keys=False)
        assert header.record_count == header.last_offset_delta + 1
        assert header.max_timestamp == max(r.timestamp for r in all_records(header, data))
        found += all_records(header, data)
    assert found == [record[:4] for record in records]
    again = [bytes(data) for data in restored_batches(records, codec, max_bytes)]
    assert again == [bytes(data) for data in restored_batches(iter(records), codec, max_bytes)]
