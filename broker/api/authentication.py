"""SaslHandshake, SaslAuthenticate, and the requests about delegation tokens (KIP-48).

Clients are not authenticated: every listener is PLAINTEXT. Kafka refuses these requests there.
Versions as in Kafka 3.9. Mirrors the handlers of ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regent.core.errors import Errors
from regent.core.protocol.messages.authentication import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_NO_TOKENS: Final = Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
_NO_SASL: Final = (
    "clients are not authenticated here: set security.protocol=PLAINTEXT in the client"
)


def authentication_apis() -> Sequence[KafkaApi]:
    """Return the APIs."""
    return [
        KafkaApi(KafkaApiKey.SASL_HANDSHAKE, 0, 1, _shake_hands),
        KafkaApi(KafkaApiKey.SASL_AUTHENTICATE, 0, 2, _authenticate),
        KafkaApi(KafkaApiKey.CREATE_DELEGATION_TOKEN, 0, 3, _create_token),
        KafkaApi(KafkaApiKey.RENEW_DELEGATION_TOKEN, 0, 2, _renew_token),
        KafkaApi(KafkaApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2, _expire_token),
        KafkaApi(KafkaApiKey.DESCRIBE_DELEGATION_TOKEN, 0, 3, _describe_tokens),
    ]


async def _shake_hands(request: KafkaRequest) -> KafkaAnswer:
    decode(SaslHandshakeRequest, request)
    return answer(SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE), request)


async def _authenticate(request: KafkaRequest) -> KafkaAnswer:
    decode(SaslAuthenticateRequest, request)
    refused = SaslAuthenticateResponse(error_code=Errors.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
    return answer(refused, request)


async def _create_token(request: KafkaRequest) -> KafkaAnswer:
    asked = decode(CreateDelegationTokenRequest, request)
    has_owner, requester = bool(asked.owner_principal_name), request.session.principal
    refused = CreateDelegationTokenResponse(
        error_code=_NO_TOKENS,
        principal_type=(asked.owner_principal_type or "")
        if has_owner
        else requester.principal_type,
        principal_name=asked.owner_principal_name or requester.name,
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.name,
    )
    return answer(refused, request)


async def _renew_token(request: KafkaRequest) -> KafkaAnswer:
    decode(RenewDelegationTokenRequest, request)
    return answer(RenewDelegationTokenResponse(error_code=_NO_TOKENS), request)


async def _expire_token(request: KafkaRequest) -> KafkaAnswer:
    decode(ExpireDelegationTokenRequest, request)
    return answer(ExpireDelegationTokenResponse(error_code=_NO_TOKENS), request)


async def _describe_tokens(request: KafkaRequest) -> KafkaAnswer:
    decode(DescribeDelegationTokenRequest, request)
    return answer(DescribeDelegationTokenResponse(error_code=_NO_TOKENS), request)
