"""How fast librdkafka's consumer reads what is in a topic, on any cluster.

``--megabytes`` (10^6 bytes of values) are produced first; they are in the page cache when they are
read. One consumer, without a group, reads all partitions from the beginning. ``cpu_s_per_gb`` is
the processor time of all brokers for a GB of values, ``bench_cpu_s`` that of this process.
Consumer and brokers share this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from time import monotonic
from typing import Any

import click
from confluent_kafka import Consumer, TopicPartition

from bench.clients import TIMEOUT_S, broker_ports, new_producer, send, topic_of
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.processes import Usage
from bench.result import Case

AT_ONCE = 10_000
POLL_S = 1.0


@benchmark("consume", any_cluster=True)
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 1_000, 10_000))
@click.option("--partitions", "counts", type=int, multiple=True, default=(1, 10))
@click.option("--megabytes", type=click.IntRange(1), default=200, show_default=True)
@click.option("--times", type=click.IntRange(1), default=3, show_default=True)
def main(
    bootstrap: str | None, megabytes: int, times: int, **options: Sequence[int]
) -> Iterator[Case]:
    """Fill a topic for every combination, and read it some times."""
    with cluster_at(bootstrap) as address:
        for partitions, size in product(options["counts"], options["sizes"]):
            records = megabytes * 1_000_000 // size
            with topic_of(address, partitions) as topic:
                fill(address, topic, partitions, size, records)
                for _ in range(times):
                    found = measure(address, topic, partitions, size, records)
                    yield Case({"partitions": partitions, "record_bytes": size}, found)


def fill(bootstrap: str, topic: str, partitions: int, size: int, records: int) -> None:
    """Produce records, evenly over the partitions."""
    client, value = new_producer(bootstrap), os.urandom(size)
    for number in range(records):
        send(client, topic, value, number % partitions)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"


def measure(bootstrap: str, topic: str, partitions: int, size: int, records: int) -> dict[str, Any]:
    """Read all records once."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        usage, began, found = Usage.of_ports(broker_ports(bootstrap)), monotonic(), 0
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while found < records:
            messages = consumer.consume(min(AT_ONCE, records - found), POLL_S)
            found += sum(message.error() is None for message in messages)
            assert monotonic() - began < TIMEOUT_S, f"{found} of {records} records came"
        elapsed, used = monotonic() - began, usage.result()
    return {
        "records_per_s": round(records / elapsed),
        "mb_per_s": round(records * size / elapsed / 1e6, 2),
        "cpu_s_per_gb": round(used["cpu_s"] / records / size * 1e9, 2),
        "bench_cpu_s": used["bench_cpu_s"],
    }
