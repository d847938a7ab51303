"""Groups of consumers of four clients, also while their coordinator dies."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer

from regent.core.coordinator.partition_for import partition_for
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.testing.waits import eventually
from tests.genuine_clients.conftest import CreateTopic
from tests.genuine_clients.java_clients import JavaClients
from tests.genuine_clients.librdkafka import consumer, produce, producer
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = 60.0
PARTITIONS = 4
BEFORE = [b"before-%d" % number for number in range(50)]
AFTER = [b"after-%d" % number for number in range(50)]


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    client = producer(bootstrap)
    for partition in range(PARTITIONS):
        produce(client, topic, values, partition)


@pytest.fixture
def group_id() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


class Members:
    """Two members of a group, which commit what they have read."""

    def __init__(self, bootstrap: str, group_id: str, topic: str) -> None:
        config = {"group_id": group_id, "auto_offset_reset": "earliest", "session_timeout_ms": 6000}
        self.members: list[Consumer] = [consumer(bootstrap, **config) for _ in range(2)]
        self.read: Counter[tuple[int | None, int | None]] = Counter()
        for member in self.members:
            member.subscribe([topic])

    def read_until(self, count: int) -> None:
        """Read until so many different records have come."""

        def has_come() -> bool:
            for member in self.members:
                messages = [m for m in member.consume(500, 0.1) if m.error() is None]
                self.read.update((m.partition(), m.offset()) for m in messages)
            return len(self.read) >= count

        eventually(has_come, f"{count} records come", TIMEOUT_S)

    def commit(self) -> None:
        """Commit until the coordinator has it."""

        def is_committed() -> bool:
            try:
                for member in self.members:
                    if member.assignment():
                        member.commit(asynchronous=False)
            except Exception as error:  # noqa: BLE001 - there is no coordinator, or no position
                return "_NO_OFFSET" in str(error)
            return True

        eventually(is_committed, "the positions are committed", TIMEOUT_S)

    def close(self) -> None:
        """Leave the group."""
        for member in self.members:
            member.close()


def test_a_group_continues_after_the_death_of_its_coordinator(
    cluster: BreakableCluster, bootstrap: str, new_topic: CreateTopic, group_id: str
):
    topic = new_topic(PARTITIONS, min_insync_replicas=2)
    send(bootstrap, topic, BEFORE)
    members = Members(bootstrap, group_id, topic)
    members.read_until(PARTITIONS * len(BEFORE))
    members.commit()

    victim = cluster.leader_of(GROUP_METADATA_TOPIC, partition_for(group_id, 50))
    cluster.kill(victim)
    send(bootstrap, topic, AFTER)
    total = len(BEFORE) + len(AFTER)
    members.read_until(PARTITIONS * total)
    members.commit()
    members.close()
    cluster.revive(victim)
    cluster.await_isr(topic, set(BROKERS))

    assert members.read.keys() == {(p, o) for p in range(PARTITIONS) for o in range(total)}
    with closing(consumer(bootstrap, group_id=group_id)) as another:
        wanted = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        positions = another.committed(wanted, TIMEOUT_S)
    assert [position.offset for position in positions] == [total] * PARTITIONS


def test_a_static_member_of_java_gets_its_partitions_back(
    java: JavaClients, bootstrap: str, new_topic: CreateTopic, group_id: str
):
    topic = new_topic(PARTITIONS)
    send(bootstrap, topic, BEFORE)

    def member(values: list[bytes]) -> tuple[Any, Counter[bytes]]:
        """Return a member that has read so many values of each partition, and what it has read."""
        config = {"group_id": group_id, "group_instance_id": "i", "auto_offset_reset": "earliest"}
        client = java.consumer(bootstrap, **config)
        client.subscribe([topic])
        seen: Counter[bytes] = Counter()

        def has_read() -> bool:
            seen.update(record.value().encode() for record in java.poll(client, 100))
            return seen.total() >= PARTITIONS * len(values)

        eventually(has_read, "all values come", TIMEOUT_S)
        return client, seen

    first, seen = member(BEFORE)
    first.commitSync()
    generation = first.groupMetadata().generationId()
    java.close(first)
    send(bootstrap, topic, AFTER)
    second, seen = member(AFTER)
    assert second.groupMetadata().generationId() == generation
    assert seen == Counter(AFTER * PARTITIONS)
    java.close(second)


def test_kafka_python_continues_where_its_group_was(
    bootstrap: str, new_topic: CreateTopic, group_id: str
):
    topic = new_topic(PARTITIONS)

    def read(values: list[bytes]) -> Counter[bytes]:
        send(bootstrap, topic, values)
        found: Counter[bytes] = Counter()
        client = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with closing(client):

            def has_come() -> bool:
                for records in client.poll(timeout_ms=200).values():
                    found.update(record.value for record in records)
                return found.total() >= PARTITIONS * len(values)

            eventually(has_come, "all values come", TIMEOUT_S)
            client.commit()
        return found

    for values in (BEFORE, AFTER):
        assert read(values) == Counter(values * PARTITIONS)


def test_aiokafka_continues_where_its_group_was(
    bootstrap: str, new_topic: CreateTopic, group_id: str
):
    topic = new_topic(PARTITIONS)

    async def read(values: list[bytes]) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as client:
            for _ in range(PARTITIONS * len(values)):
                message = await asyncio.wait_for(client.getone(), TIMEOUT_S)
                found[message.value] += 1
            await client.commit()
        return found

    for values in (BEFORE, AFTER):
        send(bootstrap, topic, values)
        assert asyncio.run(read(values)) == Counter(values * PARTITIONS)
