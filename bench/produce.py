"""How fast librdkafka's records are acknowledged, on any cluster.

One producer sends as fast as it can for ``--seconds``, to topics of three replicas, of which two
must be in sync. Every combination of ``--acks``, ``--codec``, ``--batch-bytes``, size of record and
number of partitions is measured; each of these options can be repeated. ``records_per_s`` and
``mb_per_s`` (10^6 bytes of values) are what was acknowledged, or with ``--acks 0`` what was sent
and found in the log. ``cpu_s_per_gb`` is the processor time of all brokers for a GB of values, and
``bench_cpu_s`` that of this process. ``stored_per_byte`` is the size of a replica's log for each
byte of the values, which are random sequences of five hundred words. librdkafka sends a request
for each partition, five at a time to a broker. Producer and brokers share this machine.

To compare with another cluster, say three brokers of Apache Kafka on this machine with default
settings, measure both in turn: ``--bootstrap own --bootstrap HOST:PORT,HOST:PORT,HOST:PORT
--repetitions 5``.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from time import monotonic
from typing import Any, TypeAlias

import click
from confluent_kafka import Producer

from bench.clients import (
    TIMEOUT_S,
    broker_addresses,
    cluster_at,
    count_records,
    new_producer,
    send,
)
from bench.frame import benchmark
from bench.kafka_connection import log_bytes
from bench.processes import Usage
from bench.result import Case
from bench.topics import topic_of

BURST = 500  # records between two readings of the clock
WARM_UP_RECORDS = 2_000
VALUES = 1_000  # different ones, so that a codec finds little to repeat
REPLICAS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_BATCH_BYTES = 1_000_000  # librdkafka's

Figures: TypeAlias = dict[str, Any]


@benchmark(any_cluster=True)
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 1_000, 10_000))
@click.option("--partitions", "counts", type=int, multiple=True, default=(1, 10))
@click.option("--acks", type=click.Choice(["0", "1", "all"]), multiple=True, default=("all",))
@click.option("--codec", "codecs", type=click.Choice(CODECS), multiple=True, default=("none",))
@click.option("--batch-bytes", type=int, multiple=True, default=(DEFAULT_BATCH_BYTES,))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
def produce(bootstrap: str | None, seconds: float, **options: Sequence[Any]) -> Iterator[Case]:
    """Measure every combination."""
    with cluster_at(bootstrap) as address:
        for acks, codec, batch_bytes, partitions, size in product(
            *(options[name] for name in ("acks", "codecs", "batch_bytes", "counts", "sizes"))
        ):
            settings = {"acks": acks, "compression.type": codec, "batch.size": batch_bytes}
            with topic_of(address, partitions) as topic:
                found = measure(address, topic, partitions, size, seconds, settings)
            shape = {"acks": acks, "codec": codec, "batch_bytes": batch_bytes}
            yield Case({**shape, "partitions": partitions, "record_bytes": size}, found)


def texts(size: int) -> list[bytes]:
    """Return different values of a size, which a codec can compress about as well as text."""
    dice = random.Random(size)
    words = [dice.randbytes(4).hex()[: dice.randint(2, 8)] for _ in range(500)]
    return [" ".join(dice.choices(words, k=size // 3 + 1))[:size].encode() for _ in range(VALUES)]


def warm(client: Producer, topic: str, partitions: int, size: int) -> int:
    """Send some records to each partition; return how many, when all are acknowledged."""
    count, values = max(partitions, WARM_UP_RECORDS), cycle(texts(size))
    for number in range(count):
        send(client, topic, next(values), number % partitions)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    os.sync()  # the kernel may still have to write what the last measurement wrote
    return count


def send_for(
    client: Producer, topic: str, partitions: int, size: int, seconds: float
) -> tuple[int, float]:
    """Send as fast as possible for ``seconds``.

    Return how many records, and the seconds until all were acknowledged.
    """
    values, started, sent = cycle(texts(size)), monotonic(), 0
    while monotonic() - started < seconds:
        for number in range(sent, sent + BURST):
            send(client, topic, next(values), number % partitions)
        sent += BURST
        client.poll(0)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    return sent, monotonic() - started


def measure(
    bootstrap: str,
    topic: str,
    partitions: int,
    size: int,
    seconds: float,
    settings: dict[str, Any],
) -> Figures:
    """Send as fast as possible for ``seconds``; then count the acknowledged records in the log."""
    client, addresses = new_producer(bootstrap, **settings), broker_addresses(bootstrap)
    warm_up = warm(client, topic, partitions, size)
    usage = Usage.of_ports([a.port for a in addresses])
    sent, elapsed = send_for(client, topic, partitions, size, seconds)
    used = usage.result()
    written = count_records(bootstrap, topic, partitions)
    lacking = warm_up + sent - written
    lost = f"{lacking} records are not in the log: brokers refused or lost them"
    assert lacking <= 0 or settings["acks"] == "0", lost
    sent = min(sent, written - warm_up)
    stored = sum(asyncio.run(log_bytes(address, topic)) for address in addresses) / REPLICAS
    return {
        "records": sent,
        "records_per_s": round(sent / elapsed),
        "mb_per_s": round(sent * size / elapsed / 1e6, 2),
        "cpu_s_per_gb": round(used["cpu_s"] / sent / size * 1e9, 2),
        "bench_cpu_s": used["bench_cpu_s"],
        "stored_per_byte": round(stored / written / size, 3),
    }
