"""Spark reads the log directories of brokers that may be down."""

import gzip
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from regent.core.model import TopicPartition
from regent.jobs.source import RegentDataSource, write_once
from regent.jobs.source.options import CONNECTOR, OptionError
from tests.jobs.source.batches import GZIP, LogRecord, compressed, encoded
from tests.jobs.source.log_files import set_offsets, write_log, write_segment

pytestmark = pytest.mark.spark

TIMEOUT_S = 60

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


@pytest.mark.nightly
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


def test_a_wrong_option_of_write_once_is_an_error_of_one_line(session: SparkSession):
    with pytest.raises(OptionError, match=r"^topic is missing: write_once writes into one topic$"):
        write_once(session.range(1), 0, {"kafka.bootstrap.servers": "127.0.0.1:9"})


@pytest.mark.nightly
def test_a_stream_is_refused_in_one_line_that_names_the_connector(
    session: SparkSession, logs: Path
):
    source = RegentDataSource({"logDirs": str(logs), "subscribe": "orders"})
    stream = session.readStream.format("regent").options(**source.options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(logs / "x")).start()
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(TIMEOUT_S)
    *_, last = (line for line in str(raised.value).splitlines() if "Error: " in line)
    assert last.endswith(
        "OptionError: regent reads no streams of topics: use the format kafka, " + CONNECTOR
    )
    with pytest.raises(OptionError, match="write_once in foreachBatch; or use the format kafka"):
        source.streamWriter(StructType(), overwrite=False)
    with pytest.raises(PySparkException, match=r"no option 'minpartitions'.*Kafka connector"):
        read(session, logs, minPartitions=6)
