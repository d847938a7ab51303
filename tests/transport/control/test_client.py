"""A RequestClient against peers that answer late, wrongly, or not at all."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgpack
import pytest
import zmq

from regent.config.addresses import without_key
from regent.core.errors import BadDataError, Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    PartitionError,
)
from regent.core.protocol.placement import PlacementStatusResponse
from regent.core.records import RecordBytes
from regent.testing.waits import scaled
from regent.transport.control.client import (
    RequestAbandonedError,
    RequestClient,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
)
from regent.transport.control.codec import (
    EncodedBody,
    encode_body,
    encode_reply_header,
    encode_request,
)
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import IncomingRequest
from regent.transport.control.sockets import Context
from tests.support.keys import context_for_test
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.raw_peer import READY, STATUS, TIMEOUT_MS

WARMING = PlacementStatusResponse(Errors.NONE, "warming")

Respond = Callable[[int], list[list[RecordBytes]]]


@contextmanager
def scripted_peer(context: Context, respond: Respond) -> Iterator[str]:
    """A ROUTER that answers each request with the messages ``respond(correlation_id)`` says."""
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.bind("tcp://127.0.0.1:0")
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            if router.poll(20):
                route, _, header, *body = router.recv_multipart()
                # A request without a body asks whether a silent peer still runs.
                for frames in respond(msgpack.unpackb(header)[3]) if body else ():
                    router.send_multipart([route, *frames])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield router.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        stopping.set()
        thread.join(scaled(5))
        router.close()


def reply(correlation_id: int, response: PlacementStatusResponse) -> list[RecordBytes]:
    return [b"", encode_reply_header(correlation_id), *encode_body(response)]


def test_answers_to_other_requests_and_noise_are_discarded(
    context: Context, connect: Connect
) -> None:
    def respond(correlation_id: int) -> list[list[RecordBytes]]:
        return [
            reply(correlation_id - 1, WARMING),
            reply(correlation_id + 1, WARMING),
            [b"noise"],
            [b"", b"\xc1", *encode_body(WARMING)],
            [b"", msgpack.packb([2, correlation_id, 0]), *encode_body(WARMING)],
            [b""] * 100,
            reply(correlation_id, READY),
            reply(correlation_id, WARMING),
        ]

    with scripted_peer(context, respond) as endpoint:
        client = connect(endpoint)
        for _ in range(3):
            assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([encode_body(READY)[0][:-1]], Errors.UNKNOWN_SERVER_ERROR),
        ([b"\x91" * 1500], Errors.UNKNOWN_SERVER_ERROR),
        ([], Errors.UNKNOWN_SERVER_ERROR),
        ([*encode_body(READY)] * 2, Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_answer_that_cannot_be_understood_is_a_failed_request(
    context: Context, connect: Connect, frames: list[RecordBytes], error: Errors
) -> None:
    with scripted_peer(context, lambda id_: [[b"", encode_reply_header(id_), *frames]]) as endpoint:
        client = connect(endpoint)
        with pytest.raises(RequestFailedError) as caught:
            client.request(STATUS, timeout_ms=TIMEOUT_MS)
        assert caught.value.error_code is error


@pytest.mark.parametrize("body", [[], [b"\xc1"]])
def test_an_error_code_without_a_readable_body_is_a_failed_request(
    context: Context, connect: Connect, body: list[bytes]
) -> None:
    header = [b"", msgpack.packb([1, 1, 41])]
    with scripted_peer(context, lambda _: [[*header, *body]]) as endpoint:
        client = connect(endpoint)
        with pytest.raises(RequestFailedError) as caught:
            client.request(STATUS, timeout_ms=TIMEOUT_MS)
        assert caught.value.error_code is Errors.NOT_CONTROLLER
        assert caught.value.endpoint == endpoint


def test_a_peer_that_floods_cannot_outlast_the_timeout(context: Context, connect: Connect) -> None:
    with (
        scripted_peer(context, lambda _: [reply(0, WARMING)] * 90) as endpoint,
        pytest.raises(RequestTimeoutError, match=r"no answer within 50 ms"),
    ):
        connect(endpoint).request(STATUS, timeout_ms=50)


def test_a_late_answer_is_never_taken_for_another(serve: Serve, connect: Connect) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    client = connect(server.endpoint)
    with pytest.raises(RequestTimeoutError, match=without_key(server.endpoint)):
        client.request(STATUS, timeout_ms=50)
    late = held.get(timeout=scaled(5))

    def answer_both() -> None:
        current = held.get(timeout=scaled(5))
        late.reply(WARMING)
        current.reply(READY)

    thread = threading.Thread(target=answer_both)
    thread.start()
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    thread.join(scaled(5))


def test_two_requests_are_sent_before_the_first_answer_and_answered_in_any_order(
    serve: Serve, connect: Connect
) -> None:
    received: list[IncomingRequest] = []

    def answer_the_second_first(request: IncomingRequest) -> None:
        received.append(request)
        if len(received) == 2:
            received[1].reply(READY)
            received[0].reply(WARMING)

    client = connect(serve(answer_the_second_first).endpoint)
    requests = [(encode_request(STATUS), None)] * 2
    assert list(client.request_each(requests, timeout_ms=TIMEOUT_MS)) == [(1, READY), (0, WARMING)]
    first, second = received
    assert first.correlation_id < second.correlation_id


def test_a_refused_request_does_not_end_the_wait_for_the_other(
    serve: Serve, connect: Connect
) -> None:
    received: list[IncomingRequest] = []

    def refuse_the_first(request: IncomingRequest) -> None:
        received.append(request)
        if len(received) == 1:
            request.reply.fail(Errors.BROKER_NOT_AVAILABLE)
        else:
            request.reply(READY)

    client = connect(serve(refuse_the_first).endpoint)
    requests = [(encode_request(STATUS), None)] * 2
    (_, refused), answered = client.request_each(requests, timeout_ms=TIMEOUT_MS)
    assert isinstance(refused, RequestFailedError)
    assert refused.error_code is Errors.BROKER_NOT_AVAILABLE
    assert answered == (1, READY)


def test_a_connection_that_ends_ends_the_wait_for_the_answers_that_are_missing(
    context: Context, connect: Connect
) -> None:
    first_ids: list[int] = []

    def answer_the_first(correlation_id: int) -> list[list[RecordBytes]]:
        first_ids.append(correlation_id)
        return [reply(correlation_id, READY)] if len(first_ids) == 1 else []

    with scripted_peer(context, answer_the_first) as endpoint:
        client = connect(endpoint)
        requests = [(encode_request(STATUS), None)] * 2
        answers = client.request_each(requests, timeout_ms=round(scaled(200)))
        assert next(answers) == (0, READY)
        with pytest.raises(RequestTimeoutError):
            next(answers)


def test_closing_ends_the_wait_for_an_answer(serve: Serve, connect: Connect) -> None:
    closing = threading.Event()
    held: list[IncomingRequest] = []

    def hold_and_close(request: IncomingRequest) -> None:
        held.append(request)
        closing.set()

    client = connect(serve(hold_and_close).endpoint)
    started = time.monotonic()
    with pytest.raises(RequestAbandonedError):
        client.request(STATUS, timeout_ms=60_000, closing=closing)
    assert time.monotonic() - started < scaled(5)


def test_closing_ends_the_wait_for_a_connection(context: Context, connect: Connect) -> None:
    closing = threading.Event()
    client = connect("tcp://127.0.0.1:1", connect_timeout_ms=60_000)
    caught: queue.Queue[RequestError] = queue.Queue()

    def ask() -> None:
        try:
            client.request(STATUS, timeout_ms=60_000, closing=closing)
        except RequestError as error:
            caught.put(error)
        client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    closing.set()
    assert isinstance(caught.get(timeout=scaled(5)), RequestAbandonedError)
    thread.join(scaled(5))


def test_nothing_is_sent_once_closing(serve: Serve, connect: Connect) -> None:
    requests: queue.Queue[IncomingRequest] = queue.Queue()
    client = connect(serve(requests.put).endpoint)
    closing = threading.Event()
    closing.set()
    with pytest.raises(RequestAbandonedError):
        client.request(STATUS, timeout_ms=TIMEOUT_MS, closing=closing)
    assert requests.empty()


def test_one_encoded_body_serves_many_brokers(serve: Serve, connect: Connect) -> None:
    row = LeaderAndIsrPartition(0, 7, 1, 3, (1, 2), 9, (1, 2), (), (), False, 0)
    body = encode_request(
        LeaderAndIsrRequest(
            LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic("t", None, (row,)),), ()
        )
    )
    assert isinstance(body, EncodedBody)
    headers: queue.Queue[ControlHeader | None] = queue.Queue()

    def handle(request: IncomingRequest) -> None:
        assert isinstance(request.body, LeaderAndIsrRequest)
        headers.put(request.control_header)
        done = tuple(
            PartitionError(p.topic, p.partition, Errors.NONE) for p, _ in request.body.partitions()
        )
        request.reply(LeaderAndIsrResponse(Errors.NONE, done))

    for broker_epoch in range(3):
        client = connect(serve(handle).endpoint)
        header = ControlHeader(1, 7, broker_epoch, broker_id=2)
        response = client.request(body, control_header=header, timeout_ms=TIMEOUT_MS)
        expected = (PartitionError("t", 0, Errors.NONE),)
        assert response == LeaderAndIsrResponse(Errors.NONE, expected)
        assert headers.get(timeout=scaled(5)) == header


def test_correlation_ids_are_never_used_twice(context: Context, connect: Connect) -> None:
    seen: list[int] = []

    def respond(correlation_id: int) -> list[list[RecordBytes]]:
        seen.append(correlation_id)
        return [reply(correlation_id, READY)] if len(seen) % 2 else []

    with scripted_peer(context, respond) as endpoint:
        client = connect(endpoint)
        for attempt in range(6):
            if attempt % 2:
                with pytest.raises(RequestTimeoutError):
                    client.request(STATUS, timeout_ms=30)
            else:
                client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert all(later > earlier for earlier, later in itertools.pairwise(seen))


def test_a_body_that_cannot_be_encoded_is_never_sent(connect: Connect) -> None:
    with pytest.raises(BadDataError):
        connect("tcp://127.0.0.1:1").request(READY, timeout_ms=TIMEOUT_MS)  # type: ignore[arg-type]


def test_a_context_that_ends_ends_the_wait(serve: Serve) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    context = context_for_test()
    caught: queue.Queue[RequestError] = queue.Queue()

    def ask() -> None:
        try:
            RequestClient(context, server.endpoint, client_id="c").request(
                STATUS, timeout_ms=60_000
            )
        except RequestError as error:
            caught.put(error)

    thread = threading.Thread(target=ask)
    thread.start()
    unanswered = held.get(timeout=scaled(5))
    context.term()  # returns when every socket is closed
    assert isinstance(caught.get(timeout=scaled(5)), RequestAbandonedError)
    unanswered.reply(READY)
    thread.join(scaled(5))


def test_a_request_fails_after_the_context_has_ended(connect: Connect, context: Context) -> None:
    client = connect("tcp://127.0.0.1:1")
    context.destroy(linger=0)
    with pytest.raises(RequestError):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)


def test_a_request_without_epochs_that_needs_them_is_refused(
    serve: Serve, connect: Connect
) -> None:
    server = serve(lambda request: request.reply(READY))
    request = LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())
    with pytest.raises(RequestFailedError, match=ApiKey.LEADER_AND_ISR.name):
        connect(server.endpoint).request(request, timeout_ms=TIMEOUT_MS)
    assert server.rejected.counts == {Rejection.UNFENCED: 1}
