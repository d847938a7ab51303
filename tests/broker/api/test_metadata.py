from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from regent.broker.api.metadata import metadata_apis
from regent.core.errors import ApiError, Errors
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.session import Session
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.primitives import uuid_bytes, uuid_text
from tests.support.creations import Creations
from tests.transport.kafka.wire import ask, read, request_of, whole

VERSIONS = range(13)


def broker(broker_id: int, listener: str = "PLAINTEXT") -> UpdateMetadataBroker:
    endpoint = UpdateMetadataEndPoint(listener, f"host-{broker_id}", 9092 + broker_id, "PLAINTEXT")
    rack = "rack-a" if broker_id == 1 else None
    return UpdateMetadataBroker(broker_id, 1, (endpoint,), rack, None, None)


def partition(index: int, leader: int = 1, *replicas: int) -> UpdateMetadataPartition:
    replicas = replicas or (1, 2)
    offline = tuple(r for r in replicas if r == 3)
    return UpdateMetadataPartition(index, 1, leader, 4, replicas[:1], 0, replicas, offline)


TOPIC_IDS = {"orders": uuid_text(b"o" * 16), "tea": uuid_text(b"t" * 16)}
TOPIC_OPERATIONS = 0b1101_1111_1000
CLUSTER_OPERATIONS = 0b1_1111_1010_0000


def cache_of(
    topics: dict[str, list[UpdateMetadataPartition]], brokers: Collection[UpdateMetadataBroker]
) -> MetadataCache:
    cache = MetadataCache()
    update(cache, topics, brokers)
    return cache


def update(
    cache: MetadataCache,
    topics: dict[str, list[UpdateMetadataPartition]],
    brokers: Collection[UpdateMetadataBroker],
) -> None:
    states = tuple(
        UpdateMetadataTopic(name, TOPIC_IDS.get(name), tuple(rows)) for name, rows in topics.items()
    )
    cache.update(
        ControlHeader(2, 1, 1), UpdateMetadataRequest(states, tuple(brokers), lists_all=True)
    )


BROKERS = [broker(2), broker(1), broker(9, "INTERNAL")]
TOPICS = {
    "orders": [partition(1, 2, 2, 1), partition(0)],
    "tea": [partition(0, 3, 1, 3)],
    "__consumer_offsets": [partition(0)],
}


def apis(cache: MetadataCache | None = None, **more: Any) -> list[KafkaApi]:
    return [*metadata_apis(cache or cache_of(TOPICS, BROKERS), lambda: "a-cluster", **more)]


def metadata(topics: Collection[str] | None, *, may_create: bool = False) -> MetadataRequest:
    rows = (
        None if topics is None else [MetadataRequest.MetadataRequestTopic(name=t) for t in topics]
    )
    return MetadataRequest(topics=rows, allow_auto_topic_creation=may_create)


def topics_of(answer: Any) -> dict[str, Any]:
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_describes_the_cluster(version: int):
    answer = ask(apis(), metadata(["orders"]), version)

    rack = "rack-a" if version >= 1 else None
    assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (1, "host-1", 9093, rack),
        (2, "host-2", 9094, None),
    ]
    assert answer.controller_id == (2 if version >= 1 else -1)
    assert answer.cluster_id == ("a-cluster" if version >= 2 else None)
    assert answer.authorized_operations is None  # how kafka-python shows the smallest integer


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_describes_topics(version: int):
    answer = ask(apis(), metadata(["orders", "__consumer_offsets"]), version)

    topics = topics_of(answer)
    assert list(topics) == ["orders", "__consumer_offsets"]
    orders = topics["orders"]
    assert orders.error_code == 0
    assert not orders.is_internal
    assert topics["__consumer_offsets"].is_internal == (version >= 1)
    assert orders.authorized_operations is None
    rows = [
        (p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in orders.partitions
    ]
    assert rows == [(0, 1, [1, 2], [1]), (1, 2, [2, 1], [2])]
    assert [p.error_code for p in orders.partitions] == [0, 0]
    assert {p.leader_epoch for p in orders.partitions} == {4 if version >= 7 else -1}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_without_a_leader_has_an_error(version: int):
    (tea,) = ask(apis(), metadata(["tea"]), version).topics
    (row,) = tea.partitions
    assert (row.error_code, row.leader_id) == (Errors.LEADER_NOT_AVAILABLE, -1)
    # Before version 1, offline replicas are left out.
    assert row.replica_nodes == ([1] if version == 0 else [1, 3])
    assert row.offline_replicas == ([3] if version >= 5 else [])


@pytest.mark.parametrize(
    ("version", "error"), [(5, Errors.LEADER_NOT_AVAILABLE), (6, Errors.LISTENER_NOT_FOUND)]
)
def test_a_leader_without_the_listener_has_another_error_than_a_missing_leader(
    version: int, error: Errors
):
    cache = cache_of({"far": [partition(0, 9, 9)]}, BROKERS)
    (far,) = ask(apis(cache), metadata(["far"]), version).topics
    assert far.partitions[0].error_code == error


def test_all_topics_are_requested_by_null_or_before_version_1_by_an_empty_list():
    assert set(topics_of(ask(apis(), metadata([]), 0))) == set(TOPICS)
    for version in VERSIONS[1:]:
        assert set(topics_of(ask(apis(), metadata(None), version))) == set(TOPICS)
        assert topics_of(ask(apis(), metadata([]), version)) == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_has_an_error(version: int):
    answer = ask(apis(), metadata(["orders", "nothing", "not/legal"]), version)
    assert {name: topic.error_code for name, topic in topics_of(answer).items()} == {
        "orders": 0,
        "nothing": Errors.UNKNOWN_TOPIC_OR_PARTITION,
        "not/legal": Errors.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_topic_is_created_when_the_client_allows_it(version: int):
    creations = Creations()
    creating = apis(create_missing=creations)
    missing = ["nothing", "orders", "not/legal", "__transaction_state"]

    answer = ask(creating, metadata(missing, may_create=True), version)

    assert creations.wanted == ["nothing"]
    topics = topics_of(answer)
    assert topics["nothing"].error_code == Errors.LEADER_NOT_AVAILABLE
    assert topics["not/legal"].error_code == Errors.INVALID_TOPIC_EXCEPTION
    assert topics["__transaction_state"].error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        *((error, error) for error in (
            Errors.INVALID_TOPIC_EXCEPTION,
            Errors.INVALID_REPLICATION_FACTOR,
            Errors.INVALID_PARTITIONS,
            Errors.INVALID_CONFIG,
            Errors.POLICY_VIOLATION,
            Errors.UNKNOWN_SERVER_ERROR,
        )),
        *((error, Errors.LEADER_NOT_AVAILABLE) for error in (
            Errors.NOT_CONTROLLER,
            Errors.REQUEST_TIMED_OUT,
            Errors.TOPIC_ALREADY_EXISTS,
        )),
    ],
)  # fmt: skip
def test_the_answer_says_why_a_topic_cannot_be_created(refusal: Errors, told: Errors):
    creations = Creations({"a.b": ApiError(refusal, "no")})
    asked = metadata(["a.b", "fine", "orders"], may_create=True)
    topics = topics_of(ask(apis(create_missing=creations), asked, 8))
    assert topics["a.b"].error_code == told
    assert topics["fine"].error_code == Errors.LEADER_NOT_AVAILABLE
    assert topics["orders"].error_code == Errors.NONE


def test_a_topic_that_was_created_at_once_is_in_the_same_answer():
    cache = cache_of(TOPICS, BROKERS)
    creations = Creations(meanwhile=lambda: update(cache, {"new": [partition(0)]}, BROKERS))
    (topic,) = ask(
        apis(cache, create_missing=creations), metadata(["new"], may_create=True), 8
    ).topics
    assert (topic.error_code, [p.leader_id for p in topic.partitions]) == (Errors.NONE, [1])


def test_a_missing_topic_is_not_created_when_the_client_does_not_allow_it():
    creations = Creations()
    (topic,) = ask(apis(create_missing=creations), metadata(["nothing"]), 4).topics
    assert topic.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert creations.wanted == []


def test_a_change_is_in_the_next_response():
    cache = cache_of(TOPICS, BROKERS)
    handlers = apis(cache)
    assert len(topics_of(ask(handlers, metadata(["tea"]), 8))["tea"].partitions) == 1

    update(cache, {"tea": [partition(0), partition(1)]}, [broker(1)])

    answer = ask(handlers, metadata(["tea", "orders"]), 8)
    assert [p.leader_id for p in topics_of(answer)["tea"].partitions] == [1, 1]
    assert [p.leader_id for p in topics_of(answer)["orders"].partitions] == [1, -1]
    assert [b.node_id for b in answer.brokers] == [1]


def test_topics_with_many_partitions_are_returned_completely():
    rows = [partition(index, 1 + index % 2) for index in range(1_234)]
    cache = cache_of({"wide": rows, "tea": TOPICS["tea"]}, BROKERS)
    handlers = apis(cache)
    for _ in range(2):
        wide = topics_of(ask(handlers, metadata(None), 8))["wide"]
        assert [p.partition_index for p in wide.partitions] == list(range(1_234))
        assert [p.leader_id for p in wide.partitions] == [1 + i % 2 for i in range(1_234)]


def test_concurrent_requests_get_complete_responses():
    rows = [partition(index) for index in range(12_345)]
    (api,) = apis(cache_of({"wide": rows}, BROKERS))
    request = request_of(api.key, 8, metadata(None).encode(version=8))

    async def ask_at_once() -> list[bytes]:
        return [whole(a) for a in await asyncio.gather(*(api.handle(request) for _ in range(3)))]

    first, second, third = asyncio.run(ask_at_once())
    assert first == second == third
    (wide,) = read(MetadataRequest, 8, first).topics
    assert len(wide.partitions) == len(rows)


def by_id(*topic_ids: str) -> MetadataRequest:
    rows = [
        MetadataRequest.MetadataRequestTopic(topic_id=uuid.UUID(bytes=uuid_bytes(i)), name=None)
        for i in topic_ids
    ]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=True)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_topics_have_their_ids(version: int):
    names = ["orders", "nothing", "__consumer_offsets"]
    topics = topics_of(ask(apis(), metadata(names), version))
    ids = {name: topic.topic_id and topic.topic_id.bytes for name, topic in topics.items()}
    assert ids == {"orders": b"o" * 16, "nothing": None, "__consumer_offsets": None}


def test_topics_are_found_by_their_ids():
    creations = Creations()
    nobodys = uuid_text(b"n" * 16)
    asked = by_id(TOPIC_IDS["tea"], nobodys)
    asked.include_topic_authorized_operations = True

    answer = ask(apis(create_missing=creations), asked, 12)

    assert [(t.name, t.topic_id.bytes, t.error_code) for t in answer.topics] == [
        ("tea", b"t" * 16, 0),
        (None, b"n" * 16, Errors.UNKNOWN_TOPIC_ID),
    ]
    assert [bits(t.authorized_operations) for t in answer.topics] == [TOPIC_OPERATIONS, None]
    assert not creations.wanted


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_requests_are_refused_before_version_12(version: int):
    creations = Creations()
    asked = by_id(TOPIC_IDS["tea"])
    asked.topics.append(MetadataRequest.MetadataRequestTopic(name="nothing"))

    answer = ask(apis(create_missing=creations), asked, version)

    assert {(t.name, t.error_code) for t in answer.topics} == {
        ("", Errors.INVALID_REQUEST),
        ("nothing", Errors.INVALID_REQUEST),
    }
    assert not creations.wanted


def test_a_topic_without_a_name_and_an_id_is_refused():
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)])
    (topic,) = ask(apis(), asked, 12).topics
    assert (topic.name, topic.error_code) == (None, Errors.INVALID_REQUEST)


@pytest.mark.parametrize("version", VERSIONS[8:])
def test_authorized_operations_are_returned_on_request(version: int):
    handlers = apis()  # with one cache for all the requests
    for cluster, topic in [(False, False), (True, True), (False, True), (True, False)]:
        asked = metadata(["orders", "nothing"])
        asked.include_cluster_authorized_operations = cluster and version <= 10
        asked.include_topic_authorized_operations = topic

        answer = ask(handlers, asked, version)

        told = cluster and version <= 10
        assert bits(answer.authorized_operations) == (CLUSTER_OPERATIONS if told else None)
        for row in answer.topics:
            assert bits(row.authorized_operations) == (TOPIC_OPERATIONS if topic else None)


def bits(operations: Collection[int] | None) -> int | None:
    return None if operations is None else sum(1 << bit for bit in operations)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_that_does_not_fit_the_wire_costs_only_itself(version: int):
    far = partition(1)._replace(leader_epoch=2**31)
    nobody = broker(7)
    (endpoint,) = nobody.endpoints
    nobody = replace(nobody, endpoints=(endpoint._replace(host="h" * 40_000, port=2**31),))
    racks = replace(broker(2), rack="r" * 40_000)
    rows = [partition(0), far, partition(2)]
    cache = cache_of({**TOPICS, "far": rows}, [*BROKERS, nobody, racks])
    answer = ask(apis(cache), metadata(None), version)
    topics = topics_of(answer)
    assert set(topics) == {*TOPICS, "far"}
    expected = [0, 2] if version >= 7 else [0, 1, 2]  # earlier versions have no leader epochs
    assert sorted(p.partition_index for p in topics["far"].partitions) == expected
    assert sorted(p.partition_index for p in topics["orders"].partitions) == [0, 1]
    fits = version >= 9 or version == 0  # a flexible version, or one without racks
    assert [b.node_id for b in answer.brokers] == ([1, 2] if fits else [1])


@pytest.mark.parametrize("version", VERSIONS)
def test_clients_of_two_listeners_see_different_brokers_and_leaders(version: int):
    served = apis(cache_of({"orders": [partition(0, 9, 9, 1), partition(1, 1, 1)]}, BROKERS))
    inside, outside = Session("127.0.0.1", listener_name="INTERNAL"), Session("127.0.0.1")
    no_listener = 72 if version >= 6 else 5
    for session, brokers, leaders in (
        (outside, [1, 2], {0: (no_listener, -1), 1: (0, 1)}),
        (inside, [9], {0: (0, 9), 1: (no_listener, -1)}),
    ) * 2:
        answer = ask(served, metadata(["orders"]), version, session=session)
        assert [b.node_id for b in answer.brokers] == brokers
        rows = {
            p.partition_index: (p.error_code, p.leader_id)
            for p in topics_of(answer)["orders"].partitions
        }
        if version == 0:  # its replicas that cannot be reached are an error too
            assert {index: leader for index, (_, leader) in rows.items()} == {
                index: leader for index, (_, leader) in leaders.items()
            }
        else:
            assert rows == leaders
