"""confluent-kafka's admin client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from regent.testing.waits import eventually
from tests.genuine_clients.conftest import CreateTopic
from tests.genuine_clients.librdkafka import TIMEOUT_S, code_of, produce, producer, values_from

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


def code_of_refusal(asked: Callable[[], Mapping[str, Future[Any]]]) -> int:
    """Return the code that the only answer fails with."""
    (answer,) = asked().values()
    error = answer.exception(TIMEOUT_S)
    assert isinstance(error, KafkaException)
    return code_of(error)


def test_the_cluster_is_described(admin: AdminClient):
    metadata = admin.list_topics(timeout=TIMEOUT_S)
    assert len(metadata.brokers) >= 3
    assert metadata.controller_id in metadata.brokers
    described = admin.describe_cluster().result(TIMEOUT_S)
    assert described.cluster_id
    assert [described.cluster_id] == [metadata.cluster_id]
    assert {node.id for node in described.nodes} == set(metadata.brokers)


def test_a_topic_is_created_described_and_deleted(admin: AdminClient, new_topic: CreateTopic):
    topic = new_topic(partitions=4, replicas=3)
    described = eventually(lambda: partitions_of(admin, topic), "the topic is known")
    assert sorted(described) == [0, 1, 2, 3]
    for partition in described.values():
        assert len(set(partition.replicas)) == 3
        assert set(partition.isrs) == set(partition.replicas)
        assert partition.leader in partition.replicas
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, "it is gone")


def partitions_of(client: AdminClient | Producer, topic: str):
    """Return the partitions that the broker asked knows."""
    found = client.list_topics(timeout=TIMEOUT_S).topics.get(topic)
    return None if found is None else found.partitions


def test_a_topic_is_created_on_the_given_brokers(admin: AdminClient):
    brokers = sorted(admin.list_topics(timeout=TIMEOUT_S).brokers)
    name = f"placed-{uuid.uuid4().hex[:12]}"
    replicas = [[brokers[2], brokers[0]], [brokers[1], brokers[2]]]
    wanted = NewTopic(name, num_partitions=2, replica_assignment=replicas)
    admin.create_topics([wanted])[name].result(TIMEOUT_S)
    found = eventually(lambda: partitions_of(admin, name), "the topic is known")
    assert [found[number].replicas for number in (0, 1)] == replicas
    admin.delete_topics([name])[name].result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("no spaces", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("too-much", 1, 100), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("too-odd", 1, 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (
            NewTopic("too-little", 1, 1, config={"retention.ms": "soon"}),
            KafkaError.INVALID_CONFIG,
        ),
    ],
)
def test_an_impossible_topic_is_refused(admin: AdminClient, wanted: NewTopic, code: int):
    assert code_of_refusal(lambda: admin.create_topics([wanted])) == code


def test_a_topic_exists_once(admin: AdminClient, new_topic: CreateTopic):
    topic = new_topic()
    again = [NewTopic(topic, 1, 1)]
    assert code_of_refusal(lambda: admin.create_topics(again)) == KafkaError.TOPIC_ALREADY_EXISTS


def test_only_a_check_creates_nothing(admin: AdminClient):
    name = f"only-checked-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_does_not_exist_cannot_be_deleted(admin: AdminClient):
    asked = [f"absent-{uuid.uuid4().hex[:12]}"]
    refused = code_of_refusal(lambda: admin.delete_topics(asked))
    assert refused == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_of_the_same_name_begins_afresh(
    bootstrap: str, admin: AdminClient, new_topic: CreateTopic
):
    topic = new_topic()
    produce(producer(bootstrap), topic, [b"old"])
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    eventually(lambda: is_created(admin, topic), "it can be created again")
    produce(producer(bootstrap), topic, [b"new"])
    assert values_from(bootstrap, topic, 0) == [b"new"]


def is_created(admin: AdminClient, topic: str) -> bool:
    """Create a topic unless it still exists."""
    error = admin.create_topics([NewTopic(topic, 1, 3)])[topic].exception(TIMEOUT_S)
    if error is None:
        return True
    assert isinstance(error, KafkaException)
    assert code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS
    return False


def test_a_topic_grows_and_never_shrinks(
    bootstrap: str, admin: AdminClient, new_topic: CreateTopic
):
    topic = new_topic(partitions=2)
    produce(producer(bootstrap), topic, [b"here"], partition=1)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    client = producer(bootstrap)
    eventually(lambda: len(partitions_of(client, topic) or ()) == 5, "five partitions are known")
    produce(client, topic, [b"there"], partition=4)
    assert values_from(bootstrap, topic, 0, 1) == [b"here"]
    assert values_from(bootstrap, topic, 0, 4) == [b"there"]
    fewer = [NewPartitions(topic, 3)]
    refused = code_of_refusal(lambda: admin.create_partitions(fewer))
    assert refused == KafkaError.INVALID_PARTITIONS


def test_configurations_are_described(admin: AdminClient, new_topic: CreateTopic):
    topic = new_topic(retention_ms=123_456, min_insync_replicas=2)
    asked = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([asked])[asked].result(TIMEOUT_S)
    assert entries["retention.ms"].value == "123456"
    assert not entries["retention.ms"].is_default
    assert entries["cleanup.policy"].value == "delete"
    assert entries["cleanup.policy"].is_default
    broker = str(min(admin.list_topics(timeout=TIMEOUT_S).brokers))
    asked = ConfigResource(ResourceType.BROKER, broker)
    entries = admin.describe_configs([asked])[asked].result(TIMEOUT_S)
    assert entries["broker.id"].value == broker


def test_offsets_are_listed(bootstrap: str, admin: AdminClient, new_topic: CreateTopic):
    topic = new_topic()
    client = producer(bootstrap)
    for number in range(5):
        produce(client, topic, [b"x"], timestamp=1_000 + number)
    asked = TopicPartition(topic, 0)
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    for spec, offset in ((earliest, 0), (latest, 5), (OffsetSpec.for_timestamp(1_003), 3)):
        assert admin.list_offsets({asked: spec})[asked].result(TIMEOUT_S).offset == offset


def test_records_are_deleted_up_to_an_offset(
    bootstrap: str, admin: AdminClient, new_topic: CreateTopic
):
    topic = new_topic()
    produce(producer(bootstrap), topic, [b"%d" % number for number in range(10)])
    up_to = TopicPartition(topic, 0, 6)
    answer = eventually(
        lambda: admin.delete_records([up_to])[up_to].result(TIMEOUT_S), "they are deleted"
    )
    assert answer.low_watermark == 6
    assert values_from(bootstrap, topic, 6) == [b"6", b"7", b"8", b"9"]
    with pytest.raises(KafkaException):
        values_from(bootstrap, topic, 5)
