from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest

from regent.api.fetch import fetch_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.records import MemoryRecords
from tests.api.canned_replicas import CannedReplicas
from tests.transport.kafka.wire import ask

VERSIONS = range(4, 12)
ORDERS_0, TEA_0 = TopicPartition("orders", 0), TopicPartition("té", 0)
RECORDS = MemoryRecords(b"whole batches")


def fetch(
    positions: dict[TopicPartition, ConsumerPosition], max_wait_ms: int = 0, **more: Any
) -> FetchRequest:
    by_topic: dict[str, list[Any]] = {}
    topic_type = FetchRequest.FetchTopic
    for topic_partition, position in positions.items():
        by_topic.setdefault(topic_partition.topic, []).append(
            topic_type.FetchPartition(
                partition=topic_partition.partition,
                current_leader_epoch=position.current_leader_epoch,
                fetch_offset=position.fetch_offset,
                partition_max_bytes=position.max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        topics=[topic_type(topic=t, partitions=rows) for t, rows in by_topic.items()],
        **{"min_bytes": 1, "max_bytes": 1000, "session_id": 0, "session_epoch": -1} | more,
    )


def outcomes(answer: Any) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(topic.topic, partition.partition_index): partition
        for topic in answer.responses
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_every_version_returns_records(version: int, isolation_level: int):
    replicas = CannedReplicas()
    replicas.consumed = {
        ORDERS_0: ConsumedPartition(Errors.NONE, 12, 3, RECORDS),
        TEA_0: ConsumedPartition(Errors.NOT_LEADER_OR_FOLLOWER),
    }
    epoch = 5 if version >= 9 else -1
    positions = {ORDERS_0: ConsumerPosition(7, 100, epoch), TEA_0: ConsumerPosition(8, 200, epoch)}

    answer = ask(fetch_apis(replicas), fetch(positions, isolation_level=isolation_level), version)

    assert replicas.fetch == ConsumerFetch(positions, min_bytes=1, max_bytes=1000)
    assert (answer.error_code, answer.session_id) == (0, 0)
    read, refused = outcomes(answer)[ORDERS_0], outcomes(answer)[TEA_0]
    assert (read.error_code, read.high_watermark, read.last_stable_offset) == (0, 12, 12)
    assert read.log_start_offset == (3 if version >= 5 else -1)
    assert bytes(read.records) == b"whole batches"
    assert read.preferred_read_replica == -1
    assert read.aborted_transactions == ([] if isolation_level else None)
    assert refused.error_code == Errors.NOT_LEADER_OR_FOLLOWER
    assert (refused.high_watermark, bytes(refused.records)) == (-1, b"")


@pytest.mark.parametrize("version", range(7, 12))
def test_no_client_gets_a_fetch_session(version: int):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 0, 0)}
    wanted = fetch({ORDERS_0: ConsumerPosition(0, 1)}, session_epoch=0)
    assert ask(fetch_apis(replicas), wanted, version).session_id == 0

    invented = fetch({ORDERS_0: ConsumerPosition(0, 1)}, session_id=5, session_epoch=2)
    answer = ask(fetch_apis(replicas), invented, version)
    assert answer.error_code == Errors.FETCH_SESSION_ID_NOT_FOUND
    assert outcomes(answer) == {}


def test_forgotten_topics_and_rack_are_ignored():
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 0, 0)}
    forgotten = FetchRequest.ForgottenTopic(topic="tea", partitions=[1, 2])
    request = fetch(
        {ORDERS_0: ConsumerPosition(0, 1)}, forgotten_topics_data=[forgotten], rack_id="rack-a"
    )
    assert list(outcomes(ask(fetch_apis(replicas), request, 11))) == [ORDERS_0]


def test_a_fetch_waits_no_longer_than_its_max_wait():
    replicas = CannedReplicas(holds=True)
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    request = fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_wait_ms=1)

    answer = ask(fetch_apis(replicas), request, 11)

    assert replicas.waits
    assert replicas.expired == replicas.held
    assert outcomes(answer)[ORDERS_0].high_watermark == 5


def test_a_fetch_without_max_wait_is_answered_at_once():
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    ask(fetch_apis(replicas), fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_wait_ms=0), 11)
    assert replicas.waits is False


def test_a_response_has_a_size_limit_whatever_the_client_requests():
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    request = fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_bytes=2**31 - 1)
    ask(fetch_apis(replicas, max_response_bytes=500), request, 11)
    assert replicas.fetch is not None
    assert replicas.fetch.max_bytes == 500
