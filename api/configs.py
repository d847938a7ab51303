"""DescribeConfigs, versions 1 to 3. Mirrors ``kafka.server.ConfigHelper.describeConfigs``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.core.admin.config_changes import DEFAULT_BROKER
from regent.core.admin.config_descriptions import (
    BrokerSetting,
    BrokerSettings,
    ConfigDescription,
    ConfigSynonym,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from regent.core.admin.topic_validation import topic_name_problem
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId
from regent.core.replication.metadata_cache import MetadataCache
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_NOT_THROTTLED = 0
_MAX_MESSAGE_LENGTH = 1_000  # it may quote a client's string of 32 KiB

ReadConfigs: TypeAlias = Callable[[Collection[str]], Mapping[str, Mapping[str, str]]]
"""Reads the overrides of entities (``topics/T``, ``brokers/N``); blocks, raises ``RegentError``."""


class ResourceType(IntEnum):
    """The types of resources whose configurations a broker knows."""

    TOPIC = 2
    BROKER = 4


class Resource(NamedTuple):
    """The owner of a configuration, as the client names it."""

    type: int
    name: str


class ResourceRefusedError(Exception):
    """One resource of a request is refused: the answer has the error code and the message."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message[:_MAX_MESSAGE_LENGTH])
        self.error_code = error_code


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
        described: dict[Resource, list[ConfigDescription] | ResourceRefusedError] = {}
        for resource in resources:
            try:
                entities[resource] = self.entity(resource)
            except ResourceRefusedError as refused:
                described[resource] = refused
        own = f"brokers/{self.broker_id}"
        try:
            found = self.read_configs({own, DEFAULT_BROKER, *entities.values()})
        except RegentError as error:
            late = ResourceRefusedError(Errors.REQUEST_TIMED_OUT, str(error))
            return {**described, **dict.fromkeys(entities, late)}
        of_all = found.get(DEFAULT_BROKER, {})
        broker = BrokerSettings(self.settings, found.get(own, {}), of_all)
        for resource, entity in entities.items():
            if entity == DEFAULT_BROKER:
                described[resource] = describe_all_brokers(of_all)
            elif entity == own:
                described[resource] = describe_broker(broker)
            else:
                described[resource] = describe_topic(found.get(entity, {}), broker)
        return described

    def entity(self, resource: Resource) -> str:
        """Return the entity of a resource below ``/config``; raises ``ResourceRefusedError``."""
        type_, name = resource
        if type_ == ResourceType.TOPIC:
            problem = topic_name_problem(name)
            if problem is not None:
                raise ResourceRefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
            if name not in self.cache.snapshot.topic_ids:
                raise ResourceRefusedError(
                    Errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
                )
            return f"topics/{name}"
        if type_ == ResourceType.BROKER:
            if name in ("", str(self.broker_id)):
                return f"brokers/{name}" if name else DEFAULT_BROKER
            raise ResourceRefusedError(
                Errors.INVALID_REQUEST, f"this is broker {self.broker_id}, not {name!r}"
            )
        raise ResourceRefusedError(Errors.INVALID_REQUEST, f"type {type_} has no configuration")


def config_apis(view: ConfigView, executor: Executor) -> Sequence[KafkaApi]:
    """Return the API DescribeConfigs, which reads and encodes in ``executor``."""

    def describe(request: KafkaRequest) -> KafkaAnswer:
        wanted, details = _decode(request.body, request.api_version)
        described = view.describe(wanted.keys())
        return _encode(wanted, described, request.api_version, details)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, describe, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 1, 3, handle)]


_Wanted: TypeAlias = Mapping[Resource, Sequence[str] | None]  # names; None or empty: all


class _Details(NamedTuple):
    """The details that a client requests in addition to the values."""

    synonyms: bool
    documentation: bool


def _decode(body: memoryview, version: int) -> tuple[_Wanted, _Details]:
    """Return the settings and the details that the client asks for."""
    reader = Reader(body)

    def resource() -> tuple[Resource, list[str] | None]:
        of = Resource(reader.int8(), reader.string())
        return of, reader.nullable_array(reader.string)

    wanted = dict(reader.array(resource))
    has_synonyms = reader.boolean()
    has_documentation = version >= 3 and reader.boolean()
    return wanted, _Details(has_synonyms, has_documentation)


def _encode(
    wanted: _Wanted,
    described: Mapping[Resource, list[ConfigDescription] | ResourceRefusedError],
    version: int,
    details: _Details,
) -> KafkaAnswer:
    writer = Writer()

    def write(resource: Resource) -> None:
        answer, names = described[resource], wanted[resource]
        configs: list[ConfigDescription] = []
        if isinstance(answer, ResourceRefusedError):
            writer.int16(answer.error_code)
            writer.nullable_string(str(answer))
        else:
            writer.int16(Errors.NONE)
            writer.nullable_string(None)
            configs = [config for config in answer if not names or config.name in names]
        writer.int8(resource.type)
        writer.string(resource.name)
        writer.array(configs, lambda config: _write_config(writer, config, version, details))

    writer.int32(_NOT_THROTTLED)
    writer.array(wanted, write)
    return writer.pieces()


def _write_config(
    writer: Writer, config: ConfigDescription, version: int, details: _Details
) -> None:
    def write_synonym(synonym: ConfigSynonym) -> None:
        writer.string(synonym.name)
        writer.nullable_string(synonym.value)
        writer.int8(synonym.source)

    writer.string(config.name)
    writer.nullable_string(config.value)
    writer.boolean(config.is_read_only)
    writer.int8(config.source)
    writer.boolean(False)  # is sensitive: no setting is
    writer.array(config.synonyms if details.synonyms else (), write_synonym)
    if version >= 3:
        writer.int8(config.type)
        writer.nullable_string(config.documentation if details.documentation else None)
