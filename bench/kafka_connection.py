"""A connection that sends the requests of groups and of administration, as a client does.

The loop of asyncio carries thousands of them in one process. Answers come in the sequence of the
requests, so a connection may have many requests in flight.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Self

from regent.core.errors import Errors
from regent.core.protocol.messages import groups, log_dirs
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded

CLIENT_ID: Final = b"bench"
RETRY_S: Final = 0.1
TIMEOUT_S: Final = 120.0
_NOT_YET: Final = (
    Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.NOT_COORDINATOR,
    Errors.UNKNOWN_TOPIC_OR_PARTITION,
)
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")


class Api(NamedTuple):
    """How a request is sent, and the class of its response."""

    key: KafkaApiKey
    version: int
    response: Any

    @property
    def is_flexible(self) -> bool:
        """Whether the messages have the form of KIP-482."""
        return self.version >= FIRST_FLEXIBLE_VERSION[self.key]


_VERSIONS: Final = {
    KafkaApiKey.METADATA: 12,
    KafkaApiKey.FIND_COORDINATOR: 4,
    KafkaApiKey.JOIN_GROUP: 9,
    KafkaApiKey.SYNC_GROUP: 5,
    KafkaApiKey.HEARTBEAT: 4,
    KafkaApiKey.LEAVE_GROUP: 5,
    KafkaApiKey.OFFSET_COMMIT: 8,
    KafkaApiKey.OFFSET_FETCH: 8,
    KafkaApiKey.DESCRIBE_LOG_DIRS: 4,
    KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    KafkaApiKey.ELECT_LEADERS: 2,
}


def api_of(request: type[Any]) -> Api:
    """Return how a request is sent; its module has the class of the response."""
    return _api_of(request.__module__, request.__name__.removesuffix("Request"))


@cache
def _api_of(module: str, name: str) -> Api:
    key = KafkaApiKey[re.sub("(?<!^)(?=[A-Z])", "_", name).upper()]
    return Api(key, _VERSIONS[key], getattr(sys.modules[module], f"{name}Response"))


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Return the address ``HOST:PORT``."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


class KafkaConnection(asyncio.Protocol):
    """One connection to a broker."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: deque[Callable[[bytes], None]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, address: Address) -> Self:
        """Connect."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, *address)
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: Any) -> Any:
        """Return the answer to a request."""
        api = api_of(type(request))
        answered = asyncio.get_running_loop().create_future()
        self.send(framed(request), answered.set_result)
        body = await asyncio.wait_for(answered, TIMEOUT_S)
        return response(api, body)

    def send(self, frame: bytes, on_answer: Callable[[bytes], None]) -> None:
        """Send a request; ``on_answer`` is called with the bytes after its correlation id."""
        assert self._transport is not None
        self._waiting.append(on_answer)
        self._transport.write(frame)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass whole answers on."""
        self._received += data
        start, end = 0, len(self._received)
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received, start)
            after = start + _SIZE.size + size
            if after > end:
                break
            body = bytes(self._received[start + 2 * _SIZE.size : after])
            self._waiting.popleft()(body)
            start = after
        del self._received[:start]


def framed(request: Any) -> bytes:
    """Return a request as it is sent. Its correlation id is always the same."""
    api = api_of(type(request))
    header = _HEADER.pack(api.key, api.version, 1, len(CLIENT_ID)) + CLIENT_ID
    header += b"\0" if api.is_flexible else b""
    body = header + encoded(request, api.version, is_flexible=api.is_flexible)
    return _SIZE.pack(len(body)) + body


def response(api: Api, body: bytes) -> Any:
    """Return the response in the bytes after the correlation id."""
    view = memoryview(body)[1:] if api.is_flexible else memoryview(body)
    return decoded(api.response, view, api.version, is_flexible=api.is_flexible)


async def coordinators_of(address: Address, group_ids: Sequence[str]) -> dict[str, Address]:
    """Return the coordinators of groups, when all have one."""
    async with await KafkaConnection.to(address) as connection:
        while True:
            request = groups.FindCoordinatorRequest(key_type=0, coordinator_keys=tuple(group_ids))
            found = (await connection.ask(request)).coordinators
            if all(row.error_code == Errors.NONE for row in found):
                return {row.key: Address(row.host, row.port) for row in found}
            await asyncio.sleep(RETRY_S)


async def log_bytes(address: Address, topic: str) -> int:
    """Return the size of the logs of a topic at one broker."""
    async with await KafkaConnection.to(address) as connection:
        answer = await connection.ask(log_dirs.DescribeLogDirsRequest(topics=None))
    return sum(
        partition.partition_size
        for folder in answer.results
        for found in folder.topics
        if found.name == topic
        for partition in found.partitions
    )


def is_not_yet(error_code: int) -> bool:
    """Whether a coordinator will be able to answer soon."""
    return error_code in _NOT_YET


def check(error_code: int) -> None:
    """Raise ``AssertionError`` unless there is no error."""
    assert error_code == Errors.NONE, Errors(error_code).name
