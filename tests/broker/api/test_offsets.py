from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from regent.broker.api.offsets import offset_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from regent.core.records import MemoryRecords
from regent.core.security.session import KafkaPrincipal, Session
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, FailingRecords
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import T0
from tests.support.record_batches import stamped
from tests.transport.kafka.wire import ask

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def list_offsets(
    queries: dict[TopicPartition, OffsetQuery], wanted: int = 1, replica_id: int = -1
) -> ListOffsetsRequest:
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
    return ListOffsetsRequest(replica_id=replica_id, isolation_level=1, topics=[topic])


def partitions(answer: Any) -> list[Any]:
    (topic,) = answer.topics
    return list(topic.partitions)


@pytest.mark.parametrize("version", range(1, 10))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_versions_from_1_on_return_one_offset(version: int, isolation_level: int):
    replicas = CannedReplicas()
    replicas.listed = {
        ORDERS_0: ListedOffset(Errors.NONE, timestamp_ms=99, offset=7, leader_epoch=2),
        ORDERS_1: ListedOffset(Errors.UNKNOWN_LEADER_EPOCH),
    }
    epoch = 3 if version >= 4 else -1
    queries = {ORDERS_0: OffsetQuery(98, epoch), ORDERS_1: OffsetQuery(-1, epoch)}
    request = list_offsets(queries)
    request.isolation_level = isolation_level

    known, refused = partitions(ask(offset_apis(replicas, EXECUTOR), request, version))

    is_read_committed = version >= 2 and isolation_level == 1
    assert replicas.offset_queries == {
        topic_partition: query._replace(is_read_committed=is_read_committed)
        for topic_partition, query in queries.items()
    }
    assert (known.partition_index, known.error_code, known.timestamp, known.offset) == (0, 0, 99, 7)
    assert known.leader_epoch == (2 if version >= 4 else -1)
    assert (refused.error_code, refused.offset) == (Errors.UNKNOWN_LEADER_EPOCH, -1)


@pytest.mark.parametrize(
    "listed",
    [
        ListedOffset(Errors.NONE, old_style_offsets=(9, 7)),
        ListedOffset(Errors.NONE),
        ListedOffset(Errors.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_version_0_returns_a_list_of_offsets(listed: ListedOffset):
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: listed}
    queries = {ORDERS_0: OffsetQuery(-1)}

    (partition,) = partitions(
        ask(offset_apis(replicas, EXECUTOR), list_offsets(queries, wanted=3), 0)
    )

    assert replicas.offset_queries == {ORDERS_0: OffsetQuery(-1, max_num_offsets=3)}
    assert partition.error_code == listed.error_code
    assert partition.old_style_offsets == list(listed.old_style_offsets)


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(
    ("timestamp_ms", "first"), [(0, 0), (-1, 0), (-2, 0), (-3, 7), (-4, 8), (-5, 9), (-6, 10)]
)
def test_a_timestamp_with_a_meaning_of_its_own_needs_its_version(
    version: int, timestamp_ms: int, first: int
):
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: ListedOffset(Errors.NONE)}
    queries = {ORDERS_0: OffsetQuery(timestamp_ms)}
    (row,) = partitions(ask(offset_apis(replicas, EXECUTOR), list_offsets(queries), version))
    assert row.error_code == (Errors.NONE if version >= first else Errors.UNSUPPORTED_VERSION)
    assert len(replicas.offset_queries) == (version >= first)


def test_a_partition_listed_twice_is_refused_and_others_are_answered():
    replicas = CannedReplicas()
    replicas.listed = dict.fromkeys((ORDERS_0, ORDERS_1), ListedOffset(Errors.NONE))
    request = list_offsets({ORDERS_0: OffsetQuery(-1), ORDERS_1: OffsetQuery(-1)})
    request.topics = [*request.topics, *list_offsets({ORDERS_0: OffsetQuery(-2)}).topics]
    answer = ask(offset_apis(replicas, EXECUTOR), request, 9)
    errors = [[row.error_code for row in topic.partitions] for topic in answer.topics]
    assert errors == [[Errors.INVALID_REQUEST, Errors.NONE], [Errors.INVALID_REQUEST]]


# --- records in batches ---------------------------------------------------------------------------


def timed(*times_ms: int, codec: int = 0, base_offset: int = 0) -> MemoryRecords:
    """Return a batch with records of these times."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1_000_000)
    for number, time_ms in enumerate(times_ms):
        builder.append(number, time_ms, b"key", b"value", [("header", b"x")])
    data = builder.build()
    struct.pack_into(">q", data, 0, base_offset)
    return MemoryRecords(bytes(data))


def found(listed: ListedOffset, timestamp_ms: int) -> tuple[int, int, int, int]:
    """Return the answer to one query: error, timestamp, offset and leader epoch."""
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: listed}
    request = list_offsets({ORDERS_0: OffsetQuery(timestamp_ms)})
    (row,) = partitions(ask(offset_apis(replicas, EXECUTOR), request, 7))
    return row.error_code, row.timestamp, row.offset, row.leader_epoch


@pytest.mark.parametrize("codec", range(5))
def test_the_record_is_found_inside_its_batch(codec: int):
    batch = timed(50, 10, 90, 90, 20, codec=codec, base_offset=100)
    listed = ListedOffset(Errors.NONE, 90, 100, 4, batch)
    for timestamp_ms, record in (
        (-3, (90, 102)),
        (0, (50, 100)),
        (51, (90, 102)),
        (90, (90, 102)),
    ):
        assert found(listed, timestamp_ms) == (0, *record, 4)
    in_the_middle = listed._replace(offset=103)
    for timestamp_ms, record in ((-3, (90, 103)), (0, (90, 103)), (20, (90, 103))):
        assert found(in_the_middle, timestamp_ms) == (0, *record, 4)


def test_records_stamped_by_the_log_have_the_time_of_their_batch():
    data = bytearray(timed(50, 10, 90).read())
    stamped(data, 0, len(data), 70)
    listed = ListedOffset(Errors.NONE, 70, 1, 4, MemoryRecords(bytes(data)))
    assert found(listed, 60) == (0, 70, 1, 4)
    assert found(listed, -3) == (0, 70, 1, 4)


@pytest.mark.parametrize("cut", [0, 30, 70, 100])
def test_a_batch_that_cannot_be_read_is_corrupt(cut: int):
    data = bytes(timed(50, 10, 90).read())[: -cut or None]
    if cut == 0:
        data = data[:61] + bytes([0x7F] * (len(data) - 61))
    listed = ListedOffset(Errors.NONE, 90, 0, 4, MemoryRecords(data))
    assert found(listed, -3)[0] == Errors.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("timestamp_ms", "is_searched"), [(-1, False), (-2, False), (-4, False), (-3, True), (0, True)]
)
def test_a_search_by_time_keeps_the_event_loop_free(timestamp_ms: int, is_searched: bool):
    class Replicas(CannedReplicas):
        def list_offsets(
            self, queries: Mapping[TopicPartition, OffsetQuery]
        ) -> Mapping[TopicPartition, ListedOffset]:
            threads.add(threading.current_thread())
            return super().list_offsets(queries)

    threads: set[threading.Thread] = set()
    replicas = Replicas()
    replicas.listed = {ORDERS_0: ListedOffset(Errors.NONE)}
    queries = {ORDERS_0: OffsetQuery(timestamp_ms)}
    ask(offset_apis(replicas, EXECUTOR), list_offsets(queries), 8)
    assert (threads != {threading.current_thread()}) == is_searched


def test_a_failed_disk_is_a_storage_error():
    listed = ListedOffset(Errors.NONE, 90, 0, 4, FailingRecords())
    assert found(listed, -3)[0] == Errors.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("timestamp_ms", "time_ms", "offset"),
    [(-3, 70, 5), (0, 10, 3), (11, 20, 4), (21, 70, 5), (75, -1, -1), (60, 70, 5)],
)
def test_records_before_the_start_of_a_log_are_not_found(
    timestamp_ms: int, time_ms: int, offset: int
):
    leader = RecordBroker()
    leader.apply(1, 3, isr=(1,), replicas=(1,))
    for batch in (timed(90, 80, 50, 10), timed(20, 70), timed(60, 5)):
        leader.produce_to({T0: bytearray(batch.read())})
    leader.delete_records({T0: 3})  # only the record with time 10 is left of the first batch
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    row = topic_type.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=3, timestamp=timestamp_ms
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic_type(name=T0.topic, partitions=[row])]
    )
    (answer,) = partitions(ask(offset_apis(leader.manager, EXECUTOR), request, 9))
    assert (answer.error_code, answer.timestamp, answer.offset) == (0, time_ms, offset)


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_listener_for_clients_refuses_the_offsets_of_a_follower(version: int):
    replicas = CannedReplicas()
    request = list_offsets({ORDERS_0: OffsetQuery(-1)}, replica_id=1)
    (row,) = partitions(
        ask(offset_apis(replicas, EXECUTOR, serves_followers=False), request, version)
    )
    assert row.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [3, 4])
def test_a_listener_for_clients_refuses_the_epochs_of_a_follower(version: int):
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = topic_type.OffsetForLeaderPartition(partition=0, current_leader_epoch=6, leader_epoch=5)
    topic = topic_type(topic="orders", partitions=[asked])
    request = OffsetForLeaderEpochRequest(replica_id=1, topics=[topic])
    apis = offset_apis(CannedReplicas(), EXECUTOR, serves_followers=False)
    (row,) = partitions(ask(apis, request, version))
    assert row.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("replica_id", [-1, 1, 2])
def test_who_logs_in_as_a_broker_asks_as_no_other(replica_id: int):
    of_broker_1 = Session("127.0.0.1", KafkaPrincipal("User", "broker-1"))
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    row = topic_type.OffsetForLeaderPartition(partition=0, current_leader_epoch=6, leader_epoch=5)
    topic = topic_type(topic="orders", partitions=[row])
    replicas = CannedReplicas()
    replicas.listed = {ORDERS_0: ListedOffset(Errors.NONE)}
    replicas.epoch_ends = {ORDERS_0: EpochEnd(Errors.NONE, 4, 20)}
    for request, version in (
        (list_offsets({ORDERS_0: OffsetQuery(-1)}, replica_id=replica_id), 9),
        (OffsetForLeaderEpochRequest(replica_id=replica_id, topics=[topic]), 4),
    ):
        answer = ask(offset_apis(replicas, EXECUTOR), request, version, session=of_broker_1)
        (answered,) = partitions(answer)
        refused = Errors.CLUSTER_AUTHORIZATION_FAILED if replica_id == 2 else Errors.NONE
        assert answered.error_code == refused


@pytest.mark.parametrize("version", range(5))
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

    known, refused = partitions(ask(offset_apis(replicas, EXECUTOR), request, version))

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
    (row,) = partitions(ask(offset_apis(replicas, EXECUTOR), list_offsets(queries), version))
    assert row.error_code == error
