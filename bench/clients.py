"""The cluster that a benchmark measures, and clients of it, of librdkafka."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.kafka_connection import Address
from regent.testing.regent_cluster import RegentCluster

TIMEOUT_S = 120.0


def new_admin(bootstrap: str, **settings: Any) -> AdminClient:
    """Return a client that does not log when the cluster ends before it."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})


def new_producer(bootstrap: str, **settings: Any) -> Producer:
    """Return a producer: while the brokers are busy, records wait in it and requests grow."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "max.in.flight.requests.per.connection": 5,
            "message.timeout.ms": int(TIMEOUT_S * 1000),
            "log_level": 0,
            **settings,
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


def broker_addresses(bootstrap: str) -> list[Address]:
    """Return where each broker of a cluster listens."""
    metadata = new_admin(bootstrap).list_topics(timeout=TIMEOUT_S)
    return [Address.of(f"{b.host}:{b.port}") for b in metadata.brokers.values()]


def broker_ports(bootstrap: str) -> list[int]:
    """Return the port of each broker of a cluster."""
    return [address.port for address in broker_addresses(bootstrap)]


@contextmanager
def own_cluster(*options: str) -> Iterator[RegentCluster]:
    """Start a cluster of three brokers in a temporary folder, for the block."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RegentCluster(
            Path(folder), "--no-placement-service", "--no-internal-topics", *options
        ) as cluster,
    ):
        yield cluster


@contextmanager
def cluster_at(bootstrap: str | None, *options: str) -> Iterator[str]:
    """Yield the bootstrap servers; without any, start a cluster with ``options`` for the block."""
    if bootstrap is not None:
        yield bootstrap
        return
    with own_cluster(*options) as cluster:
        yield cluster.bootstrap_servers
