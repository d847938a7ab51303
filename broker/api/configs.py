"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Mirrors ``kafka.server.ConfigHelper``, ``kafka.server.ConfigAdminManager`` and what ``KafkaApis``
does with them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.broker.api.authorization import forwarded_client
from regent.broker.api.broker_loggers import alter_loggers, describe_loggers
from regent.core.admin.admin_requests import TopicService
from regent.core.admin.config_alterations import (
    BrokerConfigAlteration,
    BrokerConfigManager,
    RefusedError,
    check_form,
)
from regent.core.admin.config_descriptions import (
    BrokerSetting,
    BrokerSettings,
    ConfigDescription,
    ConfigSource,
    broker_settings_in_force,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from regent.core.admin.config_handlers import DEFAULT_BROKER
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResult,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.topics import TopicsResponse, error_of, results_of, topic_of
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.setting import Scope
from regent.core.topic_validation import topic_name_problem
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

_MAX_MESSAGE_LENGTH = 1_000  # it may quote a client's string of 32 KiB

ReadConfigs: TypeAlias = Callable[[Collection[str]], Mapping[str, Mapping[str, str]]]
"""Reads the overrides of entities (``topics/T``, ``brokers/N``); blocks, raises ``RegentError``."""


class ConfigResourceType(IntEnum):
    """The types of resources that have settings, as Kafka numbers them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16


class ConfigResource(NamedTuple):
    """The owner of a configuration, as the client names it."""

    type: int
    name: str


_Described: TypeAlias = dict[ConfigResource, list[ConfigDescription] | RefusedError]


@dataclass(frozen=True, slots=True)
class ConfigView:
    """The configurations that this broker can describe; ``settings``: those of its start."""

    broker_id: BrokerId
    cache: MetadataCache
    settings: Mapping[str, BrokerSetting]
    read_configs: ReadConfigs

    def describe(
        self, wanted: Mapping[ConfigResource, Collection[str] | None]
    ) -> Mapping[ConfigResource, list[ConfigDescription] | RefusedError]:
        """Return the settings of each resource, or its refusal. ZooKeeper is read once for all.

        It is not read if only settings of this broker are ``wanted`` that do not change while it
        runs. None or empty: all settings.
        """
        entities: dict[ConfigResource, str] = {}
        described: _Described = {}
        for resource in wanted:
            try:
                if resource.type == ConfigResourceType.BROKER_LOGGER:
                    _check_broker_id(resource.name, self.broker_id)
                    described[resource] = describe_loggers()
                else:
                    entities[resource] = self._entity(resource)
            except RefusedError as refused:
                described[resource] = refused.with_traceback(None)
        may_change = any(self._may_change(e, wanted[resource]) for resource, e in entities.items())
        found = self._describe(entities, may_change=may_change) if entities else {}
        return {**described, **found}

    def _may_change(self, entity: str, names: Collection[str] | None) -> bool:
        if entity != f"brokers/{self.broker_id}" or not names:
            return True
        fixed = {n for n, row in self.settings.items() if row.setting.scope is Scope.READ_ONLY}
        return not fixed.issuperset(names)

    def _describe(self, entities: Mapping[ConfigResource, str], *, may_change: bool) -> _Described:
        own = f"brokers/{self.broker_id}"
        found: Mapping[str, Mapping[str, str]] = {}
        try:
            if may_change:
                found = self.read_configs({own, DEFAULT_BROKER, *entities.values()})
        except RegentError as error:
            late = RefusedError(Errors.REQUEST_TIMED_OUT, str(error))
            return dict.fromkeys(entities, late)
        broker = self._in_force(found)
        described: _Described = {}
        for resource, entity in entities.items():
            if entity == DEFAULT_BROKER:
                described[resource] = describe_all_brokers(broker)
            elif entity == own:
                described[resource] = describe_broker(broker)
            else:
                described[resource] = describe_topic(found.get(entity, {}), broker)
        return described

    def broker_settings(self) -> BrokerSettings:
        """Read the settings of this broker; blocks, raises ``RegentError``."""
        return self._in_force(self.read_configs({f"brokers/{self.broker_id}", DEFAULT_BROKER}))

    def _in_force(self, found: Mapping[str, Mapping[str, str]]) -> BrokerSettings:
        own, of_all = (found.get(e, {}) for e in (f"brokers/{self.broker_id}", DEFAULT_BROKER))
        return broker_settings_in_force(self.settings, own, of_all)

    def _entity(self, resource: ConfigResource) -> str:
        """Return the entity of a resource below ``/config``; raises ``RefusedError``."""
        type_, name = resource
        if type_ == ConfigResourceType.TOPIC:
            problem = topic_name_problem(name)
            if problem is not None:
                raise RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
            if name not in self.cache.snapshot.topic_ids:
                missing = self.cache.snapshot.missing_topic(name, Errors.REQUEST_TIMED_OUT)
                raise RefusedError(*missing)
            return f"topics/{name}"
        if type_ == ConfigResourceType.BROKER:
            if not name:
                return DEFAULT_BROKER
            _check_broker_id(name, self.broker_id, or_empty=True)
            return f"brokers/{self.broker_id}"
        raise _unsupported(type_)


def _check_broker_id(name: str, broker_id: BrokerId, *, or_empty: bool = False) -> None:
    """Check that a resource is this broker; raises ``RefusedError``."""
    if not name:
        raise RefusedError(Errors.INVALID_REQUEST, "Broker id must not be empty")
    if not name.removeprefix("-").isdecimal():
        message = f"Broker id must be an integer, but it is: {name}"
        raise RefusedError(Errors.INVALID_REQUEST, message)
    if name != str(broker_id):
        expected = f"{broker_id} or empty string" if or_empty else f"{broker_id}"
        message = f"Unexpected broker id, expected {expected}, but received {name}"
        raise RefusedError(Errors.INVALID_REQUEST, message)


def _unsupported(resource_type: int) -> RefusedError:
    """Return the refusal of a type of resources that has no settings here."""
    what: Mapping[int, str] = {
        ConfigResourceType.BROKER_LOGGER: "BROKER_LOGGER: use IncrementalAlterConfigs",
        ConfigResourceType.CLIENT_METRICS: "CLIENT_METRICS: there are none with ZooKeeper",
    }
    name = what.get(resource_type, str(resource_type))
    return RefusedError(Errors.INVALID_REQUEST, f"Unsupported resource type {name}")


def _denials(
    request: KafkaRequest, operation: AclOperation, resources: Iterable[ConfigResource]
) -> Mapping[ConfigResource, RefusedError]:
    """Return the refusals of resources on which the client may not do an operation."""
    denials = {}
    for resource in dict.fromkeys(resources):
        if resource.type == ConfigResourceType.TOPIC:
            what, error = ResourceType.TOPIC, Errors.TOPIC_AUTHORIZATION_FAILED
            is_allowed = request.may(operation, what, resource.name)
        else:
            what, error = ResourceType.CLUSTER, Errors.CLUSTER_AUTHORIZATION_FAILED
            is_allowed = request.may(operation, what)
        if not is_allowed:
            denials[resource] = RefusedError(error, f"{what.text} authorization failed.")
    return denials


def config_apis(view: ConfigView, executor: Executor) -> Sequence[KafkaApi]:
    """Return the API DescribeConfigs, which reads and encodes in ``executor``."""

    def describe(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeConfigsRequest, request)
        wanted = {
            ConfigResource(row.resource_type, row.resource_name): row.configuration_keys
            for row in asked.resources
        }
        denials = _denials(request, AclOperation.DESCRIBE_CONFIGS, wanted)
        visible = {row: names for row, names in wanted.items() if row not in denials}
        described = {**view.describe(visible), **denials}
        results = [
            _result(resource, described[resource], names, asked)
            for resource, names in wanted.items()
        ]
        return answer(DescribeConfigsResponse(results=tuple(results)), request)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, describe, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 0, 4, handle)]


def _result(
    resource: ConfigResource,
    described: list[ConfigDescription] | RefusedError,
    names: Collection[str] | None,
    asked: DescribeConfigsRequest,
) -> DescribeConfigsResult:
    """Return the settings with these names (None or empty: all), or the refusal."""
    type_, name = resource
    if isinstance(described, RefusedError):
        return DescribeConfigsResult(
            error_code=described.error_code,
            error_message=str(described)[:_MAX_MESSAGE_LENGTH],
            resource_type=type_,
            resource_name=name,
        )
    configs = [_config(config, asked) for config in described if not names or config.name in names]
    return DescribeConfigsResult(resource_type=type_, resource_name=name, configs=tuple(configs))


def _config(
    config: ConfigDescription, asked: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(name=name, value=value, source=source)
        for name, value, source in config.synonyms
    ]
    return DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.is_read_only,
        is_default=config.source is ConfigSource.DEFAULT,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
        synonyms=tuple(synonyms) if asked.include_synonyms else (),
        config_type=config.type,
        documentation=config.documentation if asked.include_documentation else None,
    )


# --- changes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigAlterations:
    """Changes the settings of resources.

    Changes of topics go to the active controller's broker. This broker changes its own settings,
    those of all brokers, and the levels of its loggers itself. ``executor`` waits for ZooKeeper.
    """

    broker_id: BrokerId
    topics: TopicService
    brokers: BrokerConfigManager
    executor: Executor
    replies: Replies = field(default_factory=Replies)

    async def alter(
        self, wanted: Sequence[AlterConfigsResource], request: KafkaRequest, *, validate_only: bool
    ) -> tuple[AlterConfigsResourceResult, ...]:
        """Return the outcome of each resource, in the order of the request."""
        counts = Counter(map(_resource, wanted))
        denials = _denials(request, AclOperation.ALTER_CONFIGS, counts)
        topics = tuple(
            row
            for row in wanted
            if row.resource_type == ConfigResourceType.TOPIC
            and counts[_resource(row)] == 1
            and _resource(row) not in denials
        )
        outcomes = {}
        if topics:
            reply: AwaitedReply[TopicsResponse] = self.replies.new()
            self.topics.ask(
                IncrementalAlterConfigsRequest(resources=topics, validate_only=validate_only),
                reply.give,
                client=forwarded_client(request),
            )
            outcomes = {topic_of(row): error_of(row) for row in results_of(await reply)}
        results = []
        for row in wanted:
            if counts[_resource(row)] > 1:
                message = "Each resource must appear at most once."
                outcome = ApiError(Errors.INVALID_REQUEST, message)
            elif (denial := denials.get(_resource(row))) is not None:
                outcome = ApiError(denial.error_code, str(denial))
            elif row.resource_type == ConfigResourceType.TOPIC:
                outcome = outcomes[row.resource_name]
            else:
                loop = asyncio.get_running_loop()
                outcome = await loop.run_in_executor(
                    self.executor, self._alter_here, row, validate_only
                )
            results.append(
                AlterConfigsResourceResult(
                    error_code=outcome.error_code,
                    error_message=outcome.message[:_MAX_MESSAGE_LENGTH] or None,
                    resource_type=row.resource_type,
                    resource_name=row.resource_name,
                )
            )
        return tuple(results)

    def _alter_here(self, wanted: AlterConfigsResource, validate_only: bool) -> ApiError:
        type_, name = _resource(wanted)
        alterations, replaces = wanted.configs, wanted.replaces
        try:
            check_form(f"resource {name[:100]!r}", alterations)
            if type_ == ConfigResourceType.BROKER:
                if name:
                    _check_broker_id(name, self.broker_id)
                broker_id = self.broker_id if name else None
                change = BrokerConfigAlteration(broker_id, alterations, replaces)
                self.brokers.alter(change, validate_only=validate_only)
            elif type_ != ConfigResourceType.BROKER_LOGGER or replaces:
                raise _unsupported(type_)
            else:
                _check_broker_id(name, self.broker_id)
                alter_loggers(alterations, validate_only=validate_only)
        except RefusedError as refused:
            return ApiError(refused.error_code, str(refused))
        except SessionExpiredError as error:
            message = f"the change may be written, or not: {error}"
            return ApiError(Errors.REQUEST_TIMED_OUT, message)
        except RegentError as error:
            return ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error))
        return ApiError(Errors.NONE)


def _resource(wanted: AlterConfigsResource) -> ConfigResource:
    return ConfigResource(wanted.resource_type, wanted.resource_name)


def _replaced(asked: AlterConfigsRequest) -> list[AlterConfigsResource]:
    return [
        AlterConfigsResource(
            resource_type=row.resource_type,
            resource_name=row.resource_name,
            configs=tuple(AlterableConfig(name=c.name, value=c.value) for c in row.configs),
            replaces=True,
        )
        for row in asked.resources
    ]


def alter_config_apis(alterations: ConfigAlterations) -> Sequence[KafkaApi]:
    """Return the APIs AlterConfigs and IncrementalAlterConfigs."""

    async def replace(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(AlterConfigsRequest, request)
        wanted, validate_only = _replaced(asked), asked.validate_only
        done = await alterations.alter(wanted, request, validate_only=validate_only)
        return answer(AlterConfigsResponse(responses=done), request)

    async def alter(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(IncrementalAlterConfigsRequest, request)
        wanted, validate_only = asked.resources, asked.validate_only
        done = await alterations.alter(wanted, request, validate_only=validate_only)
        return answer(IncrementalAlterConfigsResponse(responses=done), request)

    return [
        KafkaApi(KafkaApiKey.ALTER_CONFIGS, 0, 2, replace),
        KafkaApi(KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, alter),
    ]
