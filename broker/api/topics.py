"""CreateTopics, versions 0 to 7, DeleteTopics, 0 to 6, and CreatePartitions, 0 to 3.

Mirrors ``kafka.server.KafkaApis.handleCreateTopicsRequest`` and the like. Every broker accepts
them: ``TopicService`` forwards a request to the active controller's broker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from regent.core.admin.admin_requests import TopicService
from regent.core.admin.config_descriptions import BrokerSettings, describe_topic
from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages import topics as messages
from regent.core.protocol.topics import (
    AssignedPartition,
    ConfigEntry,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    Requester,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_FIRST_VERSION_WITH_CONFIGS = 5
_FIRST_VERSION_WITH_DELETION_DISABLED = 3
_FIRST_STRICT_CREATE, _FIRST_STRICT_DELETE, _FIRST_STRICT_GROW = 6, 5, 3
"""Older clients do not know THROTTLING_QUOTA_EXCEEDED: they only wait (KIP-599)."""

ReadBrokerSettings: TypeAlias = Callable[[], BrokerSettings]
"""Reads the settings of this broker; blocks, raises ``RegentError``."""

_Configs: TypeAlias = Mapping[str, tuple[messages.CreatableTopicConfigs, ...]]


def topic_apis(
    service: TopicService, read_settings: ReadBrokerSettings, executor: Executor
) -> Sequence[KafkaApi]:
    """Return the APIs that change topics, which call ``service``.

    The settings of created topics are read and encoded in ``executor``.
    """
    handlers = _TopicHandlers(service, read_settings, executor)
    return [
        KafkaApi(KafkaApiKey.CREATE_TOPICS, 0, 7, handlers.create),
        KafkaApi(KafkaApiKey.DELETE_TOPICS, 0, 6, handlers.delete),
        KafkaApi(KafkaApiKey.CREATE_PARTITIONS, 0, 3, handlers.grow),
    ]


class _TopicHandlers:
    """Belongs to one event loop."""

    def __init__(
        self, service: TopicService, read_settings: ReadBrokerSettings, executor: Executor
    ) -> None:
        self._service = service
        self._read_settings = read_settings
        self._executor = executor
        self._replies = Replies()

    async def create(self, request: KafkaRequest) -> KafkaAnswer:
        """Create topics."""
        asked = decode(messages.CreateTopicsRequest, request)
        wanted = CreateTopicsRequest(
            tuple(map(_creatable, asked.topics)),
            asked.timeout_ms,
            asked.validate_only,
            requester=_requester(request, _FIRST_STRICT_CREATE),
        )
        outcomes = await self._ask(wanted, request)
        if request.api_version < _FIRST_VERSION_WITH_CONFIGS:
            return answer(_created(outcomes, {}), request)

        def respond() -> KafkaAnswer:
            configs = _described(wanted, outcomes, self._read_settings)
            return answer(_created(outcomes, configs), request)

        return await asyncio.get_running_loop().run_in_executor(self._executor, respond)

    async def delete(self, request: KafkaRequest) -> KafkaAnswer:
        """Delete topics."""
        asked = decode(messages.DeleteTopicsRequest, request)
        if any((row.name is None) == (row.topic_id is None) for row in asked.topics):
            rows = tuple(map(_unclear, asked.topics))
        else:
            names = (row.name for row in asked.topics if row.name is not None)
            ids = tuple(row.topic_id for row in asked.topics if row.topic_id is not None)
            requester = _requester(request, _FIRST_STRICT_DELETE)
            named = (*asked.topic_names, *names)
            wanted = DeleteTopicsRequest(named, asked.timeout_ms, ids, requester)
            outcomes = await self._ask(wanted, request)
            rows = tuple(_deleted(row, request.api_version) for row in outcomes)
        return answer(messages.DeleteTopicsResponse(responses=rows), request)

    async def grow(self, request: KafkaRequest) -> KafkaAnswer:
        """Add partitions to topics."""
        asked = decode(messages.CreatePartitionsRequest, request)
        wanted = CreatePartitionsRequest(
            tuple(map(_growing, asked.topics)),
            asked.timeout_ms,
            asked.validate_only,
            requester=_requester(request, _FIRST_STRICT_GROW),
        )
        grown = tuple(map(_grown, await self._ask(wanted, request)))
        return answer(messages.CreatePartitionsResponse(results=grown), request)

    async def _ask(self, wanted: TopicsRequest, request: KafkaRequest) -> Sequence[TopicOutcome]:
        reply: AwaitedReply[TopicsResponse] = self._replies.new()
        self._service.ask(wanted, reply.give)
        response = await reply
        if request.throttle is not None:
            request.throttle.wait(response.throttle_time_ms)
        return response.outcomes


# --- from the request -----------------------------------------------------------------------------


def _requester(request: KafkaRequest, first_strict_version: int) -> Requester | None:
    if request.throttle is None:
        return None
    user, client_id = request.throttle.client
    return Requester(user, client_id, request.api_version >= first_strict_version)


def _creatable(topic: messages.CreatableTopic) -> CreatableTopic:
    assignment = (AssignedPartition(r.partition_index, r.broker_ids) for r in topic.assignments)
    return CreatableTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple(assignment) or None,
        tuple(ConfigEntry(row.name, row.value) for row in topic.configs),
    )


def _growing(topic: messages.CreatePartitionsTopic) -> GrowingTopic:
    rows = topic.assignments
    assignments = None if rows is None else tuple(row.broker_ids for row in rows)
    return GrowingTopic(topic.name, topic.count, assignments)


# --- to the response ------------------------------------------------------------------------------


def _described(
    wanted: CreateTopicsRequest,
    outcomes: Sequence[TopicOutcome],
    read_settings: ReadBrokerSettings,
) -> _Configs:
    """Return the settings of the created topics (KIP-525); none if they cannot be read."""
    created = {outcome.topic for outcome in outcomes if outcome.error_code is Errors.NONE}
    if not created:
        return {}
    try:
        broker = read_settings()
    except RegentError:
        return {}

    @functools.cache
    def describe(config: tuple[ConfigEntry, ...]) -> tuple[messages.CreatableTopicConfigs, ...]:
        overrides = {name: value for name, value in config if value is not None}
        return tuple(
            messages.CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.is_read_only,
                config_source=row.source,
                is_sensitive=False,  # no setting is
            )
            for row in describe_topic(overrides, broker)
        )

    return {
        topic.topic: describe(topic.config) for topic in wanted.topics if topic.topic in created
    }


def _created(outcomes: Sequence[TopicOutcome], configs: _Configs) -> messages.CreateTopicsResponse:
    def row(outcome: TopicOutcome) -> messages.CreatableTopicResult:
        if outcome.error_code is not Errors.NONE:
            # A topic that is created, but not in time, has an id.
            return messages.CreatableTopicResult(
                name=outcome.topic,
                topic_id=outcome.topic_id,
                error_code=outcome.error_code,
                error_message=_message(outcome),
            )
        described = configs.get(outcome.topic)
        return messages.CreatableTopicResult(
            name=outcome.topic,
            topic_id=outcome.topic_id,
            error_code=Errors.NONE,
            topic_config_error_code=(
                Errors.REQUEST_TIMED_OUT if described is None else Errors.NONE
            ),
            num_partitions=outcome.partitions,
            replication_factor=outcome.replication_factor,
            configs=described,
        )

    return messages.CreateTopicsResponse(topics=tuple(map(row, outcomes)))


def _deleted(outcome: TopicOutcome, version: int) -> messages.DeletableTopicResult:
    error_code, is_unknown_id = outcome.error_code, outcome.topic == outcome.topic_id
    if (
        error_code is Errors.TOPIC_DELETION_DISABLED
        and version < _FIRST_VERSION_WITH_DELETION_DISABLED
    ):
        error_code = Errors.INVALID_REQUEST  # older clients know only this code
    return messages.DeletableTopicResult(
        name=None if is_unknown_id else outcome.topic,
        topic_id=outcome.topic_id,
        error_code=error_code,
        error_message=_message(outcome),
    )


def _unclear(topic: messages.DeleteTopicState) -> messages.DeletableTopicResult:
    return messages.DeletableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=Errors.INVALID_REQUEST,
        error_message="every topic to delete must have either a name or an id",
    )


def _grown(outcome: TopicOutcome) -> messages.CreatePartitionsTopicResult:
    return messages.CreatePartitionsTopicResult(
        name=outcome.topic, error_code=outcome.error_code, error_message=_message(outcome)
    )


def _message(outcome: TopicOutcome) -> str | None:
    is_told = outcome.error_code is not Errors.NONE and outcome.message
    return outcome.message if is_told else None
