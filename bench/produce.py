"""``python -m bench.produce``: how fast librdkafka's records are acknowledged; prints JSON.

Topics of three replicas of which two must be in sync, ``acks=all``, for each size of record and
number of partitions. ``records_per_s`` and ``mb_per_s`` (10^6 bytes of values) are what was
acknowledged while one producer sent as fast as it could. ``p50_ms`` and ``p99_ms`` are from
``produce`` to the acknowledgement at ``--rate`` records a second, and include librdkafka's
``linger.ms`` of 5. librdkafka sends a request for each partition, five at a time to a broker.
Producer and brokers share this machine.

Without ``--bootstrap`` a cluster of three brokers is started for it. To compare, run the same
against another cluster, say three brokers of Apache Kafka on this machine with default settings,
one after the other and several times: ``--bootstrap HOST:PORT,HOST:PORT,HOST:PORT``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias

import click
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition, libversion
from confluent_kafka.admin import AdminClient, NewTopic

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually

TIMEOUT_S = 120.0
BURST = 500  # records between two readings of the clock
WARM_UP_RECORDS = 2_000
TICK_S = 0.002

Result: TypeAlias = dict[str, Any]


@contextmanager
def topic_of(bootstrap: str, partitions: int) -> Iterator[str]:
    """Create a topic, wait until every partition is led, and delete it in the end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    wanted = NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([wanted], request_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)

    def is_led() -> bool:
        topic = admin.list_topics(name, timeout=TIMEOUT_S).topics[name]
        led = [p for p in topic.partitions.values() if p.leader >= 0 and len(p.isrs) == 3]
        return len(led) == partitions

    eventually(is_led, "all is led", TIMEOUT_S)
    try:
        yield name
    finally:
        admin.delete_topics([name], request_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)


def new_producer(bootstrap: str) -> Producer:
    """Return a producer: while the brokers are busy, records wait in it and requests grow."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "max.in.flight.requests.per.connection": 5,
            "message.timeout.ms": int(TIMEOUT_S * 1000),
        }
    )


def count_records(bootstrap: str, topic: str, partitions: int) -> int:
    """Return how many records a topic has: the sum of its high watermarks."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})) as consumer:
        marks = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)
            for number in range(partitions)
        ]
    return sum(high for _, high in marks)


def send(client: Producer, topic: str, value: bytes, partition: int, **more: Any) -> None:
    """Send one record; wait while the producer's queue is full."""
    while True:
        try:
            client.produce(topic, value, partition=partition, **more)
        except BufferError:
            client.poll(0.01)
        else:
            return


def measure_throughput(
    bootstrap: str, topic: str, partitions: int, size: int, seconds: float
) -> Result:
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
) -> Result:
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


@contextmanager
def cluster_at(bootstrap: str | None) -> Iterator[str]:
    """Yield the bootstrap servers; without any, start a cluster for the block."""
    if bootstrap is not None:
        yield bootstrap
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        RegentCluster(Path(folder), "--no-placement-service") as cluster,
    ):
        yield cluster.bootstrap_servers


@click.command()
@click.option("--bootstrap", help="HOST:PORT,… of a running cluster of three brokers or more.")
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
) -> None:
    """Measure every combination; sizes and numbers of partitions can be given several times."""
    results: list[Result] = []
    with cluster_at(bootstrap) as address:
        for partitions in counts:
            for size in sizes:
                with topic_of(address, partitions) as topic:
                    case = {"partitions": partitions, "record_bytes": size}
                    case |= measure_throughput(address, topic, partitions, size, seconds)
                    case |= measure_latency(address, topic, partitions, size, rate, seconds / 2)
                results.append(case)
                sys.stderr.write(f"{case}\n")
    environment = {"librdkafka": libversion()[0], "load_average": os.getloadavg()[0]}
    sys.stdout.write(json.dumps({**environment, "rate": rate, "cases": results}) + "\n")


if __name__ == "__main__":
    main()
