"""One request to one broker over Kafka's protocol, without a Kafka client library."""

from __future__ import annotations

import socket
import struct
import time
from typing import Final, TypeVar

from regent.client.command_config import SECURITY_OF_COMMAND
from regent.core.model import EndPoint
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

T = TypeVar("T")

_CONNECT_S: Final = 5.0  # a host that is down must not use up the time for the others
_CORRELATION_ID: Final = 1
_NO_CLIENT_ID: Final = -1
_NO_TAGS: Final = b"\0"
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class NoAnswerError(Exception):
    """A broker has not given a whole answer in time; the message says why."""


class NotConnectedError(NoAnswerError):
    """A broker cannot be reached; nothing was sent to it."""


def ask_broker(
    broker: EndPoint,
    api: tuple[KafkaApiKey, int],
    request: object,
    answer: type[T],
    timeout_s: float,
) -> T:
    """Send a request in a version of an API, over a new connection; return the broker's answer.

    Raises ``NoAnswerError``, and ``NotConnectedError`` if nothing was sent.
    """
    is_flexible = api[1] >= FIRST_FLEXIBLE_VERSION[api[0]]
    tags = _NO_TAGS if is_flexible else b""
    head = struct.pack(">hhih", *api, _CORRELATION_ID, _NO_CLIENT_ID) + tags
    frame = head + encoded(request, api[1], is_flexible=is_flexible)
    deadline = time.monotonic() + timeout_s
    try:
        address = (broker.host, broker.port)
        connected = socket.create_connection(address, min(timeout_s, _CONNECT_S))
    except OSError as error:
        raise NotConnectedError(str(error)) from None
    try:
        with _encrypted(connected, broker.host, timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", _receive(connection, 4, deadline))
            if not 0 < size <= _MAX_ANSWER_BYTES:
                raise NoAnswerError(f"an answer of {size} bytes")
            received = _receive(connection, size, deadline)
        body = memoryview(received)[4 + len(tags) :]  # after the correlation id
        return decoded(answer, body, api[1], is_flexible=is_flexible)
    except (OSError, MalformedRequestError) as error:
        raise NoAnswerError(str(error)) from None


def _encrypted(connected: socket.socket, host: str, timeout_s: float) -> socket.socket:
    """Return what to use instead of a connected socket, which is closed on errors."""
    security = SECURITY_OF_COMMAND.security
    if security is None or security.tls is None:
        return connected
    try:
        return security.tls.connect(connected, host, timeout_s)
    except OSError as error:
        raise NotConnectedError(str(error)) from None


def _receive(connection: socket.socket, count: int, deadline: float) -> bytearray:
    received = bytearray()
    while len(received) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        some = connection.recv(count - len(received))
        if not some:
            raise ConnectionError("closed in the middle of an answer")
        received += some
    return received
