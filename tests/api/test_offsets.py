from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from regent.api.offsets import offset_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from tests.api.canned_replicas import CannedReplicas
from tests.transport.kafka.wire import ask

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def list_offsets(queries: dict[TopicPartition, OffsetQuery], wanted: int = 1) -> ListOffsetsRequest:
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    rows = [
        topic_type.ListOffsetsPartition(
            partition_index=topic_partition.partition,
            current_leader_epoch=query.current_leader_epoch,
            timestamp=query.timestamp_ms,
            max_num_offsets=wanted,
        )
        for topic_partition, query in queries.items()
    ]
    topic = topic_type(name="orders", partitions=rows)
    return ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[topic])


def partitions(answer: Any) -> list[Any]:
    (topic,) = answer.topics
    return list(topic.partitions)


@pytest.mark.parametrize("version", range(1, 6))
def test_versions_from_1_on_return_one_offset(version: int):
    replicas = CannedReplicas()
    replicas.listed = {
        ORDERS_0: ListedOffset(Errors.NONE, timestamp_ms=99, offset=7, leader_epoch=2),
        ORDERS_1: ListedOffset(Errors.UNKNOWN_LEADER_EPOCH),
    }
    epoch = 3 if version >= 4 else -1
    queries = {ORDERS_0: OffsetQuery(98, epoch), ORDERS_1: OffsetQuery(-1, epoch)}

    known, refused = partitions(ask(offset_apis(replicas), list_offsets(queries), version))

    assert replicas.offset_queries == queries
    assert (known.partition_index, known.error_code, known.timestamp, known.offset) == (0, 0, 99, 7)
    assert known.leader_epoch == (2 if version >= 4 else -1)
    assert (refused.error_code, refused.offset) == (Errors.UNKNOWN_LEADER_EPOCH, -1)


@pytest.mark.parametrize(
    ("listed", "wanted", "offsets"),
    [
        (ListedOffset(Errors.NONE, offset=7), 1, [7]),
        (ListedOffset(Errors.NONE, offset=7), 10, [7]),
        (ListedOffset(Errors.NONE, offset=7), 0, []),
        (ListedOffset(Errors.NONE), 1, []),
        (ListedOffset(Errors.NOT_LEADER_OR_FOLLOWER), 1, []),
    ],
)
def test_version_0_returns_a_list_of_offsets(listed: ListedOffset, wanted: int, offsets: list[int]):
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: listed}
    queries = {ORDERS_0: OffsetQuery(-1)}

    (partition,) = partitions(ask(offset_apis(replicas), list_offsets(queries, wanted), 0))

    assert replicas.offset_queries == queries
    assert partition.error_code == listed.error_code
    assert partition.old_style_offsets == offsets


@pytest.mark.parametrize("version", range(4))
def test_every_version_returns_the_end_of_an_epoch(version: int):
    replicas = CannedReplicas()
    replicas.epoch_ends = {
        ORDERS_0: EpochEnd(Errors.NONE, 4, 20),
        ORDERS_1: EpochEnd(Errors.FENCED_LEADER_EPOCH),
    }
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    rows = [
        topic_type.OffsetForLeaderPartition(partition=i, current_leader_epoch=6, leader_epoch=5)
        for i in range(2)
    ]
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topic_type(topic="orders", partitions=rows)]
    )

    known, refused = partitions(ask(offset_apis(replicas), request, version))

    query = EpochQuery(5, 6 if version >= 2 else -1)
    assert replicas.epoch_queries == {ORDERS_0: query, ORDERS_1: query}
    assert (known.error_code, known.partition, known.end_offset) == (0, 0, 20)
    assert known.leader_epoch == (4 if version >= 1 else -1)
    assert (refused.error_code, refused.end_offset) == (Errors.FENCED_LEADER_EPOCH, -1)


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (0, Errors.LEADER_NOT_AVAILABLE),
        (4, Errors.LEADER_NOT_AVAILABLE),
        (5, Errors.OFFSET_NOT_AVAILABLE),
    ],
)
def test_an_unknown_latest_offset_gets_the_error_of_the_version(version: int, error: Errors):
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: ListedOffset(Errors.OFFSET_NOT_AVAILABLE)}
    queries = {ORDERS_0: OffsetQuery(-1, -1)}
    (row,) = partitions(ask(offset_apis(replicas), list_offsets(queries), version))
    assert row.error_code == error
