"""How fast librdkafka's records are acknowledged.

Topics of three replicas of which two must be in sync, ``acks=all``, for each size of record and
number of partitions. ``records_per_s`` and ``mb_per_s`` (10^6 bytes of values) are what was
acknowledged while one producer sent as fast as it could. ``p50_ms`` and ``p99_ms`` are from
``produce`` to the acknowledgement at ``--rate`` records a second, and include librdkafka's
``linger.ms`` of 5. librdkafka sends a request for each partition, five at a time to a broker.
Producer and brokers share this machine.

To compare with another cluster, say three brokers of Apache Kafka on this machine with default
settings, measure both in turn: ``--bootstrap own --bootstrap HOST:PORT,HOST:PORT,HOST:PORT
--repetitions 5``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any, TypeAlias

import click
from confluent_kafka import KafkaError, Message

from bench.clients import TIMEOUT_S, count_records, new_producer, send, topic_of
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.result import Case

BURST = 500  # records between two readings of the clock
WARM_UP_RECORDS = 2_000
TICK_S = 0.002

Figures: TypeAlias = dict[str, Any]


def measure_throughput(
    bootstrap: str, topic: str, partitions: int, size: int, seconds: float
) -> Figures:
    """Send as fast as possible for ``seconds``; then count the acknowledged records in the log."""
    client, value = new_producer(bootstrap), os.urandom(size)
    warm_up = max(partitions, WARM_UP_RECORDS)
    for number in range(warm_up):
        send(client, topic, value, number % partitions)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    started, sent = monotonic(), 0
    while monotonic() - started < seconds:
        for number in range(sent, sent + BURST):
            send(client, topic, value, number % partitions)
        sent += BURST
        client.poll(0)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    elapsed = monotonic() - started
    written = count_records(bootstrap, topic, partitions)
    assert written >= warm_up + sent, f"{warm_up + sent} were sent and {written} are there"
    return {
        "records": sent,
        "records_per_s": round(sent / elapsed),
        "mb_per_s": round(sent * size / elapsed / 1e6, 2),
    }


def measure_latency(
    bootstrap: str, topic: str, partitions: int, size: int, rate: float, seconds: float
) -> Figures:
    """Send at a steady rate and note how long every acknowledgement takes."""
    client, value = new_producer(bootstrap), os.urandom(size)
    latencies: list[float] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        latency = message.latency()
        assert latency is not None
        latencies.append(latency * 1000)

    for number in range(partitions):
        send(client, topic, value, number)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    started, sent = monotonic(), 0
    while (elapsed := monotonic() - started) < seconds:
        while sent < elapsed * rate:
            send(client, topic, value, sent % partitions, on_delivery=on_delivery)
            sent += 1
        client.poll(0)
        sleep(TICK_S)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    latencies.sort()
    return {
        "latency_records": len(latencies),
        "p50_ms": round(latencies[len(latencies) // 2], 2),
        "p99_ms": round(latencies[len(latencies) * 99 // 100], 2),
    }


@benchmark("produce", any_cluster=True)
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 1_000, 10_000))
@click.option("--partitions", "counts", type=int, multiple=True, default=(1, 10, 1_000))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=200.0, show_default=True)
def main(
    bootstrap: str | None,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    seconds: float,
    rate: float,
) -> Iterator[Case]:
    """Measure every combination; sizes and numbers of partitions can be given several times."""
    with cluster_at(bootstrap) as address:
        for partitions in counts:
            for size in sizes:
                with topic_of(address, partitions) as topic:
                    found = measure_throughput(address, topic, partitions, size, seconds)
                    found |= measure_latency(address, topic, partitions, size, rate, seconds / 2)
                yield Case({"partitions": partitions, "record_bytes": size}, found)
