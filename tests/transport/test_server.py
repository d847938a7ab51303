"""A ControlServer against real sockets: peers that behave, peers that do not."""

from __future__ import annotations

import logging
import queue
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import msgpack
import pytest
import zmq

from core.errors import Errors, RegentError
from core.protocol import (
    ApiKey,
    ControlHeader,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PlacementStatusRequest,
    PlacementStatusResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from tests.transport.conftest import Connect, Serve
from transport.client import RequestFailedError
from transport.codec import encode_body
from transport.server import (
    ControlServer,
    IncomingRequest,
    PortInUseError,
    RejectedFrames,
    Rejection,
)
from transport.sockets import Context, Socket, new_context, open_socket

READY = PlacementStatusResponse(Errors.NONE, "ready")
STATUS = PlacementStatusRequest()


def answer_ready(request: IncomingRequest) -> None:
    request.reply(READY)


class RawPeer:
    """A DEALER that sends any frames at all."""

    def __init__(self, socket: Socket, endpoint: str) -> None:
        self.socket = socket
        socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        assert self.socket.poll(5000, zmq.POLLOUT)
        self.socket.send_multipart(frames)

    def send_header(self, header: object, body: bytes = b"\x80") -> None:
        self.send(b"", msgpack.packb(header), body)

    def receive(self) -> list[object]:
        """The header of the next answer, which has no body."""
        assert self.socket.poll(5000, zmq.POLLIN)
        empty, header = self.socket.recv_multipart()
        assert empty == b""
        decoded: list[object] = msgpack.unpackb(header)
        return decoded

    def receive_own_answer(self) -> list[bytes]:
        """What comes back for a well-formed request: proof that the server still serves."""
        self.send_header([1, ApiKey.PLACEMENT_STATUS, 0, 999, "raw", None, None, None])
        assert self.socket.poll(5000, zmq.POLLIN)
        return self.socket.recv_multipart()[1:]


ANSWER_999 = [msgpack.packb([1, 999, 0]), encode_body(READY)]


@pytest.fixture
def server(serve: Serve) -> ControlServer:
    return serve(answer_ready)


@pytest.fixture
def peer(context: Context, server: ControlServer) -> Iterator[RawPeer]:
    socket = open_socket(context, zmq.DEALER)
    yield RawPeer(socket, server.endpoint)
    socket.close()


def test_a_request_arrives_whole_and_its_answer_comes_back(serve: Serve, connect: Connect) -> None:
    requests: queue.Queue[IncomingRequest] = queue.Queue()

    def dispatch(request: IncomingRequest) -> None:
        requests.put(request)
        request.reply(StopReplicaResponse(Errors.STALE_BROKER_EPOCH))

    client = connect(serve(dispatch).endpoint)
    header = ControlHeader(1, 7, 4_294_967_300)
    response = client.request(StopReplicaRequest(()), control_header=header, timeout_ms=5000)
    assert response == StopReplicaResponse(Errors.STALE_BROKER_EPOCH)
    request = requests.get(timeout=5)
    assert request.api_key is ApiKey.STOP_REPLICA
    assert request.control_header == header
    assert request.client_id == "tester"
    assert request.body == StopReplicaRequest(())


def test_an_answer_may_come_from_another_thread_later(serve: Serve, connect: Connect) -> None:
    inbox: queue.Queue[IncomingRequest] = queue.Queue()
    client = connect(serve(inbox.put).endpoint)

    def answer_one() -> None:
        inbox.get(timeout=5).reply(READY)

    thread = threading.Thread(target=answer_one)
    thread.start()
    assert client.request(STATUS, timeout_ms=5000) == READY
    thread.join(5)


def test_a_request_is_answered_once(serve: Serve, connect: Connect) -> None:
    def dispatch(request: IncomingRequest) -> None:
        request.reply(READY)
        request.reply(PlacementStatusResponse(Errors.NONE, "failed"))
        request.reply.fail(Errors.NOT_CONTROLLER)

    client = connect(serve(dispatch).endpoint)
    for _ in range(3):
        assert client.request(STATUS, timeout_ms=5000) == READY


def test_a_refusal_has_only_an_error_code(serve: Serve, connect: Connect) -> None:
    client = connect(serve(lambda request: request.reply.fail(Errors.NOT_CONTROLLER)).endpoint)
    with pytest.raises(RequestFailedError, match="NOT_CONTROLLER") as caught:
        client.request(STATUS, timeout_ms=5000)
    assert caught.value.error_code is Errors.NOT_CONTROLLER


def test_a_request_that_everybody_forgot_is_answered_with_an_error(
    serve: Serve, connect: Connect
) -> None:
    client = connect(serve(lambda _: None, max_outstanding=1).endpoint)
    for _ in range(3):
        with pytest.raises(RequestFailedError) as caught:
            client.request(STATUS, timeout_ms=5000)
        assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR


def test_an_exception_in_dispatch_is_answered_and_the_next_request_served(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def dispatch(request: IncomingRequest) -> None:
        if isinstance(request.body, DescribeTopicsRequest):
            raise KeyError("surprise")
        request.reply(READY)

    server = serve(dispatch)
    client = connect(server.endpoint)
    with pytest.raises(RequestFailedError) as caught:
        client.request(DescribeTopicsRequest(), timeout_ms=5000)
    assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR
    assert client.request(STATUS, timeout_ms=5000) == READY
    assert server.rejected.counts == {Rejection.DISPATCH_FAILED: 1}
    assert "surprise" in caplog.text


@pytest.mark.parametrize(
    "response",
    [
        DescribeTopicsResponse(Errors.NONE),
        PlacementStatusResponse(Errors.NONE, "\ud800"),
    ],
)
def test_an_answer_that_cannot_be_sent_becomes_an_error(
    serve: Serve, connect: Connect, response: PlacementStatusResponse
) -> None:
    client = connect(serve(lambda request: request.reply(response)).endpoint)
    with pytest.raises(RequestFailedError) as caught:
        client.request(STATUS, timeout_ms=5000)
    assert caught.value.error_code is Errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("header", "body", "error", "reason"),
    [
        ([2, 4, 0, 5, "c", 1, 2, 3], b"\x80", Errors.UNSUPPORTED_VERSION, "unsupported version"),
        ([1, 4, 1, 5, "c", 1, 2, 3], b"\x80", Errors.UNSUPPORTED_VERSION, "unsupported version"),
        ([1, 99, 0, 5, "c", 1, 2, 3], b"\x80", Errors.INVALID_REQUEST, "unknown api"),
        ([1, 4, 0, 5], b"\x80", Errors.INVALID_REQUEST, "bad header"),
        ([1, 4, 0, 5, "c", 1, 2, None], b"\x80", Errors.INVALID_REQUEST, "bad header"),
        ([1, 4, 0, 5, "c", 1, 2, 3], b"\x80", Errors.INVALID_REQUEST, "bad body"),
        ([1, 4, 0, 5, "c", 1, 2, 3], b"\xc1", Errors.INVALID_REQUEST, "bad body"),
        ([1, 4, 0, 5, "c", 1, 2, 3], b"\x91" * 1500, Errors.INVALID_REQUEST, "bad body"),
        (
            [1, 4, 0, 5, "c", None, None, None],
            b"\x80",
            Errors.INVALID_REQUEST,
            "control request without epochs",
        ),
    ],
)
def test_a_malformed_request_with_a_correlation_id_is_answered_with_an_error(
    server: ControlServer,
    peer: RawPeer,
    header: object,
    body: bytes,
    error: Errors,
    reason: str,
) -> None:
    peer.send_header(header, body)
    assert peer.receive() == [1, 5, error]
    assert server.rejected.counts == {reason: 1}
    assert peer.receive_own_answer() == ANSWER_999


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"one"], Rejection.BAD_ENVELOPE),
        ([b"", b"\xc1"], Rejection.BAD_ENVELOPE),
        ([b"", b"\xc1", b""], Rejection.BAD_HEADER),
        ([b"", b"\x94\x01\x04\x00\xa15", b"\x80"], Rejection.BAD_HEADER),
        ([b"not empty", b"\xc1", b"\x80"], Rejection.BAD_ENVELOPE),
        ([b""] * 5000, Rejection.TOO_LARGE),
    ],
)
def test_a_message_without_a_correlation_id_is_dropped_and_counted(
    server: ControlServer, peer: RawPeer, frames: list[bytes], reason: Rejection
) -> None:
    peer.send(*frames)
    assert peer.receive_own_answer() == ANSWER_999
    assert server.rejected.counts == {reason: 1}


def test_a_peer_that_sends_too_large_a_frame_is_cut_off(
    server: ControlServer, peer: RawPeer, connect: Connect
) -> None:
    monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    peer.send(b"", bytes(64 * 1024 * 1024 + 1))
    assert monitor.poll(5000)
    peer.socket.disable_monitor()
    monitor.close()
    assert connect(server.endpoint).request(STATUS, timeout_ms=5000) == READY


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 100_000,
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + b"\0" * 48 + b"\xfe" * 1000,
        b"",
    ],
)
def test_garbage_on_the_port_harms_nobody(
    server: ControlServer, connect: Connect, garbage: bytes
) -> None:
    client = connect(server.endpoint)
    address = urlsplit(server.endpoint)
    with socket.create_connection((address.hostname, address.port or 0), timeout=5) as connection:
        with suppress(ConnectionError):
            connection.sendall(garbage)
        assert client.request(STATUS, timeout_ms=5000) == READY
    assert client.request(STATUS, timeout_ms=5000) == READY
    assert server.rejected.counts == {}


def test_more_unanswered_requests_than_allowed_are_refused(
    serve: Serve, context: Context, connect: Connect
) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put, max_outstanding=2)
    socket = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(socket, server.endpoint)
        for correlation_id in (1, 2, 3):
            peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, correlation_id, "c", None, None, None])
        assert peer.receive() == [1, 3, Errors.BROKER_NOT_AVAILABLE]
        assert server.rejected.counts == {Rejection.OVERLOADED: 1}
        for correlation_id in (1, 2):
            held.get(timeout=5).reply.fail(Errors.NOT_CONTROLLER)
            assert peer.receive() == [1, correlation_id, Errors.NOT_CONTROLLER]
        peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, 4, "c", None, None, None])
        held.get(timeout=5).reply.fail(Errors.NONE)
        assert peer.receive() == [1, 4, Errors.NONE]
    finally:
        socket.close()


def test_an_answer_to_a_peer_that_left_is_dropped_and_counted(
    serve: Serve, connect: Connect
) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()

    def hold_the_raw_ones(request: IncomingRequest) -> None:
        if request.client_id == "raw":
            held.put(request)
        else:
            request.reply(READY)

    server = serve(hold_the_raw_ones)
    context_of_peer = new_context()
    socket = open_socket(context_of_peer, zmq.DEALER)
    peer = RawPeer(socket, server.endpoint)
    for correlation_id in range(90):
        peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, correlation_id, "raw", None, None, None])
    unanswered = [held.get(timeout=5) for _ in range(90)]
    socket.close()
    context_of_peer.destroy()  # returns when the connection is closed
    client = connect(server.endpoint)
    while unanswered and not server.rejected.counts:  # it learns of the loss when TCP says so
        unanswered.pop().reply(READY)
        assert client.request(STATUS, timeout_ms=5000) == READY
    assert server.rejected.counts == {Rejection.UNROUTABLE_ANSWER: 1}


@contextmanager
def many_open_files() -> Iterator[None]:
    """Room for the five descriptors of a connection whose both ends are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_200_clients_at_once_get_their_own_answers(serve: Serve, connect: Connect) -> None:
    def echo(request: IncomingRequest) -> None:
        assert isinstance(request.body, DescribeTopicsRequest)
        assert request.body.topics is not None
        request.reply(DescribeTopicsResponse(Errors.NONE, int(request.body.topics[0])))

    server = serve(echo)
    everybody = threading.Barrier(200, timeout=20)
    wrong: queue.Queue[object] = queue.Queue()

    def ask(number: int) -> None:
        client = connect(server.endpoint)
        for offset in (0, 1000):
            everybody.wait()
            request = DescribeTopicsRequest((str(number + offset),))
            response = client.request(request, timeout_ms=10_000)
            if response != DescribeTopicsResponse(Errors.NONE, number + offset):
                wrong.put(response)
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
    with many_open_files():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong.empty()
    assert server.rejected.counts == {}


def test_a_port_in_use_is_named_with_the_remedy(server: ControlServer, context: Context) -> None:
    second = ControlServer(context, server.endpoint, answer_ready, name="second")
    with pytest.raises(PortInUseError, match=r"tcp://127.0.0.1:\d+ is in use: .* another port"):
        second.start()
    second.stop()


def test_an_address_of_no_use_is_named(context: Context) -> None:
    server = ControlServer(context, "nonsense", answer_ready, name="nowhere")
    with pytest.raises(RegentError, match="cannot listen on nonsense"):
        server.start()


def test_stopping_leaves_no_thread_and_frees_the_port(serve: Serve, connect: Connect) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    server.stop()
    server.stop()
    assert "test-server" not in {thread.name for thread in threading.enumerate()}
    again = serve(answer_ready, server.endpoint)
    assert connect(again.endpoint).request(STATUS, timeout_ms=5000) == READY


def test_an_answer_given_before_the_stop_is_sent(serve: Serve, connect: Connect) -> None:
    stop = threading.Event()

    def answer_and_stop(request: IncomingRequest) -> None:
        request.reply(READY)
        stop.set()

    server = serve(answer_and_stop)

    def stop_server() -> None:
        assert stop.wait(5)
        server.stop()

    thread = threading.Thread(target=stop_server)
    thread.start()
    assert connect(server.endpoint).request(STATUS, timeout_ms=5000) == READY
    thread.join(5)


def test_an_answer_after_the_stop_is_ignored(serve: Serve, context: Context) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    socket = open_socket(context, zmq.DEALER)
    RawPeer(socket, server.endpoint).send_header(
        [1, ApiKey.PLACEMENT_STATUS, 0, 1, "c", None, None, None]
    )
    request = held.get(timeout=5)
    server.stop()
    request.reply(READY)
    socket.close()


def test_a_context_that_ends_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    context = new_context()
    server = ControlServer(context, "tcp://127.0.0.1:0", answer_ready, name="abandoned")
    server.start()
    context.term()  # returns when every socket is closed
    server.stop()
    assert "abandoned ends" in caplog.text
    assert "abandoned" not in {thread.name for thread in threading.enumerate()}


def test_rejections_are_counted_by_reason_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejected = RejectedFrames()
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            rejected.add(Rejection.BAD_BODY, "detail")
    assert rejected.counts == {Rejection.BAD_BODY: 1000}
    assert len(caplog.records) == 1
