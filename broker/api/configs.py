"""DescribeConfigs, versions 0 to 4. Mirrors ``kafka.server.ConfigHelper.describeConfigs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.broker.api.broker_loggers import describe_loggers
from regent.core.admin.config_changes import DEFAULT_BROKER
from regent.core.admin.config_descriptions import (
    BrokerSetting,
    ConfigDescription,
    ConfigSource,
    broker_settings_in_force,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.topic_validation import topic_name_problem
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_MAX_MESSAGE_LENGTH = 1_000  # it may quote a client's string of 32 KiB

ReadConfigs: TypeAlias = Callable[[Collection[str]], Mapping[str, Mapping[str, str]]]
"""Reads the overrides of entities (``topics/T``, ``brokers/N``); blocks, raises ``RegentError``."""


class ResourceType(IntEnum):
    """The types of resources that have settings, as Kafka numbers them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16


class Resource(NamedTuple):
    """The owner of a configuration, as the client names it."""

    type: int
    name: str


class ResourceRefusedError(Exception):
    """One resource of a request is refused: the answer has the error code and the message."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message[:_MAX_MESSAGE_LENGTH])
        self.error_code = error_code


_Described: TypeAlias = dict[Resource, list[ConfigDescription] | ResourceRefusedError]


@dataclass(frozen=True, slots=True)
class ConfigView:
    """The configurations that this broker can describe; ``settings``: those of its start."""

    broker_id: BrokerId
    cache: MetadataCache
    settings: Mapping[str, BrokerSetting]
    read_configs: ReadConfigs

    def describe(
        self, resources: Collection[Resource]
    ) -> Mapping[Resource, list[ConfigDescription] | ResourceRefusedError]:
        """Return the settings of each resource, or its refusal. ZooKeeper is read once for all."""
        entities: dict[Resource, str] = {}
        described: _Described = {}
        for resource in resources:
            try:
                if resource.type == ResourceType.BROKER_LOGGER:
                    check_broker_id(resource.name, self.broker_id)
                    described[resource] = describe_loggers()
                else:
                    entities[resource] = self._entity(resource)
            except ResourceRefusedError as refused:
                described[resource] = refused.with_traceback(None)
        return {**described, **(self._describe(entities) if entities else {})}

    def _describe(self, entities: Mapping[Resource, str]) -> _Described:
        own = f"brokers/{self.broker_id}"
        try:
            found = self.read_configs({own, DEFAULT_BROKER, *entities.values()})
        except RegentError as error:
            late = ResourceRefusedError(Errors.REQUEST_TIMED_OUT, str(error))
            return dict.fromkeys(entities, late)
        broker = broker_settings_in_force(
            self.settings, found.get(own, {}), found.get(DEFAULT_BROKER, {})
        )
        described: _Described = {}
        for resource, entity in entities.items():
            if entity == DEFAULT_BROKER:
                described[resource] = describe_all_brokers(broker)
            elif entity == own:
                described[resource] = describe_broker(broker)
            else:
                described[resource] = describe_topic(found.get(entity, {}), broker)
        return described

    def _entity(self, resource: Resource) -> str:
        """Return the entity of a resource below ``/config``; raises ``ResourceRefusedError``."""
        type_, name = resource
        if type_ == ResourceType.TOPIC:
            problem = topic_name_problem(name)
            if problem is not None:
                raise ResourceRefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
            if name not in self.cache.snapshot.topic_ids:
                missing = self.cache.snapshot.missing_topic(name, Errors.REQUEST_TIMED_OUT)
                raise ResourceRefusedError(*missing)
            return f"topics/{name}"
        if type_ == ResourceType.BROKER:
            if not name:
                return DEFAULT_BROKER
            check_broker_id(name, self.broker_id, or_empty=True)
            return f"brokers/{self.broker_id}"
        raise unsupported(type_)


def check_broker_id(name: str, broker_id: BrokerId, *, or_empty: bool = False) -> None:
    """Check that a resource is this broker; raises ``ResourceRefusedError``."""
    if not name:
        raise ResourceRefusedError(Errors.INVALID_REQUEST, "Broker id must not be empty")
    if not name.removeprefix("-").isdecimal():
        message = f"Broker id must be an integer, but it is: {name}"
        raise ResourceRefusedError(Errors.INVALID_REQUEST, message)
    if name != str(broker_id):
        expected = f"{broker_id} or empty string" if or_empty else f"{broker_id}"
        message = f"Unexpected broker id, expected {expected}, but received {name}"
        raise ResourceRefusedError(Errors.INVALID_REQUEST, message)


def unsupported(resource_type: int) -> ResourceRefusedError:
    """Return the refusal of a type of resources that has no settings here."""
    what: Mapping[int, str] = {
        ResourceType.BROKER_LOGGER: "BROKER_LOGGER: use IncrementalAlterConfigs",
        ResourceType.CLIENT_METRICS: "CLIENT_METRICS: with ZooKeeper there are no subscriptions",
    }
    name = what.get(resource_type, str(resource_type))
    return ResourceRefusedError(Errors.INVALID_REQUEST, f"Unsupported resource type {name}")


def config_apis(view: ConfigView, executor: Executor) -> Sequence[KafkaApi]:
    """Return the API DescribeConfigs, which reads and encodes in ``executor``."""

    def describe(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeConfigsRequest, request)
        wanted = {
            Resource(row.resource_type, row.resource_name): row.configuration_keys
            for row in asked.resources
        }
        described = view.describe(wanted.keys())
        results = [
            _result(resource, described[resource], names, asked)
            for resource, names in wanted.items()
        ]
        return answer(DescribeConfigsResponse(results=tuple(results)), request)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, describe, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 0, 4, handle)]


def _result(
    resource: Resource,
    described: list[ConfigDescription] | ResourceRefusedError,
    names: Collection[str] | None,
    asked: DescribeConfigsRequest,
) -> DescribeConfigsResult:
    """Return the settings with these names (None or empty: all), or the refusal."""
    type_, name = resource
    if isinstance(described, ResourceRefusedError):
        return DescribeConfigsResult(
            error_code=described.error_code,
            error_message=str(described),
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
