"""Connections between brokers, and peers that are absent, slow, stopped, or speak nonsense."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic

import pytest

from regent.config.closing import Closing
from regent.testing.waits import scaled
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestAbandonedError,
    RequestFailedError,
    RequestTimeoutError,
)
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection

TIMEOUT_S = scaled(5.0)
AT_ONCE_S = scaled(1.0)
BODY = b"a question"
ANSWER = b"an answer"


def framed(correlation_id: int, body: bytes) -> bytes:
    """A response with a flexible header."""
    return struct.pack(">iib", 5 + len(body), correlation_id, 0) + body


def receive(sock: socket.socket) -> tuple[int, bytes]:
    """Return the correlation id and the body of a request with a flexible header."""
    with sock.makefile("rb", buffering=0) as file:
        (size,) = struct.unpack(">i", _exactly(file, 4))
        data = _exactly(file, size)
    _, _, correlation_id, length = struct.unpack_from(">hhih", data)
    return correlation_id, data[10 + length + 1 :]


def _exactly(file: socket.SocketIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = file.read(count - len(data))
        assert piece, "the other end left"
        data += piece
    return data


class Peer:
    """Accepts connections, and answers each with a script."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listening.settimeout(TIMEOUT_S)
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.connection = BrokerConnection(self.endpoint, client_id="me")
        self.served = threading.Semaphore(0)  # connections, which are closed
        stack.callback(self.connection.close)

    def serve(self, *scripts: Callable[[socket.socket], object]) -> None:
        """Run a script for each of the next connections."""
        thread = threading.Thread(target=self._serve, args=(scripts,))
        thread.start()
        self._stack.callback(thread.join, TIMEOUT_S)

    def _serve(self, scripts: tuple[Callable[[socket.socket], object], ...]) -> None:
        for script in scripts:
            sock, _ = self._listening.accept()
            with sock:
                sock.settimeout(TIMEOUT_S)
                script(sock)
            self.served.release()

    def ask(self, *, timeout_ms: int = 5_000, closing: Closing | None = None) -> bytes:
        """Send a request; return the body of the response."""
        return bytes(
            self.connection.exchange(
                KafkaApiKey.FETCH, 17, BODY, timeout_ms=timeout_ms, closing=closing
            )
        )


@pytest.fixture
def peer() -> Iterator[Peer]:
    with ExitStack() as stack:
        yield Peer(stack)


def answer_once(sock: socket.socket) -> None:
    correlation_id, body = receive(sock)
    assert body == BODY
    sock.sendall(framed(correlation_id, ANSWER))


def wait_for_end(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass


def test_requests_follow_each_other_on_one_connection(peer: Peer):
    def answer_three(sock: socket.socket) -> None:
        for _ in range(3):
            answer_once(sock)

    peer.serve(answer_three)
    assert [peer.ask() for _ in range(3)] == [ANSWER] * 3


def test_a_response_may_come_in_pieces_and_be_larger_than_the_buffer(peer: Peer):
    large = bytes(range(256)) * 4_000

    def answer_slowly(sock: socket.socket) -> None:
        data = framed(receive(sock)[0], large)
        for start, end in ((0, 3), (3, 9), (9, 100_000), (100_000, len(data))):
            sock.sendall(data[start:end])
        answer_once(sock)

    peer.serve(answer_slowly)
    assert peer.ask() == large
    assert peer.ask() == ANSWER


def test_an_absent_peer_is_unreachable(peer: Peer):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    connection = BrokerConnection(endpoint, client_id="me")
    with pytest.raises(PeerUnreachableError, match=endpoint):
        connection.exchange(KafkaApiKey.FETCH, 17, BODY, timeout_ms=60_000)


@pytest.mark.parametrize("endpoint", ["inproc://nobody", "tcp://no such host:1", ""])
def test_an_invalid_endpoint_is_unreachable(endpoint: str):
    connection = BrokerConnection(endpoint, client_id="me")
    with pytest.raises(PeerUnreachableError):
        connection.exchange(KafkaApiKey.FETCH, 17, BODY, timeout_ms=1_000)


def test_a_peer_that_does_not_answer_is_disconnected_after_the_timeout(peer: Peer):
    peer.serve(wait_for_end, answer_once)
    started = monotonic()
    with pytest.raises(RequestTimeoutError):
        peer.ask(timeout_ms=50)
    assert 0.05 <= monotonic() - started < TIMEOUT_S
    assert peer.ask() == ANSWER  # on another connection


def test_a_peer_that_answers_byte_by_byte_is_also_disconnected(peer: Peer):
    def trickle(sock: socket.socket) -> None:
        data = framed(receive(sock)[0], bytes(100_000))
        try:
            for byte in data:
                sock.sendall(bytes((byte,)))
        except OSError:
            pass

    peer.serve(trickle)
    with pytest.raises(RequestTimeoutError):
        peer.ask(timeout_ms=20)


def test_a_broken_connection_ends_the_wait(peer: Peer):
    peer.serve(receive, answer_once)
    with pytest.raises(PeerDisconnectedError):
        peer.ask()
    assert peer.ask() == ANSWER


def test_a_connection_that_the_peer_closed_meanwhile_is_replaced(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.transport.kafka.broker_connection._IDLE_S", 0.0)
    peer.serve(answer_once, answer_once)
    assert peer.ask() == ANSWER
    assert peer.served.acquire(timeout=TIMEOUT_S)
    assert peer.ask() == ANSWER


def nonsense(data: bytes) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        receive(sock)
        sock.sendall(data)

    return answer


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "correlation id 791752241 to request 1"),
        (struct.pack(">ii", 3, 1), "a response of 3 bytes"),
        (struct.pack(">ii", -1, 1), "a response of -1 bytes"),
        (framed(77, ANSWER), "correlation id 77 to request 1"),
        (framed(1, ANSWER) + b"more", "4 bytes follow"),
        (struct.pack(">iib", 5, 1, 9), "more than|elements|bytes are left"),
    ],
)
def test_a_peer_that_sends_garbage_is_named_and_disconnected(
    peer: Peer, data: bytes, complaint: str
):
    peer.serve(nonsense(data), lambda sock: sock.sendall(framed(receive(sock)[0], ANSWER)))
    with pytest.raises(RequestFailedError, match=complaint) as failed:
        peer.ask()
    assert peer.endpoint in str(failed.value)
    assert peer.ask() == ANSWER


def test_an_actor_that_closes_ends_its_wait_at_once(peer: Peer):
    closing, asked = Closing(), threading.Event()

    def hold(sock: socket.socket) -> None:
        receive(sock)
        asked.set()
        wait_for_end(sock)

    peer.serve(hold)

    def close_when_asked() -> None:
        asked.wait(TIMEOUT_S)
        closing.set()

    closer = threading.Thread(target=close_when_asked)
    closer.start()
    started = monotonic()
    with pytest.raises(RequestAbandonedError):
        peer.ask(timeout_ms=60_000, closing=closing)
    assert monotonic() - started < AT_ONCE_S
    closer.join(TIMEOUT_S)


def test_an_actor_that_has_closed_sends_nothing(peer: Peer):
    closing = Closing()
    closing.set()
    with pytest.raises(RequestAbandonedError):
        peer.ask(closing=closing)


VERSIONS = struct.pack(">i", 99) + bytes(95)


def answer_hurried(pieces: tuple[slice, ...]) -> Callable[[socket.socket], None]:
    """Answer a request when the peer has said that it is in a hurry; then one more."""

    def answer(sock: socket.socket) -> None:
        first, _ = receive(sock)
        with sock.makefile("rb", buffering=0) as file:
            (size,) = struct.unpack(">i", _exactly(file, 4))
            api_key, version, second = struct.unpack_from(">hhi", _exactly(file, size))
        assert (api_key, version) == (KafkaApiKey.API_VERSIONS, 0)
        versions = struct.pack(">ii", 4 + len(VERSIONS), second) + VERSIONS
        data = framed(first, ANSWER) + versions
        for piece in pieces:
            sock.sendall(data[piece])
        answer_once(sock)

    return answer


PIECES = [
    (slice(None),),
    (slice(18), slice(18, None)),
    (slice(20), slice(20, 30), slice(30, None)),
]


@pytest.mark.parametrize("pieces", PIECES, ids=["at once", "one by one", "in pieces"])
def test_a_hurried_peer_answers_twice_and_only_the_first_answer_counts(
    peer: Peer, pieces: tuple[slice, ...]
):
    peer.serve(answer_hurried(pieces))
    peer.connection.hurry()
    peer.connection.hurry()  # once is enough
    assert peer.ask() == ANSWER
    assert peer.ask() == ANSWER


def test_a_thread_may_hurry_while_another_one_waits(peer: Peer):
    asked = threading.Event()

    def answer(sock: socket.socket) -> None:
        asked.set()
        answer_hurried((slice(None),))(sock)

    peer.serve(answer)
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(peer.ask)
        assert asked.wait(TIMEOUT_S)
        peer.connection.hurry()
        assert waiting.result(TIMEOUT_S) == ANSWER
    assert peer.ask() == ANSWER


def test_an_unrequested_second_answer_is_an_error(peer: Peer):
    peer.serve(
        lambda sock: sock.sendall(
            framed(receive(sock)[0], ANSWER) + struct.pack(">ii", 4, 2) + b"more"
        ),
        answer_once,
    )
    peer.connection.hurry()
    with pytest.raises(RequestFailedError, match="4 bytes follow"):
        peer.ask()
    assert peer.ask() == ANSWER
