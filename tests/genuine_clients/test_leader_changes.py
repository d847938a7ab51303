"""The leader dies while it is produced to and read from; librdkafka's turn is in tests/system."""

from __future__ import annotations

import asyncio
import gc
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from regent.core.model import TopicPartition
from regent.testing.waits import scaled
from tests.genuine_clients.conftest import CreateTopic
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = 60.0
BEFORE = [b"before-%d" % number for number in range(100)]
AFTER = [b"after-%d" % number for number in range(100)]


@pytest.mark.nightly
def test_kafka_python_finds_the_next_leader(
    cluster: BreakableCluster, bootstrap: str, new_topic: CreateTopic
):
    topic = new_topic(min_insync_replicas=2)
    place = PythonPartition(topic, 0)
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all")) as producer,
        closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)) as consumer,
    ):
        consumer.assign([place])
        consumer.seek(place, 0)

        def send_and_read(values: list[bytes]) -> list[bytes]:
            sent = [producer.send(topic, value, partition=0) for value in values]
            for future in sent:
                future.get(scaled(TIMEOUT_S))
            found: list[bytes] = []
            while len(found) < len(values):
                batches = consumer.poll(timeout_ms=int(TIMEOUT_S * 1000))
                assert batches, f"only {len(found)} records came"
                found += [record.value for batch in batches.values() for record in batch]
            return found

        assert send_and_read(BEFORE) == BEFORE
        victim = cluster.leader_of(*TopicPartition(topic, 0))
        cluster.kill(victim)
        assert send_and_read(AFTER) == AFTER
    cluster.revive(victim)
    cluster.await_isr(topic, set(BROKERS))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_aiokafka_finds_the_next_leader(
    cluster: BreakableCluster, bootstrap: str, new_topic: CreateTopic
):
    topic = new_topic(min_insync_replicas=2)

    async def story() -> None:
        async with (
            AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer,
            AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer,
        ):
            consumer.assign([AioPartition(topic, 0)])
            consumer.seek(AioPartition(topic, 0), 0)

            async def send_and_read(values: list[bytes]) -> list[bytes]:
                await asyncio.gather(*[await producer.send(topic, v, partition=0) for v in values])
                return [(await consumer.getone()).value for _ in values]

            assert await send_and_read(BEFORE) == BEFORE
            victim = cluster.leader_of(*TopicPartition(topic, 0))
            await asyncio.to_thread(cluster.kill, victim)
            assert await send_and_read(AFTER) == AFTER
        await asyncio.to_thread(cluster.revive, victim)

    asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))
    gc.collect()  # aiokafka forgets to close a socket that was refused: let it be found here
    cluster.await_isr(topic, set(BROKERS))
