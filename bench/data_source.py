"""How fast Spark reads topics from the log directories of brokers, and writes them once.

For each size of record a topic of ``--partitions`` partitions of a cluster that is started for it
is filled, then read in three ways, ``--repeat`` times each, one after the other in the same
session; a figure is their median:

- ``consumer``: a consumer of librdkafka in one process, which reads keys, values and offsets;
- ``log_directories``: ``spark.read.format("regent")``, all columns, into the noop sink;
- ``log_directories_values``: the same, with the columns ``offset`` and ``value`` only.

``write_once`` copies the topic into a new one, in one task. ``mb_per_s`` counts 10^6 bytes of
values. Everything is on this machine, and Spark runs ``--cores`` tasks at a time.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any, TypeAlias

import click
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from bench.clients import TIMEOUT_S, count_records, new_producer, send, topic_of
from bench.clusters import own_cluster
from bench.frame import benchmark
from bench.result import Case
from regent.jobs.session import spark_session
from regent.jobs.source import RegentDataSource, write_once

Figures: TypeAlias = dict[str, Any]


def fill(bootstrap: str, topic: str, partitions: int, size: int, records: int) -> None:
    """Produce ``records`` records, evenly over the partitions."""
    client, value = new_producer(bootstrap), os.urandom(size)
    for number in range(records):
        send(client, topic, value, number % partitions, key=b"key-%d" % number)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Read everything into columns, as a program would."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    found = 0
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while found < records:
            messages = consumer.consume(min(10_000, records - found), 1.0)
            columns = [[m.key(), m.value(), m.offset()] for m in messages if m.error() is None]
            found += len(columns)


def drain(frame: DataFrame) -> None:
    """Read everything into the noop sink."""
    frame.write.format("noop").mode("overwrite").save()


def median_of(action: Callable[[], None], repeat: int) -> float:
    """Return the median duration of ``repeat`` runs, in seconds."""
    seconds = []
    for _ in range(repeat):
        started = monotonic()
        action()
        seconds.append(monotonic() - started)
    return statistics.median(seconds)


def rates(seconds: float, records: int, size: int) -> Figures:
    """Return a time as records and bytes in a second."""
    return {
        "seconds": round(seconds, 2),
        "records_per_s": round(records / seconds),
        "mb_per_s": round(records * size / seconds / 1e6, 1),
    }


class Bench:
    """One cluster and one session."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, log_dirs: str, partitions: int, repeat: int
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._log_dirs = log_dirs
        self._partitions = partitions
        self._repeat = repeat

    def measure(self, size: int, records: int) -> Figures:
        """Fill a topic with records of one size, read it in every way, and copy it."""
        with topic_of(self._bootstrap, self._partitions) as topic:
            fill(self._bootstrap, topic, self._partitions, size, records)
            return {
                "records": records,
                **self._measure_reads(topic, size, records),
                "write_once": rates(self._copy(topic, records), records, size),
            }

    def _measure_reads(self, topic: str, size: int, records: int) -> Figures:
        ways: dict[str, Callable[[], None]] = {
            "consumer": lambda: consume(self._bootstrap, topic, self._partitions, records),
            "log_directories": lambda: drain(self._load(topic)),
            "log_directories_values": lambda: drain(self._load(topic, "offset long, value binary")),
        }
        assert self._load(topic).count() == records
        return {
            name: rates(median_of(action, self._repeat), records, size)
            for name, action in ways.items()
        }

    def _load(self, topic: str, schema: str | None = None) -> DataFrame:
        reader = self._spark.read.format("regent").option("subscribe", topic)
        reader = reader.option("includeUncommitted", "true")  # checkpoints are some seconds old
        reader = reader.option("logDirs", self._log_dirs)
        return (reader.schema(schema) if schema else reader).load()

    def _copy(self, topic: str, records: int) -> float:
        with topic_of(self._bootstrap, self._partitions) as sink:
            frame = self._load(topic).select("key", "value", "partition")
            servers = {"kafka.bootstrap.servers": self._bootstrap, "topic": sink}
            options = {**servers, "kafka.transactional.id": f"copy-{sink}"}
            seconds = median_of(lambda: write_once(frame, 0, options), 1)
            assert count_records(self._bootstrap, sink, self._partitions) >= records
        return seconds


@benchmark("data-source")
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 1_000))
@click.option("--megabytes", type=click.IntRange(1), default=100, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True)
@click.option("--cores", type=click.IntRange(1), default=2, show_default=True)
def main(
    sizes: tuple[int, ...],
    megabytes: int,
    partitions: int,
    repeat: int,
    cores: int,
) -> Iterator[Case]:
    """Measure every size of record, given once or several times."""
    with (
        own_cluster() as cluster,
        spark_session(f"local[{cores}]", app_name="bench") as spark,
    ):
        spark.dataSource.register(RegentDataSource)
        folders = ",".join(map(str, cluster.data_dir.glob("broker-*/log")))
        bench = Bench(spark, cluster.bootstrap_servers, folders, partitions, repeat)
        for size in sizes:
            found = bench.measure(size, megabytes * 1_000_000 // size)
            yield Case({"record_bytes": size, "partitions": partitions, "cores": cores}, found)
