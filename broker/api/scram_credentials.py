"""DescribeUserScramCredentials and AlterUserScramCredentials, version 0 (KIP-554).

The credentials of a user are among its settings in ZooKeeper, beside its quotas, and each write is
conditional on what was read. So any broker changes them, as it does quotas; Kafka's clients ask the
controller. Mirrors ``ZkAdminManager.describeUserScramCredentials`` and
``alterUserScramCredentials``.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeAlias

from regent.core.admin.config_alterations import ChangeConfig
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.protocol.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from regent.core.quota.quota_entities import QuotaEntity, entity_of
from regent.core.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramMechanism,
    credential_of,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

Configs: TypeAlias = Mapping[str, Mapping[str, str]]
"""Settings by the paths of entities below ``/config``."""

_MECHANISMS: Final = {mechanism.number: mechanism for mechanism in ScramMechanism}
ChangeUser: TypeAlias = Callable[[str, ChangeConfig], object]
"""Changes the settings of the user with a path below ``/config``, and notifies brokers."""

_Alteration: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion
_ITERATIONS: Final = re.compile(r"(?:^|,)iterations=([0-9]{1,9})(?:,|$)")
_MAX_MESSAGE: Final = 1_000


class _AbsentCredentialError(Exception):
    """There is no credential to remove."""


def scram_credential_apis(
    read: Callable[[Collection[str]], Configs],
    read_all: Callable[[], Configs],
    change: ChangeUser,
    executor: Executor,
) -> Sequence[KafkaApi]:
    """Return the APIs of credentials; ``executor`` waits for ZooKeeper."""

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

    async def run(
        handle: Callable[[KafkaRequest], KafkaAnswer], request: KafkaRequest
    ) -> KafkaAnswer:
        return await asyncio.get_running_loop().run_in_executor(executor, handle, request)

    return [
        KafkaApi(KafkaApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, partial(run, describe)),
        KafkaApi(
            KafkaApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, partial(run, partial(_alter, change))
        ),
    ]


def _alter(change: ChangeUser, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(AlterUserScramCredentialsRequest, request)
    rows: tuple[_Alteration, ...] = (*asked.deletions, *asked.upsertions)
    of_users: dict[str, list[_Alteration]] = {}
    for row in rows:
        of_users.setdefault(row.name, []).append(row)
    results = tuple(_altered(change, user, rows) for user, rows in of_users.items())
    return answer(AlterUserScramCredentialsResponse(results=results), request)


def _altered(
    change: ChangeUser, user: str, rows: Sequence[_Alteration]
) -> AlterUserScramCredentialsResult:
    """Make all changes of a user's credentials, or none, and return the outcome."""
    refusal = next(filter(None, map(_problem, rows)), None) or _duplicates(rows)
    if refusal is None:
        try:
            change(QuotaEntity(user=user).path, partial(_changes, rows, set()))
        except _AbsentCredentialError as error:
            refusal = ApiError(Errors.RESOURCE_NOT_FOUND, str(error))
        except SessionExpiredError as error:  # they may be written, or not
            refusal = ApiError(Errors.REQUEST_TIMED_OUT, str(error)[:_MAX_MESSAGE])
        except RegentError as error:
            refusal = ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error)[:_MAX_MESSAGE])
    code, message = refusal or ApiError(Errors.NONE)
    return AlterUserScramCredentialsResult(
        user=user, error_code=code, error_message=message or None
    )


def _problem(row: _Alteration) -> ApiError | None:
    if not row.name:
        return ApiError(Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if row.mechanism not in _MECHANISMS:
        return ApiError(Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(row, ScramCredentialDeletion):
        return None
    if row.iterations < MIN_ITERATIONS:
        return ApiError(Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if row.iterations > MAX_ITERATIONS:
        return ApiError(Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not (row.salt and row.salted_password):
        return ApiError(
            Errors.UNACCEPTABLE_CREDENTIAL, "The salt and the salted password must not be empty"
        )
    return None


def _duplicates(rows: Sequence[_Alteration]) -> ApiError | None:
    if len({row.mechanism for row in rows}) == len(rows):
        return None
    message = "A user credential cannot be altered twice in the same request"
    return ApiError(Errors.DUPLICATE_RESOURCE, message)


def _changes(
    rows: Sequence[_Alteration], seen: set[str], present: Mapping[str, str]
) -> Mapping[str, str | None]:
    """Return the changes of a user's settings. Raises ``_AbsentCredentialError``.

    ``seen`` has the credentials of an earlier decision, whose write may have been applied.
    """
    seen.update(present)
    changes: dict[str, str | None] = {}
    for row in rows:
        mechanism = _MECHANISMS[row.mechanism]
        if isinstance(row, ScramCredentialUpsertion):
            salted, salt = bytes(row.salted_password), bytes(row.salt)
            credential = credential_of(mechanism, salted, salt, row.iterations)
            changes[mechanism.value] = credential.text
        elif mechanism.value in seen:
            changes[mechanism.value] = None
        else:
            raise _AbsentCredentialError("Attempt to delete a user credential that does not exist")
    return changes


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
    for mechanism, named in _MECHANISMS.items():
        name = named.value
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
