"""The data source compared with plain consumers, on a cluster that loses leaders."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.jobs.source.columns import arrow_schema, record_schema
from regent.jobs.source.log_directories import LogDirectories
from regent.jobs.source.offset_range import OffsetRange
from regent.testing.waits import eventually
from tests.clients.librdkafka import consumer, produce, producer, read_to_end
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 3
TIME_MS = int(time.time() * 1000) - 60_000  # old records would be deleted
TIMEOUT_S = 120
TYPES = {1: 0, 2: 1}  # librdkafka's numbers of timestamp types, and Spark's


def consumed(cluster: BreakableCluster, topic: str) -> list[Message]:
    """Return the messages of a plain consumer, by partition and offset."""
    starts = [KafkaPosition(topic, number, 0) for number in range(PARTITIONS)]
    found = read_to_end(consumer(cluster.bootstrap_servers), *starts)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def row_of(message: Message) -> dict[str, Any]:
    kind, time_ms = message.timestamp()
    headers = message.headers()
    assert not isinstance(headers, dict)
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": time_ms,
        "timestampType": TYPES[kind],
        "headers": [{"key": key, "value": value} for key, value in headers or ()] or None,
    }


def read(session: SparkSession, cluster: BreakableCluster, topic: str) -> DataFrame:
    reader = session.read.format("regent").option(
        "kafka.bootstrap.servers", cluster.bootstrap_servers
    )
    return reader.option("subscribe", topic).option("includeHeaders", "true").load()


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows sorted by partition and offset, times in milliseconds."""
    millis = pa.compute.divide(table["timestamp"].cast(pa.int64()), 1000)
    table = table.set_column(table.column_names.index("timestamp"), "timestamp", millis)
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def produce_of_all_kinds(cluster: BreakableCluster, topic: str) -> None:
    """Write records with and without keys, values and headers, in every compression."""
    for number, kind in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        client = producer(cluster.bootstrap_servers, compression_type=kind, batch_size=16_384)
        values = [b"%s %d " % (kind.encode(), n) * (1 + n % 50) for n in range(300)]
        for partition in range(PARTITIONS):
            produce(client, topic, values, partition, key=kind, timestamp=TIME_MS + number)
        headers = [("trace", b"\0\1"), ("trace", None), ("", b"")]
        produce(client, topic, [b"with headers"], number % PARTITIONS, headers=headers)
        client.produce(topic, None, b"a tombstone", partition=number % PARTITIONS)
        assert client.flush(TIMEOUT_S) == 0


def test_batch_reads_equal_those_of_a_plain_consumer(
    session: SparkSession, cluster: BreakableCluster
):
    partitions = cluster.create_safe_topic("kinds", PARTITIONS)
    produce_of_all_kinds(cluster, "kinds")
    expected = [row_of(message) for message in consumed(cluster, "kinds")]
    assert in_order(read(session, cluster, "kinds").toArrow()) == expected
    since = f"timestamp >= timestamp_millis({TIME_MS + 4})"
    frame = read(session, cluster, "kinds").where(f"partition = 1 and {since}")
    young = [r for r in expected if r["partition"] == 1 and r["timestamp"] >= TIME_MS + 4]
    assert in_order(frame.toArrow()) == young
    leader = cluster.log_directories(cluster.leader_of(*partitions[1]))
    offline = LogDirectories(leader, include_uncommitted=True, fail_on_data_loss=True)
    schema = arrow_schema(record_schema(include_headers=True))
    whole = OffsetRange(partitions[1], 0, offline.latest([partitions[1]])[partitions[1]])
    on_disk = in_order(pa.Table.from_batches(offline.read(whole, schema)))
    assert on_disk == [row for row in expected if row["partition"] == 1]


def test_a_stream_has_each_record_once_over_restarts_and_leader_changes(
    session: SparkSession, cluster: BreakableCluster, tmp_path: Path
):
    partitions = cluster.create_safe_topic("stream", PARTITIONS)
    client = producer(cluster.bootstrap_servers, enable_idempotence=True)
    batches: dict[int, list[tuple[int, int, bytes]]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        table = frame.select("partition", "offset", "value").toArrow()
        rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert batches.setdefault(number, rows) == rows, "a batch that is run again is the same"

    def count() -> int:
        return sum(map(len, list(batches.values())))

    def start(**trigger: Any) -> Any:
        reader = session.readStream.format("regent").option("subscribe", "stream")
        reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        frame = reader.option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(keep).trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path)).start()

    def send(name: bytes) -> None:
        for partition in range(PARTITIONS):
            produce(client, "stream", [b"%s-%d" % (name, n) for n in range(200)], partition)

    send(b"before")
    assert start(availableNow=True).awaitTermination(TIMEOUT_S)
    assert count() == 600
    query = start(processingTime="100 milliseconds")
    try:
        send(b"running")
        eventually(lambda: count() == 1200, "the stream follows", TIMEOUT_S)
        victim = cluster.leader_of(*partitions[0])
        cluster.kill(victim)
        send(b"without-a-broker")
        eventually(lambda: count() == 1800, "the stream finds the next leader", TIMEOUT_S)
        assert query.exception() is None
    finally:
        query.stop()
    send(b"while-stopped")
    assert start(availableNow=True).awaitTermination(TIMEOUT_S)
    cluster.revive(victim)
    expected = [(m.partition(), m.offset(), m.value()) for m in consumed(cluster, "stream")]
    assert sorted(row for rows in batches.values() for row in rows) == expected
    assert len(expected) == 2400
    cluster.await_isr("stream", set(BROKERS))


def test_written_records_are_read(session: SparkSession, cluster: BreakableCluster):
    cluster.create_safe_topic("written", PARTITIONS)
    frame = session.range(500).select(
        F.when(F.col("id") % 7 > 0, F.col("id").cast("string")).alias("key"),
        F.concat(F.lit("value-"), F.col("id")).alias("value"),
        F.when(F.col("id") % 2 == 0, F.lit(1)).alias("partition"),
        F.expr("array(struct('number' as key, cast(cast(id as string) as binary) as value))").alias(
            "headers"
        ),
    )
    writer = frame.write.format("regent").option(
        "kafka.bootstrap.servers", cluster.bootstrap_servers
    )
    writer.option("topic", "written").mode("append").save()
    messages = consumed(cluster, "written")
    numbers = {m.value(): n for n in range(500) for m in messages if m.value() == b"value-%d" % n}
    assert len(messages) == len(numbers) == 500
    for message in messages:
        number = numbers[message.value()]
        assert message.key() == (b"%d" % number if number % 7 else None)
        assert message.headers() == [("number", b"%d" % number)]
        assert message.partition() == 1 or number % 2


def test_the_rows_of_a_task_that_runs_twice_are_written_once(
    session: SparkSession, cluster: BreakableCluster, tmp_path: Path
):
    count = 30_000

    def value(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if number == count - 1000 and context.attemptNumber() == 0:
            raise OSError("the executor is gone")  # after ten thousand rows
        return f"value-{number}"

    cluster.create_safe_topic("retried", PARTITIONS)
    values = F.udf(value, "string", useArrow=False)
    frame = session.range(0, count, 1, 2).select(values("id").alias("value"))
    writer = frame.write.format("regent").option(
        "kafka.bootstrap.servers", cluster.bootstrap_servers
    )
    writer = writer.option("topic", "retried").option("stagingLocation", str(tmp_path / "staging"))
    writer.option("kafka.batch.size", "16384").mode("append").save()  # its segments are small
    written = sorted(message.value() or b"" for message in consumed(cluster, "retried"))
    assert written == sorted(b"value-%d" % number for number in range(count))
    assert not list((tmp_path / "staging" / "incoming").iterdir())


def test_a_stream_into_a_topic_writes_each_record_once(
    session: SparkSession, cluster: BreakableCluster, tmp_path: Path
):
    cluster.create_safe_topic("source", PARTITIONS)
    cluster.create_safe_topic("sink", PARTITIONS)
    client = producer(cluster.bootstrap_servers)

    def copy() -> None:
        reader = session.readStream.format("regent").option("subscribe", "source")
        reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        frame = reader.option("startingOffsets", "earliest").load()
        writer = frame.select("key", "value", "partition").writeStream.format("regent")
        writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap_servers).option(
            "topic", "sink"
        )
        writer = writer.option("stagingLocation", str(tmp_path / "staging"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    for name in (b"first", b"second"):
        for partition in range(PARTITIONS):
            produce(client, "source", [b"%s-%d" % (name, n) for n in range(100)], partition)
        copy()
        commits = tmp_path / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for path in (commits / f"{last}", commits / f".{last}.crc"):
            path.unlink()  # as if Spark had ended between the sink's commit and its own
        copy()
    wanted = [(m.partition(), m.value()) for m in consumed(cluster, "source")]
    assert [(m.partition(), m.value()) for m in consumed(cluster, "sink")] == wanted
    metadata = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    left = sorted(path.relative_to(tmp_path) for path in (tmp_path / "staging").rglob("*"))
    assert [path.name for path in left if path.suffix] == ["batch-1.done"]
    assert sorted(p.name for p in left if not p.suffix) == sorted(["incoming", metadata["id"]])
