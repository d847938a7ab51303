"""Random bodies of requests: a response or a malformed request, and no other error."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from regent.broker.api.fetch import fetch_apis
from regent.broker.api.metadata import metadata_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.api.produce import produce_apis
from regent.core.model import TopicPartition
from regent.core.protocol.client import ConsumerPosition, OffsetQuery
from regent.core.replication.metadata_cache import MetadataCache
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.primitives import MalformedRequestError
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, cached
from tests.broker.api.test_fetch import IDS, fetch
from tests.broker.api.test_offsets import list_offsets
from tests.broker.api.test_produce import produce
from tests.support.record_batches import batch
from tests.transport.kafka.wire import read, request_of, whole

repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=25)
ORDERS_0 = TopicPartition("orders", 0)
REPLICAS = CannedReplicas()
APIS = [
    *produce_apis(REPLICAS, MetadataCache(), EXECUTOR),
    *fetch_apis(REPLICAS, cached(IDS), EXECUTOR),
    *offset_apis(REPLICAS, EXECUTOR),
    *metadata_apis(cached(), lambda: "a-cluster"),
]
TYPES = {
    0: ProduceRequest,
    1: FetchRequest,
    2: ListOffsetsRequest,
    3: MetadataRequest,
    23: OffsetForLeaderEpochRequest,
}
GOOD = {
    0: produce({ORDERS_0: batch(b"a"), TopicPartition("tea", 1): batch(b"b")}),
    1: fetch({ORDERS_0: ConsumerPosition(5, 100)}, rack_id="a"),
    2: list_offsets({ORDERS_0: OffsetQuery(-1)}),
    3: MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")]),
    23: OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic="orders",
                partitions=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                        partition=0, current_leader_epoch=-1, leader_epoch=1
                    )
                ],
            )
        ]
    ),
}
VERSIONED = [
    pytest.param(api, version, id=f"{api.key.name}-v{version}")
    for api in APIS
    for version in range(api.min_version, api.max_version + 1)
]


def answer_to(api: KafkaApi, version: int, body: bytes) -> None:
    """Handle a request and parse the response; raises MalformedRequestError."""

    async def handle() -> bytes | None:
        answer = await api.handle(request_of(api.key, version, body))
        return None if answer is None else whole(answer)

    answer = asyncio.run(handle())
    if answer is not None:
        read(TYPES[api.key], version, answer)


@pytest.mark.parametrize(("api", "version"), VERSIONED)
def test_a_truncated_request_is_malformed(api: KafkaApi, version: int):
    body = bytes(GOOD[api.key].encode(version=version))
    answer_to(api, version, body)
    for end in range(_needed(api, version, body)):
        with pytest.raises(MalformedRequestError):
            answer_to(api, version, body[:end])


def _needed(api: KafkaApi, version: int, body: bytes) -> int:
    """Return how many bytes are parsed; the last fields of some versions are ignored."""
    if api.key == 3 and version >= 8:  # authorized operations
        return len(body) - 2
    return len(body)


@pytest.mark.parametrize(("api", "version"), VERSIONED)
@repeatable
@given(data=st.data())
def test_random_bytes_cause_no_other_error(api: KafkaApi, version: int, data: st.DataObject):
    body = bytearray(GOOD[api.key].encode(version=version))
    position = st.integers(0, len(body) - 1)
    for at in data.draw(st.lists(position, max_size=4)):
        body[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    with suppress(MalformedRequestError):
        answer_to(api, version, bytes(body))
