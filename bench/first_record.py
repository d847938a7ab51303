"""The first record of a new topic, on any cluster that has nothing else to do.

Replication factor 3, ``acks=all``. ``first_*_ms`` is from the answer to CreateTopics until the
record is acknowledged, ``second_*_ms`` the same for the next record of the topic. The producer is
librdkafka, which knows the brokers already and repeats a refused request after 10 ms. Before each
topic all brokers are left alone for one second and up to one half more.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from time import monotonic, sleep

import click
from confluent_kafka import Producer

from bench.clients import TIMEOUT_S, cluster_at, new_producer, send
from bench.frame import benchmark
from bench.result import Case, percentiles
from bench.topics import topic_of

PARTITIONS = 30  # of the topic that connects all brokers before the first measurement


@benchmark(any_cluster=True)
@click.option("--topics", type=click.IntRange(2), default=20, show_default=True)
def first_record(bootstrap: str | None, topics: int) -> Iterator[Case]:
    """Create topics one after the other, and send two records to each."""
    pauses = Random(1)
    with cluster_at(bootstrap) as servers:
        client = new_producer(
            servers, **{"linger.ms": 0, "retry.backoff.ms": 10, "retry.backoff.max.ms": 20}
        )
        first: list[float] = []
        second: list[float] = []
        with topic_of(servers, PARTITIONS) as topic:
            for number in range(PARTITIONS):
                _acknowledged_ms(client, topic, number)
            for _ in range(topics):
                sleep(1 + pauses.random() / 2)
                with topic_of(servers, 1) as topic:
                    first.append(_acknowledged_ms(client, topic))
                    second.append(_acknowledged_ms(client, topic))
    yield Case(
        {"topics": topics},
        {
            **percentiles(first, first_p50_ms=0.5, first_max_ms=1),
            **percentiles(second, second_p50_ms=0.5, second_max_ms=1),
        },
    )


def _acknowledged_ms(client: Producer, topic: str, partition: int = 0) -> float:
    began = monotonic()
    send(client, topic, b"a record", partition)
    assert client.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
    return (monotonic() - began) * 1000
