"""Records of other encoders become the right columns."""

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest

from regent.core.model import TopicPartition
from regent.jobs.source.columns import (
    OffsetRange,
    Payload,
    arrow_schema,
    decode,
    record_schema,
)
from regent.records.record_batch import HEADER_SIZE, read_header, uncompressed
from tests.jobs.source.batches import COMPRESSIONS, LogRecord, compressed, encoded, with_attributes
from tests.support.record_batches import batch as batch_by_the_book

PARTITION = TopicPartition("journal", 3)
EVERYTHING = OffsetRange(PARTITION, 0, 2**62, "log")
SCHEMA = arrow_schema(record_schema(include_headers=True))
APPEND_TIME = 0x08


def payload(batch: bytes) -> Payload:
    header = read_header(batch)
    return header, uncompressed(header, memoryview(batch))


def columns(*names: str) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in names])


def rows(table: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with times in whole milliseconds."""
    times = table["timestamp"].cast(pa.int64())
    table = table.set_column(5, "timestamp", pa.compute.divide(times, 1000))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def random_records(chance: random.Random) -> list[LogRecord]:
    """Return records of every varint size, with gaps between their offsets."""
    offset, records = chance.randrange(2 ** chance.choice((1, 8, 40))), []
    base_time = chance.randrange(2**41)
    for _ in range(chance.randrange(1, 300)):
        sizes = [chance.randrange(2 ** chance.choice((1, 6, 7, 8, 14))) for _ in range(2)]
        key, value = (chance.randbytes(size) if chance.random() > 0.2 else None for size in sizes)
        headers = tuple(
            (f"h{number}", chance.choice((None, b"", b"x" * 200)))
            for number in range(chance.choice((0, 0, 0, 1, 3)))
        )
        time_ms = base_time + chance.randrange(-(2**33), 2 ** chance.choice((5, 20, 40)))
        records.append(LogRecord(offset, max(time_ms, 0), key, value, headers))
        offset += chance.choice((1, 1, 1, 2, 70))
    return records


@pytest.mark.parametrize("seed", range(20))
def test_records_of_another_encoder_are_decoded(seed: int):
    chance = random.Random(seed)
    several = [random_records(chance) for _ in range(chance.randrange(1, 5))]
    several.sort(key=lambda records: records[0].offset)
    several = [
        records
        for records, following in zip(several, [*several[1:], None], strict=True)
        if following is None or records[-1].offset < following[0].offset
    ]
    found = decode([payload(encoded(records)) for records in several], EVERYTHING, SCHEMA)
    assert rows(found) == [r.row(*PARTITION) for records in several for r in records]


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_records_are_decoded(name: str):
    records = random_records(random.Random(7))
    batch = compressed(encoded(records), *COMPRESSIONS[name])
    assert rows(decode([payload(batch)], EVERYTHING, SCHEMA)) == [
        r.row(*PARTITION) for r in records
    ]


def test_the_append_time_is_the_same_for_the_whole_batch():
    records = [LogRecord(5, 1_000), LogRecord(6, 9_000), LogRecord(7, 3_000)]
    created, appended = encoded(records), with_attributes(encoded(records), APPEND_TIME)
    schema = columns("timestamp", "timestampType")
    found = decode([payload(created), payload(appended)], EVERYTHING, schema)
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [1_000_000, 9_000_000, 3_000_000, *[9_000_000] * 3]
    assert found["timestampType"].to_pylist() == [0, 0, 0, 1, 1, 1]


def test_a_time_that_spark_cannot_hold_is_the_last_one_that_it_can():
    last = (2**63 - 1) // 1000
    records = [LogRecord(n, time_ms) for n, time_ms in enumerate((last, last + 1, 2**63 - 1, 5))]
    for batch in (encoded(records), with_attributes(encoded(records), APPEND_TIME)):
        found = decode([payload(batch)], EVERYTHING, columns("timestamp"))
        times = found["timestamp"].cast(pa.int64()).to_pylist()
        assert times[:3] == [last * 1000] * 3
        assert times[3] in (5_000, last * 1000)


def test_only_the_range_and_the_columns_that_are_asked_for_are_returned():
    records = [LogRecord(offset, 0, value=b"%d" % offset) for offset in (10, 11, 14, 15, 20)]
    found = decode(
        [payload(encoded(records))], OffsetRange(PARTITION, 11, 20, "log"), columns("value")
    )
    assert found.to_pydict() == {"value": [b"11", b"14", b"15"]}


def test_a_batch_that_compaction_emptied_has_no_records():
    empty = batch_by_the_book(base_offset=4)
    full = encoded([LogRecord(9, 0, value=b"x")])
    found = decode([payload(empty), payload(full)], EVERYTHING, columns("offset", "value"))
    assert found.to_pylist() == [{"offset": 9, "value": b"x"}]
    assert decode([payload(empty)], EVERYTHING, SCHEMA).num_rows == 0


def test_garbage_raises_only_the_expected_error():
    for seed in range(100):
        chance = random.Random(seed)
        data = bytearray(encoded(random_records(chance)[:50]))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(HEADER_SIZE, len(data))] = chance.randrange(256)
        try:
            decode([payload(bytes(data))], EVERYTHING, SCHEMA).validate(full=False)
        except ValueError:
            continue
