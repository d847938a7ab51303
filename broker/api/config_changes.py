"""AlterConfigs, versions 0 to 2, and IncrementalAlterConfigs, versions 0 and 1.

Changes of topics go to the active controller's broker. This broker changes its own settings, those
of all brokers, and the levels of its loggers itself. Mirrors ``kafka.server.ConfigAdminManager``,
``KafkaApis.handleAlterConfigsRequest`` and ``handleIncrementalAlterConfigsRequest``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from regent.broker.api.broker_loggers import alter_loggers
from regent.broker.api.configs import (
    Resource,
    ResourceRefusedError,
    ResourceType,
    check_broker_id,
    unsupported,
)
from regent.core.admin.admin_requests import TopicService
from regent.core.admin.broker_config_manager import BrokerConfigAlteration, BrokerConfigManager
from regent.core.admin.config_alterations import ConfigRefusedError, check_form
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResult,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.topics import (
    AlterOperation,
    AlterTopicConfigsRequest,
    ConfigAlteration,
    ConfiguredTopic,
    TopicsResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_DONE = ApiError(Errors.NONE)


class _Wanted(NamedTuple):
    """The changes of one resource; ``replaces``: all its other settings are removed."""

    resource: Resource
    alterations: tuple[ConfigAlteration, ...]
    replaces: bool


class _ConfigChanges:
    """Changes the settings of resources."""

    def __init__(
        self,
        broker_id: BrokerId,
        topics: TopicService,
        brokers: BrokerConfigManager,
        executor: Executor,
    ) -> None:
        self._broker_id = broker_id
        self._topics = topics
        self._brokers = brokers
        self._executor = executor
        self._replies = Replies()

    async def change(
        self, wanted: Sequence[_Wanted], *, validate_only: bool
    ) -> list[AlterConfigsResourceResult]:
        """Return the outcome of each resource, in the order of the request."""
        counts = Counter(row.resource for row in wanted)
        topics = [
            ConfiguredTopic(row.resource.name, row.alterations, row.replaces)
            for row in wanted
            if row.resource.type == ResourceType.TOPIC and counts[row.resource] == 1
        ]
        outcomes = {}
        if topics:
            reply: AwaitedReply[TopicsResponse] = self._replies.new()
            self._topics.ask(AlterTopicConfigsRequest(tuple(topics), 0, validate_only), reply.give)
            outcomes = {o.topic: ApiError(o.error_code, o.message) for o in (await reply).outcomes}
        results = []
        for row in wanted:
            if counts[row.resource] > 1:
                message = "Each resource must appear at most once."
                outcome = ApiError(Errors.INVALID_REQUEST, message)
            elif row.resource.type == ResourceType.TOPIC:
                outcome = outcomes[row.resource.name]
            else:
                outcome = await self._change_here(row, validate_only=validate_only)
            results.append(_result(row.resource, outcome))
        return results

    async def _change_here(self, wanted: _Wanted, *, validate_only: bool) -> ApiError:
        (type_, name), alterations, replaces = wanted
        try:
            check_form(f"resource {name[:100]!r}", alterations)
            if type_ == ResourceType.BROKER:
                if name:
                    check_broker_id(name, self._broker_id)
                change = BrokerConfigAlteration(
                    self._broker_id if name else None, alterations, replaces
                )
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(
                    self._executor, self._alter_broker, change, validate_only
                )
            if type_ != ResourceType.BROKER_LOGGER or replaces:
                raise unsupported(type_)
            check_broker_id(name, self._broker_id)
            alter_loggers(alterations, validate_only=validate_only)
        except (ConfigRefusedError, ResourceRefusedError) as refused:
            return ApiError(refused.error_code, str(refused))
        return _DONE

    def _alter_broker(self, change: BrokerConfigAlteration, validate_only: bool) -> ApiError:
        try:
            self._brokers.alter(change, validate_only=validate_only)
        except ConfigRefusedError as refused:
            return ApiError(refused.error_code, str(refused))
        except SessionExpiredError as error:
            message = f"the change may be written, or not: {error}"
            return ApiError(Errors.REQUEST_TIMED_OUT, message)
        except RegentError as error:
            return ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error))
        return _DONE


def config_change_apis(
    broker_id: BrokerId, topics: TopicService, brokers: BrokerConfigManager, executor: Executor
) -> Sequence[KafkaApi]:
    """Return the APIs that change configurations; ``executor`` is for what waits for ZooKeeper."""
    changes = _ConfigChanges(broker_id, topics, brokers, executor)

    async def replace(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(AlterConfigsRequest, request)
        results = await changes.change(list(_replaced(asked)), validate_only=asked.validate_only)
        return answer(AlterConfigsResponse(responses=tuple(results)), request)

    async def alter(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(IncrementalAlterConfigsRequest, request)
        results = await changes.change(list(_altered(asked)), validate_only=asked.validate_only)
        return answer(IncrementalAlterConfigsResponse(responses=tuple(results)), request)

    return [
        KafkaApi(KafkaApiKey.ALTER_CONFIGS, 0, 2, replace),
        KafkaApi(KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, alter),
    ]


def _replaced(asked: AlterConfigsRequest) -> Iterator[_Wanted]:
    for row in asked.resources:
        alterations = tuple(
            ConfigAlteration(config.name, AlterOperation.SET, config.value)
            for config in row.configs
        )
        yield _Wanted(Resource(row.resource_type, row.resource_name), alterations, replaces=True)


def _altered(asked: IncrementalAlterConfigsRequest) -> Iterator[_Wanted]:
    for row in asked.resources:
        alterations = tuple(
            ConfigAlteration(config.name, config.config_operation, config.value)
            for config in row.configs
        )
        yield _Wanted(Resource(row.resource_type, row.resource_name), alterations, replaces=False)


def _result(resource: Resource, outcome: ApiError) -> AlterConfigsResourceResult:
    error_code, message = outcome
    return AlterConfigsResourceResult(
        error_code=error_code,
        error_message=message[:1_000] or None,
        resource_type=resource.type,
        resource_name=resource.name,
    )
