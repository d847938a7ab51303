"""Spark reads the log directories of brokers that may be down: once, and as a stream."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import TopicPartition
from tests.jobs.source.batches import GZIP, LogRecord, compressed, encoded
from tests.jobs.source.log_files import set_offsets, write_log, write_segment

pytestmark = pytest.mark.spark

RunStream = Callable[..., tuple[list[int], list[tuple[int, int]]]]
ORDERS = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three partitions of one topic."""
    for partition, count in zip(ORDERS, (100, 60, 0), strict=True):
        write_log(tmp_path / "logs", partition, count)
    return tmp_path / "logs"


def read(spark: SparkSession, logs: Path, **options: object) -> DataFrame:
    reader = spark.read.format("regent").option("logDirs", str(logs))
    options = {"subscribe": "orders", **options}
    return reader.options(**{k: str(v) for k, v in options.items()}).load()


def test_every_column_of_a_record_is_there(session: SparkSession, tmp_path: Path):
    records = [
        LogRecord(5, 1_600_000_000_123, b"k", b"v", (("a", b"1"), ("a", None))),
        LogRecord(7, 1_600_000_000_456),
    ]
    write_segment(tmp_path, ORDERS[1], [compressed(encoded(records), GZIP, gzip.compress)], 5)
    set_offsets(tmp_path, ORDERS[1], high_watermark=8)
    frame = read(session, tmp_path, includeHeaders=True)
    rows = frame.withColumn("timestamp", F.unix_millis("timestamp")).toArrow().to_pylist()
    assert rows == [record.row("orders", 1) for record in records]
    assert read(session, tmp_path).columns == frame.columns[:-1]


def test_conditions_narrow_what_is_read(session: SparkSession, logs: Path):
    (logs / "orders-1" / f"{0:020}.log").write_bytes(b"damaged" * 20)  # any read of it fails
    frame = read(session, logs, minPartitions=6, pushDownFilters=True)
    assert frame.where("partition = 0 and offset >= 95").count() == 5
    assert frame.where("partition != 1 and offset in (3, 98)").count() == 2
    time = "timestamp = '1970-01-01 00:00:00.042'"
    found = frame.where(f"topic like 'ord%' and partition < 1 and {time}").select("offset")
    assert found.collect() == [(42,)]
    assert frame.where("topic = 'another'").count() == 0
    with pytest.raises(PySparkException, match=r"orders-1: .* cannot be read from offset"):
        frame.where("partition = 1").count()


def test_a_frame_can_be_used_several_times(session: SparkSession, logs: Path):
    frame = read(session, logs)
    one, other = frame.where("partition = 0"), frame.where("partition = 1")
    assert one.union(other).count() == 160
    assert (one.count(), other.count(), frame.count()) == (100, 60, 160)


def test_a_read_may_ask_for_fewer_columns(session: SparkSession, logs: Path):
    reader = session.read.format("regent").option("logDirs", str(logs))
    reader = reader.option("subscribe", "orders")
    found = reader.schema("offset long, value binary").load().where("offset = 77")
    assert [tuple(row) for row in found.collect()] == [(77, b"value-77")]
    with pytest.raises(PySparkException, match="a record has no column 'colour'"):
        reader.schema("colour string").load().collect()


def test_offsets_set_the_begin_and_the_end_of_a_read(session: SparkSession, logs: Path):
    def offsets(**options: object) -> dict[int, tuple[int, int]]:
        rows = read(session, logs, **options).groupBy("partition")
        return {r[0]: (r[1], r[2]) for r in rows.agg(F.min("offset"), F.max("offset")).collect()}

    named = '{"orders": {"0": 40, "1": -2, "2": 0}}'
    ends = '{"orders": {"0": -1, "1": 20, "2": 0}}'
    assert offsets(startingOffsets=named, endingOffsets=ends) == {0: (40, 99), 1: (0, 19)}
    with pytest.raises(PySparkException, match="orders-0: offsets 100 to 200 do not exist"):
        offsets(endingOffsets='{"orders": {"0": 200, "1": 20, "2": 0}}')
    with pytest.raises(PySparkException, match="orders-2 has no record at or after 5 ms"):
        offsets(startingOffsetsByTimestamp='{"orders": {"0": 77, "1": 5, "2": 5}}')
    with pytest.raises(PySparkException, match="orders-2 has no record at or after 5 ms"):
        offsets(startingTimestamp=5)
    may_end = {"startingOffsetsByTimestampStrategy": "latest"}
    between = offsets(startingTimestamp=50, endingTimestamp=70, **may_end)
    assert between == {0: (50, 69), 1: (50, 59)}
    until = '{"orders": {"0": 77, "1": 5, "2": 5}}'
    assert offsets(endingOffsetsByTimestamp=until) == {0: (0, 76), 1: (0, 4)}


@pytest.fixture
def stream(session: SparkSession, logs: Path, tmp_path: Path) -> RunStream:
    """Run a query on the present records, from its checkpoint on; return its micro-batches."""
    batches: list[int] = []
    found: list[tuple[int, int]] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows = frame.select("partition", "offset").toArrow()
        batches.append(rows.num_rows)
        found.extend(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def run(**options: object) -> tuple[list[int], list[tuple[int, int]]]:
        batches.clear()
        found.clear()
        reader = session.readStream.format("regent").option("logDirs", str(logs))
        options = {"subscribe": "orders", "startingOffsets": "earliest", **options}
        frame = reader.options(**{k: str(v) for k, v in options.items()}).load()
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120), "it did not end"
        finally:
            query.stop()
        return list(batches), sorted(found)

    return run


def test_a_stream_continues_from_its_checkpoint(stream: RunStream, logs: Path):
    sizes, found = stream(maxOffsetsPerTrigger=100)
    assert len(sizes) == 2
    assert found == [(0, o) for o in range(100)] + [(1, o) for o in range(60)]
    write_log(logs, ORDERS[1], 70)
    write_log(logs, TopicPartition("orders", 3), 15)
    _, found = stream()
    assert found == [(1, o) for o in range(60, 70)] + [(3, o) for o in range(15)]
    assert stream() == ([], [])


def test_a_stream_fails_on_deleted_records(stream: RunStream, logs: Path):
    stream()
    write_log(logs, ORDERS[0], 150)
    (logs / "orders-0" / f"{100:020}.log").unlink()
    with pytest.raises(PySparkException, match="orders-0: offsets 100 to 149 do not exist"):
        stream()
    assert stream(failOnDataLoss=False) == ([0], [])
