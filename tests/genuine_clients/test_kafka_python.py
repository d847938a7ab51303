"""kafka-python: no line of it is librdkafka's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
)

from regent.testing.waits import eventually, scaled
from tests.genuine_clients.conftest import CreateTopic

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = scaled(20.0)
TIMEOUT_MS = 20_000
VALUES = [b"value-%d" % number for number in range(100)]


def produce(bootstrap: str, topic: str, values: list[bytes], **config: object) -> list[int]:
    """Produce to partition 0 and return the offsets."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **config)) as client:
        sent = [client.send(topic, value, partition=0) for value in values]
        client.flush(TIMEOUT_S)
        return [future.get(TIMEOUT_S).offset for future in sent]


def consumer(bootstrap: str, **config: object) -> KafkaConsumer:
    """Return a consumer that belongs to no group."""
    return KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, **config)


def read(client: KafkaConsumer, count: int) -> list[bytes]:
    """Return the values of the next records, and close the consumer."""
    found: list[bytes] = []
    with closing(client):
        for _ in range(100):
            for records in client.poll(timeout_ms=1_000).values():
                found += [record.value for record in records]
            if len(found) >= count:
                break
    return found


def values_from(bootstrap: str, topic: str, offset: int, count: int) -> list[bytes]:
    """Return the values from an offset on."""
    client = consumer(bootstrap)
    client.assign([TopicPartition(topic, 0)])
    client.seek(TopicPartition(topic, 0), offset)
    return read(client, count)


@pytest.mark.parametrize("acks", ["all", 1])
@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_acknowledged_records_can_be_read(
    bootstrap: str, new_topic: CreateTopic, acks: str | int, compression: str | None
):
    has = {"snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}
    if compression in has and not has[compression]():
        pytest.skip(f"kafka-python has no {compression} here")
    topic = new_topic()
    config = {"acks": acks, "compression_type": compression, "enable_idempotence": False}
    assert produce(bootstrap, topic, VALUES, **config) == list(range(len(VALUES)))
    assert values_from(bootstrap, topic, 0, len(VALUES)) == VALUES
    assert values_from(bootstrap, topic, 42, len(VALUES) - 42) == VALUES[42:]


def test_an_idempotent_producer_produces(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    produce(bootstrap, topic, VALUES, enable_idempotence=True)
    produce(bootstrap, topic, VALUES, enable_idempotence=True)
    assert values_from(bootstrap, topic, 0, 2 * len(VALUES)) == VALUES * 2


def test_records_without_acknowledgements_arrive(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    produce(bootstrap, topic, [b"first"], acks="all")  # by now it is surely led
    produce(bootstrap, topic, VALUES, acks=0, enable_idempotence=False)
    assert values_from(bootstrap, topic, 1, len(VALUES)) == VALUES


def test_positions_are_found_by_place_and_by_time(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as client:
        for number in range(5):
            record = client.send(topic, b"%d" % number, partition=0, timestamp_ms=1_000 + number)
            record.get(TIMEOUT_S)
    place = TopicPartition(topic, 0)
    client = consumer(bootstrap)
    assert client.beginning_offsets([place]) == {place: 0}
    assert client.end_offsets([place]) == {place: 5}
    assert client.offsets_for_times({place: 1_003})[place].offset == 3
    client.assign([place])
    client.seek_to_beginning(place)
    assert client.position(place) == 0
    client.seek_to_end(place)
    assert client.position(place) == 5
    client.seek(place, 3)
    assert read(client, 2) == [b"3", b"4"]


def test_a_position_beyond_the_end_is_reset(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    produce(bootstrap, topic, VALUES)
    place = TopicPartition(topic, 0)
    strict = consumer(bootstrap, auto_offset_reset="none")
    strict.assign([place])
    strict.seek(place, 1_000)
    with pytest.raises(OffsetOutOfRangeError):
        read(strict, 1)
    lenient = consumer(bootstrap, auto_offset_reset="earliest")
    lenient.assign([place])
    lenient.seek(place, 1_000)
    assert read(lenient, len(VALUES)) == VALUES


def test_a_refusal_has_its_name(bootstrap: str, new_topic: CreateTopic):
    small = new_topic(max_message_bytes=1_000)
    with pytest.raises(MessageSizeTooLargeError):
        produce(bootstrap, small, [b"x" * 2_000])


@pytest.fixture
def python_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def test_topics_are_administered(bootstrap: str, python_admin: KafkaAdminClient):
    name = f"python-{uuid.uuid4().hex[:12]}"
    wanted = NewTopic(name, 2, 3, topic_configs={"retention.ms": "9999"})
    python_admin.create_topics([wanted])
    with pytest.raises(TopicAlreadyExistsError):
        python_admin.create_topics([wanted])
    eventually(lambda: name in python_admin.list_topics(), "it is listed")
    python_admin.create_partitions({name: NewPartitions(3)})
    eventually(lambda: len(partitions_of(python_admin, name)) == 3, "it has three partitions")
    assert "retention.ms" in str(
        python_admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    )
    produce(bootstrap, name, VALUES)
    python_admin.delete_records({TopicPartition(name, 0): 10})
    assert values_from(bootstrap, name, 10, 90) == VALUES[10:]
    python_admin.delete_topics([name])
    eventually(lambda: name not in python_admin.list_topics(), "it is gone")


def partitions_of(admin: KafkaAdminClient, topic: str) -> list[object]:
    (described,) = admin.describe_topics([topic])
    found: list[object] = described["partitions"]
    return found


def test_a_topic_that_does_not_exist_cannot_be_deleted(python_admin: KafkaAdminClient):
    with pytest.raises(KafkaError):
        python_admin.delete_topics([f"absent-{uuid.uuid4().hex[:12]}"])
