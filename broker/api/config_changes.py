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
from regent.core.admin.config_alterations import RefusedError, check_form
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResult,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.topics import TopicsResponse, error_of, results_of, topic_of
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_DONE = ApiError(Errors.NONE)


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
        self, wanted: Sequence[AlterConfigsResource], *, validate_only: bool
    ) -> list[AlterConfigsResourceResult]:
        """Return the outcome of each resource, in the order of the request."""
        counts = Counter(map(_resource, wanted))
        topics = tuple(
            row
            for row in wanted
            if row.resource_type == ResourceType.TOPIC and counts[_resource(row)] == 1
        )
        outcomes = {}
        if topics:
            reply: AwaitedReply[TopicsResponse] = self._replies.new()
            self._topics.ask(
                IncrementalAlterConfigsRequest(resources=topics, validate_only=validate_only),
                reply.give,
            )
            outcomes = {topic_of(row): error_of(row) for row in results_of(await reply)}
        results = []
        for row in wanted:
            if counts[_resource(row)] > 1:
                message = "Each resource must appear at most once."
                outcome = ApiError(Errors.INVALID_REQUEST, message)
            elif row.resource_type == ResourceType.TOPIC:
                outcome = outcomes[row.resource_name]
            else:
                outcome = await self._change_here(row, validate_only=validate_only)
            results.append(_result(row, outcome))
        return results

    async def _change_here(self, wanted: AlterConfigsResource, *, validate_only: bool) -> ApiError:
        type_, name = _resource(wanted)
        alterations, replaces = wanted.configs, wanted.replaces
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
        except (RefusedError, ResourceRefusedError) as refused:
            return ApiError(refused.error_code, str(refused))
        return _DONE

    def _alter_broker(self, change: BrokerConfigAlteration, validate_only: bool) -> ApiError:
        try:
            self._brokers.alter(change, validate_only=validate_only)
        except RefusedError as refused:
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
        results = await changes.change(asked.resources, validate_only=asked.validate_only)
        return answer(IncrementalAlterConfigsResponse(responses=tuple(results)), request)

    return [
        KafkaApi(KafkaApiKey.ALTER_CONFIGS, 0, 2, replace),
        KafkaApi(KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, alter),
    ]


def _replaced(asked: AlterConfigsRequest) -> Iterator[AlterConfigsResource]:
    for row in asked.resources:
        yield AlterConfigsResource(
            resource_type=row.resource_type,
            resource_name=row.resource_name,
            configs=tuple(AlterableConfig(name=c.name, value=c.value) for c in row.configs),
            replaces=True,
        )


def _resource(wanted: AlterConfigsResource) -> Resource:
    return Resource(wanted.resource_type, wanted.resource_name)


def _result(wanted: AlterConfigsResource, outcome: ApiError) -> AlterConfigsResourceResult:
    return AlterConfigsResourceResult(
        error_code=outcome.error_code,
        error_message=outcome.message[:1_000] or None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )
