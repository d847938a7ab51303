"""Requests between the processes of the study: msgpack over TCP, each message after its length.

A request has a number, and its answer has the same one: answers may come in another sequence. A
broker of Regent does not know these requests.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgpack

from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.designs.requests import (
    AppendRecordsRequest,
    AppendRecordsResponse,
    DeliverMailRequest,
    DeliverMailResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    DesignsRequest,
)
from regent.transport.control.schema import decoder

T = TypeVar("T")

_LENGTH: Final = struct.Struct(">I")
_DECODERS: Final = {
    cls.__name__: decoder(cls)
    for cls in (
        *(AppendRecordsRequest, AppendRecordsResponse),
        *(DeliverMailRequest, DeliverMailResponse),
        *(DescribeReplicasRequest, DescribeReplicasResponse),
    )
}


class SilentPeerError(RegentError):
    """The other process did not answer. It may have carried out the request nevertheless."""


class Incoming(NamedTuple):
    """A request, and the function that answers it, from any thread."""

    request: DesignsRequest
    reply: Callable[[object], None]


class RequestServer:
    """Listens on a free port of this machine; ``dispatch`` must not block."""

    def __init__(self, dispatch: Callable[[Incoming], None]) -> None:
        self._dispatch = dispatch
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: list[_Connection] = []
        self._accepting = NamedThread(self._accept, "requests")

    @property
    def endpoint(self) -> str:
        """Where it listens, as ``host:port``."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def start(self) -> None:
        """Begin to accept connections."""
        self._accepting.start()

    def stop(self) -> None:
        """Answer nothing more."""
        with suppress(OSError):  # a second time
            self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for connection in list(self._connections):
            connection.shut_down()

    def _accept(self) -> None:
        with suppress(OSError):  # the socket is shut down
            while True:
                connection = _Connection(self._socket.accept()[0])
                self._connections.append(connection)
                NamedThread(self._serve, "peer", (connection,)).start()

    def _serve(self, connection: _Connection) -> None:
        with suppress(OSError):
            while True:
                number, request = connection.receive()
                self._dispatch(
                    Incoming(cast("DesignsRequest", request), partial(connection.answer, number))
                )
        self._connections.remove(connection)
        connection.close()


class Peer:
    """Another process, at ``host:port``; connects at the first use. For one thread."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._connection: _Connection | None = None
        self._last_number = 0

    def ask(self, request: object, answer: type[T], *, timeout_s: float) -> T:
        """Return the answer; raises ``SilentPeerError``."""
        try:
            connection = self._send(request, timeout_s)
            number = None
            while number != self._last_number:  # else it is the answer to a tell
                number, response = connection.receive()
        except OSError as error:
            self.close()
            raise SilentPeerError(f"{self._endpoint} does not answer: {error}") from None
        assert isinstance(response, answer)
        return response

    def tell(self, request: object) -> None:
        """Send a request, and do not wait for the answer; raises ``SilentPeerError``."""
        try:
            self._send(request, None)
        except OSError as error:
            self.close()
            raise SilentPeerError(f"{self._endpoint} cannot be reached: {error}") from None

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, request: object, timeout_s: float | None) -> _Connection:
        if self._connection is None:
            host, _, port = self._endpoint.partition(":")
            self._connection = _Connection(socket.create_connection((host, int(port)), timeout_s))
        self._connection.set_timeout(timeout_s)
        self._last_number += 1
        self._connection.send(self._last_number, request)
        return self._connection


class _Connection:
    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._stream = connected.makefile("rb")
        self._sending = Lock()

    def set_timeout(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)

    def send(self, number: int, value: object) -> None:
        data = msgpack.packb((number, type(value).__name__, value), default=_as_map)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> tuple[int, object]:
        """Return the number and the value of a message; raises OSError, also at the end."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        number, name, value = msgpack.unpackb(self._read(length), use_list=False)
        return number, _DECODERS[name](value)

    def answer(self, number: int, value: object) -> None:
        with suppress(OSError):  # the other process has ended
            self.send(number, value)

    def shut_down(self) -> None:
        """End a ``receive`` of another thread, too."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("the connection has ended")
        return data


def _as_map(value: Any) -> dict[str, Any]:
    if not is_dataclass(value):
        raise TypeError(f"a message cannot hold a {type(value).__name__}")
    return {field.name: getattr(value, field.name) for field in fields(value)}
