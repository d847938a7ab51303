"""DeleteRecords, versions 0 and 1.

Mirrors ``kafka.server.KafkaApis.handleDeleteRecordsRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from regent.api.replies import AwaitedReply, Replies, monotonic_ms
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from regent.core.replication.delayed_operation import DelayedOperation
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_NOT_THROTTLED = 0
_UNKNOWN = DeletedRecords(Errors.UNKNOWN_TOPIC_OR_PARTITION)

_Deleted = Mapping[TopicPartition, DeletedRecords]


class RecordDeleter(Protocol):
    """Deletes records; ``ReplicaManager`` implements it."""

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, DeletedRecords]], None],
    ) -> DelayedOperation | None:
        """Delete the records before the offsets; None when ``respond`` was called already."""
        ...

    def expire(self, operation: DelayedOperation, now_ms: int) -> None:
        """Make an operation respond now."""
        ...


def delete_records_apis(deleter: RecordDeleter) -> Sequence[KafkaApi]:
    """Return the API DeleteRecords, which calls ``deleter``."""
    replies = Replies()

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        topics, timeout_ms = _decode(request.body)
        offsets = {
            TopicPartition(topic, number): offset
            for topic, partitions in topics
            for number, offset in partitions
        }
        reply: AwaitedReply[_Deleted] = replies.new()
        operation = deleter.delete_records(offsets, monotonic_ms(), reply.give)
        deleted = await reply.wait_for(operation, max(timeout_ms, 0), deleter.expire)
        return _encode(topics, deleted)

    return [KafkaApi(KafkaApiKey.DELETE_RECORDS, 0, 1, handle)]


_Topics = Sequence[tuple[str, Sequence[tuple[int, int]]]]


def _decode(body: memoryview) -> tuple[_Topics, int]:
    """Return partitions with their offsets, and the timeout in milliseconds."""
    reader = Reader(body)

    def partition() -> tuple[int, int]:
        return reader.int32(), reader.int64()

    def topic() -> tuple[str, list[tuple[int, int]]]:
        return reader.string(), reader.array(partition)

    return reader.array(topic), reader.int32()


def _encode(topics: _Topics, deleted: _Deleted) -> KafkaAnswer:
    writer = Writer()

    def write_topic(row: tuple[str, Sequence[tuple[int, int]]]) -> None:
        topic, partitions = row

        def write_partition(partition: tuple[int, int]) -> None:
            number, _ = partition
            outcome = deleted.get(TopicPartition(topic, number), _UNKNOWN)
            writer.int32(number)
            writer.int64(outcome.low_watermark)
            writer.int16(outcome.error_code)

        writer.string(topic)
        writer.array(partitions, write_partition)

    writer.int32(_NOT_THROTTLED)
    writer.array(topics, write_topic)
    return writer.pieces()
