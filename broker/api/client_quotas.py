"""DescribeClientQuotas and AlterClientQuotas, versions 0 and 1 (KIP-546).

Any broker answers them, from ZooKeeper. Mirrors ``KafkaApis.handleDescribeClientQuotasRequest`` and
``handleAlterClientQuotasRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from regent.core.admin.client_quotas import (
    EntityNames,
    QuotaChange,
    QuotaFilter,
    QuotaRefusedError,
    changed,
    described,
    entity_named,
    names_of,
)
from regent.core.admin.config_alterations import ChangeConfig
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.protocol.messages import client_quotas as messages
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_MAX_MESSAGE = 1_000


ReadQuotas: TypeAlias = Callable[[], Mapping[str, Mapping[str, str]]]
"""Reads the settings of all users, client ids and addresses, by their paths below ``/config``."""

ChangeQuotas: TypeAlias = Callable[[str, ChangeConfig], object]
"""Changes the settings of the entity with a path below ``/config``, and notifies brokers."""


def client_quota_apis(
    read: ReadQuotas, change: ChangeQuotas, executor: Executor
) -> Sequence[KafkaApi]:
    """Return the APIs of quotas; ``executor`` is for what waits for ZooKeeper."""

    def describe(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(messages.DescribeClientQuotasRequest, request)
        filters = [QuotaFilter(c.entity_type, c.match_type, c.match) for c in asked.components]
        try:
            found = tuple(described(filters, read(), is_strict=asked.strict))
        except (QuotaRefusedError, RegentError) as error:
            code, message = _error(error)
            refusal = messages.DescribeClientQuotasResponse(error_code=code, error_message=message)
            return answer(refusal, request)
        entries = tuple(
            messages.DescribedQuotas(
                entity=_parts(names_of(entity)),
                values=tuple(messages.QuotaValue(key=k, value=v) for k, v in values.items()),
            )
            for entity, values in found
        )
        response = messages.DescribeClientQuotasResponse(error_code=Errors.NONE, entries=entries)
        return answer(response, request)

    def alter(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(messages.AlterClientQuotasRequest, request)
        entries = []
        for row in asked.entries:
            code, message = _altered(change, row, validate_only=asked.validate_only)
            entries.append(
                messages.AlteredQuotas(
                    error_code=code, error_message=message or None, entity=row.entity
                )
            )
        return answer(messages.AlterClientQuotasResponse(entries=tuple(entries)), request)

    async def run_describe(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, describe, request)

    async def run_alter(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, alter, request)

    return [
        KafkaApi(KafkaApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, run_describe),
        KafkaApi(KafkaApiKey.ALTER_CLIENT_QUOTAS, 0, 1, run_alter),
    ]


def _altered(
    change: ChangeQuotas, row: messages.AlterClientQuotasEntry, *, validate_only: bool
) -> ApiError:
    """Change the quotas of one entity, and return the outcome."""
    try:
        entity = entity_named([(part.entity_type, part.entity_name) for part in row.entity])
        changes = changed(entity, [QuotaChange(op.key, op.value, op.remove) for op in row.ops])
        if not validate_only:
            change(entity.path, lambda _: changes)
    except (QuotaRefusedError, RegentError) as error:
        return _error(error)
    return ApiError(Errors.NONE)


def _error(error: Exception) -> ApiError:
    match error:
        case QuotaRefusedError():
            code = error.error_code
        case SessionExpiredError():
            code = Errors.REQUEST_TIMED_OUT  # a change may be written, or not
        case _:
            code = Errors.UNKNOWN_SERVER_ERROR
    return ApiError(code, str(error)[:_MAX_MESSAGE])


def _parts(names: EntityNames) -> tuple[messages.QuotaEntityPart, ...]:
    return tuple(messages.QuotaEntityPart(entity_type=t, entity_name=name) for t, name in names)
