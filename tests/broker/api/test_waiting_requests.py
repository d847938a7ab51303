"""Requests that wait for replicas: answered by other threads, by a timeout or by a disconnect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest as ConsumerFetchRequest
from kafka.protocol.producer import ProduceRequest

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import FetchPartition, FetchRequest, FetchTopic
from regent.core.protocol.client import ConsumerPosition
from tests.broker.api.one_broker import BROKER, OneBroker
from tests.broker.api.test_fetch import fetch
from tests.broker.api.test_produce import produce
from tests.support.led_partitions import now_ms
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch
from tests.transport.kafka.raw_client import RawClient, request_bytes
from tests.transport.kafka.wire import read

ORDERS_0 = TopicPartition("led", 0)
FOLLOWER = 2
LONG_MS = 60_000
PRODUCE_VERSION, FETCH_VERSION = 7, 11


@pytest.fixture
def broker() -> Iterator[OneBroker]:
    """A leader; the test is its follower."""
    broker = OneBroker(MemoryLogs(), {ORDERS_0.topic: 1}, isr=(BROKER, FOLLOWER))
    broker.start()
    yield broker
    broker.close()


def send(client: RawClient, request: ApiMessage, version: int) -> None:
    body = request.encode(version=version)
    client.send(request_bytes(body, api_key=request.API_KEY, version=version))


def send_produce(client: RawClient, timeout_ms: int = LONG_MS) -> None:
    send(client, produce({ORDERS_0: batch(b"a")}, timeout_ms=timeout_ms), PRODUCE_VERSION)


def produced(client: RawClient) -> Any:
    answer = read(ProduceRequest, PRODUCE_VERSION, client.answer()[1])
    return answer.responses[0].partition_responses[0]


def send_fetch(client: RawClient, offset: int) -> None:
    position = ConsumerPosition(offset, 1_000_000)
    send(client, fetch({ORDERS_0: position}, max_wait_ms=LONG_MS, max_bytes=10**6), FETCH_VERSION)


def fetched(client: RawClient) -> Any:
    answer = read(ConsumerFetchRequest, FETCH_VERSION, client.answer()[1])
    return answer.responses[0].partitions[0]


def replicate(broker: OneBroker, offset: int) -> None:
    """Let the follower fetch, on this thread, from ``offset``."""
    row = FetchPartition(ORDERS_0.partition, 0, offset, 0, 0)
    request = FetchRequest(FOLLOWER, -1, 0, (FetchTopic(ORDERS_0.topic, None, (row,)),))
    broker.replica_manager.fetch(request, now_ms(), lambda response: None)


def wait_until_held(broker: OneBroker, count: int) -> None:
    """Wait until ``count`` requests are waiting."""
    with RawClient(broker.listener) as other:
        while sum(broker.replica_manager.delayed_counts.values()) != count:
            other.send(request_bytes(api_key=18, version=0))
            other.answer()


def test_a_producer_is_answered_when_the_follower_has_the_records(broker: OneBroker):
    with RawClient(broker.listener) as producer, RawClient(broker.listener) as consumer:
        send_fetch(consumer, 0)
        send_produce(producer)
        wait_until_held(broker, 2)
        replicate(broker, 1)
        assert produced(producer).error_code == 0
        assert sum(broker.replica_manager.delayed_counts.values()) == 0
        partition = fetched(consumer)
        assert partition.high_watermark == 1
        assert len(partition.records) == len(batch(b"a"))


def test_a_producer_is_answered_at_its_timeout(broker: OneBroker):
    with RawClient(broker.listener) as producer:
        send_produce(producer, timeout_ms=10)
        assert produced(producer).error_code == Errors.REQUEST_TIMED_OUT


def test_requests_of_a_closed_connection_are_removed(broker: OneBroker):
    with RawClient(broker.listener) as producer, RawClient(broker.listener) as consumer:
        send_fetch(consumer, 0)
        send_produce(producer)
        wait_until_held(broker, 2)
    wait_until_held(broker, 0)


def test_a_waiting_consumer_is_answered_when_the_leader_changes(broker: OneBroker):
    with RawClient(broker.listener) as consumer:
        send_fetch(consumer, 0)
        wait_until_held(broker, 1)
        broker.lead(leader_epoch=1, leader=FOLLOWER)
        assert fetched(consumer).error_code == Errors.NOT_LEADER_OR_FOLLOWER


def test_requests_after_a_waiting_one_are_answered_after_it(broker: OneBroker):
    with RawClient(broker.listener) as client:
        send_produce(client)
        client.send(request_bytes(correlation_id=7, api_key=18, version=0))
        wait_until_held(broker, 1)
        replicate(broker, 1)
        assert produced(client).error_code == 0
        assert client.answer()[0] == 7
