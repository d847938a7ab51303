"""Clients of librdkafka, and the topics that they use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.kafka_connection import Address
from regent.testing.waits import eventually

TIMEOUT_S = 120.0


def new_admin(bootstrap: str) -> AdminClient:
    """Return a client that does not log when the cluster ends before it."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@contextmanager
def topic_of(bootstrap: str, partitions: int) -> Iterator[str]:
    """Create a topic, wait until every partition is led, and delete it in the end."""
    admin = new_admin(bootstrap)
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
