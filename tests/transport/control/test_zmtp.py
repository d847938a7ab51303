"""The bytes of one ZMTP connection, in any portions; without a socket."""

from __future__ import annotations

import struct

import pytest

from regent.transport.control.zmtp import (
    GREETING,
    LARGE_BYTES,
    MAX_FRAMES,
    MessageTooLargeError,
    NotZmtpError,
    ZmtpConnection,
    message_pieces,
)

LIMIT = 1_000_000
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
LARGE = b"\xff" * (LARGE_BYTES + 1)
MESSAGES = [[b"", b"header", b"body"], [b"", LARGE, LARGE], [b"one"], [bytes(300), LARGE], [b"two"]]


def connection() -> ZmtpConnection:
    return ZmtpConnection("somebody", LIMIT)


def ready_connection() -> ZmtpConnection:
    zmtp = connection()
    assert zmtp.receive(GREETING + READY) == []
    zmtp.take_to_send()
    return zmtp


def on_the_wire(*messages: list[bytes]) -> bytes:
    return b"".join(piece for message in messages for piece in message_pieces(message))


@pytest.mark.parametrize("portion", [1, 7, 8192, 1_000_000])
def test_messages_arrive_whole_in_any_division_of_their_bytes(portion: int) -> None:
    sent = GREETING + READY + on_the_wire(*MESSAGES)
    zmtp = connection()
    portions = [sent[start : start + portion] for start in range(0, len(sent), portion)]
    assert [message for data in portions for message in zmtp.receive(data)] == MESSAGES
    assert zmtp.held_bytes == 0


def test_a_peer_gets_a_greeting_at_once_and_our_metadata_after_its_own_greeting() -> None:
    zmtp = connection()
    assert zmtp.take_to_send() == GREETING
    zmtp.receive(GREETING)
    assert zmtp.take_to_send() == b""
    zmtp.receive(READY)
    assert zmtp.is_ready
    assert zmtp.take_to_send() == READY.replace(b"DEALER", b"ROUTER")


def test_a_ping_is_answered_with_its_context_also_within_a_message() -> None:
    zmtp = ready_connection()
    first, rest = b"\x01\x03one", b"\x00\x03two"
    assert zmtp.receive(first + b"\x04\x0a\x04PING\0\x32abc" + rest) == [[b"one", b"two"]]
    assert zmtp.take_to_send() == b"\x04\x08\x04PONGabc"
    assert zmtp.receive(b"\x04\x08\x04PONGabc") == []
    assert zmtp.take_to_send() == b""


def test_a_large_frame_is_sent_from_where_it_is() -> None:
    large = bytes(LARGE_BYTES)
    pieces = list(message_pieces([b"small", large, b"", b"last"]))
    assert [piece for piece in pieces if piece is large] == [large]
    assert len(pieces) == 3


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(bytes(4096), id="ZMTP 1.0"),
        pytest.param(b"\xff" + bytes(8) + b"\x7f\x01\x05" + bytes(52), id="ZMTP 2.0"),
        pytest.param(GREETING.replace(b"NULL", b"CURV"), id="another mechanism"),
        pytest.param(GREETING + on_the_wire([b"too early"]), id="a message before READY"),
        pytest.param(GREETING + b"\x04\x07\x04PING\0\0", id="a PING before READY"),
        pytest.param(GREETING + READY + READY, id="READY twice"),
        pytest.param(GREETING + READY + b"\x08\x00", id="unknown flags"),
        pytest.param(GREETING + READY + b"\x05\x00", id="a command of several frames"),
        pytest.param(GREETING + READY + b"\x04\x00", id="a command without a name"),
        pytest.param(GREETING + READY + b"\x04\x05\x04HELP", id="an unknown command"),
        pytest.param(GREETING + b"\x06" + struct.pack(">Q", 2**40), id="a command without end"),
    ],
)
def test_bytes_that_are_not_zmtp_are_refused(sent: bytes) -> None:
    with pytest.raises(NotZmtpError, match="somebody: "):
        connection().receive(sent)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x02" + struct.pack(">Q", LIMIT + 1), id="a frame"),
        pytest.param(b"\x03" + struct.pack(">Q", 2**64 - 1), id="a frame without end"),
        pytest.param(
            (b"\x03" + struct.pack(">Q", LIMIT // 2) + bytes(LIMIT // 2)) * 2 + b"\x01\x01",
            id="the frames of a message together",
        ),
        pytest.param(b"\x01\0" * MAX_FRAMES + b"\0\0", id="too many frames"),
    ],
)
def test_a_message_that_is_too_large_is_refused_before_the_rest_of_it_comes(sent: bytes) -> None:
    zmtp = ready_connection()
    with pytest.raises(MessageTooLargeError, match="somebody: "):
        zmtp.receive(sent)


def test_a_message_may_be_as_large_as_allowed() -> None:
    zmtp = ready_connection()
    largest = [b"x" * (LIMIT - 9), *([b""] * (MAX_FRAMES - 2)), b"the rest."]
    assert zmtp.receive(on_the_wire(largest)) == [largest]
    assert zmtp.receive(on_the_wire(largest)) == [largest]
