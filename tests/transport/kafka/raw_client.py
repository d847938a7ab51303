"""A client that sends what it likes, and handlers that answer when a test says so."""

from __future__ import annotations

import asyncio
import queue
import socket
import struct
from types import TracebackType
from typing import Protocol, Self

from regent.core.records import RecordBytes, Records
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest

WAIT_S = scaled(10.0)
METADATA = KafkaApiKey.METADATA


def framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


def request_bytes(
    body: bytes = b"", correlation_id: int = 1, api_key: int = METADATA, version: int = 1
) -> bytes:
    """A whole request with its size."""
    header = struct.pack(">hhih", api_key, version, correlation_id, 6) + b"client"
    return framed(header + body)


class HasPort(Protocol):
    """What can be connected to."""

    port: int


class RawClient:
    """One connection; every wait has an end."""

    def __init__(self, listener: HasPort, host: str = "127.0.0.1") -> None:
        """Connect from the address ``host`` of this machine."""
        self.socket = socket.create_connection(("127.0.0.1", listener.port), WAIT_S, (host, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """The correlation id and body of the next answer."""
        size, correlation_id = struct.unpack(">ii", self._receive(8))
        return correlation_id, self._receive(size - 4)

    def ask(self, body: bytes) -> bytes:
        self.send(request_bytes(body))
        return self.answer()[1]

    def is_closed(self) -> bool:
        """Whether the other side closes the connection; waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            some = self.socket.recv(count - len(received))
            if not some:
                raise ConnectionError("closed in the middle of an answer")
            received += some
        return bytes(received)


class Desk:
    """Answers requests whose body begins with ``now`` by it, others when told to, Metadata all."""

    def __init__(self) -> None:
        self.begun: queue.Queue[bytes] = queue.Queue()
        self.given_up: queue.Queue[bytes] = queue.Queue()
        self._waiting: dict[bytes, tuple[asyncio.AbstractEventLoop, asyncio.Future[KafkaAnswer]]]
        self._waiting = {}
        self.apis = [KafkaApi(METADATA, 0, 8, self._handle)]

    def next_begun(self) -> bytes:
        return self.begun.get(timeout=WAIT_S)

    def answer(self, body: bytes, *pieces: RecordBytes | Records) -> None:
        """Answer a request that has begun."""
        loop, waiting = self._waiting.pop(body)
        loop.call_soon_threadsafe(waiting.set_result, pieces or (body,))

    async def _handle(self, request: KafkaRequest) -> KafkaAnswer:
        body = bytes(request.body)
        if body.startswith(b"now"):
            return (body,)
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[KafkaAnswer] = loop.create_future()
        self._waiting[body] = loop, waiting
        self.begun.put(body)
        try:
            return await waiting
        except asyncio.CancelledError:
            self.given_up.put(body)
            raise
