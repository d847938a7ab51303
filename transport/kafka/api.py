"""The interface between the listener and the handlers of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from regent.core.records import RecordBytes, Records


class KafkaApiKey(IntEnum):
    """The API keys that this broker supports."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44


@dataclass(frozen=True, slots=True)
class KafkaRequest:
    """One request; ``body`` follows the header, and is writable."""

    api_key: KafkaApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: memoryview


class MalformedRequestError(Exception):
    """A malformed request; its connection is closed."""


class UnansweredRequestError(Exception):
    """A failed request without a response: the connection is closed instead.

    This tells a producer with acks=0 that it writes to the wrong broker.
    """


KafkaAnswer: TypeAlias = Sequence[RecordBytes | Records] | None
"""The body of the response, in pieces; None: no response is sent (acks=0)."""

KafkaHandler: TypeAlias = Callable[[KafkaRequest], Awaitable[KafkaAnswer]]
"""Runs on the listener's event loop and must not block it.

The handlers of one connection begin and answer in the order of its requests. A handler may begin
before earlier ones have answered. So what must happen in order happens before the first ``await``.
Raises ``MalformedRequestError``.
"""


@dataclass(frozen=True, slots=True)
class KafkaApi:
    """One kind of request, with the versions that are advertised and the handler."""

    key: KafkaApiKey
    min_version: int
    max_version: int
    handle: KafkaHandler
