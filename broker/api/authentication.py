"""SaslHandshake and SaslAuthenticate.

Clients are not authenticated: every listener is PLAINTEXT. Kafka refuses these requests there.
Versions as in Kafka 3.9. Mirrors the handlers of ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regent.core.errors import Errors
from regent.core.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_NO_SASL: Final = (
    "clients are not authenticated here: set security.protocol=PLAINTEXT in the client"
)


def authentication_apis() -> Sequence[KafkaApi]:
    """Return the APIs."""
    return [
        KafkaApi(KafkaApiKey.SASL_HANDSHAKE, 0, 1, _shake_hands),
        KafkaApi(KafkaApiKey.SASL_AUTHENTICATE, 0, 2, _authenticate),
    ]


async def _shake_hands(request: KafkaRequest) -> KafkaAnswer:
    decode(SaslHandshakeRequest, request)
    return answer(SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE), request)


async def _authenticate(request: KafkaRequest) -> KafkaAnswer:
    decode(SaslAuthenticateRequest, request)
    refused = SaslAuthenticateResponse(error_code=Errors.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
    return answer(refused, request)
