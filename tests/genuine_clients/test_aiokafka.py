"""aiokafka: a client that lives on an event loop, with a record format of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.codec import has_lz4, has_snappy, has_zstd
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from tests.genuine_clients.conftest import CreateTopic

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = 20.0
VALUES = [b"value-%d" % number for number in range(100)]


def run(story: Awaitable[None]) -> None:
    """Run one test to its end, or give it up."""

    async def limited() -> None:
        await asyncio.wait_for(story, TIMEOUT_S)

    asyncio.run(limited())


async def produce(bootstrap: str, topic: str, values: list[bytes], **config: object) -> list[int]:
    """Produce to partition 0 and return the offsets."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **config) as client:
        sent = [await client.send(topic, value, partition=0) for value in values]
        return [(await answer).offset for answer in sent]


async def values_from(
    bootstrap: str, place: TopicPartition, offset: int, count: int, **config: object
) -> list[bytes]:
    """Return so many values from an offset on."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **config) as client:
        client.assign([place])
        client.seek(place, offset)
        return [(await client.getone()).value for _ in range(count)]


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_acknowledged_records_can_be_read(
    bootstrap: str, new_topic: CreateTopic, compression: str | None
):
    has = {"snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}
    if compression in has and not has[compression]():
        pytest.skip(f"aiokafka has no {compression} here")
    topic = new_topic()

    async def story() -> None:
        config = {"acks": "all", "compression_type": compression}
        assert await produce(bootstrap, topic, VALUES, **config) == list(range(len(VALUES)))
        found = await values_from(bootstrap, TopicPartition(topic, 0), 42, len(VALUES) - 42)
        assert found == VALUES[42:]

    run(story())


@pytest.mark.parametrize(
    "config", [{"acks": 1}, {"enable_idempotence": True}], ids=["leader", "idempotent"]
)
def test_other_ways_to_produce(bootstrap: str, new_topic: CreateTopic, config: dict[str, object]):
    topic = new_topic()

    async def story() -> None:
        await produce(bootstrap, topic, VALUES, **config)
        found = await values_from(bootstrap, TopicPartition(topic, 0), 0, len(VALUES))
        assert found == VALUES

    run(story())


def test_positions_are_found_by_place_and_by_time(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    place = TopicPartition(topic, 0)

    async def story() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as client:
            for number in range(5):
                time = 1_000 + number
                await client.send_and_wait(topic, b"%d" % number, partition=0, timestamp_ms=time)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as reader:
            assert await reader.beginning_offsets([place]) == {place: 0}
            assert await reader.end_offsets([place]) == {place: 5}
            found = await reader.offsets_for_times({place: 1_003})
            assert found[place].offset == 3

    run(story())


def test_a_position_beyond_the_end_is_reset(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    place = TopicPartition(topic, 0)

    async def story() -> None:
        await produce(bootstrap, topic, VALUES, acks="all")
        with pytest.raises(OffsetOutOfRangeError):
            await values_from(bootstrap, place, 1_000, 1, auto_offset_reset="none")
        found = await values_from(bootstrap, place, 1_000, 100, auto_offset_reset="earliest")
        assert found == VALUES

    run(story())


def test_a_refusal_has_its_name(bootstrap: str, new_topic: CreateTopic):
    small = new_topic(max_message_bytes=1_000)

    async def story() -> None:
        with pytest.raises(MessageSizeTooLargeError):
            await produce(bootstrap, small, [b"x" * 2_000])

    run(story())


def test_topics_are_administered(bootstrap: str):
    name = f"aio-{uuid.uuid4().hex[:12]}"

    async def becomes(look: Callable[[], Awaitable[bool]]) -> None:
        while not await look():
            await asyncio.sleep(0.02)  # nobody tells; the test's own timeout ends it

    async def story() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()

        async def is_listed() -> bool:
            return name in await client.list_topics()

        async def is_gone() -> bool:
            return not await is_listed()

        async def has_grown() -> bool:
            (described,) = await client.describe_topics([name])
            return len(described["partitions"]) == 3

        await client.create_topics([NewTopic(name, 2, 3)])
        await becomes(is_listed)
        await client.create_partitions({name: NewPartitions(3)})
        await becomes(has_grown)
        await client.delete_topics([name])
        await becomes(is_gone)
        await client.close()

    run(story())
