"""Records beside the body: in whose frames they travel, and that nobody gets others' bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import zmq

from regent.core.errors import BadDataError, Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from regent.core.records import RecordBytes
from regent.transport.client import RequestFailedError
from regent.transport.codec import (
    decode_response_body,
    encode_body,
    encode_reply_header,
    encode_request,
)
from regent.transport.record_frames import LARGE_BYTES, RecordFrames, detacher, join_small
from regent.transport.server import IncomingRequest, Rejection
from regent.transport.sockets import MAX_FRAME_BYTES, Context, open_socket
from tests.transport.conftest import Connect, Serve
from tests.transport.raw_peer import ANSWER_999, RawPeer, answer_ready
from tests.transport.test_client import scripted_peer

LARGE = bytes(range(256)) * (LARGE_BYTES // 256)
FETCH = FetchRequest(2)


def response(*records: RecordBytes) -> FetchResponse:
    """An answer with these records, a partition each."""
    rows = [FetchedPartition(i, Errors.NONE, 7, 0, records=r) for i, r in enumerate(records)]
    return FetchResponse(Errors.NONE, (FetchedTopic("orders", tuple(rows)),))


def records_of(answer: object) -> list[bytes]:
    assert isinstance(answer, FetchResponse)
    return [bytes(row.records) for _, row in answer.partitions()]


@pytest.mark.parametrize(
    ("records", "frames"),
    [
        ([], []),
        ([b"", b""], []),
        ([b"one", b"", b"two"], [b"onetwo"]),
        ([LARGE, LARGE], [LARGE, LARGE]),
        ([b"", LARGE, b""], [LARGE]),
        ([b"one", LARGE, b"two", b"three", LARGE], [b"one", LARGE, b"twothree", LARGE]),
    ],
)
def test_large_records_are_a_frame_each_and_small_ones_share(
    records: list[RecordBytes], frames: list[bytes]
) -> None:
    assert list(join_small(records)) == frames
    _, *sent = encode_body(response(*records))
    assert sent == frames
    assert records_of(decode_response_body(ApiKey.FETCH, *encode_body(response(*records)))) == [
        bytes(r) for r in records
    ]


def test_large_records_are_not_copied_on_either_side() -> None:
    _, sent = encode_body(response(LARGE))
    assert sent is LARGE
    answer = decode_response_body(ApiKey.FETCH, *encode_body(response(LARGE, b"small")))
    assert isinstance(answer, FetchResponse)
    assert [
        row.records.obj for _, row in answer.partitions() if isinstance(row.records, memoryview)
    ] == [LARGE, b"small"]


def test_a_body_without_records_has_no_further_frame() -> None:
    assert len(encode_body(response(b""))) == 1
    assert len(encode_request(FETCH).frames) == 1


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([], "records of another length"),
        ([b"on"], "records of another length"),
        ([b"o", b"netwo"], "records of another length"),  # one record batch in two frames
        ([b"onetwo", b""], "more records"),
        ([b"onetwo", b"three"], "more records"),
        ([b"onetwothree"], "more records"),
    ],
)
def test_frames_that_do_not_fit_the_body_are_bad_data(frames: list[bytes], complaint: str) -> None:
    body, *_ = encode_body(response(b"one", b"two"))
    with pytest.raises(BadDataError, match=complaint):
        decode_response_body(ApiKey.FETCH, body, *frames)


@pytest.mark.parametrize("length", [-1, 4, 2**62])
def test_a_length_that_cannot_be_is_bad_data(length: int) -> None:
    with pytest.raises(BadDataError, match="another length"):
        RecordFrames([b"one"]).take([length])


def test_records_where_none_belong_are_bad_data() -> None:
    body, *_ = encode_body(FetchResponse(Errors.NONE))
    with pytest.raises(BadDataError, match="more records"):
        decode_response_body(ApiKey.FETCH, body, b"surprise")


def test_more_than_a_message_holds_is_refused_by_the_sender() -> None:
    half = bytes(MAX_FRAME_BYTES // 2)
    with pytest.raises(BadDataError, match="split it"):
        encode_body(response(half, half))


class Row(NamedTuple):
    number: int
    records: RecordBytes


@dataclass(frozen=True)
class Nested:
    rows: tuple[Row, ...]
    label: str = ""
    last: int | None = None


@dataclass(frozen=True)
class Twice:
    one: RecordBytes
    rows: tuple[Row, ...]


def test_any_message_may_carry_records_and_those_without_are_left_alone() -> None:
    detach = detacher(Nested)
    assert detach is not None
    records: list[RecordBytes] = []
    plain = detach(Nested((Row(1, b"one"), Row(2, b"")), "x"), records)
    assert plain == {"rows": ((1, 3), (2, 0)), "label": "x", "last": None}
    assert records == [b"one", b""]
    assert detacher(FetchRequest) is None


def test_a_message_with_records_in_two_fields_is_refused_when_compiled() -> None:
    with pytest.raises(TypeError, match="records in 2 fields"):
        detacher(Twice)


# --- over the wire ---


def test_records_of_any_size_arrive_as_they_were(serve: Serve, connect: Connect) -> None:
    dice = random.Random(3)
    sizes = [0, 1, 100, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 3_000_000]
    answers = [[dice.randbytes(dice.choice(sizes)) for _ in range(20)] for _ in range(5)]
    remaining = iter(answers)
    client = connect(serve(lambda request: request.reply(response(*next(remaining)))).endpoint)
    for expected in answers:
        assert records_of(client.request(FETCH, timeout_ms=5000)) == expected


def test_many_partitions_fit_into_one_answer(serve: Serve, connect: Connect) -> None:
    records = [bytes([i % 256]) * 100 for i in range(20_000)]
    client = connect(serve(lambda request: request.reply(response(*records))).endpoint)
    assert records_of(client.request(FETCH, timeout_ms=5000)) == records


def test_what_is_sent_may_be_forgotten_at_once(serve: Serve, connect: Connect) -> None:
    """ZeroMQ keeps what it has not sent yet, whoever else lets go of it."""

    def dispatch(request: IncomingRequest) -> None:
        request.reply(response(*(bytes([i]) * 1_000_000 for i in range(10))))

    client = connect(serve(dispatch).endpoint)
    for _ in range(5):
        received = records_of(client.request(FETCH, timeout_ms=5000))
        assert received == [bytes([i]) * 1_000_000 for i in range(10)]


def test_a_request_with_frames_it_does_not_speak_of_is_refused_and_counted(
    serve: Serve, context: Context
) -> None:
    server = serve(answer_ready)
    socket = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(socket, server.endpoint)
        peer.send(
            b"",
            b"\x98\x01\x01\x00\x05\xa1c\xc0\xc0\xc0",
            *map(bytes, encode_request(FETCH).frames),
            b"surprise",
        )
        assert peer.receive() == [1, 5, Errors.INVALID_REQUEST]
        assert server.rejected.counts == {Rejection.BAD_BODY: 1}
        assert peer.receive_own_answer() == ANSWER_999
    finally:
        socket.close()


def test_an_answer_whose_records_do_not_fit_is_a_failed_request_and_the_next_one_counts(
    context: Context, connect: Connect
) -> None:
    body, frame = encode_body(response(b"one", LARGE[:100]))
    answers = iter([[body], [body, frame, frame], [body, frame[1:]], [body, frame]])

    def respond(correlation_id: int) -> list[list[RecordBytes]]:
        return [[b"", encode_reply_header(correlation_id), *next(answers)]]

    with scripted_peer(context, respond) as endpoint:
        client = connect(endpoint)
        for _ in range(3):
            with pytest.raises(RequestFailedError, match="cannot be decoded"):
                client.request(FETCH, timeout_ms=5000)
        assert records_of(client.request(FETCH, timeout_ms=5000)) == [b"one", LARGE[:100]]
