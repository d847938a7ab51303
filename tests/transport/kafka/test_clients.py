"""Clients of other projects, against a listener and replicas in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from regent.storage.log_manager import LogManager
from regent.testing.waits import scaled
from tests.broker.api.one_broker import OneBroker
from tests.support.memory_logs import MemoryLogs

TOPIC = "orders"
PARTITIONS = 3
WAIT_S = scaled(20.0)
VALUES = [b"value-%d" % number for number in range(500)]
LARGE = [bytes([number]) * 200_000 for number in range(10)]


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OneBroker]:
    """A broker that leads a topic of some partitions."""
    on_disk = LogManager([tmp_path], 1) if request.param == "disk" else None
    if on_disk is not None:
        on_disk.open()
    broker = OneBroker(on_disk or MemoryLogs(), {TOPIC: PARTITIONS})
    broker.start()
    yield broker
    broker.close()
    if on_disk is not None:
        on_disk.close(is_clean=False)


# --- librdkafka ---

ALONE = {"group.id": "required but not used", "enable.auto.commit": False}


def confluent_produce(broker: OneBroker, values: list[bytes], **config: object) -> list[int]:
    """Produce to partition 0 and return the offsets."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, **config})
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    return offsets


def confluent_consume(broker: OneBroker, offset: int, count: int, **config: object) -> list[bytes]:
    """Return the values of partition 0 from an offset on."""
    consumer = Consumer({**ALONE, "bootstrap.servers": broker.address, **config})
    with closing(consumer):
        consumer.assign([ConfluentPartition(TOPIC, 0, offset)])
        values: list[bytes] = []
        while len(values) < count:
            messages = consumer.consume(count - len(values), WAIT_S)
            assert messages, f"{len(values)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value)
    return values


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_it_wrote(broker: OneBroker, compression: str):
    config = {"acks": "all", "compression.type": compression}
    assert sorted(confluent_produce(broker, VALUES, **config)) == list(range(len(VALUES)))
    assert confluent_consume(broker, 0, len(VALUES)) == VALUES
    assert confluent_consume(broker, 123, 10) == VALUES[123:133]


def test_librdkafka_is_idempotent(broker: OneBroker):
    offsets = confluent_produce(broker, VALUES, **{"enable.idempotence": True})
    assert sorted(offsets) == list(range(len(VALUES)))
    assert confluent_consume(broker, 0, len(VALUES)) == VALUES


def test_large_records_come_in_large_answers(broker: OneBroker):
    confluent_produce(broker, LARGE, **{"acks": 1, "message.max.bytes": 1_000_000})
    assert confluent_consume(broker, 0, len(LARGE)) == LARGE
    assert confluent_consume(broker, 0, len(LARGE), **{"fetch.max.bytes": 1_000_000}) == LARGE


def test_a_consumer_that_waits_gets_records_as_they_come(broker: OneBroker):
    read: list[bytes] = []
    consumer = threading.Thread(
        target=lambda: read.extend(
            confluent_consume(broker, 0, len(VALUES), **{"fetch.wait.max.ms": 5_000})
        )
    )
    consumer.start()
    confluent_produce(broker, VALUES)
    consumer.join(WAIT_S)
    assert read == VALUES


def test_offsets_by_place(broker: OneBroker):
    confluent_produce(broker, VALUES[:7])
    config = {**ALONE, "bootstrap.servers": broker.address}
    with closing(Consumer(config)) as consumer:
        partition = ConfluentPartition(TOPIC, 0)
        assert consumer.get_watermark_offsets(partition, WAIT_S) == (0, 7)


# --- kafka-python ---


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_kafka_python_reads_what_it_wrote(broker: OneBroker, is_idempotent: bool):
    config = {"acks": "all", "linger_ms": 5, "enable_idempotence": is_idempotent}
    with closing(KafkaProducer(bootstrap_servers=broker.address, **config)) as producer:
        sent = [producer.send(TOPIC, value, partition=1) for value in VALUES]
        assert [future.get(WAIT_S).offset for future in sent] == list(range(len(VALUES)))

    read: list[bytes] = []
    with closing(KafkaConsumer(bootstrap_servers=broker.address, group_id=None)) as consumer:
        partition = PythonPartition(TOPIC, 1)
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: len(VALUES)}
        consumer.seek_to_beginning(partition)
        for _ in range(100):
            for records in consumer.poll(timeout_ms=200).values():
                read += [record.value for record in records]
            if len(read) >= len(VALUES):
                break
    assert read == VALUES


# --- aiokafka ---


def test_aiokafka_reads_what_it_wrote(broker: OneBroker):
    async def produce_and_consume() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.address, enable_idempotence=True, linger_ms=5
        )
        async with producer:
            sent = [await producer.send(TOPIC, value, partition=2) for value in VALUES]
            offsets = [(await future).offset for future in sent]
            assert offsets == list(range(len(VALUES)))
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.address, auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition(TOPIC, 2)])
        async with consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(produce_and_consume(), WAIT_S)) == VALUES
