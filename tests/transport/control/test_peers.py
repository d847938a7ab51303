"""Peers that connect, and how much they can make us keep."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Never

import pytest
import zmq

from regent.testing.waits import scaled
from regent.transport.control.peers import (
    MAX_WAITING,
    Message,
    Peers,
    TooManyMessagesError,
    TooManyPeersError,
    TooMuchUnreadError,
)
from regent.transport.control.sockets import Context
from regent.transport.control.unread import MAX_UNREAD_BYTES, UnreadLimit
from regent.transport.control.zmtp import (
    GREETING,
    LARGE_BYTES,
    PING,
    MessageTooLargeError,
    NotZmtpError,
)
from regent.transport.descriptors import Descriptors
from tests.transport.control.raw_peer import tcp_connection, zmtp_dealer

MAX_FRAME_BYTES = 1_000_000
READY_OF_A_ROUTER = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"
PATIENCE = 5  # sweeps
ANSWER_BYTES = 4 * 1024 * 1024
KERNEL_BYTES = 16 * 1024 * 1024  # what it may hold of a connection between two ends that wait


@pytest.fixture
def peers(context: Context) -> Iterator[Peers]:
    peers = Peers(context, "tcp://127.0.0.1:0", MAX_FRAME_BYTES, max_unfinished_bytes=1_500_000)
    yield peers
    peers.close()


def receive_chunk(peers: Peers) -> None:
    """Wait for the next chunk."""
    poller = zmq.Poller()
    peers.register(poller)
    while not peers.receive():
        assert poller.poll(round(scaled(5_000))), "nothing comes"


def receive_without_end(peers: Peers) -> Never:
    while True:
        receive_chunk(peers)


def receive_message(peers: Peers) -> Message:
    while not peers.has_messages:
        receive_chunk(peers)
    message = peers.next_message()
    assert message is not None
    return message


def send_and_receive(peers: Peers, peer: socket.socket, text: bytes) -> Message:
    """Send a message of one frame, and receive it."""
    peer.sendall(bytes((0, len(text))) + text)
    message = receive_message(peers)
    assert message.frames == [text]
    return message


def introduce(peers: Peers) -> socket.socket:
    """Connect, and exchange greetings; what is sent to the peer first is read."""
    peer = zmtp_dealer(peers.endpoint)
    send_and_receive(peers, peer, b"here")
    assert read(peer, len(GREETING)) == GREETING
    assert read(peer, len(READY_OF_A_ROUTER)) == READY_OF_A_ROUTER
    return peer


def read(peer: socket.socket, size: int) -> bytes:
    """Return so many bytes, less when the connection was closed."""
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


def is_closed(
    peers: Peers, peer: socket.socket, meanwhile: Callable[[Peers], object] = Peers.receive
) -> bool:
    """Read until the connection ends; ZeroMQ needs our thread for it."""
    poller = zmq.Poller()
    peers.register(poller)
    poller.register(peer, zmq.POLLIN)
    while ready := dict(poller.poll(round(scaled(5_000)))):
        if peer.fileno() in ready:
            try:
                if not peer.recv(1_000_000):
                    return True
            except ConnectionError:
                return True
        meanwhile(peers)
    return False


def send_without_end(peers: Peers, route: bytes, answer: bytes = bytes(60_000)) -> Never:
    while True:
        peers.send(route, (b"", answer))


def pieces_until_quiet(peer: socket.socket) -> Iterator[bytes]:
    """Read what was sent."""
    peer.settimeout(0.5)
    with suppress(TimeoutError):
        while piece := peer.recv(1_000_000):
            yield piece


def test_a_peer_that_does_not_introduce_itself_is_cut_off(peers: Peers) -> None:
    with (
        introduce(peers) as another,
        tcp_connection(peers.endpoint) as silent,
    ):
        receive_chunk(peers)  # it is connected
        assert read(silent, len(GREETING)) == GREETING
        for _ in range(PATIENCE):
            silent.sendall(GREETING[:1])  # slowly is not fast enough
            receive_chunk(peers)
            send_and_receive(peers, another, b"well")
            peers.sweep()
        assert is_closed(peers, silent)
        send_and_receive(peers, another, b"still here")


def test_a_silent_peer_is_asked_and_cut_off_when_it_does_not_answer(peers: Peers) -> None:
    with introduce(peers) as silent, introduce(peers) as alive:
        for _ in range(PATIENCE):
            peers.sweep()
            send_and_receive(peers, alive, b"well")
        assert read(silent, 9) == b"\x04\x07\x04PING\0\0"
        assert read(silent, 2 * 9) == b"\x04\x07\x04PING\0\0" * 2
        assert is_closed(peers, silent)
        send_and_receive(peers, alive, b"still here")


def test_peers_of_which_nothing_is_expected_are_swept_less_often(peers: Peers) -> None:
    idle_s = peers.sweep_interval_s
    with introduce(peers) as peer:
        peers.sweep()
        assert peers.sweep_interval_s == idle_s  # it has introduced itself
        peers.send(send_and_receive(peers, peer, b"ask").route, (b"", b"answer"))
        assert peers.sweep_interval_s < idle_s / 5  # it may not read the answer
        peers.sweep()
        assert peers.sweep_interval_s == idle_s
        with zmtp_dealer(peers.endpoint) as stranger:
            receive_chunk(peers)
            assert peers.sweep_interval_s < idle_s / 5
            send_and_receive(peers, stranger, b"hello")
        peers.sweep()
        assert peers.sweep_interval_s == idle_s


def test_a_peer_of_zeromq_answers_when_it_is_asked(peers: Peers, context: Context) -> None:
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.connect(peers.endpoint)
        dealer.send(b"here")
        message = receive_message(peers)
        assert message.frames == [b"here"]
        for _ in range(2 * PATIENCE):
            peers.sweep()
            peers.sweep()
            receive_chunk(peers)  # PONG
        peers.send(message.route, (b"still", b"here"))
        assert dealer.poll(round(scaled(5_000)))
        assert dealer.recv_multipart() == [b"still", b"here"]
    finally:
        dealer.close(linger=0)


def test_of_too_many_unfinished_messages_the_largest_is_given_up(peers: Peers) -> None:
    with introduce(peers) as first, introduce(peers) as second, introduce(peers) as small:
        small.sendall(b"\x01\x03one")
        first.sendall(b"\x03" + struct.pack(">Q", 900_000) + bytes(900_000))
        while peers.unfinished_bytes < 900_000:
            receive_chunk(peers)
        second.sendall(b"\x03" + struct.pack(">Q", 700_000) + bytes(700_000))
        with pytest.raises(MessageTooLargeError):
            receive_without_end(peers)
        assert is_closed(peers, first)
        for peer in (second, small):
            peer.sendall(b"\x00\x03end")
            assert receive_message(peers).frames[1] == b"end"
        assert peers.unfinished_bytes == 0


def test_a_stranger_is_cut_off_and_named(peers: Peers) -> None:
    with tcp_connection(peers.endpoint) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(NotZmtpError, match=r"127\.0\.0\.1: no greeting"):
            receive_without_end(peers)
        assert read(stranger, len(GREETING)) in (b"", GREETING)
        assert is_closed(peers, stranger)


def test_answers_to_a_peer_that_does_not_read_are_dropped(peers: Peers) -> None:
    with introduce(peers) as peer:
        route = send_and_receive(peers, peer, b"ask").route
        with pytest.raises(zmq.ZMQError, match="temporarily unavailable"):
            send_without_end(peers, route)
        send_and_receive(peers, peer, b"it is served all the same")


def test_a_peer_that_leaves_no_room_for_the_rest_of_an_answer_is_cut_off(peers: Peers) -> None:
    with introduce(peers) as peer:
        route = send_and_receive(peers, peer, b"ask").route
        with pytest.raises(zmq.ZMQError, match="temporarily unavailable"):
            peers.send(route, (bytes(LARGE_BYTES),) * 2000)
        with pytest.raises(zmq.ZMQError, match="unreachable"):
            peers.send(route, (b"", b"more"))
        assert is_closed(peers, peer, Peers.sweep)  # as soon as there is room to say so


def test_peers_take_turns_by_message(peers: Peers) -> None:
    with introduce(peers) as busy, introduce(peers) as other:
        busy.sendall(b"\0\1a" * 500)
        while not peers.has_messages:
            receive_chunk(peers)
        other.sendall(b"\0\1b")
        receive_chunk(peers)
        assert [receive_message(peers).frames for _ in range(2)] == [[b"a"], [b"b"]]


def test_a_peer_that_sends_more_than_is_read_is_cut_off(peers: Peers) -> None:
    with introduce(peers) as busy, introduce(peers) as other:
        busy.sendall(b"\0\1a" * (MAX_WAITING + 1))
        with pytest.raises(TooManyMessagesError, match="127"):
            receive_without_end(peers)
        assert is_closed(peers, busy)
        send_and_receive(peers, other, b"still here")


def leave(peer: socket.socket) -> None:
    """Close a connection, and return when ZeroMQ knows it."""
    peer.shutdown(socket.SHUT_WR)
    while peer.recv(1_000_000):
        pass


def test_bytes_sent_before_a_peer_left_are_received(peers: Peers) -> None:
    with introduce(peers) as peer:
        peer.sendall(b"\0\1a\0\1b" + PING + b"\0\1c" * 500)
        leave(peer)
    messages = [receive_message(peers)]
    with suppress(zmq.ZMQError):  # ZeroMQ may know by now that it has left
        peers.send(messages[0].route, (b"too late",))
    messages += [receive_message(peers) for _ in range(501)]
    assert [message.frames for message in messages] == [[b"a"], [b"b"], *[[b"c"]] * 500]
    assert not peers.has_messages


def test_a_stranger_that_left_before_it_was_greeted_is_named(peers: Peers) -> None:
    with tcp_connection(peers.endpoint) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        leave(stranger)
    with pytest.raises(NotZmtpError, match="no greeting"):
        receive_without_end(peers)


@pytest.mark.parametrize("size", [MAX_UNREAD_BYTES // 4, LARGE_BYTES, LARGE_BYTES // 4, 1000])
def test_the_data_kept_for_a_client_that_does_not_read_are_limited(peers: Peers, size: int) -> None:
    with introduce(peers) as peer:
        route = send_and_receive(peers, peer, b"ask").route
        with pytest.raises(zmq.Again):
            send_without_end(peers, route, bytes(size))
        unread = sum(len(piece) for piece in pieces_until_quiet(peer))
        assert unread <= MAX_UNREAD_BYTES + size + KERNEL_BYTES
        peers.send(route, (b"now",))  # it has read


def send_until(error: type[Exception], peers: Peers, route: bytes) -> int:
    """Send answers until an error is raised; return how many bytes were sent before."""
    for count in itertools.count():
        try:
            peers.send(route, (b"", bytes(ANSWER_BYTES)))
        except error:
            return count * ANSWER_BYTES
    raise AssertionError


def gets(peers: Peers, peer: socket.socket) -> int:
    """Read until the connection ends; return how many bytes came."""
    received = 0
    with suppress(ConnectionError):
        while piece := peer.recv(1_000_000):
            received += len(piece)
            peers.receive()
    return received


def test_when_all_peers_leave_too_much_unread_the_one_with_most_is_cut_off(
    context: Context,
) -> None:
    limit = UnreadLimit(MAX_UNREAD_BYTES + 2 * ANSWER_BYTES)
    with ExitStack() as stack:
        peers = Peers(context, "tcp://127.0.0.1:0", MAX_FRAME_BYTES, unread_limit=limit)
        stack.callback(peers.close)
        most, other = (stack.enter_context(introduce(peers)) for _ in range(2))
        to_most, to_other = (send_and_receive(peers, peer, b"ask").route for peer in (most, other))
        sent = send_until(zmq.Again, peers, to_most)
        send_until(TooMuchUnreadError, peers, to_other)
        assert gets(peers, most) < sent, "nothing is kept for it any more, however slowly it reads"
        send_and_receive(peers, other, b"still here")


class Port:
    """Who shares a limit."""


def test_the_port_whose_peer_leaves_most_unread_is_to_cut_it_off() -> None:
    limit, one, other = UnreadLimit(100), Port(), Port()
    assert not limit.is_exceeded_by(one, 60, 50)
    assert not limit.is_exceeded_by(other, 45, 45)
    assert limit.is_exceeded_by(one, 60, 50)
    assert not limit.is_exceeded_by(one, 10, 10)
    assert not limit.is_exceeded_by(other, 45, 45)
    del one
    assert limit.is_exceeded_by(other, 101, 45)


def test_a_peer_that_reads_gets_any_amount(peers: Peers) -> None:
    answer = bytes(MAX_UNREAD_BYTES // 4)
    with introduce(peers) as peer:
        for _ in range(20):
            route = send_and_receive(peers, peer, b"again").route
            peers.send(route, (answer,))
            assert len(read(peer, 9 + len(answer))) == 9 + len(answer)


def test_an_unidentified_connection_is_closed_when_descriptors_are_scarce(
    context: Context,
) -> None:
    many = 25
    descriptors = Descriptors(lambda: 0, lambda: 4 * many)
    peers = Peers(context, "tcp://127.0.0.1:0", MAX_FRAME_BYTES, descriptors=descriptors)
    with ExitStack() as stack:
        stack.callback(peers.close)
        silent = []
        for _ in range(many):
            sock = tcp_connection(peers.endpoint)
            silent.append(stack.enter_context(sock))
            receive_chunk(peers)
        with introduce(peers) as known:
            assert is_closed(peers, silent[0])
            send_and_receive(peers, known, b"still there")


def test_a_new_connection_is_refused_when_all_others_are_identified(context: Context) -> None:
    descriptors = Descriptors(lambda: 90, lambda: 100)
    peers = Peers(context, "tcp://127.0.0.1:0", MAX_FRAME_BYTES, descriptors=descriptors)
    with ExitStack() as stack:
        stack.callback(peers.close)
        sock = tcp_connection(peers.endpoint)
        stack.enter_context(sock)
        with pytest.raises(TooManyPeersError, match="10 of 100 file descriptors are left"):
            receive_chunk(peers)
        assert is_closed(peers, sock)
