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
_RPC_FAILURE: Final = 5
_REQUEST_ID: Final = 7
_HEADER: Final = struct.Struct(">qbqi")  # length of the frame, kind, request, length of the body
_MAX_ANSWER_BYTES: Final = 64 * 1024


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


_JAVA_STRING: Final = b"\xac\xed\x00\x05t\x00\x01x"  # "x", serialised
_NOBODY: Final = b"\0\0"  # no address of a sender, none of a receiver
_ENDPOINT: Final = _NOBODY + _utf("endpoint-verifier") + _JAVA_STRING
_NO_BLOCKS: Final = b"\0" + _text("app") + _text("driver") + struct.pack(">i", 0)
_REQUESTS: Final = (_ENDPOINT, _NO_BLOCKS)


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
    kinds = answers_of_spark(port, timeout_s)
    if _RPC_RESPONSE in kinds:
        return SparkPort.OPEN
    return SparkPort.RPC if kinds == [_RPC_FAILURE] * len(_REQUESTS) else SparkPort.UNKNOWN


def answers_of_spark(port: int, timeout_s: float) -> list[int]:
    """Return the kinds of the answers of a port of Spark that a client without a secret gets.

    One request is for an endpoint that every driver has, the other asks a block manager for no
    block. Without an answer, or with one of another protocol, the list is shorter. Raises
    ``OSError``.
    """
    kinds = [_ask(port, body, timeout_s) for body in _REQUESTS]
    return [kind for kind in kinds if kind is not None]


def asks_for_token(port: int, timeout_s: float) -> bool:
    """Whether Py4J listens at a port, and refuses a command before it has the token.

    Raises ``OSError``.
    """
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(b"r\nu\njava.lang.Runtime\nrj\ne\n\n")
        with connection.makefile("rb") as stream, suppress(ConnectionResetError, TimeoutError):
            return b"Authentication error" in stream.readline(_MAX_ANSWER_BYTES)
    return False


def _ask(port: int, body: bytes, timeout_s: float) -> int | None:
    """Return the kind of the answer to a request; None if it is no answer of Spark's."""
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _RPC_REQUEST, _REQUEST_ID, len(body))
    answer = b""
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(header + body + b"\n\n")  # Py4J reads lines
        with connection.makefile("rb") as stream, suppress(ConnectionResetError, TimeoutError):
            answer = stream.read(_HEADER.size)
    if len(answer) < _HEADER.size:
        return None
    _, kind, request, _ = _HEADER.unpack(answer)
    return int(kind) if request == _REQUEST_ID else None
