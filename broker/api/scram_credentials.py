"""DescribeUserScramCredentials, version 0 (KIP-554).

Kafka's ConfigCommand asks for credentials whenever it describes the quotas of users. Tools may have
written some to ZooKeeper; no client logs in with them, because there is no authentication. Mirrors
``ZkAdminManager.describeUserScramCredentials``.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, TypeAlias

from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from regent.core.quota.quota_entities import QuotaEntity, entity_of
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

Configs: TypeAlias = Mapping[str, Mapping[str, str]]
"""Settings by the paths of entities below ``/config``."""

_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_ITERATIONS: Final = re.compile(r"(?:^|,)iterations=([0-9]{1,9})(?:,|$)")
_MAX_MESSAGE: Final = 1_000


def scram_credential_apis(
    read: Callable[[Collection[str]], Configs], read_all: Callable[[], Configs], executor: Executor
) -> Sequence[KafkaApi]:
    """Return the API that describes credentials; ``executor`` waits for ZooKeeper."""

    def find(users: Sequence[str]) -> list[DescribeUserScramCredentialsResult]:
        paths = {user: QuotaEntity(user=user).path for user in users if user}
        configs = read(list(paths.values())) if paths else {}
        return [
            _refusal(user, count) or _described(user, configs.get(paths[user], {})) or _none(user)
            for user, count in Counter(users).items()
        ]

    def find_all() -> list[DescribeUserScramCredentialsResult]:
        found = []
        for path, config in read_all().items():
            entity = entity_of(path)
            if entity is not None and entity == QuotaEntity(user=entity.user):
                found.append(_described(entity.user or "<default>", config))
        return sorted((row for row in found if row is not None), key=lambda row: row.user)

    def describe(request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeUserScramCredentialsRequest, request)
        try:
            results = find([row.name for row in asked.users]) if asked.users else find_all()
        except RegentError as error:
            code, message = Errors.UNKNOWN_SERVER_ERROR, str(error)[:_MAX_MESSAGE]
            failed = DescribeUserScramCredentialsResponse(error_code=code, error_message=message)
            return answer(failed, request)
        return answer(DescribeUserScramCredentialsResponse(results=tuple(results)), request)

    async def run(request: KafkaRequest) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, describe, request)

    return [KafkaApi(KafkaApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, run)]


def _refusal(user: str, count: int) -> DescribeUserScramCredentialsResult | None:
    if not user:
        error, message = Errors.RESOURCE_NOT_FOUND, "the name of a user must not be empty"
    elif count > 1:
        error, message = Errors.DUPLICATE_RESOURCE, f"the user {user} is named {count} times"
    else:
        return None
    return _failed(user, error, message)


def _none(user: str) -> DescribeUserScramCredentialsResult:
    return _failed(user, Errors.RESOURCE_NOT_FOUND, f"the user {user} has no SCRAM credential")


def _failed(user: str, error: Errors, message: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=user, error_code=error, error_message=message[:_MAX_MESSAGE]
    )


def _described(user: str, config: Mapping[str, str]) -> DescribeUserScramCredentialsResult | None:
    """Return the credentials of a user; None: there are none."""
    infos = []
    for name, mechanism in _MECHANISMS.items():
        if name not in config:
            continue
        iterations = _ITERATIONS.search(config[name])
        if iterations is None:
            message = f"the {name} credential of the user {user} is damaged: set it again"
            return _failed(user, Errors.UNKNOWN_SERVER_ERROR, message)
        infos.append(CredentialInfo(mechanism=mechanism, iterations=int(iterations[1])))
    if not infos:
        return None
    return DescribeUserScramCredentialsResult(user=user, credential_infos=tuple(infos))
