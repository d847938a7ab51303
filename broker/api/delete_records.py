"""DeleteRecords, versions 0 to 2.

Mirrors ``kafka.server.KafkaApis.handleDeleteRecordsRequest``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from regent.core.protocol.messages import delete_records as messages
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies, monotonic_ms

_INTERNAL_TOPIC = DeletedRecords(Errors.INVALID_TOPIC_EXCEPTION)
_DENIED = DeletedRecords(Errors.TOPIC_AUTHORIZATION_FAILED)
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
        asked = decode(messages.DeleteRecordsRequest, request)
        offsets = {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in asked.topics
            for row in topic.partitions
        }
        names = (topic.name for topic in asked.topics)
        denied = request.denied(AclOperation.DELETE, ResourceType.TOPIC, names)
        refused = {
            name: _DENIED if name.topic in denied else _INTERNAL_TOPIC
            for name in offsets
            if name.topic in denied or name.topic in INTERNAL_TOPICS
        }
        for topic_partition in refused:
            del offsets[topic_partition]
        reply: AwaitedReply[_Deleted] = replies.new()
        operation = deleter.delete_records(offsets, monotonic_ms(), reply.give)
        deleted = await reply.wait_for(operation, max(asked.timeout_ms, 0), deleter.expire)
        deleted = {**refused, **deleted}
        topics = tuple(_result(topic, deleted) for topic in asked.topics)
        return answer(messages.DeleteRecordsResponse(topics=topics), request)

    return [KafkaApi(KafkaApiKey.DELETE_RECORDS, 0, 2, handle)]


def _result(
    topic: messages.DeleteRecordsTopic, deleted: _Deleted
) -> messages.DeleteRecordsTopicResult:
    rows = []
    for row in topic.partitions:
        outcome = deleted.get(TopicPartition(topic.name, row.partition_index), _UNKNOWN)
        rows.append(
            messages.DeleteRecordsPartitionResult(
                partition_index=row.partition_index,
                low_watermark=outcome.low_watermark,
                error_code=outcome.error_code,
            )
        )
    return messages.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(rows))
