"""AlterConfigs, versions 0 and 1, and IncrementalAlterConfigs, version 0, of topics.

Mirrors ``kafka.server.KafkaApis.handleAlterConfigsRequest`` and
``handleIncrementalAlterConfigsRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from regent.api.configs import Resource, ResourceType
from regent.api.replies import AwaitedReply, Replies
from regent.core.admin.admin_requests import TopicService
from regent.core.errors import ApiError, Errors
from regent.core.protocol.topics import (
    AlterOperation,
    AlterTopicConfigsRequest,
    ConfigAlteration,
    ConfiguredTopic,
    TopicOutcome,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_NOT_THROTTLED = 0
_NOT_A_TOPIC = ApiError(
    Errors.INVALID_REQUEST, "only the configuration of topics can be changed here"
)

_Wanted: TypeAlias = Sequence[tuple[Resource, Sequence[ConfigAlteration]]]


def config_change_apis(service: TopicService) -> Sequence[KafkaApi]:
    """Return the APIs that change configurations, which call ``service``."""
    replies = Replies()

    async def change(body: memoryview, *, is_incremental: bool) -> KafkaAnswer:
        wanted, validate_only = _decode(body, is_incremental=is_incremental)
        topics = tuple(
            ConfiguredTopic(resource.name, tuple(alterations), replaces=not is_incremental)
            for resource, alterations in wanted
            if resource.type == ResourceType.TOPIC
        )
        outcomes: Sequence[TopicOutcome] = ()
        if topics:
            reply: AwaitedReply[Sequence[TopicOutcome]] = replies.new()
            service.ask(AlterTopicConfigsRequest(topics, 0, validate_only), reply.give)
            outcomes = await reply.wait()
        results = {o.topic: ApiError(o.error_code, o.message) for o in outcomes}
        return _encode([resource for resource, _ in wanted], results)

    async def replace(request: KafkaRequest) -> KafkaAnswer:
        return await change(request.body, is_incremental=False)

    async def alter(request: KafkaRequest) -> KafkaAnswer:
        return await change(request.body, is_incremental=True)

    return [
        KafkaApi(KafkaApiKey.ALTER_CONFIGS, 0, 1, replace),
        KafkaApi(KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 0, alter),
    ]


def _decode(body: memoryview, *, is_incremental: bool) -> tuple[_Wanted, bool]:
    """Return the changes by resource, and whether to validate only."""
    reader = Reader(body)

    def alteration() -> ConfigAlteration:
        name = reader.string()
        operation = reader.int8() if is_incremental else AlterOperation.SET
        return ConfigAlteration(name, operation, reader.nullable_string())

    def resource() -> tuple[Resource, list[ConfigAlteration]]:
        return Resource(reader.int8(), reader.string()), reader.array(alteration)

    return reader.array(resource), reader.boolean()


def _encode(resources: Sequence[Resource], results: Mapping[str, ApiError]) -> KafkaAnswer:
    writer = Writer()

    def write(resource: Resource) -> None:
        is_topic = resource.type == ResourceType.TOPIC
        error_code, message = results[resource.name] if is_topic else _NOT_A_TOPIC
        writer.int16(error_code)
        writer.nullable_string(message or None)
        writer.int8(resource.type)
        writer.string(resource.name)

    writer.int32(_NOT_THROTTLED)
    writer.array(resources, write)
    return writer.pieces()
