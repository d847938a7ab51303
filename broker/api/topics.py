"""CreateTopics, versions 0 to 7, DeleteTopics, 0 to 6, and CreatePartitions, 0 to 3.

Mirrors ``kafka.server.KafkaApis.handleCreateTopicsRequest`` and the like. Every broker accepts
them: ``TopicService`` forwards a request to the active controller's broker.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from regent.broker.api.authorization import forwarded_client
from regent.core.admin.admin_requests import TopicService, refuse
from regent.core.admin.client_authorization import (
    asking,
    authorized,
    completed,
    has_any,
    needs_all,
    nothing,
)
from regent.core.admin.config_descriptions import BrokerSettings, describe_topic
from regent.core.errors import Errors, RegentError
from regent.core.protocol.envelope import ForwardedClient, Requester
from regent.core.protocol.messages.topics import (
    UNSET,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from regent.core.protocol.topics import TopicsRequest
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.security.authorizer import ALLOW_ALL
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_FIRST_VERSION_WITH_CONFIGS = 5
_FIRST_VERSION_WITH_DELETION_DISABLED = 3
_FIRST_STRICT_CREATE, _FIRST_STRICT_DELETE, _FIRST_STRICT_GROW = 6, 5, 3
"""Older clients do not know THROTTLING_QUOTA_EXCEEDED: they only wait (KIP-599)."""

ReadBrokerSettings: TypeAlias = Callable[[], BrokerSettings]
"""Reads the settings of this broker; blocks, raises ``RegentError``."""


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
        wanted = decode(CreateTopicsRequest, request)
        response = await self._ask(wanted, request, _FIRST_STRICT_CREATE)
        if request.api_version < _FIRST_VERSION_WITH_CONFIGS:
            return answer(response, request)

        hidden = request.denied(
            AclOperation.DESCRIBE_CONFIGS,
            ResourceType.TOPIC,
            _not_failed(response, wanted),
            is_logged=False,
        )

        def respond() -> KafkaAnswer:
            return answer(_with_configs(response, wanted, self._read_settings, hidden), request)

        return await asyncio.get_running_loop().run_in_executor(self._executor, respond)

    async def delete(self, request: KafkaRequest) -> KafkaAnswer:
        """Delete topics; all versions become the newest."""
        wanted = decode(DeleteTopicsRequest, request)
        named = (DeleteTopicState(name=name) for name in wanted.topic_names)
        wanted = replace(wanted, topics=(*wanted.topics, *named), topic_names=())
        if any((row.name is None) == (row.topic_id is None) for row in wanted.topics):
            message = "every topic to delete must have either a name or an id"
            return answer(refuse(wanted, Errors.INVALID_REQUEST, message), request)
        response: DeleteTopicsResponse = await self._ask(wanted, request, _FIRST_STRICT_DELETE)
        if request.api_version < _FIRST_VERSION_WITH_DELETION_DISABLED:
            response = replace(response, responses=tuple(map(_of_old_version, response.responses)))
        return answer(response, request)

    async def grow(self, request: KafkaRequest) -> KafkaAnswer:
        """Add partitions to topics."""
        wanted = decode(CreatePartitionsRequest, request)
        return answer(await self._ask(wanted, request, _FIRST_STRICT_GROW), request)

    async def _ask(
        self, wanted: TopicsRequest, request: KafkaRequest, first_strict_version: int
    ) -> Any:
        """Return the response of the active controller's broker; refuse what is denied."""
        client = forwarded_client(request)
        if request.authorizer is ALLOW_ALL:
            return await self._forward(wanted, request, first_strict_version, client)
        # The controller knows which topics have the ids of a request, and decides about these.
        wanted, refused = authorized(wanted, asking(request.authorizer, client, wanted), {})
        response: Any = needs_all(wanted, refused)
        if response is None and has_any(wanted):
            response = await self._forward(wanted, request, first_strict_version, client)
        return completed(nothing(wanted) if response is None else response, refused)

    async def _forward(
        self,
        wanted: TopicsRequest,
        request: KafkaRequest,
        first_strict_version: int,
        client: ForwardedClient,
    ) -> Any:
        requester = None
        if request.throttle is not None:
            is_strict = request.api_version >= first_strict_version
            requester = Requester(*request.throttle.client, is_strict)
        reply: AwaitedReply[Any] = self._replies.new()
        self._service.ask(wanted, reply.give, requester, client)
        response = await reply
        if request.throttle is not None:
            request.throttle.wait(response.throttle_time_ms)
        return response


def _not_failed(response: CreateTopicsResponse, wanted: CreateTopicsRequest) -> Sequence[str]:
    """Return the topics whose results say whether their settings may be described.

    These are created, or are refused before a creation is tried.
    """
    counts = Counter(row.name for row in wanted.topics)

    def is_refused(row: CreatableTopicResult) -> bool:
        is_repeated = counts[row.name] > 1 and row.error_code == Errors.INVALID_REQUEST
        return is_repeated or row.error_code == Errors.TOPIC_AUTHORIZATION_FAILED

    return [row.name for row in response.topics if not row.error_code or is_refused(row)]


def _with_configs(
    response: CreateTopicsResponse,
    wanted: CreateTopicsRequest,
    read_settings: ReadBrokerSettings,
    hidden: Collection[str],
) -> CreateTopicsResponse:
    """Add the settings of the created topics (KIP-525); null if they cannot be read.

    Those of ``hidden`` topics are not told: the client may not describe their settings.
    """
    broker = None
    if not all(row.error_code for row in response.topics):
        with suppress(RegentError):
            broker = read_settings()
    given = {topic.name: topic.configs for topic in wanted.topics}

    @functools.cache
    def described(configs: tuple[CreatableTopicConfig, ...]) -> Mapping[str, Any]:
        if broker is None:
            return {"topic_config_error_code": Errors.REQUEST_TIMED_OUT, "configs": None}
        overrides = {row.name: row.value for row in configs if row.value is not None}
        return {"configs": tuple(_described(overrides, broker))}

    def result(row: CreatableTopicResult) -> CreatableTopicResult:
        if row.name in hidden:
            return replace(
                row,
                topic_config_error_code=Errors.TOPIC_AUTHORIZATION_FAILED,
                num_partitions=UNSET,
                replication_factor=UNSET,
                configs=(),
            )
        return row if row.error_code else replace(row, **described(given.get(row.name, ())))

    return replace(response, topics=tuple(map(result, response.topics)))


def _described(
    overrides: Mapping[str, str], broker: BrokerSettings
) -> Iterator[CreatableTopicConfigs]:
    for row in describe_topic(overrides, broker):
        yield CreatableTopicConfigs(
            name=row.name,
            value=row.value,
            read_only=row.is_read_only,
            config_source=row.source,
            is_sensitive=False,  # no setting is
        )


def _of_old_version(result: DeletableTopicResult) -> DeletableTopicResult:
    if result.error_code == Errors.TOPIC_DELETION_DISABLED:
        return replace(result, error_code=Errors.INVALID_REQUEST)  # older clients know only this
    return result
