"""Message formats 0 and 1, as the clients aiokafka and kafka-python write and read them."""

from __future__ import annotations

import random
import struct
import warnings
import zlib
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regent.core.errors import Errors, RecordsRefusedError
from regent.records.legacy_records import down_converted, is_old, up_converted
from tests.support.compressed_frames import lz4
from tests.support.record_batches import CONTROL_MASK, batch, old_message, resealed, stamped

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka.record.memory_records import MemoryRecords as OthersRecords

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
EVERYTHING = 2**31 - 1
RECORDS = [
    (1_000, b"key", b"value"),
    (900, None, b"x" * 300),
    (1_100, b"", b""),
    (1_050, b"deleted", None),
]
repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=50)


def old_set(magic: int, codec: int = NONE, records: Any = tuple(RECORDS)) -> bytes:
    """Return a message set as aiokafka writes it; a compressed one is inside one message."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1_000_000)
    for number, (time_ms, key, value) in enumerate(records):
        builder.append(number, time_ms, key, value)
    return bytes(builder.build())


def new_batch(records: Any, codec: int = NONE, base_offset: int = 0, attributes: int = 0) -> bytes:
    """Return a batch of magic 2 as aiokafka writes it."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1_000_000)
    for number, (time_ms, key, value) in enumerate(records):
        builder.append(number, time_ms, key, value, [("header", b"x")])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">h", data, 21, codec | attributes)
    return resealed(data)


def converted_up(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return the records of a converted set, as aiokafka reads them."""
    read = DefaultRecordBatch(bytearray(up_converted(memoryview(data))))
    assert read.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value) for r in read]


def converted_down(
    data: bytes, magic: int, from_offset: int = 0, max_bytes: int = EVERYTHING
) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    """Return the records of converted batches, as kafka-python reads them."""
    converted = down_converted(memoryview(data), magic, from_offset, max_bytes)
    found = []
    records = OthersRecords(converted)
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in one]
    return found


# --- from producers -------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4])
def test_a_message_set_becomes_one_batch_with_the_same_compression(magic: int, codec: int):
    data = lz4_of_kafka_0_9() if (magic, codec) == (0, LZ4) else old_set(magic, codec)
    assert is_old(memoryview(data))
    assert converted_up(data) == [
        (offset, time_ms if magic else -1, key, value)
        for offset, (time_ms, key, value) in enumerate(RECORDS)
    ]
    read = DefaultRecordBatch(bytearray(up_converted(memoryview(data))))
    assert read.compression_type == codec
    assert read.first_timestamp == (1_000 if magic else -1)
    assert read.max_timestamp == (1_100 if magic else -1)


def lz4_of_kafka_0_9() -> bytes:
    """Return a compressed set; Kafka 0.9 includes the magic number of lz4 in its checksum."""
    frame = bytearray(lz4(old_set(0)))
    frame[6] ^= 0xFF
    return old_message(bytes(frame), magic=0, attributes=LZ4)


def test_blocks_of_lz4_are_independent_because_java_reads_no_others():
    data = up_converted(memoryview(old_set(1, LZ4)))
    assert data[61 + 4] & 0x20


@repeatable
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62),
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=200),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([NONE, GZIP, SNAPPY, LZ4]),
)
@example([(0, b"k", None), (2**62, None, b"v"), (0, b"", b"")], NONE)
def test_any_record_is_converted_and_back(records: list[Any], codec: int):
    expected = [(offset, *record) for offset, record in enumerate(records)]
    data = old_set(1, codec, records)
    assert converted_up(data) == expected
    assert converted_down(bytes(up_converted(memoryview(data))), 1) == expected


def test_a_record_may_have_no_time():
    data = (
        old_message(b"a", time_ms=-1) + old_message(b"b", time_ms=7) + old_message(b"c", time_ms=-1)
    )
    assert [time_ms for _, time_ms, _, _ in converted_up(data)] == [-1, 7, -1]


@pytest.mark.parametrize("magic", [0, 1])
def test_offsets_of_a_producer_do_not_matter(magic: int):
    data = b"".join(old_message(b"%d" % n, magic, offset=o) for n, o in enumerate((7, 7, -5)))
    assert [(o, v) for o, _, _, v in converted_up(data)] == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (old_message(b"x")[:-1], Errors.CORRUPT_MESSAGE),
        (old_message(b"x") + b"rest", Errors.CORRUPT_MESSAGE),
        (old_message(b"x")[:-1] + b"y", Errors.CORRUPT_MESSAGE),
        (old_message(b"x") + old_message(b"x", magic=0), Errors.INVALID_RECORD),
        (old_message(b"x", attributes=8), Errors.INVALID_TIMESTAMP),
        (old_message(b"x", time_ms=-2), Errors.INVALID_TIMESTAMP),
        (old_message(b"x", attributes=GZIP), Errors.INVALID_RECORD),
        (old_message(b"", attributes=SNAPPY), Errors.INVALID_RECORD),
        (old_message(zlib.compress(b"", wbits=31), attributes=GZIP), Errors.INVALID_RECORD),
        (old_message(b"x", attributes=ZSTD), Errors.INVALID_RECORD),
        (old_message(b"x", attributes=7), Errors.INVALID_RECORD),
        (old_set(1, GZIP) + old_message(b"x"), Errors.INVALID_RECORD),
        (old_message(b"x") + old_set(1, GZIP), Errors.INVALID_RECORD),
        (
            old_message(zlib.compress(old_set(1, GZIP), wbits=31), attributes=1),
            Errors.INVALID_RECORD,
        ),
        (old_message(zlib.compress(old_set(0), wbits=31), attributes=1), Errors.INVALID_RECORD),
        (
            old_message(zlib.compress(old_set(1)[:-1], wbits=31), attributes=1),
            Errors.CORRUPT_MESSAGE,
        ),
    ],
)
def test_a_set_that_is_not_sound_is_refused(data: bytes, error: Errors):
    with pytest.raises(RecordsRefusedError) as refused:
        up_converted(memoryview(data))
    assert refused.value.error_code is error


def test_a_small_message_does_not_become_gigabytes():
    size = 64 * 1024 * 1024
    bomb = zlib.compress(struct.pack(">qi", 0, size) + bytes(size), 9, wbits=31)
    with pytest.raises(RecordsRefusedError, match="more than"):
        up_converted(memoryview(old_message(bomb, attributes=GZIP)))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_random_changes_cause_no_other_error(magic: int, codec: int):
    dice = random.Random(magic * 10 + codec)
    good = old_set(magic, codec)
    for _ in range(500):
        data = bytearray(good)
        data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.5:  # with a right checksum
            struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
        if is_old(memoryview(data)):
            with suppress(RecordsRefusedError):
                up_converted(memoryview(data))


# --- to consumers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(5))
def test_batches_become_messages_without_compression(magic: int, codec: int):
    data = new_batch(RECORDS, codec, 100) + new_batch(RECORDS[:1], NONE, 200)
    expected = [
        (offset, time_ms if magic else None, key, value)
        for offset, (time_ms, key, value) in [*enumerate(RECORDS, 100), (200, RECORDS[0])]
    ]
    assert converted_down(data, magic) == expected
    assert converted_down(data, magic, 102) == expected[2:]
    assert converted_down(data, magic, 200) == expected[4:]


def test_aiokafka_reads_them_too():
    one = down_converted(memoryview(new_batch(RECORDS[:1])), 1, 0, EVERYTHING)
    read = LegacyRecordBatch(bytearray(one), 1)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read] == [(0, *RECORDS[0])]


def test_the_time_of_the_log_is_kept():
    data = bytearray(new_batch(RECORDS))
    stamped(data, 0, len(data), 7_000)
    assert [time_ms for _, time_ms, _, _ in converted_down(bytes(data), 1)] == [7_000] * 4
    (one,) = OthersRecords(down_converted(memoryview(data), 1, 3, EVERYTHING)).next_batch()
    assert one.timestamp_type == 1


def test_only_what_fits_is_converted_but_at_least_one_record():
    data = new_batch(RECORDS, GZIP)
    sizes = [len(down_converted(memoryview(data), 1, n, 1)) for n in range(4)]
    assert sum(sizes) == len(down_converted(memoryview(data), 1, 0, EVERYTHING))
    for count in range(1, 5):
        limit = sum(sizes[:count])
        assert len(converted_down(data, 1, max_bytes=limit)) == count
        assert len(converted_down(data, 1, max_bytes=limit - 1)) == max(1, count - 1)


def test_transaction_markers_are_omitted():
    marker = new_batch(RECORDS[:1], base_offset=4, attributes=CONTROL_MASK)
    data = new_batch(RECORDS) + marker + new_batch(RECORDS, base_offset=5)
    assert [offset for offset, *_ in converted_down(data, 1)] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_client_that_would_get_nothing_learns_that_it_must_ask_for_more():
    marker = new_batch(RECORDS[:1], base_offset=4, attributes=CONTROL_MASK)
    for data, from_offset in ((marker, 4), (new_batch(RECORDS), 9)):
        converted = down_converted(memoryview(data), 1, from_offset, EVERYTHING)
        assert struct.unpack(">qi", converted) == (-1, 2**31 - 1)
        assert converted_down(data, 1, from_offset) == []
    assert down_converted(memoryview(b""), 1, 0, EVERYTHING) == b""


def test_records_before_the_first_unreadable_one_are_converted():
    good = batch(b"a", b"b")
    assert len(converted_down(good + good[:70], 0)) == 2
    with pytest.raises(RecordsRefusedError, match="and 70 bytes are left"):
        down_converted(memoryview(good[:70]), 0, 0, EVERYTHING)
