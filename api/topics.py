"""CreateTopics, versions 2 to 4, DeleteTopics, versions 1 to 3, CreatePartitions, versions 0 and 1.

Mirrors ``kafka.server.KafkaApis.handleCreateTopicsRequest`` and the like. Every broker accepts
them: ``TopicService`` forwards a request to the active controller's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regent.api.replies import AwaitedReply, Replies
from regent.core.admin.admin_requests import TopicService
from regent.core.errors import Errors
from regent.core.protocol.topics import (
    AssignedPartition,
    ConfigEntry,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    TopicOutcome,
    TopicsRequest,
)
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaHandler,
    KafkaRequest,
)
from regent.transport.kafka.primitives import Reader, Writer

_NOT_THROTTLED = 0


def topic_apis(admin: TopicService) -> Sequence[KafkaApi]:
    """Return the APIs that change topics, which call ``admin``."""
    replies = Replies()

    def answering(
        decode: Callable[[Reader], TopicsRequest],
        encode: Callable[[Sequence[TopicOutcome], int], KafkaAnswer],
    ) -> KafkaHandler:
        async def handle(request: KafkaRequest) -> KafkaAnswer:
            reply: AwaitedReply[Sequence[TopicOutcome]] = replies.new()
            admin.ask(decode(Reader(request.body)), reply.give)
            return encode(await reply.wait(), request.api_version)

        return handle

    create = answering(_decode_create_topics, _encode)
    delete = answering(_decode_delete_topics, _encode_deleted)
    grow = answering(_decode_create_partitions, _encode)
    return [
        KafkaApi(KafkaApiKey.CREATE_TOPICS, 2, 4, create),
        KafkaApi(KafkaApiKey.DELETE_TOPICS, 1, 3, delete),
        KafkaApi(KafkaApiKey.CREATE_PARTITIONS, 0, 1, grow),
    ]


def _decode_create_topics(reader: Reader) -> CreateTopicsRequest:
    def assigned() -> AssignedPartition:
        return AssignedPartition(reader.int32(), tuple(reader.array(reader.int32)))

    def config() -> ConfigEntry:
        return ConfigEntry(reader.string(), reader.nullable_string())

    def topic() -> CreatableTopic:
        name, count, factor = reader.string(), reader.int32(), reader.int16()
        assignment = tuple(reader.array(assigned)) or None
        return CreatableTopic(name, count, factor, assignment, tuple(reader.array(config)))

    return CreateTopicsRequest(tuple(reader.array(topic)), reader.int32(), reader.boolean())


def _decode_delete_topics(reader: Reader) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(tuple(reader.array(reader.string)), reader.int32())


def _decode_create_partitions(reader: Reader) -> CreatePartitionsRequest:
    def replicas() -> tuple[int, ...]:
        return tuple(reader.array(reader.int32))

    def topic() -> GrowingTopic:
        name, total = reader.string(), reader.int32()
        assignments = reader.nullable_array(replicas)
        return GrowingTopic(name, total, None if assignments is None else tuple(assignments))

    return CreatePartitionsRequest(tuple(reader.array(topic)), reader.int32(), reader.boolean())


def _encode(outcomes: Sequence[TopicOutcome], version: int) -> KafkaAnswer:
    del version
    writer = Writer()

    def write(outcome: TopicOutcome) -> None:
        is_told = outcome.error_code is not Errors.NONE and outcome.message
        writer.string(outcome.topic)
        writer.int16(outcome.error_code)
        writer.nullable_string(outcome.message if is_told else None)

    writer.int32(_NOT_THROTTLED)
    writer.array(outcomes, write)
    return writer.pieces()


def _encode_deleted(outcomes: Sequence[TopicOutcome], version: int) -> KafkaAnswer:
    writer = Writer()

    def write(outcome: TopicOutcome) -> None:
        error_code = outcome.error_code
        if error_code is Errors.TOPIC_DELETION_DISABLED and version < 3:
            error_code = Errors.INVALID_REQUEST  # older clients know only this code
        writer.string(outcome.topic)
        writer.int16(error_code)

    writer.int32(_NOT_THROTTLED)
    writer.array(outcomes, write)
    return writer.pieces()
