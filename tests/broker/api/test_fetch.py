from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.record.memory_records import MemoryRecords as OthersRecords

from regent.broker.api.fetch import MAX_RESPONSE_BYTES, FetchSource, fetch_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.protocol.control import TopicId
from regent.core.records import MemoryRecords
from regent.core.replica_logs import AbortedTransactionStart
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.primitives import uuid_bytes, uuid_text
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, FailingRecords, cached
from tests.support.record_batches import batch
from tests.transport.kafka.wire import ask

VERSIONS = range(4, 18)
ORDERS_0, ORDERS_1, TEA_0 = (
    TopicPartition("orders", 0),
    TopicPartition("orders", 1),
    TopicPartition("té", 0),
)
ORDERS, TEA, GONE = (uuid_text(bytes([number]) * 16) for number in (1, 2, 3))
IDS = {"orders": ORDERS, "té": TEA}
RECORDS = MemoryRecords(b"whole batches")
BY_ID = range(13, 18)


def apis(replicas: FetchSource, **more: Any) -> Sequence[KafkaApi]:
    return fetch_apis(replicas, cached(IDS), EXECUTOR, **more)


def uuid_of(topic_id: TopicId) -> UUID:
    return UUID(bytes=uuid_bytes(topic_id))


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
                last_fetched_epoch=position.last_fetched_epoch,
                partition_max_bytes=position.max_bytes,
            )
        )
    topics = [
        topic_type(topic=topic, topic_id=uuid_of(IDS.get(topic, GONE)), partitions=rows)
        for topic, rows in by_topic.items()
    ]
    limits = {"min_bytes": 1, "max_bytes": 1000, "session_id": 0, "session_epoch": -1}
    return FetchRequest(max_wait_ms=max_wait_ms, topics=topics, **limits | more)


def outcomes(answer: Any) -> dict[TopicPartition, Any]:
    names = {uuid_of(topic_id): name for name, topic_id in IDS.items()}
    return {
        TopicPartition(topic.topic or names[topic.topic_id], partition.partition_index): partition
        for topic in answer.responses
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("isolation_level", "aborted"),
    [(0, ()), (1, ()), (1, (AbortedTransactionStart(4_000, 8), AbortedTransactionStart(9, 2**40)))],
)
def test_every_version_returns_records(
    version: int, isolation_level: int, aborted: Sequence[AbortedTransactionStart]
):
    replicas = CannedReplicas()
    replicas.consumed = {
        ORDERS_0: ConsumedPartition(
            Errors.NONE, 12, 3, RECORDS, last_stable_offset=10, aborted=aborted
        ),
        TEA_0: ConsumedPartition(Errors.UNKNOWN_LEADER_EPOCH),
    }
    epoch = 5 if version >= 9 else -1
    last_epoch = 4 if version >= 12 else -1
    ids: tuple[TopicId | None, ...] = (ORDERS, TEA) if version >= 13 else (None, None)
    positions = {
        ORDERS_0: ConsumerPosition(7, 100, epoch, last_epoch, ids[0]),
        TEA_0: ConsumerPosition(8, 200, epoch, last_epoch, ids[1]),
    }

    answer = ask(apis(replicas), fetch(positions, isolation_level=isolation_level), version)

    assert replicas.consumer_fetch == ConsumerFetch(
        positions, min_bytes=1, max_bytes=1000, is_read_committed=isolation_level == 1
    )
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert list(outcomes(answer)) == [ORDERS_0, TEA_0]
    read, refused = outcomes(answer).values()
    assert (read.error_code, read.high_watermark, read.last_stable_offset) == (0, 12, 10)
    assert read.log_start_offset == (3 if version >= 5 else -1)
    assert bytes(read.records) == b"whole batches"
    assert read.preferred_read_replica == -1
    if isolation_level == 0:
        assert read.aborted_transactions is None
    else:
        listed = [(each.producer_id, each.first_offset) for each in read.aborted_transactions]
        assert listed == list(aborted)
    assert refused.error_code == Errors.UNKNOWN_LEADER_EPOCH
    assert (refused.high_watermark, bytes(refused.records)) == (-1, b"")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_incremental", [False, True])
def test_a_listener_for_clients_serves_no_followers(version: int, is_incremental: bool):
    replicas = CannedReplicas()
    session = {"session_id": 5, "session_epoch": 6} if is_incremental else {}
    state = FetchRequest.ReplicaState(replica_id=1, replica_epoch=7)
    request = fetch(
        {ORDERS_0: ConsumerPosition(0, 9)}, replica_id=1, replica_state=state, **session
    )
    answer = ask(apis(replicas, serves_followers=False), request, version)
    (refused,) = outcomes(answer).values()
    assert refused.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert bytes(refused.records) == b""
    assert replicas.consumer_fetch is None


@pytest.mark.parametrize("version", range(7, 18))
def test_no_client_gets_a_fetch_session(version: int):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 0, 0)}
    for session_id, session_epoch in ((0, 0), (5, 0), (5, -1)):
        full = fetch(
            {ORDERS_0: ConsumerPosition(0, 1)}, session_id=session_id, session_epoch=session_epoch
        )
        answer = ask(apis(replicas), full, version)
        assert (answer.error_code, answer.session_id) == (0, 0)
        assert list(outcomes(answer)) == [ORDERS_0]

    changes = fetch({ORDERS_0: ConsumerPosition(0, 1)}, session_id=5, session_epoch=2)
    answer = ask(apis(replicas), changes, version)
    assert answer.error_code == Errors.FETCH_SESSION_ID_NOT_FOUND
    assert outcomes(answer) == {}


@pytest.mark.parametrize("version", [11, 12, 13, 17])
def test_forgotten_topics_rack_and_cluster_are_ignored(version: int):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 0, 0)}
    forgotten = FetchRequest.ForgottenTopic(topic="tea", topic_id=uuid_of(TEA), partitions=[1, 2])
    request = fetch(
        {ORDERS_0: ConsumerPosition(0, 1)},
        forgotten_topics_data=[forgotten],
        rack_id="rack-a",
        cluster_id="another" if version >= 12 else None,
    )
    assert list(outcomes(ask(apis(replicas), request, version))) == [ORDERS_0]


# --- topic ids ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BY_ID)
@pytest.mark.parametrize("topic_id", [uuid_of(GONE), UUID(int=0)])
def test_an_unknown_topic_id_is_refused_and_other_topics_are_read(version: int, topic_id: UUID):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 12, 3, RECORDS)}
    request = fetch({ORDERS_0: ConsumerPosition(0, 1), TEA_0: ConsumerPosition(0, 1)})
    request.topics[1].topic_id = topic_id

    known, unknown = ask(apis(replicas), request, version).responses

    assert replicas.consumer_fetch is not None
    assert list(replicas.consumer_fetch.positions) == [ORDERS_0]
    assert bytes(known.partitions[0].records) == b"whole batches"
    assert (unknown.topic_id or UUID(int=0)) == topic_id
    (refused,) = unknown.partitions
    assert refused.error_code == Errors.UNKNOWN_TOPIC_ID


def test_topic_ids_follow_the_metadata():
    replicas, cache = CannedReplicas(), cached(IDS)
    replicas.consumed = {TEA_0: ConsumedPartition(Errors.NONE, 12, 3, RECORDS)}
    serving = fetch_apis(replicas, cache, EXECUTOR)
    request = fetch({TEA_0: ConsumerPosition(0, 1)})

    def error_code() -> int:
        answer = ask(serving, request, 13)
        return int(answer.responses[0].partitions[0].error_code)

    assert error_code() == Errors.NONE
    cache.snapshot = replace(cache.snapshot, topic_ids={"orders": ORDERS, "old": None})
    assert error_code() == Errors.UNKNOWN_TOPIC_ID
    cache.snapshot = replace(cache.snapshot, topic_ids=IDS)
    assert error_code() == Errors.NONE


# --- leaders and epochs ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_another_broker_leads_is_answered_with_that_leader(version: int):
    replicas = CannedReplicas()
    replicas.consumed = {
        ORDERS_0: ConsumedPartition(Errors.NOT_LEADER_OR_FOLLOWER),
        ORDERS_1: ConsumedPartition(Errors.FENCED_LEADER_EPOCH),
        TEA_0: ConsumedPartition(Errors.UNKNOWN_LEADER_EPOCH),
    }
    replicas.leaders = {ORDERS_0: (2, 7), ORDERS_1: (3, 8), TEA_0: (2, 9)}
    request = fetch(dict.fromkeys(replicas.consumed, ConsumerPosition(0, 1)))

    answer = ask(apis(replicas), request, version)

    leaders = {
        topic_partition: (named.leader_id, named.leader_epoch)
        for topic_partition, partition in outcomes(answer).items()
        if (named := partition.current_leader) is not None
    }
    if version < 16:
        assert leaders == {}
        return
    assert leaders == {ORDERS_0: (2, 7), ORDERS_1: (3, 8)}
    (alive,) = answer.node_endpoints
    assert (alive.node_id, alive.host, alive.port, alive.rack) == (2, "hôst", 9092, "rack-a")


@pytest.mark.parametrize("version", range(12, 18))
def test_a_consumer_whose_log_diverges_learns_where(version: int):
    replicas = CannedReplicas()
    diverging = ConsumedPartition(Errors.NONE, 12, 3, diverging_epoch=4, diverging_end_offset=2**40)
    replicas.consumed = {ORDERS_0: diverging}
    request = fetch({ORDERS_0: ConsumerPosition(7, 100, 6, last_fetched_epoch=5)})
    (partition,) = outcomes(ask(apis(replicas), request, version)).values()
    assert (partition.error_code, bytes(partition.records)) == (0, b"")
    end = partition.diverging_epoch
    assert (end.epoch, end.end_offset) == (4, 2**40)


@pytest.mark.parametrize(
    ("version", "error"), [(5, Errors.NOT_LEADER_OR_FOLLOWER), (6, Errors.KAFKA_STORAGE_ERROR)]
)
def test_a_failed_disk_is_reported_with_a_code_that_the_client_knows(version: int, error: Errors):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.KAFKA_STORAGE_ERROR)}
    answer = ask(apis(replicas), fetch({ORDERS_0: ConsumerPosition(0, 1)}), version)
    assert outcomes(answer)[ORDERS_0].error_code == error


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("replica_id", "reads_followers"), [(-1, False), (-2, True), (2, False)])
def test_only_a_debugging_consumer_reads_followers(
    version: int, replica_id: int, reads_followers: bool
):
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    named = {"replica_id": replica_id}
    if version >= 15:
        named = {"replica_state": FetchRequest.ReplicaState(replica_id=replica_id)}
    ask(apis(replicas), fetch({ORDERS_0: ConsumerPosition(0, 1)}, **named), version)
    if replica_id >= 0 and version >= 9:  # this is a follower
        assert replicas.follower_fetch is not None
        assert replicas.follower_fetch.replica_id == replica_id
        return
    assert replicas.consumer_fetch is not None
    assert replicas.consumer_fetch.from_followers is reads_followers


# --- old message formats --------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_old_clients_get_records_in_a_format_that_they_know(version: int):
    replicas = CannedReplicas()
    data = batch(b"a", b"b", base_offset=7)
    replicas.consumed = {
        ORDERS_0: ConsumedPartition(Errors.NONE, 12, 3, MemoryRecords(data)),
        TEA_0: ConsumedPartition(Errors.NONE, 12, 3),
        ORDERS_1: ConsumedPartition(Errors.OFFSET_OUT_OF_RANGE),
    }
    positions = {
        ORDERS_0: ConsumerPosition(8, 500),
        TEA_0: ConsumerPosition(0, 1),
        ORDERS_1: ConsumerPosition(0, 1),
    }

    answer = ask(apis(replicas), fetch(positions), version)

    most = 1000 if version == 3 else MAX_RESPONSE_BYTES
    assert replicas.consumer_fetch == ConsumerFetch(positions, 1, most)
    read, refused, empty = (outcomes(answer)[name] for name in (ORDERS_0, ORDERS_1, TEA_0))
    assert (read.error_code, read.high_watermark) == (0, 12)
    messages = OthersRecords(bytes(read.records)).next_batch()
    assert messages.magic == (0 if version < 2 else 1)
    assert [(record.offset, record.value) for record in messages] == [(8, b"b")]
    assert refused.error_code == Errors.OFFSET_OUT_OF_RANGE
    assert (empty.error_code, bytes(empty.records)) == (0, b"")


def test_a_topic_may_refuse_old_clients():
    replicas = CannedReplicas()
    read = ConsumedPartition(Errors.NONE, 12, 3, MemoryRecords(batch(b"a")))
    replicas.consumed = {ORDERS_0: read, ORDERS_1: read}
    replicas.unconverted = frozenset({ORDERS_0})
    request = fetch(dict.fromkeys(replicas.consumed, ConsumerPosition(0, 500)))
    answer = outcomes(ask(apis(replicas), request, 3))
    assert answer[ORDERS_0].error_code == Errors.UNSUPPORTED_VERSION
    assert (answer[ORDERS_1].error_code, len(answer[ORDERS_1].records) > 0) == (0, True)
    assert outcomes(ask(apis(replicas), request, 4))[ORDERS_0].error_code == Errors.NONE


def test_converted_records_stay_within_the_limits():
    replicas = CannedReplicas()
    read = ConsumedPartition(Errors.NONE, 12, 3, MemoryRecords(batch(*[b"x" * 100] * 50)))
    replicas.consumed = {ORDERS_0: read, ORDERS_1: read, TEA_0: read}
    request = fetch(dict.fromkeys(replicas.consumed, ConsumerPosition(0, 700)), max_bytes=1000)
    answer = outcomes(ask(apis(replicas), request, 3))
    sizes = [len(answer[name].records) for name in (ORDERS_0, ORDERS_1, TEA_0)]
    assert sizes == [5 * 134, 2 * 134, 134]  # at least one record


def test_records_that_cannot_be_converted_are_an_error():
    replicas = CannedReplicas()
    replicas.consumed = {
        ORDERS_0: ConsumedPartition(Errors.NONE, 12, 3, MemoryRecords(b"x" * 100)),
        ORDERS_1: ConsumedPartition(Errors.NONE, 12, 3, FailingRecords()),
    }
    request = fetch(dict.fromkeys(replicas.consumed, ConsumerPosition(0, 700)))
    answer = outcomes(ask(apis(replicas), request, 3))
    assert answer[ORDERS_0].error_code == Errors.CORRUPT_MESSAGE
    assert answer[ORDERS_1].error_code == Errors.NOT_LEADER_OR_FOLLOWER


# --- limits ---------------------------------------------------------------------------------------


def test_a_fetch_waits_no_longer_than_its_max_wait():
    replicas = CannedReplicas(holds=True)
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    request = fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_wait_ms=1)

    answer = ask(apis(replicas), request, 11)

    assert replicas.waits
    assert replicas.expired == replicas.held
    assert outcomes(answer)[ORDERS_0].high_watermark == 5


def test_a_fetch_without_max_wait_is_answered_at_once():
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    ask(apis(replicas), fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_wait_ms=0), 11)
    assert replicas.waits is False


def test_a_response_has_a_size_limit_for_every_request():
    replicas = CannedReplicas()
    replicas.consumed = {ORDERS_0: ConsumedPartition(Errors.NONE, 5, 0)}
    request = fetch({ORDERS_0: ConsumerPosition(5, 1)}, max_bytes=2**31 - 1)
    ask(apis(replicas, max_response_bytes=500), request, 11)
    assert replicas.consumer_fetch is not None
    assert replicas.consumer_fetch.max_bytes == 500
