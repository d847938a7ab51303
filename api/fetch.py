"""Fetch for consumers, versions 4 to 11.

Fetch sessions (KIP-227) are not supported: a client that requests one gets session 0, and continues
to send full requests. There are no transactions: the last stable offset is the high watermark.
Mirrors ``kafka.server.KafkaApis.handleFetchRequest``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from regent.api.replies import Replies, monotonic_ms
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.replication.delayed_operation import DelayedOperation
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

MAX_RESPONSE_BYTES: Final = 57_671_680  # Kafka's fetch.max.bytes
NO_SESSION: Final = 0

_HEAD: Final = struct.Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation
_SESSION: Final = struct.Struct(">ii")
_PARTITION: Final = {  # index, [leader epoch,] fetch offset, [log start offset,] max bytes
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
}
_READ_COMMITTED: Final = 1
_CONSUMED: Final = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_CONSUMED_V5: Final = struct.Struct(">ihqqq")  # and the log start offset
_NO_PREFERRED_REPLICA: Final = -1


class FetchSource(Protocol):
    """Reads records; ``ReplicaManager`` implements it."""

    def fetch_for_consumer(
        self,
        request: ConsumerFetch,
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, ConsumedPartition]], None],
        *,
        waits: bool = True,
    ) -> DelayedOperation | None:
        """Respond when there are ``min_bytes``, or at once if ``waits`` is false."""
        ...

    def expire(self, operation: DelayedOperation, now_ms: int) -> None:
        """Make an operation respond now."""
        ...


class _Fetch(NamedTuple):
    """One request; its partitions in their original sequence."""

    max_wait_ms: int
    is_read_committed: bool
    session_id: int
    topics: Sequence[tuple[str, Sequence[int]]]
    request: ConsumerFetch


def fetch_apis(
    source: FetchSource, max_response_bytes: int = MAX_RESPONSE_BYTES
) -> Sequence[KafkaApi]:
    """Return the API Fetch, which calls ``source``."""
    replies = Replies()

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        version = request.api_version
        asked = _decode(request.body, version, max_response_bytes)
        if asked.session_id != NO_SESSION:
            return _encode((), {}, version, Errors.FETCH_SESSION_ID_NOT_FOUND)
        reply = replies.new()
        waits = asked.max_wait_ms > 0
        operation = source.fetch_for_consumer(
            asked.request, monotonic_ms(), reply.give, waits=waits
        )
        consumed = await reply.wait_for(operation, asked.max_wait_ms, source.expire)
        return _encode(asked.topics, consumed, version, is_read_committed=asked.is_read_committed)

    return [KafkaApi(KafkaApiKey.FETCH, 4, 11, handle)]


def _decode(body: memoryview, version: int, max_response_bytes: int) -> _Fetch:
    reader = Reader(body)
    _, max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_HEAD)
    session_id = reader.unpack(_SESSION)[0] if version >= 7 else NO_SESSION
    positions: dict[TopicPartition, ConsumerPosition] = {}
    layout = _PARTITION[4 if version < 5 else 5 if version < 9 else 9]

    def partition_of(topic: str) -> int:
        values = reader.unpack(layout)
        index, max_bytes = values[0], values[-1]
        epoch, offset = values[1:3] if version >= 9 else (NO_EPOCH, values[1])
        positions[TopicPartition(topic, index)] = ConsumerPosition(offset, max_bytes, epoch)
        return int(index)

    def topic_with_partitions() -> tuple[str, list[int]]:
        topic = reader.string()
        return topic, reader.array(lambda: partition_of(topic))

    topics = reader.array(topic_with_partitions)
    # The rest of the body has sessions and racks, which have no effect on the response.
    request = ConsumerFetch(positions, min_bytes, min(max_bytes, max_response_bytes))
    return _Fetch(max_wait_ms, isolation == _READ_COMMITTED, session_id, topics, request)


def _encode(
    topics: Sequence[tuple[str, Sequence[int]]],
    consumed: Mapping[TopicPartition, ConsumedPartition],
    version: int,
    error: Errors = Errors.NONE,
    *,
    is_read_committed: bool = False,
) -> KafkaAnswer:
    writer = Writer()
    writer.int32(0)  # throttle time
    if version >= 7:
        writer.int16(error)
        writer.int32(NO_SESSION)
    writer.int32(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.int32(len(partitions))
        for index in partitions:
            partition = consumed[TopicPartition(topic, index)]
            error, watermark, start = partition[:3]
            if version < 5:
                writer.pack(_CONSUMED, index, error, watermark, watermark)
            else:
                writer.pack(_CONSUMED_V5, index, error, watermark, watermark, start)
            writer.int32(0 if is_read_committed else -1)  # aborted transactions: none, or null
            if version >= 11:
                writer.int32(_NO_PREFERRED_REPLICA)
            writer.records(partition.records)
    return writer.pieces()
