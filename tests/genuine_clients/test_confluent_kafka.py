"""confluent-kafka, that is librdkafka: records in and out."""

from __future__ import annotations

import random
import uuid
from contextlib import closing

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from regent.testing.waits import eventually
from tests.genuine_clients.conftest import CreateTopic
from tests.genuine_clients.librdkafka import (
    TIMEOUT_S,
    code_of,
    consumer,
    produce,
    producer,
    read_to_end,
    values_from,
)

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

VALUES = [b"value-%d" % number for number in range(100)]


def test_acknowledged_records_can_be_read(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    delivered = produce(producer(bootstrap, acks="all"), topic, VALUES)
    assert [message.offset() for message in delivered] == list(range(len(VALUES)))
    assert values_from(bootstrap, topic, 0) == VALUES


@pytest.mark.parametrize("acks", ["0", "1"])
def test_a_producer_may_require_fewer_acknowledgements(
    bootstrap: str, new_topic: CreateTopic, acks: str
):
    topic = new_topic()
    produce(producer(bootstrap, acks="all"), topic, [b"first"])  # by now it is surely led
    produce(producer(bootstrap, acks=acks), topic, VALUES)
    whole = [b"first", *VALUES]
    eventually(lambda: values_from(bootstrap, topic, 0) == whole, "all are committed")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_come_back_as_they_went(
    bootstrap: str, new_topic: CreateTopic, compression: str
):
    topic = new_topic()
    values = [b"the same again and again " * 40 + value for value in VALUES]
    client = producer(bootstrap, compression_type=compression, linger_ms=50)
    produce(client, topic, values)
    assert values_from(bootstrap, topic, 0) == values
    assert values_from(bootstrap, topic, 37) == values[37:]  # from within a batch


@pytest.mark.parametrize("compression", ["none", pytest.param("zstd", marks=pytest.mark.nightly)])
def test_a_batch_of_fifty_megabytes_reaches_all_replicas_and_the_consumer(
    bootstrap: str, new_topic: CreateTopic, compression: str
):
    """Followers and consumers ask for 1 MB: the first batch is sent whole all the same."""
    limit = 104_857_600
    topic = new_topic(max_message_bytes=limit, segment_bytes=limit, min_insync_replicas=3)
    value = random.Random(0).randbytes(51_200_000)
    client = producer(
        bootstrap, acks="all", message_max_bytes=100_000_000, compression_type=compression
    )
    produce(client, topic, [b"before", value, b"after"])
    reader = consumer(bootstrap, fetch_message_max_bytes=1_000_000)
    read = read_to_end(reader, TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert [message.value() for message in read] == [b"before", value, b"after"]


@pytest.mark.parametrize("version", ["0.9.0.1", "0.10.0.1"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4"])
def test_a_client_of_an_old_version_writes_and_reads(
    bootstrap: str, new_topic: CreateTopic, version: str, compression: str
):
    topic = new_topic()
    old: dict[str, object] = {"api_version_request": False, "broker_version_fallback": version}
    values = [b"the same again and again " * 40 + value for value in VALUES]
    client = producer(bootstrap, compression_type=compression, linger_ms=50, **old)
    produce(client, topic, values)
    produce(producer(bootstrap, compression_type="zstd", linger_ms=50), topic, values)
    assert values_from(bootstrap, topic, 0) == values * 2
    with closing(consumer(bootstrap, **old)) as reader:
        read = read_to_end(reader, TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert [message.value() for message in read] == values * 2


def test_an_idempotent_producer_produces(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic(partitions=3, min_insync_replicas=2)
    client = producer(bootstrap, enable_idempotence=True)
    for partition in range(3):
        for _ in range(3):
            produce(client, topic, VALUES, partition)
    for partition in range(3):
        assert values_from(bootstrap, topic, 0, partition) == VALUES * 3


def test_keys_headers_times_and_nothing_at_all_survive(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"\x00\xff"),
        ("empty", b""),
        ("none", None),
    ]
    client = producer(bootstrap)
    client.produce(topic, None, key=b"key", headers=headers, timestamp=1_234_567_890_123)
    client.produce(topic, b"", key=None)
    assert client.flush(TIMEOUT_S) == 0
    first, second = read_to_end(consumer(bootstrap), TopicPartition(topic, 0, 0))
    assert (first.key(), first.value(), first.headers()) == (b"key", None, headers)
    assert first.timestamp()[1] == 1_234_567_890_123
    assert (second.key(), second.value(), second.headers()) == (None, b"", None)


def test_a_topic_may_stamp_the_time_of_arrival(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    produce(producer(bootstrap), topic, [b"new"], timestamp=1_000)
    (message,) = read_to_end(consumer(bootstrap), TopicPartition(topic, 0, 0))
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert timestamp > 1_500_000_000_000


def test_positions_are_found_by_place_and_by_time(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    client = producer(bootstrap)
    for number in range(10):
        produce(client, topic, [b"%d" % number], timestamp=1_000 + number * 100)

    assert len(values_from(bootstrap, topic, OFFSET_BEGINNING)) == 10
    assert values_from(bootstrap, topic, 7) == [b"7", b"8", b"9"]
    assert values_from(bootstrap, topic, OFFSET_END) == []

    reader = consumer(bootstrap)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (0, 10)
    asked = {0: 0, 1_250: 3, 1_900: 9, 1_901: -1}
    found = {
        time: reader.offsets_for_times([TopicPartition(topic, 0, time)], TIMEOUT_S)[0].offset
        for time in asked
    }
    reader.close()
    assert found == asked


def test_a_position_beyond_the_end_is_reset(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    produce(producer(bootstrap), topic, VALUES)
    beyond = TopicPartition(topic, 0, 1_000)
    with pytest.raises(KafkaException) as refused:
        read_to_end(consumer(bootstrap), beyond)
    assert code_of(refused.value) == KafkaError._AUTO_OFFSET_RESET
    from_start = read_to_end(consumer(bootstrap, auto_offset_reset="earliest"), beyond)
    assert [message.value() for message in from_start] == VALUES


def test_many_partitions_are_read_at_once(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic(partitions=60)
    client = producer(bootstrap)
    for partition in range(60):
        client.produce(topic, b"%d" % partition, partition=partition)
    assert client.flush(TIMEOUT_S) == 0
    positions = [TopicPartition(topic, partition, 0) for partition in range(60)]
    messages = read_to_end(consumer(bootstrap), *positions)
    assert {message.partition(): message.value() for message in messages} == {
        partition: b"%d" % partition for partition in range(60)
    }


def test_a_record_larger_than_the_fetch_is_read(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic()
    values = [b"a" * 600_000, b"b" * 900_000, b"c"]
    produce(producer(bootstrap), topic, values)
    small = consumer(
        bootstrap,
        message_max_bytes=50_000,
        fetch_max_bytes=100_000,
        max_partition_fetch_bytes=1_000,
    )
    messages = read_to_end(small, TopicPartition(topic, 0, 0))
    assert [message.value() for message in messages] == values


def test_too_large_a_record_is_refused(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic(max_message_bytes=1_000)
    client = producer(bootstrap)
    with pytest.raises(KafkaException) as refused:
        produce(client, topic, [b"x" * 2_000])
    assert code_of(refused.value) == KafkaError.MSG_SIZE_TOO_LARGE
    produce(client, topic, [b"fits"])
    assert values_from(bootstrap, topic, 0) == [b"fits"]


def test_no_more_replicas_are_awaited_than_a_topic_has(bootstrap: str, new_topic: CreateTopic):
    topic = new_topic(replicas=1, min_insync_replicas=2)
    produce(producer(bootstrap, acks="all"), topic, [b"safe"])
    assert values_from(bootstrap, topic, 0) == [b"safe"]


def test_a_topic_comes_into_being_when_it_is_produced_to(bootstrap: str):
    topic = f"unheard-of-{uuid.uuid4().hex[:12]}"
    produce(producer(bootstrap), topic, VALUES)
    assert values_from(bootstrap, topic, 0) == VALUES


def test_an_unknown_topic_is_reported_as_unknown(bootstrap: str):
    topic = f"unknown-{uuid.uuid4().hex[:12]}"
    with closing(consumer(bootstrap)) as curious:
        for _ in range(2):  # asking does not create it
            error = curious.list_topics(topic, TIMEOUT_S).topics[topic].error
            assert error is not None
            assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
