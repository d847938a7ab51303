"""Quotas, set through the Kafka port, and a client of librdkafka that uses more."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from regent.testing.waits import eventually, scaled
from tests.genuine_clients.conftest import CreateTopic
from tests.support.fuzzed_requests import ask, request

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

ALTER_CLIENT_QUOTAS = 49
RATE = 10_000.0  # bytes a second
SIZE = 150_000  # 5 s more than the window of 10 s allows
TIMEOUT_S = scaled(20.0)


def alter(bootstrap: str, client_id: str, key: str, value: float | None) -> None:
    """Set a quota of a client id; None: remove it."""
    entry = AlterClientQuotasRequest.EntryData
    change = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key=key, value=value or 0.0, remove=value is None)],
    )
    body = AlterClientQuotasRequest(entries=[change], validate_only=False).encode(version=0)
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    answer = ask((host, int(port)), request(ALTER_CLIENT_QUOTAS, 0, bytes(body)))
    (entry_told,) = AlterClientQuotasResponse.decode(answer, version=0).entries
    assert entry_told.error_code == 0, entry_told.error_message


@pytest.fixture
def client_id() -> str:
    return f"client-{uuid.uuid4().hex}"


def throttled(config: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """Return the settings of a client, and the waits that brokers tell it."""
    waits: list[float] = []

    def note(event: Any) -> None:
        if event.throttle_time:
            waits.append(event.throttle_time)

    return {**config, "throttle_cb": note}, waits


def until_told(waits: list[float], use: Callable[[], object]) -> None:
    """Use the quota until a broker, which may not know it yet, tells the client to wait."""

    def is_told() -> bool:
        use()
        return bool(waits)

    eventually(is_told, "a broker tells the client to wait", TIMEOUT_S)


def test_a_producer_above_its_quota_gets_a_throttle_time(
    bootstrap: str, new_topic: CreateTopic, client_id: str
) -> None:
    topic = new_topic()
    alter(bootstrap, client_id, "producer_byte_rate", RATE)
    config, waits = throttled({"bootstrap.servers": bootstrap, "client.id": client_id})
    producer = Producer(config)

    def produce() -> None:
        producer.produce(topic, bytes(SIZE), partition=0)
        producer.poll(0.2)

    try:
        until_told(waits, produce)
    finally:
        alter(bootstrap, client_id, "producer_byte_rate", None)
        producer.purge()
        producer.flush(TIMEOUT_S)


def test_a_consumer_that_uses_more_gets_all_records_later(
    bootstrap: str, new_topic: CreateTopic, client_id: str
) -> None:
    topic, count = new_topic(), 3
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, bytes(SIZE), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    alter(bootstrap, client_id, "consumer_byte_rate", RATE)
    config, waits = throttled(
        {"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": client_id}
    )
    consumer = Consumer(config)
    try:

        def consume_from_start() -> None:
            consumer.assign([TopicPartition(topic, 0, 0)])
            consumer.poll(1.0)

        until_told(waits, consume_from_start)
        alter(bootstrap, client_id, "consumer_byte_rate", None)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, timeout=3 * TIMEOUT_S)
        assert [message.offset() for message in found] == list(range(count))
    finally:
        alter(bootstrap, client_id, "consumer_byte_rate", None)
        consumer.close()
