"""A ControlServer, peers without a key, and peers that may not send what they send."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import zmq

from regent.config.addresses import key_of, keyed_endpoint, without_key
from regent.core.errors import Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import ShutdownBrokerRequest
from regent.core.protocol.controller import ControlledShutdownRequest
from regent.core.security.roles import KeyOwner
from regent.testing.waits import eventually, scaled
from regent.transport.control import peers
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestClient,
    RequestFailedError,
)
from regent.transport.control.key_files import KeyPair, new_key_pair
from regent.transport.control.peers import Message, PeerError, Peers, TooManyPeersError
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import IncomingRequest
from regent.transport.control.sockets import (
    FRAME_BYTES,
    Context,
    Socket,
    connect_to,
    new_context,
    open_monitor,
    open_socket,
)
from regent.transport.descriptors import Descriptors
from tests.support.keys import EVERYBODY_OPERATES, KEYS, Everybody
from tests.support.tcp_proxy import TcpProxy
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.curve_peer import CurvePeer
from tests.transport.control.raw_peer import (
    READY,
    STATUS,
    TIMEOUT_MS,
    RawPeer,
    answer_ready,
    tcp_connection,
)

CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)
COMMAND, LONG = 4, 2
SHORT_MS = round(scaled(300))
FEW = 8  # connections of one key


class Known:
    """Keys that are known, and keys that are found when all are read again."""

    def __init__(self, **peers: str) -> None:
        self.peers = {key: KeyOwner.named(name) for name, key in peers.items()}
        self.found: dict[str, KeyOwner] = {}
        self.reads = 0

    def peer(self, key: str) -> KeyOwner | None:
        return self.peers.get(key)

    def read_again(self, then: Callable[[], None]) -> None:
        self.reads += 1
        self.peers |= self.found
        then()


ClientOf = Callable[[KeyPair, str], RequestClient]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    """Connects to an endpoint with a pair of keys."""
    with ExitStack() as stack:

        def connect(keys: KeyPair, endpoint: str) -> RequestClient:
            context = new_context(keys)
            stack.callback(context.destroy, linger=0)
            client = RequestClient(
                context, endpoint, client_id="test", connect_timeout_ms=TIMEOUT_MS
            )
            stack.callback(client.close)
            return client

        yield connect


def patient_for(client: RequestClient, timeout_ms: int) -> None:
    """Let a client give up soon."""
    client._connect_timeout_ms = timeout_ms


def test_a_peer_without_a_known_key_is_not_heard(serve: Serve, client_of: ClientOf) -> None:
    known = Known()
    server = serve(answer_ready, known=known)
    client = client_of(new_key_pair(), server.endpoint)
    patient_for(client, SHORT_MS)
    with pytest.raises(PeerUnreachableError, match="is our key allowed there"):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert server.rejected.counts.keys() == {Rejection.UNKNOWN_KEY}
    assert known.reads
    assert not server.requests


def test_a_key_that_is_allowed_later_is_let_in_then(serve: Serve, client_of: ClientOf) -> None:
    keys, known = new_key_pair(), Known()
    server = serve(answer_ready, known=known)
    client = client_of(keys, server.endpoint)
    patient_for(client, SHORT_MS)
    with pytest.raises(PeerUnreachableError):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    known.found[keys.public] = KeyOwner.broker(3)
    patient_for(client, TIMEOUT_MS)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_attempts_to_connect_that_were_refused_do_not_fail_the_request_that_waited_for_them(
    serve: Serve, client_of: ClientOf
) -> None:
    keys = new_key_pair()

    class KnownLater(Known):
        def read_again(self, then: Callable[[], None]) -> None:
            if self.reads == 2:
                self.found[keys.public] = KeyOwner.broker(3)
            super().read_again(then)

    def answer_late(request: IncomingRequest) -> None:
        timer = threading.Timer(0.1, request.reply, [READY])
        timer.start()

    known = KnownLater()
    client = client_of(keys, serve(answer_late, known=known).endpoint)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert known.reads == 3, "two attempts were refused"


def test_a_key_that_is_found_when_all_are_read_again_is_let_in_at_once(
    serve: Serve, client_of: ClientOf
) -> None:
    keys, known = new_key_pair(), Known()
    known.found[keys.public] = KeyOwner.broker(3)
    server = serve(answer_ready, known=known)
    assert client_of(keys, server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    assert known.reads == 1
    assert not server.rejected.counts


def test_a_revoked_key_is_not_heard_and_its_connection_is_cut(
    serve: Serve, client_of: ClientOf
) -> None:
    keys, other, known = new_key_pair(), new_key_pair(), Known()
    known.peers = {keys.public: KeyOwner("alice"), other.public: KeyOwner("bob")}
    server = serve(answer_ready, known=known)
    client, innocent = client_of(keys, server.endpoint), client_of(other, server.endpoint)
    for each in (client, innocent):
        assert each.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    del known.peers[keys.public]
    patient_for(client, SHORT_MS)
    for _ in range(2):
        with pytest.raises((PeerUnreachableError, PeerDisconnectedError)):
            client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert server.requests[ApiKey.PLACEMENT_STATUS] == 2
    assert server.rejected.counts[Rejection.UNKNOWN_KEY] >= 1
    assert innocent.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_server_with_another_key_than_expected_gets_no_request(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve(answer_ready)
    hijacked = keyed_endpoint(without_key(server.endpoint), new_key_pair().public)
    client = client_of(KEYS, hijacked)
    patient_for(client, SHORT_MS)
    with pytest.raises(PeerUnreachableError):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert not server.requests


def test_a_request_to_a_peer_whose_key_is_not_known_is_not_sent(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve(answer_ready)
    client = client_of(KEYS, without_key(server.endpoint))
    with pytest.raises(PeerUnreachableError, match="key of the process there is not known"):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)


def test_a_request_that_is_not_for_its_sender_is_refused_before_it_is_decoded(
    serve: Serve, client_of: ClientOf, caplog: pytest.LogCaptureFixture
) -> None:
    keys, known = new_key_pair(), Known()
    known.peers = {keys.public: KeyOwner.broker(1)}
    server = serve(answer_ready, known=known)
    client = client_of(keys, server.endpoint)
    with caplog.at_level(logging.WARNING):
        for request in (ShutdownBrokerRequest(), ControlledShutdownRequest(2, 7)):
            for _ in range(50):
                with pytest.raises(RequestFailedError) as caught:
                    client.request(request, timeout_ms=TIMEOUT_MS)
                assert caught.value.error_code is Errors.CLUSTER_AUTHORIZATION_FAILED
    assert server.rejected.counts == {Rejection.UNAUTHORIZED: 100}
    assert server.unauthorized == {"broker-1": 100}
    assert len(caplog.records) == 1
    assert "broker-1 may not send SHUTDOWN_BROKER, which is for operators" in caplog.text
    assert ApiKey.SHUTDOWN_BROKER not in server.requests, "it was not even opened"


ORDERS = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.SHUTDOWN_BROKER,
)


@pytest.mark.parametrize(
    ("owner", "api_keys"),
    [(KeyOwner.broker(1), ORDERS), (KeyOwner("alice"), (ApiKey.ENVELOPE,))],
    ids=["broker", "operator"],
)
def test_the_body_of_a_refused_request_is_not_decoded(
    serve: Serve, context: Context, owner: KeyOwner, api_keys: Sequence[ApiKey]
) -> None:
    """A broker orders nothing without a client, and an operator is no broker with clients."""
    server = serve(answer_ready, known=Everybody(owner))
    with open_socket(context, zmq.DEALER) as socket:
        peer = RawPeer(socket, server.endpoint)
        for api_key in api_keys:
            peer.send_header([1, api_key, 0, 7, "c", None, None, None], b"\xc1")
            assert peer.receive() == [1, 7, Errors.CLUSTER_AUTHORIZATION_FAILED]
    assert server.rejected.counts == {Rejection.UNAUTHORIZED: len(api_keys)}


def test_a_peer_that_speaks_without_security_is_not_heard(serve: Serve, connect: Connect) -> None:
    server = serve(answer_ready)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.connect(without_key(server.endpoint))
        dealer.send_multipart([b"", b"", b""])
        eventually(lambda: server.rejected.counts, "it is counted")
        assert server.rejected.counts.keys() == {Rejection.BAD_HANDSHAKE}
        assert not dealer.poll(0)
    finally:
        context.destroy(linger=0)
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


NOT_ZMTP = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\3\1\2\0" + bytes(500),
    "zeros": bytes(20_000),
    "Kafka": struct.pack(">ihhih", 20, 18, 0, 1, 4) + b"test" + bytes(6),
    "ZMTP 2": b"\xff" + bytes(8) + b"\x7f\1\5" + bytes(60),
}


def is_closed(stranger: socket.socket) -> bool:
    """Whether the other end closes a connection within some seconds."""
    stranger.settimeout(scaled(20))
    with suppress(ConnectionResetError):
        while stranger.recv(1000):
            pass
    return True


@pytest.mark.parametrize("said", NOT_ZMTP.values(), ids=NOT_ZMTP)
def test_bytes_of_another_protocol_are_counted_and_their_connections_closed(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    server = serve(answer_ready)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            with tcp_connection(server.endpoint) as stranger, suppress(ConnectionError):
                stranger.sendall(said)
                assert is_closed(stranger)
        eventually(lambda: server.rejected.counts == {Rejection.BAD_HANDSHAKE: 10}, "counted once")
    assert len(caplog.records) == 1
    assert "speaks another protocol" in caplog.text
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_peer_that_proves_its_key_and_leaves_is_not_counted(serve: Serve) -> None:
    server = serve(answer_ready)
    for _ in range(3):
        context = new_context(KEYS)
        dealer = open_socket(context, zmq.DEALER)
        connect_to(dealer, server.endpoint)
        assert dealer.poll(TIMEOUT_MS, zmq.POLLOUT)
        context.destroy(linger=0)
    with tcp_connection(server.endpoint) as stranger, suppress(ConnectionError):
        stranger.sendall(bytes(100))
        assert is_closed(stranger)
    eventually(lambda: server.rejected.counts, "only the last is counted")
    assert server.rejected.counts == {Rejection.BAD_HANDSHAKE: 1}


def test_while_the_thread_that_answers_about_keys_stands_still_new_peers_are_closed(
    serve: Serve, connect: Connect
) -> None:
    stands_still, goes_on = threading.Event(), threading.Event()

    def dispatch(request: IncomingRequest) -> None:
        stands_still.set()
        assert goes_on.wait(scaled(60))
        request.reply(READY)

    server = serve(dispatch)
    connect(server.endpoint).send(STATUS)
    assert stands_still.wait(scaled(20))
    try:
        with tcp_connection(server.endpoint) as stranger:
            stranger.sendall(CURVE_GREETING)
            assert is_closed(stranger)
        late = connect(server.endpoint, connect_timeout_ms=SHORT_MS)
        with pytest.raises(PeerUnreachableError):
            late.request(STATUS, timeout_ms=TIMEOUT_MS)
    finally:
        goes_on.set()
    assert connect(server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_connection_that_has_sent_nothing_is_cut_when_its_key_is_revoked(serve: Serve) -> None:
    keys, known = new_key_pair(), Known()
    known.peers = {keys.public: KeyOwner("alice")}
    server = serve(answer_ready, known=known)
    context = new_context(keys)
    try:
        dealer = open_socket(context, zmq.DEALER)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        monitor = open_monitor(context, dealer, zmq.EVENT_DISCONNECTED)
        connect_to(dealer, server.endpoint)
        assert dealer.poll(TIMEOUT_MS, zmq.POLLOUT)
        del known.peers[keys.public]
        assert monitor.poll(TIMEOUT_MS)
        dealer.disable_monitor()
    finally:
        context.destroy(linger=0)


@pytest.fixture
def few_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MAX_OF_KEY", FEW)


@pytest.mark.usefixtures("few_of_a_key")
def test_a_key_has_few_connections_and_keeps_no_other_key_out(
    serve: Serve, client_of: ClientOf
) -> None:
    greedy, honest, known = new_key_pair(), new_key_pair(), Known()
    known.peers = {greedy.public: KeyOwner.broker(1), honest.public: KeyOwner.broker(2)}
    server = serve(answer_ready, known=known)
    context = new_context(greedy)
    try:
        held = [RawPeer(open_socket(context, zmq.DEALER), server.endpoint) for _ in range(FEW)]
        for peer in held:
            assert peer.receive_own_answer()
        late = client_of(greedy, server.endpoint)
        patient_for(late, SHORT_MS)
        with pytest.raises(PeerUnreachableError):
            late.request(STATUS, timeout_ms=TIMEOUT_MS)
        assert client_of(honest, server.endpoint).request(STATUS, timeout_ms=TIMEOUT_MS) == READY
        held[0].socket.close()
        patient_for(late, TIMEOUT_MS)
        assert late.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    finally:
        context.destroy(linger=0)


@pytest.mark.usefixtures("few_of_a_key")
def test_connections_that_were_let_in_together_are_counted_too(serve: Serve) -> None:
    keys, known = new_key_pair(), Known()
    known.peers = {keys.public: KeyOwner.broker(1)}
    server = serve(answer_ready, known=known)
    context = new_context(keys)
    try:
        held = [RawPeer(open_socket(context, zmq.DEALER), server.endpoint) for _ in range(FEW + 2)]
        for peer in held:  # all have proved the key before the first sends
            assert peer.socket.poll(TIMEOUT_MS, zmq.POLLOUT)
            peer.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        for peer in held[:FEW]:
            assert peer.receive_own_answer()
        for peer in held[FEW:]:
            peer.send(b"", b"")
        eventually(lambda: server.rejected.counts.get(Rejection.TOO_MANY_PEERS) == 2, "")
    finally:
        context.destroy(linger=0)


@contextmanager
def dealers_of_large_messages(
    endpoint: str, count: int, forwarded_bytes: int
) -> Iterator[list[Socket]]:
    """Sockets that send what they are given, of which only the first bytes are forwarded."""
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(without_key(endpoint).removeprefix("tcp://")))
        proxy.forward_at_most(forwarded_bytes)
        context = new_context(KEYS)
        stack.callback(context.destroy, linger=0)
        dealers = [open_socket(context, zmq.DEALER) for _ in range(count)]
        for dealer in dealers:
            dealer.setsockopt(zmq.RECONNECT_IVL, -1)
            connect_to(dealer, keyed_endpoint(f"tcp://{proxy.address}", key_of(endpoint)))
            assert dealer.poll(TIMEOUT_MS, zmq.POLLOUT)
        yield dealers


@pytest.mark.parametrize("speaks_first", [False, True])
def test_a_message_without_an_end_is_cut_off(
    serve: Serve, connect: Connect, *, speaks_first: bool
) -> None:
    server = serve(answer_ready, max_frame_bytes=100_000, known=EVERYBODY_OPERATES)
    innocent = connect(server.endpoint)
    assert innocent.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    with dealers_of_large_messages(server.endpoint, 1, 2_000_000) as (dealer,):
        if speaks_first:
            dealer.send_multipart([b"", b""])
            assert dealer.poll(TIMEOUT_MS)
            dealer.recv_multipart()
        dealer.send_multipart([b"", *[bytes(FRAME_BYTES)] * 200])
        eventually(lambda: server.rejected.counts.get(Rejection.TOO_LARGE), "it is cut off")
    assert innocent.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_many_unfinished_messages_of_one_key_are_limited_together(serve: Serve) -> None:
    server = serve(answer_ready, max_frame_bytes=100_000)
    with dealers_of_large_messages(server.endpoint, 20, 80_000) as dealers:
        for dealer in dealers:
            dealer.send_multipart([b"", *[bytes(FRAME_BYTES)] * 6])
        eventually(lambda: server.rejected.counts.get(Rejection.TOO_LARGE, 0) > 10, "most are cut")


def test_few_peers_wait_while_keys_are_read(
    serve: Serve, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_MAX_WAITING", 2)
    server = serve(answer_ready, known=Questions())
    clients = [client_of(new_key_pair(), server.endpoint) for _ in range(3)]
    for client in clients:
        patient_for(client, SHORT_MS)
        assert Rejection.UNKNOWN_KEY not in server.rejected.counts, "the others wait"
        with pytest.raises(PeerUnreachableError):
            client.request(STATUS, timeout_ms=TIMEOUT_MS)
    eventually(lambda: Rejection.UNKNOWN_KEY in server.rejected.counts, "the last is refused")


def memory_mb() -> int:
    """The resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


@pytest.mark.parametrize(
    "said",
    [
        b"",
        CURVE_GREETING[:20],
        CURVE_GREETING,
        CURVE_GREETING + bytes([COMMAND, 200, 5]) + b"HELLO" + bytes(194),
        CURVE_GREETING + bytes([COMMAND | LONG]) + struct.pack(">Q", 2**31) + bytes(100_000),
        CURVE_GREETING + bytes([LONG | 1]) + struct.pack(">Q", FRAME_BYTES) + bytes(FRAME_BYTES),
        NULL_GREETING + b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER" + bytes(50_000),
    ],
    ids=["nothing", "half a greeting", "a greeting", "a bad HELLO", "2 GiB", "a frame", "NULL"],
)
def test_peers_without_a_key_use_little_memory_and_disturb_nobody(
    serve: Serve, connect: Connect, said: bytes
) -> None:
    server = serve(answer_ready)
    client = connect(server.endpoint)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
    before = memory_mb()
    with ExitStack() as stack:
        for _ in range(200):
            stranger = stack.enter_context(tcp_connection(server.endpoint))
            stranger.setblocking(False)
            with suppress(OSError):
                stranger.send(said)
        for _ in range(20):
            assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
        assert memory_mb() - before < 20, "16 KiB and two buffers each"
    assert server.requests == {ApiKey.PLACEMENT_STATUS: 21}


def test_the_oldest_peer_without_a_key_is_closed_when_descriptors_are_scarce() -> None:
    scarce = Descriptors(lambda: 0, lambda: 80)
    listening = Peers(KEYS, EVERYBODY_OPERATES, "tcp://127.0.0.1:0", 1000, descriptors=scarce)
    errors: list[PeerError] = []

    def refused() -> int:
        errors.extend(listening.take_events())
        return sum(isinstance(error, TooManyPeersError) for error in errors)

    with ExitStack() as stack:
        stack.callback(listening.close)
        strangers = [stack.enter_context(tcp_connection(listening.endpoint)) for _ in range(40)]
        eventually(lambda: refused() >= 20, "the first ones are closed")
        strangers[0].settimeout(scaled(5))
        with suppress(ConnectionResetError):
            while strangers[0].recv(100):
                pass
        strangers[-1].setblocking(False)
        with suppress(BlockingIOError):
            assert strangers[-1].recv(100), "this one is still waited for"


def test_a_late_message_of_who_had_its_descriptor_before_is_not_taken_for_that_of_a_new_peer() -> (
    None
):
    first, second = new_key_pair(), new_key_pair()
    known = Known(first=first.public, second=second.public)
    listening = Peers(KEYS, known, "tcp://127.0.0.1:0", 1000)
    endpoint = keyed_endpoint(listening.endpoint, KEYS.public)

    def strangers() -> list[int]:
        assert not listening.take_events()
        return list(listening._strangers)

    def connected(keys: KeyPair, threads: ThreadPoolExecutor) -> CurvePeer:
        peer = threads.submit(CurvePeer, endpoint, keys)
        eventually(lambda: strangers() and peer.done(), "it is not let in")
        return peer.result(scaled(20))

    def next_message() -> Message:
        received: list[Message] = []

        def has_received() -> bool:
            message = listening.receive()
            received.extend(() if message is None else (message,))
            return bool(received)

        eventually(has_received, "no message")
        return received[0]

    with ExitStack() as stack:
        stack.callback(listening.close)
        threads = stack.enter_context(ThreadPoolExecutor(1))
        former = connected(first, threads)
        descriptors = strangers()
        former.socket.sendall(former.message(b"former"))
        former.socket.close()
        eventually(lambda: not strangers(), "it stays")
        present = connected(second, threads)
        stack.callback(lambda: present.socket.close())
        for _ in range(100):  # another thread may have taken the descriptor for a moment
            if strangers() == descriptors:
                break
            present.socket.close()
            eventually(lambda: not strangers(), "it stays")
            present = connected(second, threads)
        assert strangers() == descriptors
        assert next_message().peer == known.peer(first.public)
        listening.end_connections(KeyOwner.named("first"))
        for _ in range(2):
            present.socket.sendall(present.message(b"present"))
            message = next_message()
            assert message.peer == known.peer(second.public)
            assert message.frames == [b"present"]
        listening.end_connections(KeyOwner.named("second"))
        assert present.socket.recv(1000) == b"", "who it belongs to is known"


class Questions:
    """Known keys that are never read: nobody answers."""

    def peer(self, key: str) -> KeyOwner | None:
        return None

    def read_again(self, then: Callable[[], None]) -> None:
        pass


def test_while_nobody_answers_about_a_key_nobody_is_let_in(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve(answer_ready, known=Questions())
    client = client_of(KEYS, server.endpoint)
    patient_for(client, SHORT_MS)
    with pytest.raises(PeerUnreachableError):
        client.request(STATUS, timeout_ms=TIMEOUT_MS)
    assert not server.requests
