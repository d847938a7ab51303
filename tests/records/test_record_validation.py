"""Unreadable records are refused when they are produced, whatever their header says."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.records import compression, record_validation
from regent.records.record import varint, zigzag
from regent.records.record_validation import InvalidRecordsError, RecordTimes, is_quick, validate
from tests.support.compressed_frames import lz4
from tests.support.record_batches import TIMESTAMP_MS, batch, keyed_batch, resealed

HEADER = 61
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
COUNT_AT, LAST_OFFSET_DELTA_AT, ATTRIBUTES_AT, MAX_TIMESTAMP_AT = 57, 23, 21, 35
VALUES = [b"%d" % number * number for number in range(200)]


def xerial(data: bytes) -> bytes:
    """Compress like the Java library: blocks with their sizes after a header."""
    blocks = [snapped(data[at : at + 1000]) for at in range(0, len(data), 1000)]
    sized = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + sized


def snapped(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("snappy").compress(data, asbytes=True))


COMPRESSORS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, lambda data: zlib.compress(data, wbits=31)),
    "snappy": (SNAPPY, snapped),
    "snappy of Java": (SNAPPY, xerial),
    "lz4": (LZ4, lambda data: lz4(*(data[at : at + 2**16] for at in range(0, len(data), 2**16)))),
    "zstd": (ZSTD, lambda data: bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))),
}


def with_records(data: bytes, records: bytes, codec: int = 0) -> bytes:
    """Return a batch with the same header and other records, with a valid CRC."""
    changed = bytearray(data[:HEADER] + records)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">h", changed, ATTRIBUTES_AT, codec)
    return resealed(changed)


def with_header(data: bytes, **fields: int) -> bytes:
    """Return a batch with changed header fields and a valid CRC."""
    changed = bytearray(data)
    for name, value in fields.items():
        at = {"count": COUNT_AT, "last_offset_delta": LAST_OFFSET_DELTA_AT}[name]
        struct.pack_into(">i", changed, at, value)
    return resealed(changed)


def claims(data: bytes, count: int) -> bytes:
    """Return a batch with another record count."""
    return with_header(data, count=count, last_offset_delta=count - 1)


def check(data: bytes, *, needs_keys: bool = False) -> bytes:
    """Validate a batch; return it afterwards."""
    received = bytearray(data)
    validate(memoryview(received), needs_keys=needs_keys)
    return bytes(received)


ONE = batch(b"value", key=b"key")
TWO = batch(b"a", b"b")
RECORDS = ONE[HEADER:]

UNREADABLE: dict[str, bytes] = {
    "random bytes": with_records(ONE, random.Random(7).randbytes(90)),
    "no bytes": with_records(ONE, b""),
    "five records, said of one": claims(ONE, 5),
    "2^31 - 1 records, said of one": claims(ONE, 2**31 - 1),
    "one record, said of two": claims(TWO, 1),
    "a byte behind the last record": with_records(ONE, RECORDS + b"\0"),
    "a record of 2^31 bytes": with_records(ONE, b"\x80\x80\x80\x80\x10" + RECORDS[1:]),
    "a record that is longer than it says": with_records(
        ONE, bytes([RECORDS[0] - 2]) + RECORDS[1:]
    ),
    "a record that is shorter than it says": with_records(
        ONE, bytes([RECORDS[0] + 2]) + RECORDS[1:] + b"\0"
    ),
    "a record of less than no bytes": with_records(ONE, b"\x01" + RECORDS[1:]),
    "a key that goes beyond its record": with_records(ONE, RECORDS[:4] + b"\x7e" + RECORDS[5:]),
    "a number that does not end": with_records(ONE, b"\xff" * 30),
    "headers that are not there": with_records(ONE, RECORDS[:-1] + b"\x7e"),
    "less than no headers": with_records(ONE, RECORDS[:-1] + b"\x01"),
    "a header without a key": with_records(
        ONE, bytes([RECORDS[0] + 4]) + RECORDS[1:-1] + b"\x02\x01\x01"
    ),
    "the same offset twice": with_records(TWO, 2 * TWO[HEADER : HEADER + (len(TWO) - HEADER) // 2]),
    **{
        f"garbage said to be {name}": with_records(ONE, b"garbage, of some length", codec)
        for name, (codec, _) in COMPRESSORS.items()
    },
    **{
        f"{name} that is cut off": with_records(ONE, compress(RECORDS)[:-3], codec)
        for name, (codec, compress) in COMPRESSORS.items()
    },
    **{
        f"bytes behind the last record, {name}": with_records(ONE, compress(RECORDS + b"\0"), codec)
        for name, (codec, compress) in COMPRESSORS.items()
    },
    **{
        f"records that are not there, {name}": with_records(
            claims(ONE, 3), compress(RECORDS), codec
        )
        for name, (codec, compress) in COMPRESSORS.items()
    },
    "a compression that does not exist": with_records(ONE, RECORDS, 7),
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_records_are_refused(data: bytes):
    with pytest.raises(InvalidRecordsError, match="records that cannot be read: ") as refused:
        check(data)
    assert refused.value.error_code is Errors.INVALID_RECORD
    assert refused.value.record_errors == ()


@pytest.mark.parametrize("values", [[b""], [None], [b"x" * 100_000], VALUES])
@pytest.mark.parametrize("compressor", [None, *COMPRESSORS])
def test_records_written_by_producers_are_accepted(
    values: list[bytes | None], compressor: str | None
):
    data = batch(*values)
    if compressor is not None:
        codec, compress = COMPRESSORS[compressor]
        data = with_records(data, compress(data[HEADER:]), codec)
    assert check(data) == data


def test_headers_of_records_are_accepted():
    header = b"\x06key\x0avalue"
    records = bytes([RECORDS[0] + 2 * 2 * len(header)]) + RECORDS[1:-1] + b"\x04" + 2 * header
    data = with_records(ONE, records)
    assert check(data) == data


@given(st.binary(max_size=60), st.integers(1, 5))
def test_random_bytes_are_accepted_or_refused(records: bytes, count: int):
    try:
        check(claims(with_records(ONE, records), count))
    except InvalidRecordsError:
        return


@given(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=80))
def test_a_missing_or_additional_byte_is_refused(values: list[bytes | None]):
    written = batch(*values)
    assert check(written) == written
    for records in (written[HEADER:-1], written[HEADER:] + b"\0"):
        with pytest.raises(InvalidRecordsError):
            check(with_header(with_records(written, records)))


@pytest.mark.parametrize("data", [ONE[:-1], with_header(ONE, count=0), with_header(ONE, count=2)])
def test_other_header_fields_are_checked_by_the_log(data: bytes):
    check(data)


def test_a_wrong_crc_is_checked_by_the_log():
    changed = bytearray(ONE)
    changed[HEADER] ^= 1
    check(bytes(changed))


def test_records_without_a_key_are_listed_if_keys_are_needed():
    data = batch(b"a", b"b", key=b"key")
    assert check(data, needs_keys=True) == data
    with pytest.raises(InvalidRecordsError) as refused:
        check(keyed_batch((None, b"a"), (b"key", b"b"), (None, b"c")), needs_keys=True)
    assert [error.batch_index for error in refused.value.record_errors] == [0, 2]


def test_the_errors_of_a_batch_are_listed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_validation, "_MOST_ERRORS", 5)
    with pytest.raises(InvalidRecordsError, match="due to 9 record errors in total") as refused:
        check(batch(*[b"a"] * 9), needs_keys=True)
    assert [error.batch_index for error in refused.value.record_errors] == [0, 1, 2, 3, 4]


NOW = TIMESTAMP_MS
TIMES = RecordTimes(NOW - 1_000, NOW + 500)


def timed(*timestamps: int, base: int | None = None, greatest: int | None = None) -> bytes:
    """Return a batch of records with these timestamps, with another first one in its header."""
    base = timestamps[0] if base is None else base
    deltas = [timestamp - base for timestamp in timestamps]
    records = b"".join(
        varint(len(body) << 1) + body
        for index, delta in enumerate(deltas)
        for body in [b"\0" + varint(zigzag(delta)) + varint(index << 1) + b"\x01\x02v\0"]
    )
    whole = bytearray(batch(*[b"v"] * len(timestamps), timestamp_ms=base))
    greatest = max(timestamps) if greatest is None else greatest
    struct.pack_into(">q", whole, MAX_TIMESTAMP_AT, greatest)
    return with_records(bytes(whole), records)


@pytest.mark.parametrize("compressor", [None, *COMPRESSORS])
@pytest.mark.parametrize(
    ("timestamps", "refused"),
    [
        ([NOW], []),
        ([NOW - 1_000, NOW + 500], []),
        ([NOW, -1, NOW], []),
        ([-1], []),
        ([NOW - 1_001], [0]),
        ([NOW + 501], [0]),
        ([NOW, NOW - 1_001], [1]),
        ([NOW, NOW // 1_000], [1]),
        ([NOW, NOW + 501, NOW], [1]),
        ([NOW - 5_000, NOW, NOW + 5_000], [0, 2]),
        ([NOW] * 40 + [NOW - 1_001] + [NOW] * 40, [40]),
        ([NOW - 1_100 + n for n in range(300)], list(range(100))),
        ([NOW - n for n in range(1_100)], list(range(1_001, 1_100))),
    ],
)
def test_the_timestamp_of_each_record_is_checked(
    timestamps: list[int], refused: list[int], compressor: str | None
):
    data = timed(*timestamps)
    if compressor is not None:
        codec, compress = COMPRESSORS[compressor]
        data = with_records(data, compress(data[HEADER:]), codec)
    received = memoryview(bytearray(data))
    if not refused:
        validate(received, needs_keys=False, times=TIMES)
        return
    with pytest.raises(InvalidRecordsError) as found:
        validate(received, needs_keys=False, times=TIMES)
    assert found.value.error_code is Errors.INVALID_TIMESTAMP
    assert [error.batch_index for error in found.value.record_errors] == refused
    index = refused[0]
    assert found.value.record_errors[0].message == (
        f"Timestamp {timestamps[index]} of message with offset {index} is out of range. The"
        f" timestamp should be within [{NOW - 1_000}, {NOW + 500}]"
    )


def test_the_timestamps_of_the_header_do_not_count():
    for base, greatest in ((NOW - 9_000, NOW), (NOW, NOW + 9_000), (0, 0)):
        data = timed(NOW - 5, NOW, base=base, greatest=greatest)
        validate(memoryview(bytearray(data)), needs_keys=False, times=TIMES)
    for base, greatest in ((NOW, NOW), (NOW - 9_000, NOW)):
        lying = timed(NOW - 9_000, base=base, greatest=greatest)
        with pytest.raises(InvalidRecordsError):
            validate(memoryview(bytearray(lying)), needs_keys=False, times=TIMES)


def test_a_missing_key_is_reported_before_a_wrong_time():
    data = timed(NOW - 5_000, NOW)
    topic_partition = TopicPartition("orders", 3)
    with pytest.raises(InvalidRecordsError) as refused:
        validate(memoryview(bytearray(data)), topic_partition, needs_keys=True, times=TIMES)
    assert refused.value.error_code is Errors.INVALID_RECORD
    assert [error.batch_index for error in refused.value.record_errors] == [0, 1]
    assert "in topic partition orders-3" in refused.value.record_errors[0].message


@pytest.mark.parametrize("claimed", [TIMESTAMP_MS - 1, TIMESTAMP_MS + 1, 253402300799000, -1])
def test_the_max_timestamp_is_corrected(claimed: int):
    lying = bytearray(TWO)
    struct.pack_into(">q", lying, MAX_TIMESTAMP_AT, claimed)
    assert check(resealed(lying)) == TWO


def test_a_small_batch_that_claims_gigabytes_is_not_decompressed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "LEAST_LIMIT", 10_000)
    monkeypatch.setattr(compression, "MAX_RATIO", 1)
    long_record = varint(zigzag(20_000)) + bytes(20_000)
    claim = b"\xff\xff\xff\xff\x0f"
    for codec, packed in (
        *((codec, compress(long_record)) for codec, compress in COMPRESSORS.values()),
        (SNAPPY, claim),
    ):
        with pytest.raises(InvalidRecordsError, match=r"more than \d+ bytes when decompressed"):
            check(with_records(ONE, packed, codec))


def test_small_uncompressed_batches_are_checked_at_once_and_others_in_a_thread():
    assert is_quick([memoryview(batch(*[b"x"] * 500))] * 2)
    assert not is_quick([memoryview(batch(*[b"x"] * 501))] * 2)
    assert not is_quick([memoryview(with_records(ONE, RECORDS, GZIP))])
    assert not is_quick([memoryview(claims(ONE, -2_000_000_000)), memoryview(batch(*[b""] * 1001))])
    assert not is_quick([memoryview(batch(b"x" * 5_000_000))])
