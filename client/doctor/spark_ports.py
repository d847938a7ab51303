"""What a client without a secret is answered at a port of Spark's JVM."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from enum import Enum
from typing import Final

LOOPBACK: Final = "127.0.0.1"

_RPC_REQUEST: Final = 3  # kinds of Spark's frames
_RPC_RESPONSE: Final = 4
_REQUEST_ID: Final = 7
_HEADER: Final = struct.Struct(">qbqi")  # length of the frame, kind, request, length of the body
_KIND: Final = slice(8, 9)
_JAVA_STRING: Final = b"\xac\xed\x00\x05t\x00\x01x"  # "x", serialised
_NOBODY: Final = b"\0\0"  # no address of a sender, none of a receiver
_MAX_ANSWER_BYTES: Final = 64 * 1024


class SparkPort(Enum):
    """What listens at a port."""

    PY4J = "Py4J"
    RPC = "RPC, blocks"
    OPEN = "RPC or blocks without a secret"
    UNKNOWN = "unknown"


def spark_port(port: int, timeout_s: float) -> SparkPort:
    """Ask a port of a JVM, as a client that has no secret. Raises ``OSError``."""
    if asks_for_token(port, timeout_s):
        return SparkPort.PY4J
    answers = answers_of_spark(port, timeout_s)
    if not answers:
        return SparkPort.RPC
    is_sparks = any(answer[_KIND] == bytes([_RPC_RESPONSE]) for answer in answers)
    return SparkPort.OPEN if is_sparks else SparkPort.UNKNOWN


def answers_of_spark(port: int, timeout_s: float) -> list[bytes]:
    """Return the answers of a port of Spark that a client without a secret gets.

    One request is for an endpoint that every driver has, the other asks a block manager for no
    block. A connection that is closed without an answer, or a refusal of Spark's, is no answer.
    Raises ``OSError``.
    """
    endpoint = _NOBODY + _utf("endpoint-verifier") + _JAVA_STRING
    no_blocks = b"\0" + _text("app") + _text("driver") + struct.pack(">i", 0)
    answers = [_ask(port, body, timeout_s) for body in (endpoint, no_blocks)]
    return [answer for answer in answers if answer]


def asks_for_token(port: int, timeout_s: float) -> bool:
    """Whether Py4J listens at a port, and refuses a command before it has the token.

    Raises ``OSError``.
    """
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(b"r\nu\njava.lang.Runtime\nrj\ne\n\n")
        with connection.makefile("rb") as stream, suppress(ConnectionResetError, TimeoutError):
            return b"Authentication error" in stream.readline(_MAX_ANSWER_BYTES)
    return False


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _ask(port: int, body: bytes, timeout_s: float) -> bytes:
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _RPC_REQUEST, _REQUEST_ID, len(body))
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(header + body + b"\n\n")  # Py4J reads lines
        try:
            with connection.makefile("rb") as stream, suppress(ConnectionResetError):
                answer = stream.read(_HEADER.size)
                is_refusal = answer[_KIND] not in (b"", bytes([_RPC_RESPONSE]))
                return b"" if is_refusal and _is_frame(answer) else answer
        except TimeoutError:
            return b"it has not refused"
    return b""


def _is_frame(answer: bytes) -> bool:
    """Whether an answer begins as a frame of Spark's: with its length and the request it is of."""
    if len(answer) < _HEADER.size:
        return False
    length, _, request, _ = _HEADER.unpack(answer)
    is_of_spark: bool = 0 < length <= _MAX_ANSWER_BYTES and request == _REQUEST_ID
    return is_of_spark
