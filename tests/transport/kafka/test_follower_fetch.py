"""Fetch between brokers: the bytes are those of another implementation of the protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest as OthersRequest
from kafka.protocol.consumer import FetchResponse as OthersResponse

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from regent.core.protocol.control import TopicId
from regent.core.records import MemoryRecords
from regent.core.security.session import Session
from regent.transport.kafka.api import KafkaAnswer, KafkaApiKey, KafkaRequest
from regent.transport.kafka.follower_fetch import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_version,
    seems_of_follower,
)
from regent.transport.kafka.primitives import MalformedRequestError, uuid_bytes, uuid_text

A, B, GONE = (uuid_text(bytes([number]) * 16) for number in (1, 2, 3))
NAMES: dict[TopicId | None, str] = {A: "a", B: "b"}
ROWS = (FetchPartition(0, 5, 2**40, 4, 7, 100), FetchPartition(300, -1, 0, -1, 0, 2**20))
REQUEST = FetchRequest(
    7,
    replica_epoch=2**50,
    max_wait_ms=500,
    topics=(FetchTopic("a", A, ROWS), FetchTopic("b", B, ROWS[:1])),
    session_id=2**31 - 1,
    session_epoch=3,
    forgotten_topics=(ForgottenTopic("b", (1, 2), B),),
    min_bytes=2,
    max_bytes=2**30,
)
BY_NAME = dataclasses.replace(
    REQUEST,
    replica_epoch=-1,  # the version has none
    topics=tuple(dataclasses.replace(topic, topic_id=None) for topic in REQUEST.topics),
    forgotten_topics=(ForgottenTopic("b", (1, 2)),),
    names_topics=True,
)
RECORDS = MemoryRecords(b"whole batches")
FETCHED = FetchResponse(
    Errors.NONE,
    (
        FetchedTopic(
            "a",
            (
                FetchedPartition(0, Errors.NONE, 9, 3, records=RECORDS),
                FetchedPartition(1, Errors.NONE, 8, 2, 4, 77),
            ),
            A,
        ),
        FetchedTopic("b", (FetchedPartition(300, Errors.FENCED_LEADER_EPOCH, -1, -1),), B),
    ),
    12,
)

ONE_ROW = dataclasses.replace(
    FETCHED,
    topics=(FetchedTopic("a", (FetchedPartition(0, Errors.NONE, 9, 3, records=RECORDS),), A),),
)


def uuid_of(topic_id: TopicId | None) -> UUID:
    return UUID(bytes=uuid_bytes(topic_id))


def received(body: bytes, version: int) -> KafkaRequest:
    return KafkaRequest(KafkaApiKey.FETCH, version, 1, None, Session("host"), memoryview(body))


def joined(answer: KafkaAnswer) -> bytes:
    assert answer is not None
    return b"".join(bytes(p) if isinstance(p, bytes | bytearray) else p.read() for p in answer)  # type: ignore[union-attr]


def others_request(request: FetchRequest, version: int) -> bytes:
    """The request as kafka-python writes it."""
    kind, by_name = OthersRequest, version < 13

    def named(topic: FetchTopic | ForgottenTopic) -> dict[str, Any]:
        name = topic.topic_name
        return {"topic": name} if by_name else {"topic_id": uuid_of(topic.topic_id)}

    def partitions(rows: Sequence[FetchPartition]) -> list[Any]:
        return [
            kind.FetchTopic.FetchPartition(
                partition=row.partition_index,
                current_leader_epoch=row.current_leader_epoch,
                fetch_offset=row.fetch_offset,
                last_fetched_epoch=row.last_fetched_epoch,
                log_start_offset=row.log_start_offset,
                partition_max_bytes=row.max_bytes,
            )
            for row in rows
        ]

    state = kind.ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch)
    other = kind(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=0,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            kind.FetchTopic(**named(topic), partitions=partitions(topic.partitions))
            for topic in request.topics
        ],
        forgotten_topics_data=[
            kind.ForgottenTopic(**named(topic), partitions=list(topic.partitions))
            for topic in request.forgotten_topics
        ],
        rack_id="",
        **({"replica_id": request.replica_id} if version < 15 else {"replica_state": state}),
    )
    return bytes(other.encode(version=version))


@pytest.mark.parametrize(("request_", "version"), [(REQUEST, 17), (BY_NAME, 12)])
def test_a_request_equals_that_of_another_library(request_: FetchRequest, version: int):
    assert request_version(request_) == version
    body = encode_request(request_, version)
    assert body == others_request(request_, version)
    assert seems_of_follower(received(body, version))
    assert decode_request(received(body, version), NAMES) == (request_, [])


@pytest.mark.parametrize("newest", range(12, 19))
def test_a_leader_gets_the_newest_version_that_it_knows(newest: int):
    version = request_version(REQUEST, newest)
    assert version == min(newest, 17)
    body = encode_request(REQUEST, version)
    assert body == others_request(REQUEST, version)
    known = dataclasses.replace(
        REQUEST,
        replica_epoch=REQUEST.replica_epoch if version >= 15 else UNKNOWN_BROKER_EPOCH,
        names_topics=version == 12,
    )
    read = decode_request(received(body, version), NAMES).request
    assert _without_ids(read) == _without_ids(known)
    assert request_version(BY_NAME, newest) == 12


def test_the_oldest_leaders_get_a_request_without_the_last_epochs():
    """Kafka 2.4 to 2.6: the positions are compared before, see ``epoch_ends``."""
    for request in (REQUEST, BY_NAME):
        assert request_version(request, 11) == 11
        assert encode_request(request, 11) == others_request(BY_NAME, 11)


@pytest.mark.parametrize("version", range(9, 12))
def test_the_versions_of_older_brokers_of_kafka_name_no_last_epoch(version: int):
    request = received(others_request(BY_NAME, version), version)
    assert seems_of_follower(request)
    topics = tuple(
        dataclasses.replace(
            topic,
            partitions=tuple(row._replace(last_fetched_epoch=NO_EPOCH) for row in topic.partitions),
        )
        for topic in BY_NAME.topics
    )
    assert decode_request(request, NAMES) == (dataclasses.replace(BY_NAME, topics=topics), [])


def _without_ids(request: FetchRequest) -> FetchRequest:
    return dataclasses.replace(
        request,
        topics=tuple(dataclasses.replace(t, topic_id=None) for t in request.topics),
        forgotten_topics=tuple(
            dataclasses.replace(t, topic_id=None) for t in request.forgotten_topics
        ),
    )


def test_a_topic_that_was_created_again_is_not_forgotten_by_its_name():
    """By its id the former one is forgotten; the leader would forget the new one with it."""
    forgotten = (ForgottenTopic("a", (0, 9), GONE),)
    sent = dataclasses.replace(REQUEST, forgotten_topics=forgotten)
    read = decode_request(received(encode_request(sent, 12), 12), NAMES).request
    assert [(t.topic_name, t.partitions) for t in read.forgotten_topics] == [("a", (9,))]
    read = decode_request(received(encode_request(sent, 13), 13), NAMES).request
    assert [(t.topic_id, t.partitions) for t in read.forgotten_topics] == [(GONE, (0, 9))]


def test_topics_with_unknown_ids_are_returned_apart():
    topics = (REQUEST.topics[0], FetchTopic("", GONE, ROWS))
    forgotten = (ForgottenTopic(None, (1,), GONE),)
    sent = dataclasses.replace(REQUEST, topics=topics, forgotten_topics=forgotten)
    request, unknown = decode_request(received(encode_request(sent, 17), 17), NAMES)
    assert request == dataclasses.replace(sent, topics=topics[:1])
    assert unknown == [topics[1]]


@pytest.mark.parametrize("version", [9, 11, 12, 13, 15, 17])
@pytest.mark.parametrize("rack", ["", "rack-1", "\x01\x0d" + "x" * 13])
def test_a_consumer_is_not_taken_for_a_follower(version: int, rack: str):
    sent = OthersRequest(
        replica_id=-1,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        session_id=0,
        session_epoch=-1,
        topics=[],
        rack_id=rack,
    )
    request = received(bytes(sent.encode(version=version)), version)
    if seems_of_follower(request):  # the rack looks like a follower
        assert decode_request(request, NAMES).request.replica_id < 0


@pytest.mark.parametrize("version", [9, 10, 11, 12, 17])
def test_a_response_can_be_decoded_by_another_library(version: int):
    body = joined(encode_response(received(b"", version), FETCHED))
    read = OthersResponse.decode(body, version=version)
    assert (read.error_code, read.session_id, read.throttle_time_ms) == (0, 12, 0)
    named = [topic.topic_id if version == 17 else topic.topic for topic in read.responses]
    assert named == ([uuid_of(A), uuid_of(B)] if version == 17 else ["a", "b"])
    full, diverging, failed = (row for topic in read.responses for row in topic.partitions)
    assert (full.partition_index, full.high_watermark, full.log_start_offset) == (0, 9, 3)
    assert bytes(full.records) == b"whole batches"
    assert full.aborted_transactions is None
    assert (failed.partition_index, failed.error_code) == (300, Errors.FENCED_LEADER_EPOCH)
    if version >= 12:
        end = diverging.diverging_epoch
        assert (end.epoch, end.end_offset) == (4, 77)


def test_a_response_is_read_as_it_was_written():
    body = joined(encode_response(received(b"", 17), FETCHED))
    assert decode_response(memoryview(body), 17, NAMES) == FETCHED
    without_b = dataclasses.replace(FETCHED, topics=FETCHED.topics[:1])
    assert decode_response(memoryview(body), 17, {A: "a"}) == without_b


def test_a_response_of_the_oldest_leaders_is_read():
    body = joined(encode_response(received(b"", 11), FETCHED))
    read = decode_response(memoryview(body), 11, {})
    known = (
        dataclasses.replace(
            topic,
            topic_id=None,
            partitions=tuple(
                row._replace(diverging_epoch=NO_EPOCH, diverging_end_offset=-1)
                for row in topic.partitions
            ),
        )
        for topic in FETCHED.topics
    )
    assert read == dataclasses.replace(FETCHED, topics=tuple(known))


@pytest.mark.parametrize(
    ("version", "none", "one"),
    [
        (17, b"\0" + b"\xff" * 4, b"\x02" + bytes(17) + b"\xff" * 4),
        (11, b"\xff" * 8, b"\0\0\0\x01" + bytes(16) + b"\xff" * 4),
    ],
)
def test_a_list_of_aborted_transactions_in_a_response_is_skipped(
    version: int, none: bytes, one: bytes
):
    body = joined(encode_response(received(b"", version), ONE_ROW))
    parts = body.rpartition(none)  # before it is an unknown stable offset
    assert parts[1]
    read = decode_response(memoryview(parts[0] + one + parts[2]), version, NAMES)
    assert dict(read.partitions()) == dict(ONE_ROW.partitions())


def test_an_error_code_that_is_not_known_is_an_error():
    body = bytearray(joined(encode_response(received(b"", 17), FetchResponse(Errors.NONE))))
    body[4:6] = b"\x7f\xff"
    response = decode_response(memoryview(body), 17, NAMES)
    assert response.error_code is Errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_an_incomplete_message_is_malformed(size: int):
    body = joined(encode_response(received(b"", 17), FETCHED))
    with pytest.raises(MalformedRequestError):
        decode_response(memoryview(body)[: min(size, len(body) - 1)], 17, NAMES)
    sent = encode_request(REQUEST, 17)
    with pytest.raises(MalformedRequestError):
        decode_request(received(sent[: min(size, len(sent) - 1)], 17), NAMES)


def test_a_response_may_list_more_partitions_than_a_request():
    rows = tuple(FetchedPartition(number, Errors.NONE, 1, 0) for number in range(60_000))
    response = FetchResponse(Errors.NONE, (FetchedTopic("a", rows, A),), 1)
    body = joined(encode_response(received(b"", 17), response))
    assert decode_response(memoryview(body), 17, NAMES) == response
