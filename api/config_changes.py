"""AlterConfigs, versions 0 and 1, and IncrementalAlterConfigs, version 0, of topics.

Mirrors ``kafka.server.ZkAdminManager.alterConfigs`` and ``incrementalAlterConfigs``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.api.configs import ConfigView, Resource, ResourceRefusedError, ResourceType
from regent.core.admin.config_descriptions import BrokerSettings, describe_topic
from regent.core.admin.topic_settings import TOPIC_SETTINGS, topic_config_problem
from regent.core.errors import Errors, RegentError, SessionExpiredError
from regent.core.setting import ConfigType
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_NOT_THROTTLED = 0

AlterTopicConfig: TypeAlias = Callable[[str, Mapping[str, str | None]], object]
"""Sets settings of a topic, and removes those that are None. Blocks; raises ``RegentError``."""


class AlterOperation(IntEnum):
    """How a setting is changed."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Alteration(NamedTuple):
    name: str
    operation: int
    value: str | None


_Wanted: TypeAlias = Sequence[tuple[Resource, Sequence[_Alteration]]]


def config_change_apis(
    view: ConfigView, alter_topic_config: AlterTopicConfig, executor: Executor
) -> Sequence[KafkaApi]:
    """Return the APIs that change configurations; their work is done in ``executor``."""
    changer = _ConfigChanger(view, alter_topic_config)

    async def replace(request: KafkaRequest) -> KafkaAnswer:
        run = asyncio.get_running_loop().run_in_executor
        return await run(executor, changer.answer, request, False)

    async def alter(request: KafkaRequest) -> KafkaAnswer:
        run = asyncio.get_running_loop().run_in_executor
        return await run(executor, changer.answer, request, True)

    return [
        KafkaApi(KafkaApiKey.ALTER_CONFIGS, 0, 1, replace),
        KafkaApi(KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 0, alter),
    ]


class _ConfigChanger:
    def __init__(self, view: ConfigView, alter_topic_config: AlterTopicConfig) -> None:
        self._view = view
        self._alter_topic_config = alter_topic_config

    def answer(self, request: KafkaRequest, is_incremental: bool) -> KafkaAnswer:
        """Change the resources. An error of one does not affect the others."""
        wanted, validate_only = _decode(request.body, is_incremental=is_incremental)
        refusals: list[ResourceRefusedError | None] = []
        for resource, alterations in wanted:
            try:
                self._change(resource, alterations, is_incremental, validate_only)
                refusals.append(None)
            except ResourceRefusedError as refused:
                refusals.append(refused)
            except SessionExpiredError as error:  # perhaps it is written; writing it again is safe
                refusals.append(ResourceRefusedError(Errors.REQUEST_TIMED_OUT, str(error)))
            except RegentError as error:
                refusals.append(ResourceRefusedError(Errors.UNKNOWN_SERVER_ERROR, str(error)))
        return _encode([resource for resource, _ in wanted], refusals)

    def _change(
        self,
        resource: Resource,
        alterations: Sequence[_Alteration],
        is_incremental: bool,
        validate_only: bool,
    ) -> None:
        if resource.type != ResourceType.TOPIC:
            message = "only topics' configurations can be changed through a broker"
            raise ResourceRefusedError(Errors.INVALID_REQUEST, message)
        entity = self._view.entity(resource)
        _check_names(alterations)
        current = self._view.read_configs([entity]).get(entity, {})
        kept: dict[str, str | None] = {} if is_incremental else dict.fromkeys(current)
        broker = BrokerSettings(self._view.settings, {}, {})
        effective = {config.name: config.value for config in describe_topic(current, broker)}
        changes = kept | {row.name: _new_value(row, effective) for row in alterations}
        for name, value in changes.items():
            problem = None if value is None else topic_config_problem(name, value)
            if problem is not None:
                raise ResourceRefusedError(Errors.INVALID_CONFIG, f"{name} {problem}")
        if not validate_only:
            self._alter_topic_config(resource.name, changes)


def _check_names(alterations: Sequence[_Alteration]) -> None:
    for name, count in Counter(row.name for row in alterations).items():
        if count > 1:
            raise ResourceRefusedError(Errors.INVALID_REQUEST, f"{name} is named {count} times")


def _new_value(alteration: _Alteration, effective: Mapping[str, str]) -> str | None:
    """Return the new value of a setting, None to remove it; ``effective`` has the old values."""
    name, operation, value = alteration
    if operation == AlterOperation.DELETE:
        return None
    if value is None:
        raise ResourceRefusedError(Errors.INVALID_REQUEST, f"{name} has no value")
    if operation == AlterOperation.SET:
        return value
    if operation not in set(AlterOperation):
        raise ResourceRefusedError(Errors.INVALID_REQUEST, f"{name}: unknown operation {operation}")
    row = TOPIC_SETTINGS.get(name)
    if row is None or row.type is not ConfigType.LIST:
        raise ResourceRefusedError(Errors.INVALID_REQUEST, f"{name} is not a list")
    present = [item for item in effective.get(name, "").split(",") if item]
    given = value.split(",")
    if operation == AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    return ",".join(item for item in present if item not in given)


def _decode(body: memoryview, *, is_incremental: bool) -> tuple[_Wanted, bool]:
    """Return the changes of each resource, and whether to validate them only."""
    reader = Reader(body)

    def alteration() -> _Alteration:
        name = reader.string()
        operation = reader.int8() if is_incremental else AlterOperation.SET
        return _Alteration(name, operation, reader.nullable_string())

    def resource() -> tuple[Resource, list[_Alteration]]:
        return Resource(reader.int8(), reader.string()), reader.array(alteration)

    return reader.array(resource), reader.boolean()


def _encode(
    resources: Sequence[Resource], refusals: Sequence[ResourceRefusedError | None]
) -> KafkaAnswer:
    writer = Writer()

    def write(row: tuple[Resource, ResourceRefusedError | None]) -> None:
        (type_, name), refused = row
        writer.int16(Errors.NONE if refused is None else refused.error_code)
        writer.nullable_string(None if refused is None else str(refused))
        writer.int8(type_)
        writer.string(name)

    writer.int32(_NOT_THROTTLED)
    writer.array(zip(resources, refusals, strict=True), write)
    return writer.pieces()
