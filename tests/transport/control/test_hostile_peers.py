"""A ControlServer and peers that send nonsense, too much, or leave."""

from __future__ import annotations

import logging
import queue
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import msgpack
import pytest
import zmq

from regent.core.errors import Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader, UpdateMetadataResponse
from regent.core.security.roles import SENDERS, KeyOwner
from regent.testing.waits import scaled
from regent.transport.control.codec import CONTROL_REQUESTS, LARGE_REQUEST_BYTES, encode_body
from regent.transport.control.key_files import new_key_pair
from regent.transport.control.rejections import RejectedFrames, Rejection
from regent.transport.control.server import ControlServer, IncomingRequest, Screen
from regent.transport.control.sockets import Context, new_context, open_socket
from tests.support.keys import EVERYBODY_OPERATES, context_for_test
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.raw_peer import (
    ANSWER_999,
    READY,
    STATUS,
    TIMEOUT_MS,
    RawPeer,
    answer_ready,
    tcp_connection,
)


@pytest.fixture
def server(serve: Serve) -> ControlServer:
    return serve(answer_ready)


@pytest.fixture
def peer(context: Context, server: ControlServer) -> Iterator[RawPeer]:
    socket = open_socket(context, zmq.DEALER)
    yield RawPeer(socket, server.endpoint)
    socket.close()


@pytest.mark.parametrize(
    ("header", "body", "error", "reason"),
    [
        ([2, 4, 0, 5, "c", 1, 2, 3], b"\x80", Errors.UNSUPPORTED_VERSION, "unsupported version"),
        ([1, 4, 1, 5, "c", 1, 2, 3], b"\x80", Errors.UNSUPPORTED_VERSION, "unsupported version"),
        ([1, 99, 0, 5, "c", 1, 2, 3], b"\x80", Errors.INVALID_REQUEST, "unknown api"),
        ([1, 4, 0, 5], b"\x80", Errors.INVALID_REQUEST, "bad header"),
        ([1, 4, 0, 5, "c", 1, 2, None], b"\x80", Errors.INVALID_REQUEST, "bad header"),
        ([1, 4, 0, 5, "c", 1, 2**31, 3], b"\x80", Errors.INVALID_REQUEST, "bad header"),
        ([1, 4, 0, 5, "c", 1, 2, 3, 4, 5], b"\x80", Errors.INVALID_REQUEST, "bad body"),
        ([1, 4, 0, 5, "c", 1, 2, 3, 4, 5], b"\xc1", Errors.INVALID_REQUEST, "bad body"),
        ([1, 4, 0, 5, "c", 1, 2, 3, 4, 5], b"\x91" * 1500, Errors.INVALID_REQUEST, "bad body"),
        (
            [1, 4, 0, 5, "c", None, None, None],
            b"\x80",
            Errors.INVALID_REQUEST,
            "control request without epochs or receiver",
        ),
        (
            [1, 4, 0, 5, "c", 1, 2, 3],
            b"\x80",
            Errors.INVALID_REQUEST,
            "control request without epochs or receiver",
        ),
    ],
)
def test_a_malformed_request_with_a_correlation_id_is_answered_with_an_error(
    server: ControlServer, peer: RawPeer, header: object, body: bytes, error: Errors, reason: str
) -> None:
    peer.send_header(header, body)
    assert peer.receive() == [1, 5, error]
    assert server.rejected.counts == {reason: 1}
    assert peer.receive_own_answer() == ANSWER_999


@pytest.mark.parametrize("api_key", sorted(SENDERS.keys() - CONTROL_REQUESTS.keys()))
def test_what_only_a_controller_may_put_in_its_header_frees_no_other_request_from_the_limits(
    serve: Serve, context: Context, api_key: ApiKey
) -> None:
    """All brokers know these numbers: a stolen key would have no limit of work and memory."""
    dispatched: list[IncomingRequest] = []
    controller = ControlHeader(1, 7, 3, broker_id=9)
    screen = Screen(is_heard=lambda header: header[:3] == controller[:3])
    server = serve(dispatched.append, screen=screen)
    with open_socket(context, zmq.DEALER) as socket:
        peer = RawPeer(socket, server.endpoint)
        for ends in ([1, 7, 3, None, 9], [1, 7, 3], [None, None, None, None, 9]):
            peer.send_header([1, api_key, 0, 5, "c", *ends], bytes(100))
            assert peer.receive() == [1, 5, Errors.INVALID_REQUEST]
    assert server.rejected.counts == {Rejection.BAD_HEADER: 3}
    assert not dispatched


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"one"], Rejection.BAD_ENVELOPE),
        ([b"", b"\xc1"], Rejection.BAD_ENVELOPE),
        ([b"", b"\xc1", b""], Rejection.BAD_HEADER),
        ([b"", b"\x94\x01\x04\x00\xa15", b"\x80"], Rejection.BAD_HEADER),
        ([b"not empty", b"\xc1", b"\x80"], Rejection.BAD_ENVELOPE),
    ],
)
def test_a_message_without_a_correlation_id_is_dropped_and_counted(
    server: ControlServer, peer: RawPeer, frames: list[bytes], reason: Rejection
) -> None:
    peer.send(*frames)
    assert peer.receive_own_answer() == ANSWER_999
    assert server.rejected.counts == {reason: 1}


def test_a_request_larger_than_its_kind_may_be_is_not_decoded(
    server: ControlServer, peer: RawPeer
) -> None:
    large = b"\x81\xaapartitions" + b"\xdd\0\x40\0\0" + b"\x90" * 0x400000
    peer.send_header([1, ApiKey.ALTER_PARTITION, 0, 5, "c", None, None, None], large)
    assert peer.receive() == [1, 5, Errors.INVALID_REQUEST]
    assert server.rejected.counts == {Rejection.TOO_LARGE: 1}
    assert peer.receive_own_answer() == ANSWER_999


def test_a_large_request_of_a_deposed_controller_is_answered_unread(
    serve: Serve, context: Context
) -> None:
    refused = UpdateMetadataResponse(Errors.STALE_CONTROLLER_EPOCH, 7)
    screened: queue.Queue[tuple[ApiKey, ControlHeader]] = queue.Queue()

    def screen(api_key: ApiKey, header: ControlHeader) -> UpdateMetadataResponse | None:
        screened.put((api_key, header))
        return refused if header.controller_epoch < 7 else None

    server = serve(answer_ready, screen=Screen(screen))
    socket = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(socket, server.endpoint)
        junk = b"\x90" * (LARGE_REQUEST_BYTES + 1)
        peer.send_header([1, ApiKey.UPDATE_METADATA, 0, 5, "c", 1, 6, 3, 12, 9], junk)
        assert socket.poll(round(scaled(5_000)), zmq.POLLIN)
        frames = socket.recv_multipart()[1:]
        assert frames == [msgpack.packb([1, 5, 0]), *encode_body(refused)]
        assert screened.get(timeout=scaled(5)) == (
            ApiKey.UPDATE_METADATA,
            ControlHeader(1, 6, 3, 0, 12, 9),
        )
        peer.send_header([1, ApiKey.UPDATE_METADATA, 0, 6, "c", 1, 7, 3, 13, 9], junk)
        assert peer.receive() == [1, 6, Errors.INVALID_REQUEST], "this one is decoded"
        assert server.rejected.counts == {Rejection.BAD_BODY: 1}
    finally:
        socket.close()


def test_an_unexpected_error_is_logged_and_ends_nothing(
    serve: Serve, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    def screen(api_key: ApiKey, header: ControlHeader) -> None:
        raise LookupError("planted")

    server = serve(answer_ready, screen=Screen(screen))
    socket = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(socket, server.endpoint)
        for _ in range(2):
            header = [1, ApiKey.UPDATE_METADATA, 0, 5, "c", 1, 6, 3, 12, 9]
            peer.send_header(header, bytes(LARGE_REQUEST_BYTES + 1))
            assert peer.receive_own_answer() == ANSWER_999
    finally:
        socket.close()
    assert server.rejected.counts == {Rejection.UNEXPECTED: 2}
    (told,) = (record for record in caplog.records if record.exc_info)
    assert "unexpected error: planted" in told.message


def test_a_peer_that_sends_a_larger_request_than_there_are_is_cut_off(
    serve: Serve, context: Context, connect: Connect
) -> None:
    server = serve(answer_ready, max_frame_bytes=100_000)
    socket = open_socket(context, zmq.DEALER)
    peer = RawPeer(socket, server.endpoint)
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        peer.send(b"", b"", bytes(100_000))
        assert peer.receive_own_answer() == ANSWER_999
        peer.send(b"", b"", bytes(110_000))
        assert monitor.poll(round(scaled(5_000)))
    finally:
        socket.disable_monitor()
        monitor.close()
        socket.close()
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert server.rejected.counts == {Rejection.BAD_HEADER: 1, Rejection.TOO_LARGE: 1}


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 100_000,
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + b"\0" * 48 + b"\xfe" * 1000,
        b"",
    ],
)
def test_garbage_on_the_port_disturbs_no_other_connection(
    server: ControlServer, connect: Connect, garbage: bytes
) -> None:
    client = connect(server.endpoint)
    with tcp_connection(server.endpoint) as connection:
        with suppress(ConnectionError):
            connection.sendall(garbage)
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert server.rejected.counts.keys() <= {Rejection.BAD_HANDSHAKE}  # none became a message


def test_peers_that_leave_before_they_are_accepted_disturb_no_other_peer(
    server: ControlServer, connect: Connect
) -> None:
    client = connect(server.endpoint)
    for _ in range(200):
        peer = tcp_connection(server.endpoint)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # which resets the connection
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert server.rejected.counts.keys() <= {Rejection.BAD_HANDSHAKE}


def test_more_unanswered_requests_than_allowed_are_refused(
    serve: Serve, context: Context, connect: Connect
) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put, max_outstanding=20)  # a tenth of them of one peer
    socket = open_socket(context, zmq.DEALER)
    try:
        peer = RawPeer(socket, server.endpoint)
        for correlation_id in (1, 2, 3):
            peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, correlation_id, "c", None, None, None])
        assert peer.receive() == [1, 3, Errors.BROKER_NOT_AVAILABLE]
        assert server.rejected.counts == {Rejection.OVERLOADED: 1}
        for correlation_id in (1, 2):
            held.get(timeout=scaled(5)).reply.fail(Errors.NOT_CONTROLLER)
            assert peer.receive() == [1, correlation_id, Errors.NOT_CONTROLLER]
        peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, 4, "c", None, None, None])
        held.get(timeout=scaled(5)).reply.fail(Errors.NONE)
        assert peer.receive() == [1, 4, Errors.NONE]
    finally:
        socket.close()


def test_a_peer_with_too_many_unanswered_requests_leaves_room_for_others(serve: Serve) -> None:
    class SixBrokers:
        """Knows six keys."""

        def peer(self, key: str) -> KeyOwner | None:
            return KeyOwner.broker(names.index(key)) if key in names else None

        def read_again(self, then: Callable[[], None]) -> None:
            then()

    keys = [new_key_pair() for _ in range(6)]
    names = [pair.public for pair in keys]
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put, max_outstanding=11, known=SixBrokers())  # two of one peer
    refused = []
    with ExitStack() as stack:
        for pair in keys:
            context = stack.enter_context(new_context(pair))
            socket = stack.enter_context(open_socket(context, zmq.DEALER))
            peer = RawPeer(socket, server.endpoint)
            for number in (1, 2, 3):
                peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, number, "c", None, None, None])
            assert peer.socket.poll(round(scaled(5_000)), zmq.POLLIN)
            refused.append(peer.receive()[1])
        assert refused == [3, 3, 3, 3, 3, 2]
        assert held.qsize() == 11


def test_an_answer_to_a_peer_that_left_is_dropped_and_counted(
    serve: Serve, connect: Connect
) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()

    def hold_the_raw_ones(request: IncomingRequest) -> None:
        if request.client_id == "raw":
            held.put(request)
        else:
            request.reply(READY)

    server = serve(hold_the_raw_ones, known=EVERYBODY_OPERATES)
    context_of_peer = context_for_test()
    socket = open_socket(context_of_peer, zmq.DEALER)
    peer = RawPeer(socket, server.endpoint)
    for correlation_id in range(90):
        peer.send_header([1, ApiKey.PLACEMENT_STATUS, 0, correlation_id, "raw", None, None, None])
    unanswered = [held.get(timeout=scaled(5)) for _ in range(90)]
    socket.close()
    context_of_peer.destroy()  # returns when the connection is closed
    client = connect(server.endpoint)
    while unanswered and not server.rejected.counts:  # it learns of the loss when TCP says so
        unanswered.pop().reply(READY)
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert server.rejected.counts == {Rejection.UNROUTABLE_ANSWER: 1}


def test_rejections_are_counted_by_reason_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejected = RejectedFrames()
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            rejected.add(Rejection.BAD_BODY, "detail")
    assert rejected.counts == {Rejection.BAD_BODY: 1000}
    assert len(caplog.records) == 1
