"""Create-, Renew-, Expire- and DescribeDelegationToken (KIP-48, KIP-373).

A client must have logged in, and not with a token. Versions as in Kafka 3.9. Mirrors the handlers
of ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias

from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.authentication import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.security.delegation_token_manager import (
    DelegationToken,
    DelegationTokenManager,
    TokenRefusedError,
    TokenWithHmac,
    check_renewers,
)
from regent.core.security.session import ANONYMOUS, KafkaPrincipal, SecurityProtocol, Session
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

logger = logging.getLogger(__name__)

_Handle: TypeAlias = Callable[[KafkaRequest], KafkaAnswer]


def delegation_token_apis(
    tokens: DelegationTokenManager | None,
    executor: Executor,
) -> Sequence[KafkaApi]:
    """Return the APIs; ``tokens`` None: brokers have no secret for tokens.

    ``executor`` waits for ZooKeeper.
    """
    handlers = _Handlers(tokens)

    def api(key: KafkaApiKey, last: int, handle: _Handle) -> KafkaApi:
        async def run(request: KafkaRequest) -> KafkaAnswer:
            return await asyncio.get_running_loop().run_in_executor(executor, handle, request)

        return KafkaApi(key, 0, last, run)

    return [
        api(KafkaApiKey.CREATE_DELEGATION_TOKEN, 3, handlers.create),
        api(KafkaApiKey.RENEW_DELEGATION_TOKEN, 2, handlers.renew),
        api(KafkaApiKey.EXPIRE_DELEGATION_TOKEN, 2, handlers.expire),
        api(KafkaApiKey.DESCRIBE_DELEGATION_TOKEN, 3, handlers.describe),
    ]


def _may_create(request: KafkaRequest, owner: KafkaPrincipal) -> bool:
    return request.may(AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner))


def _may_describe(request: KafkaRequest, token: DelegationToken) -> bool:
    """Whether the client may see a token that is not its own."""
    return request.may(
        AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, is_logged=False
    ) or request.may(
        AclOperation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner), is_logged=False
    )


class _Handlers:
    def __init__(self, tokens: DelegationTokenManager | None) -> None:
        self._manager = tokens

    @property
    def _tokens(self) -> DelegationTokenManager:
        """Raises ``TokenRefusedError`` when tokens are off."""
        if self._manager is None:
            raise TokenRefusedError(Errors.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._manager

    def create(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(CreateDelegationTokenRequest, request)
        requester = request.session.principal
        owner = requester
        if asked.owner_principal_name:
            owner = KafkaPrincipal(asked.owner_principal_type or "", asked.owner_principal_name)
        response = partial(
            CreateDelegationTokenResponse,
            principal_type=owner.principal_type,
            principal_name=owner.name,
            token_requester_principal_type=requester.principal_type,
            token_requester_principal_name=requester.name,
        )

        def create() -> CreateDelegationTokenResponse:
            _check_login(request.session)
            if owner != requester and not _may_create(request, owner):
                raise TokenRefusedError(Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
            renewers = [KafkaPrincipal(r.principal_type, r.principal_name) for r in asked.renewers]
            check_renewers(renewers)
            created = self._tokens.create(owner, requester, renewers, asked.max_lifetime_ms)
            return response(
                error_code=Errors.NONE,
                issue_timestamp_ms=created.token.issue_timestamp_ms,
                expiry_timestamp_ms=created.token.expiry_timestamp_ms,
                max_timestamp_ms=created.token.max_timestamp_ms,
                token_id=created.token.token_id,
                hmac=created.hmac,
            )

        return _answered(request, create, lambda error: response(error_code=error))

    def renew(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(RenewDelegationTokenRequest, request)

        def renew() -> RenewDelegationTokenResponse:
            _check_login(request.session)
            principal = request.session.principal
            expiry_ms = self._tokens.renew(principal, asked.hmac, asked.renew_period_ms)
            return RenewDelegationTokenResponse(
                error_code=Errors.NONE, expiry_timestamp_ms=expiry_ms
            )

        refusal = RenewDelegationTokenResponse
        return _answered(request, renew, lambda error: refusal(error_code=error))

    def expire(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(ExpireDelegationTokenRequest, request)

        def expire() -> ExpireDelegationTokenResponse:
            _check_login(request.session)
            principal = request.session.principal
            expiry_ms = self._tokens.expire(principal, asked.hmac, asked.expiry_time_period_ms)
            return ExpireDelegationTokenResponse(
                error_code=Errors.NONE, expiry_timestamp_ms=expiry_ms
            )

        refusal = ExpireDelegationTokenResponse
        return _answered(request, expire, lambda error: refusal(error_code=error))

    def describe(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(DescribeDelegationTokenRequest, request)

        def describe() -> DescribeDelegationTokenResponse:
            session = request.session
            _check_login(session)
            tokens, owners = self._tokens, None
            if asked.owners is not None:
                owners = [KafkaPrincipal(o.principal_type, o.principal_name) for o in asked.owners]
                if not owners:
                    return DescribeDelegationTokenResponse(error_code=Errors.NONE)
            found = tokens.describe(
                session.principal,
                owners,
                lambda token: _may_describe(request, token),
            )
            return DescribeDelegationTokenResponse(
                error_code=Errors.NONE, tokens=tuple(map(_described, found))
            )

        refusal = DescribeDelegationTokenResponse
        return _answered(request, describe, lambda error: refusal(error_code=error))


def _check_login(session: Session) -> None:
    """Raise ``TokenRefusedError`` for a client that has not logged in, or did so with a token.

    A token must not be a way to make itself live longer.
    """
    protocol = session.security_protocol
    is_unknown = protocol is SecurityProtocol.PLAINTEXT or (
        protocol is SecurityProtocol.SSL and session.principal == ANONYMOUS
    )
    if is_unknown or session.by_token:
        raise TokenRefusedError(Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _answered(
    request: KafkaRequest, handle: Callable[[], Any], refusal: Callable[[Errors], Any]
) -> KafkaAnswer:
    try:
        response = handle()
    except TokenRefusedError as refused:
        response = refusal(refused.error)
    except RegentError as error:
        logger.error("%s: %s", request.api_key.name, error)
        response = refusal(Errors.UNKNOWN_SERVER_ERROR)
    return answer(response, request)


def _described(found: TokenWithHmac) -> DescribedDelegationToken:
    token = found.token
    return DescribedDelegationToken(
        principal_type=token.owner.principal_type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.principal_type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiry_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=found.hmac,
        renewers=tuple(
            DescribedDelegationTokenRenewer(principal_type=r.principal_type, principal_name=r.name)
            for r in token.renewers
        ),
    )
