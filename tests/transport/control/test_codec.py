"""Bodies and headers as bytes: every message there and back, and hostile bytes nowhere."""

from __future__ import annotations

import dataclasses
import gc
import random
import struct
import time
import tracemalloc
import types
import typing
from contextlib import suppress
from enum import IntEnum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import BadDataError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import ShutdownBrokerRequest
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    LiveLeader,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import ControlledShutdownRequest, ControlledShutdownResponse
from regent.core.protocol.envelope import EnvelopeRequest
from regent.core.protocol.message import Uuid
from regent.core.protocol.messages.topics import MAX_NEW_PARTITIONS
from regent.core.protocol.placement import PlacementStatusResponse
from regent.transport.control import codec
from regent.transport.control.codec import (
    MAX_BODY_BYTES,
    ReplyHeader,
    RequestHeader,
    decode_reply_header,
    decode_request_body,
    decode_request_header,
    decode_response_body,
    encode_body,
    encode_reply_header,
    encode_request,
    encode_request_header,
    peek_correlation_id,
)
from regent.zk.codecs.topic_znodes import encode_topic_id
from tests.support.topic_requests import (
    create_partitions,
    delete_topics,
    growing,
)


def encoded(message: object) -> bytes:
    """The body of a message."""
    (data,) = encode_body(message)
    return bytes(data)


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """Anything the hint allows."""
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(-(2**63), 2**63 - 1)
    if hint is str:
        return st.text(max_size=20)
    if hint == Uuid:
        return st.none() | st.binary(min_size=16, max_size=16).map(encode_topic_id)
    if typing.get_origin(hint) is typing.Annotated:
        limit = 2 ** (int(hint.__metadata__[0].removeprefix("int")) - 1)
        return st.integers(-limit, limit - 1)
    if isinstance(hint, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return st.none() | strategy_of(inner)
    if typing.get_origin(hint) is tuple:
        return st.lists(strategy_of(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if issubclass(hint, IntEnum):
        return st.sampled_from(list(hint))
    hints = typing.get_type_hints(hint, include_extras=True)
    names = hint._fields if issubclass(hint, tuple) else [f.name for f in dataclasses.fields(hint)]
    return st.builds(hint, **{name: strategy_of(hints[name]) for name in names})


@pytest.mark.parametrize("api_key", list(ApiKey))
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_message_survives_the_wire(api_key: ApiKey, data: st.DataObject) -> None:
    request = data.draw(strategy_of(codec.request_class(api_key)))
    body = encode_request(request)
    assert body.api_key is api_key
    assert decode_request_body(api_key, *body.frames) == request
    response = data.draw(strategy_of(codec.response_class(api_key)))
    assert decode_response_body(api_key, *encode_body(response)) == response


ROW = LeaderAndIsrPartition(2, 7, 1, 3, (1, 2), 9, (1, 2, 3), (3,), (), True, 0)
LEADER_AND_ISR = LeaderAndIsrRequest(
    LeaderAndIsrType.FULL,
    (LeaderAndIsrTopic("orders", None, (ROW,), (2,)),),
    (LiveLeader(1, "tcp://h:29093"),),
)
GOLDEN: list[tuple[ApiKey, Any, str]] = [
    (
        ApiKey.LEADER_AND_ISR,
        LEADER_AND_ISR,
        "85a47479706501ac746f7069635f7374617465739184aa746f7069635f6e616d65a66f7264657273a8746f706963"
        "5f6964c0b0706172746974696f6e5f737461746573919b020701039201020993010203910390c300b6776974685f"
        "656c696769626c655f7265706c696361739102ac6c6976655f6c656164657273919201ad7463703a2f2f683a3239"
        "303933a47061727400a5706172747301",
    ),
    (
        ApiKey.STOP_REPLICA,
        StopReplicaRequest((StopReplicaTopic("t", "x", (StopReplicaPartition(0, -2, True),)),)),
        "81ac746f7069635f7374617465739183aa746f7069635f6e616d65a174a8746f7069635f6964a178b0706172746974"
        "696f6e5f737461746573919300fec3",
    ),
    (
        ApiKey.CONTROLLED_SHUTDOWN,
        ControlledShutdownRequest(3, 4_294_967_301),
        "82a962726f6b65725f696403ac62726f6b65725f65706f6368cf0000000100000005",
    ),
    (
        ApiKey.CONTROLLED_SHUTDOWN,
        ControlledShutdownResponse(Errors.NONE, (TopicPartition("t", 1),)),
        "82aa6572726f725f636f646500b472656d61696e696e675f706172746974696f6e739192a17401",
    ),
    (
        ApiKey.STOP_REPLICA,
        StopReplicaResponse(Errors.NONE, (PartitionError("t", 0, Errors.FENCED_LEADER_EPOCH),)),
        "82aa6572726f725f636f646500b0706172746974696f6e5f6572726f72739193a174004a",
    ),
]


@pytest.mark.parametrize(("api_key", "message", "golden"), GOLDEN)
def test_the_bytes_of_a_message_do_not_change(api_key: ApiKey, message: Any, golden: str) -> None:
    assert encoded(message).hex() == golden
    is_request = isinstance(message, codec.request_class(api_key))
    decode = decode_request_body if is_request else decode_response_body
    assert decode(api_key, bytes.fromhex(golden)) == message


def test_a_request_header_is_the_documented_array() -> None:
    header = RequestHeader(1, 4, 0, 77, "c", 2, 5, -1, 12, 3)
    assert msgpack.unpackb(encode_request_header(header)) == [1, 4, 0, 77, "c", 2, 5, -1, 12, 3]
    assert decode_request_header(encode_request_header(header)) == header
    assert header.control_header == ControlHeader(2, 5, -1, event_id=12, broker_id=3)
    assert header.control_header.cause == "5-12"


def test_a_request_header_without_a_controller_ends_in_nils() -> None:
    header = RequestHeader(1, 1001, 0, 77, "c")
    fields = [1, 1001, 0, 77, "c", None, None, None, None, None]
    assert msgpack.unpackb(encode_request_header(header)) == fields
    assert header.control_header is None


@pytest.mark.parametrize("ends", [[1, 7, 30], [1, 7, 30, 12], [1, 7, 30, 12, None]])
def test_a_request_header_of_a_controller_that_names_no_receiver_is_unfenced(
    ends: list[int | None],
) -> None:
    data = msgpack.packb([1, 4, 0, 77, "c", *ends])
    assert decode_request_header(data).control_header is None


def test_a_reply_header_is_the_documented_array() -> None:
    data = encode_reply_header(77, Errors.INVALID_REQUEST)
    assert msgpack.unpackb(data) == [1, 77, 42]
    assert decode_reply_header(data) == ReplyHeader(1, 77, Errors.INVALID_REQUEST)
    explained = encode_reply_header(77, Errors.NOT_CONTROLLER, "broker 2 is the controller")
    assert msgpack.unpackb(explained) == [1, 77, 41, "broker 2 is the controller"]
    assert decode_reply_header(explained).reason == "broker 2 is the controller"
    assert decode_reply_header(msgpack.packb([1, 77, 9999])).error_code == -1


@pytest.mark.parametrize(
    "header",
    [
        [1, 4, 0, 77, "c", 2, 5, None],
        [1, 4, 0, 77, "c", 2, 5],
        [1, 4, 0, 77, None, 2, 5, 6],
        [1, 4, 0, 77, "c" * 5000, 2, 5, 6],
        [1, True, 0, 77, "c", 2, 5, 6],
        {"api_key": 4},
        77,
    ],
)
def test_a_header_of_another_shape_is_refused(header: object) -> None:
    with pytest.raises(BadDataError):
        decode_request_header(msgpack.packb(header))


def test_a_correlation_id_is_found_in_a_header_that_is_wrong_elsewhere() -> None:
    assert peek_correlation_id(msgpack.packb([2, 4, 0, 77])) == 77
    assert peek_correlation_id(msgpack.packb([2, 4, 0, "77"])) is None
    assert peek_correlation_id(msgpack.packb([2, 4])) is None
    assert peek_correlation_id(b"\xc1") is None


def test_a_body_that_cannot_be_encoded_is_bad_data() -> None:
    for broker_epoch in (2**64, "\ud800", {1, 2}, object()):
        with pytest.raises(BadDataError, match="ControlledShutdownRequest cannot be encoded"):
            encode_body(ControlledShutdownRequest(1, broker_epoch))  # type: ignore[arg-type]
    with pytest.raises(BadDataError, match="str is not a request"):
        encode_request("hello")  # type: ignore[arg-type]


def test_a_body_too_large_to_send_is_refused_when_it_is_encoded() -> None:
    with pytest.raises(BadDataError, match="split it"):
        encode_body(PlacementStatusResponse(Errors.NONE, "ready", "x" * MAX_BODY_BYTES))


def big(marker: int, length: int) -> bytes:
    return bytes([marker]) + struct.pack(">I", length)


def array(length: int) -> bytes:
    return big(0xDD, length)


UNKNOWN_KEY = b"\x81\xa1x"  # a map with one key nobody knows; its value follows
HOSTILE = {
    "nothing": b"",
    "never used": b"\xc1",
    "truncated": encoded(LEADER_AND_ISR)[:-1],
    "something behind it": encoded(LEADER_AND_ISR) + b"\0",
    "arrays 1,500 deep": b"\x91" * 1500 + b"\xc0",
    "maps 1,500 deep": UNKNOWN_KEY * 1500 + b"\xc0",
    "1,000 deep": UNKNOWN_KEY + b"\x91" * 1000 + b"\xc0",
    "a million empty maps": UNKNOWN_KEY + array(1_000_000) + b"\x80" * 1_000_000,
    "a million empty arrays": UNKNOWN_KEY + array(1_000_000) + b"\x90" * 1_000_000,
    "an array said to be huge": UNKNOWN_KEY + array(2**32 - 1),
    "a map said to be huge": big(0xDF, 2**32 - 1),
    "a string said to be huge": UNKNOWN_KEY + big(0xDB, 2**32 - 1),
    "a string over the limit": UNKNOWN_KEY + b"\xda\xff\xff" + b"x" * 65_535,
    "not utf-8": b"\x81\xa1\xff\xc0",
    "bin": UNKNOWN_KEY + b"\xc4\x01x",
    "an extension": UNKNOWN_KEY + b"\xd4\x01\x00",
    "an empty extension": UNKNOWN_KEY + b"\xc7\x00\x01",
    "a timestamp": UNKNOWN_KEY + b"\xd6\xff\x00\x00\x00\x00",
    "an integer as key": b"\x81\x01\xc0",
    "an array as key": b"\x81\x90\xc0",
    "a key twice": b"\x82\xa1x\xc0\xa1x\xc0",
    "a float for a number": b"\x82\xa9broker_id\xcb" + struct.pack(">d", 1.0),
    "not a number": msgpack.packb({"broker_id": float("nan"), "broker_epoch": 1}),
    "a number beyond 64 bits": msgpack.packb({"broker_id": 2**64 - 1, "broker_epoch": 1}),
    "a text for a number": msgpack.packb({"broker_id": "1", "broker_epoch": 1}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_bad_data_at_once_and_cost_little(name: str) -> None:
    data = HOSTILE[name]
    started = time.thread_time()
    for api_key in (ApiKey.CONTROLLED_SHUTDOWN, ApiKey.LEADER_AND_ISR):
        with pytest.raises(BadDataError) as caught:
            decode_request_body(api_key, data)
        message = str(caught.value)
        assert message
        assert "\n" not in message
        assert len(message) < 200
    assert time.thread_time() - started < 0.3  # two decodings, also beside other processes
    with pytest.raises(BadDataError):
        decode_request_header(data)


@pytest.mark.parametrize("maps", [200_000, 1_000_000])
def test_many_empty_maps_are_never_built(maps: int) -> None:
    data = UNKNOWN_KEY + array(maps) + b"\x80" * maps
    tracemalloc.start()
    try:
        with pytest.raises(BadDataError):
            decode_request_body(ApiKey.LEADER_AND_ISR, data)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def repeated(key: str, element: bytes, size: int) -> bytes:
    """A body of this size with as many of an element below a key as have room."""
    count = size // len(element) - 10
    name: bytes = msgpack.packb(key)
    return b"\x81" + name + array(count) + element * count


LARGE = 3 * 1024 * 1024
WELL_FORMED = {
    "proposals": (
        ApiKey.ALTER_PARTITION,
        repeated("partitions", b"\x98\xa2ab\0\xc0\0\x91\0\x91\0\0\0", LARGE),
    ),
    "wide proposals": (
        ApiKey.ALTER_PARTITION,
        repeated(
            "partitions",
            b"\x98\xa2ab\0\xc0\0" + b"\xdc\x7f\xff" + bytes(0x7FFF) + b"\x91\0\0\0",
            LARGE,
        ),
    ),
}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_the_memory_of_a_large_request_is_bounded_by_its_length(name: str) -> None:
    api_key, data = WELL_FORMED[name]
    tracemalloc.start()
    try:
        with suppress(BadDataError):
            decode_request_body(api_key, data)
        assert tracemalloc.get_traced_memory()[1] < 32 * len(data)
    finally:
        tracemalloc.stop()


FIELDS = {
    ApiKey.ENVELOPE: "delete_topics",
    ApiKey.ALTER_PARTITION: "partitions",
}


@pytest.mark.parametrize("api_key", FIELDS)
@pytest.mark.parametrize("element", [b"\x90", b"\x91\x90", b"\x80", b"\0", b"\x91"])
def test_a_large_request_of_another_form_is_refused_soon(api_key: ApiKey, element: bytes) -> None:
    for key in (FIELDS[api_key], "unknown"):
        data = repeated(key, element, LARGE - 100)
        started = time.thread_time()
        with pytest.raises(BadDataError):
            decode_request_body(api_key, data)
        assert time.thread_time() - started < 0.1


def test_no_request_is_decoded_that_is_larger_than_its_kind_may_be() -> None:
    for api_key in codec.KNOWN_APIS - codec.CONTROL_REQUESTS.keys():
        with pytest.raises(BadDataError, match="exceed"):
            decode_request_body(ApiKey(api_key), bytes(16 * 1024 * 1024 + 1))
    too_long = delete_topics("t" * 249 for _ in range(70_000))
    with pytest.raises(BadDataError, match="split it"):
        encode_request(EnvelopeRequest.of(too_long))


def test_the_smallest_rows_of_a_kafka_message_are_not_too_many_for_their_bytes() -> None:
    assignments = [(1,)] * MAX_NEW_PARTITIONS
    request = EnvelopeRequest.of(create_partitions([growing("t", 10_001, assignments)]))
    assert decode_request_body(ApiKey.ENVELOPE, encoded(request)) == request


def test_a_frame_of_50_megabytes_is_bad_data() -> None:
    with pytest.raises(BadDataError, match="exceed"):
        decode_request_body(ApiKey.LEADER_AND_ISR, bytes(50_000_000))
    with pytest.raises(BadDataError, match="not readable"):
        decode_request_body(ApiKey.LEADER_AND_ISR, bytes(5_000_000))


def test_a_frame_over_the_limit_is_not_even_looked_at() -> None:
    with pytest.raises(BadDataError, match="exceed"):
        decode_request_body(ApiKey.LEADER_AND_ISR, bytes(MAX_BODY_BYTES + 1))


def test_damaged_messages_are_bad_data_or_still_messages() -> None:
    dice = random.Random(4)
    refused = 0
    for _ in range(5000):
        data = bytearray(encoded(LEADER_AND_ISR))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        del data[dice.choice([dice.randrange(len(data)), len(data)]) :]
        try:
            decode_request_body(ApiKey.LEADER_AND_ISR, bytes(data))
        except BadDataError:
            refused += 1
    assert refused > 4000


def test_random_bytes_are_bad_data() -> None:
    dice = random.Random(5)
    for _ in range(5000):
        data = dice.randbytes(dice.randrange(64))
        for decode in (decode_request_header, decode_reply_header):
            with pytest.raises(BadDataError):
                decode(data)
        with pytest.raises(BadDataError):
            decode_response_body(ApiKey.UPDATE_METADATA, data)


def test_a_large_body_leaves_the_garbage_collector_as_it_was() -> None:
    rows = tuple(ROW._replace(partition_index=i) for i in range(10_000))
    request = LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic("t", None, rows),), ()
    )
    data = encoded(request)
    assert decode_request_body(ApiKey.LEADER_AND_ISR, data) == request
    assert gc.isenabled()
    with pytest.raises(BadDataError):
        decode_request_body(ApiKey.LEADER_AND_ISR, data[:-1])
    assert gc.isenabled()
    gc.disable()
    try:
        decode_request_body(ApiKey.LEADER_AND_ISR, data)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_request_without_fields_is_an_empty_map() -> None:
    assert encoded(ShutdownBrokerRequest()) == b"\x80"
    assert decode_request_body(ApiKey.SHUTDOWN_BROKER, b"\x80") == ShutdownBrokerRequest()


def test_a_newer_peer_may_add_keys_and_error_codes() -> None:
    data = msgpack.packb({"error_code": 12_345, "reason": "new"})
    response = decode_response_body(ApiKey.UPDATE_METADATA, data)
    assert response == UpdateMetadataResponse(Errors.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize("api_key", [ApiKey.ELECT_LEADERS, ApiKey.LIST_PARTITION_REASSIGNMENTS])
def test_a_body_of_a_peer_that_names_partitions_in_another_way_is_refused(api_key: ApiKey) -> None:
    """Until Regent 0.3 each partition had a row of its own; such a body is not none, or all."""
    request = {"election_type": 0, "partitions": [["t", 0]], "timeout_ms": 0}
    with pytest.raises(BadDataError, match="is missing"):
        decode_request_body(api_key, *encode_body(request))
    with pytest.raises(BadDataError, match="is missing"):
        decode_response_body(api_key, *encode_body({"error_code": 0, "partitions": []}))
