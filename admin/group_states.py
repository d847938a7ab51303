"""How many consumer groups are in which state: a question to every broker, of one request each.

It needs no Kafka client library, and only as long as the slowest broker.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from regent.core.errors import Errors
from regent.core.model import EndPoint
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.message import decoded, encoded
from regent.transport.kafka.messages.groups import ListGroupsRequest, ListGroupsResponse
from regent.transport.kafka.primitives import MalformedRequestError

_REBALANCING: Final = "rebalancing"
_NAMES: Final = {
    "Stable": "stable",
    "Empty": "empty",
    "PreparingRebalance": _REBALANCING,
    "CompletingRebalance": _REBALANCING,
}
_VERSION: Final = 4  # the first with states (KIP-518)
_CORRELATION_ID: Final = 1
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_BROKERS_AT_ONCE: Final = 32


def group_states(brokers: Sequence[EndPoint], timeout_s: float) -> dict[str, int] | None:
    """Return how many groups are stable, empty and rebalancing.

    None if a broker does not tell in this time, or tells an error.
    """
    counts = dict.fromkeys(_NAMES.values(), 0)
    if not brokers:
        return counts
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(min(len(brokers), _MAX_BROKERS_AT_ONCE)) as threads:
        answers = list(threads.map(lambda broker: _states(broker, deadline), brokers))
    for states in answers:
        if states is None:
            return None
        for name in filter(None, map(_NAMES.get, states)):
            counts[name] += 1
    return counts


def _states(broker: EndPoint, deadline: float) -> Iterable[str] | None:
    """Return the state of each group of a broker; None without an answer of full length."""
    header = struct.pack(">hhih", KafkaApiKey.LIST_GROUPS, _VERSION, _CORRELATION_ID, -1) + b"\0"
    request = header + encoded(ListGroupsRequest(), _VERSION, is_flexible=True)
    try:
        with socket.create_connection((broker.host, broker.port), _left_s(deadline)) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _receive(connection, 4, deadline))
            if not 0 < size <= _MAX_ANSWER_BYTES:
                return None
            answer = _receive(connection, size, deadline)
        body = memoryview(answer)[5:]  # after the correlation id and the tags of the header
        response = decoded(ListGroupsResponse, body, _VERSION, is_flexible=True)
    except (OSError, MalformedRequestError):
        return None
    if response.error_code != Errors.NONE:
        return None
    return [group.group_state for group in response.groups]


def _receive(connection: socket.socket, count: int, deadline: float) -> bytearray:
    received = bytearray()
    while len(received) < count:
        connection.settimeout(_left_s(deadline))
        some = connection.recv(count - len(received))
        if not some:
            raise ConnectionError("closed in the middle of an answer")
        received += some
    return received


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s
