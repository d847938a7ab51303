"""The data source compared with plain clients, on a running cluster."""

import time
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import TopicPartition
from regent.jobs.source import write_once
from regent.testing.waits import scaled
from tests.genuine_clients.librdkafka import consumer, produce, producer, read_to_end
from tests.support.breakable_cluster import BreakableCluster

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 3
TIME_MS = int(time.time() * 1000) - 60_000  # old records would be deleted
TIMEOUT_S = scaled(120)
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


def read(session: SparkSession, cluster: BreakableCluster, partition: TopicPartition) -> DataFrame:
    """Return the records in the log of the leader, also those after the last checkpoint."""
    leader = cluster.log_directories(cluster.leader_of(*partition))
    reader = session.read.format("regent").option("logDirs", ",".join(map(str, leader)))
    reader = reader.option("subscribe", partition.topic)
    frame = reader.options(includeHeaders="true", includeUncommitted="true").load()
    return frame.where(f"partition = {partition.partition}")


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


def test_log_directories_have_what_a_consumer_reads(
    session: SparkSession, cluster: BreakableCluster
):
    partitions = cluster.create_safe_topic("kinds", PARTITIONS)
    produce_of_all_kinds(cluster, "kinds")
    expected = [row_of(message) for message in consumed(cluster, "kinds")]
    frames = [read(session, cluster, partition) for partition in partitions]
    assert in_order(reduce(DataFrame.union, frames).toArrow()) == expected


def test_a_consumer_reads_what_was_written_once(session: SparkSession, cluster: BreakableCluster):
    cluster.create_safe_topic("written", PARTITIONS)
    frame = session.range(500).select(
        F.when(F.col("id") % 7 > 0, F.col("id").cast("string")).alias("key"),
        F.concat(F.lit("value-"), F.col("id")).alias("value"),
        F.when(F.col("id") % 2 == 0, F.lit(1)).alias("partition"),
        F.expr("array(struct('number' as key, cast(cast(id as string) as binary) as value))").alias(
            "headers"
        ),
    )
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.transactional.id": "writer",
        "topic": "written",
    }
    for _ in range(2):
        write_once(frame, 0, options)
    messages = consumed(cluster, "written")
    numbers = {m.value(): n for n in range(500) for m in messages if m.value() == b"value-%d" % n}
    assert len(messages) == len(numbers) == 500
    for message in messages:
        number = numbers[message.value()]
        assert message.key() == (b"%d" % number if number % 7 else None)
        assert message.headers() == [("number", b"%d" % number)]
        assert message.partition() == 1 or number % 2
