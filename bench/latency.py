"""How long the acknowledgement of a record takes at a steady rate, on any cluster.

Topics of three replicas, of which two must be in sync. ``--rate`` records a second are sent, evenly
over the partitions. Times are from ``produce`` to the acknowledgement, in milliseconds, and include
librdkafka's ``linger.ms``: ``--linger-ms``. Producer and brokers share this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from time import monotonic
from typing import Any, TypeAlias

import click
from confluent_kafka import KafkaError, Message

from bench.clients import TIMEOUT_S, broker_ports, cluster_at, new_producer, send
from bench.frame import benchmark
from bench.processes import Usage
from bench.result import Case, percentiles
from bench.topics import topic_of

TICK_S = 0.002

Figures: TypeAlias = dict[str, Any]


@benchmark(any_cluster=True)
@click.option("--size", "sizes", type=int, multiple=True, default=(100, 1_000))
@click.option("--partitions", "counts", type=int, multiple=True, default=(1, 10))
@click.option("--acks", type=click.Choice(["1", "all"]), multiple=True, default=("all",))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=200.0, show_default=True)
@click.option("--linger-ms", type=click.IntRange(0), default=5, show_default=True)
def latency(
    bootstrap: str | None, seconds: float, rate: float, linger_ms: int, **options: Sequence[Any]
) -> Iterator[Case]:
    """Measure every combination; sizes, numbers of partitions and acks can be repeated."""
    with cluster_at(bootstrap) as address:
        for acks, partitions, size in product(
            *(options[name] for name in ("acks", "counts", "sizes"))
        ):
            settings = {"acks": acks, "linger.ms": linger_ms}
            with topic_of(address, partitions) as topic:
                found = measure(address, topic, partitions, size, rate, seconds.__gt__, settings)
            yield Case({"acks": acks, "partitions": partitions, "record_bytes": size}, found)


def measure(
    bootstrap: str,
    topic: str,
    partitions: int,
    size: int,
    rate: float,
    goes_on: Callable[[float], bool],
    settings: dict[str, Any],
) -> Figures:
    """Send at a steady rate and note how long every acknowledgement takes.

    It goes on while ``goes_on`` says so of the seconds since the start.
    """
    client, value = new_producer(bootstrap, **settings), os.urandom(size)
    latencies: list[float] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        latency = message.latency()
        assert latency is not None
        latencies.append(latency * 1000)

    for number in range(partitions):
        send(client, topic, value, number)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    usage = Usage.of_ports(broker_ports(bootstrap))
    started, sent = monotonic(), 0
    while goes_on(elapsed := monotonic() - started):
        while sent < elapsed * rate:
            send(client, topic, value, sent % partitions, on_delivery=on_delivery)
            sent += 1
        client.poll(TICK_S)  # ends with an acknowledgement, whose time is taken then
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    return {
        "records": len(latencies),
        **percentiles(latencies, p50_ms=0.5, p99_ms=0.99, p999_ms=0.999),
        "cpu_ms_per_record": round(usage.result()["cpu_s"] / len(latencies) * 1000, 3),
    }
