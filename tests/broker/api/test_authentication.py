"""Clients that try to authenticate, or to get tokens, at a port that does neither."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from regent.broker.api.authentication import authentication_apis
from regent.core.errors import Errors
from tests.support import delegation_token_messages as messages
from tests.support.delegation_token_messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.transport.kafka.wire import ask, call, whole

APIS = authentication_apis()
FIRST_WITH_OWNER = 3
NOT_ALLOWED = Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def ask_about_tokens(request: Any, version: int) -> Any:
    """The answer, without kio, which cannot read the timestamp -1."""
    body = whole(call(APIS, request, version))
    response_type = getattr(messages, type(request).__name__.replace("Request", "Response"))
    return response_type.decode(body, version=version)


@pytest.mark.parametrize("version", range(2))
def test_no_mechanism_can_be_chosen(version: int):
    answer = ask(APIS, SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (answer.error_code, answer.mechanisms) == (Errors.ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", range(3))
def test_a_client_that_authenticates_gets_an_error_with_the_remedy(version: int):
    answer = ask(APIS, SaslAuthenticateRequest(auth_bytes=b"\0user\0password"), version)
    assert answer.error_code == Errors.ILLEGAL_SASL_STATE
    assert "security.protocol=PLAINTEXT" in answer.error_message


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("owner", [None, "", "alice"])
def test_no_token_is_created(version: int, owner: str | None):
    asked = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=owner, renewers=[], max_lifetime_ms=-1
    )
    answer = ask_about_tokens(asked, version)
    named = owner if owner and version >= FIRST_WITH_OWNER else "ANONYMOUS"
    assert (answer.error_code, answer.principal_type, answer.principal_name) == (
        NOT_ALLOWED,
        "User",
        named,
    )
    assert (answer.issue_timestamp_ms, answer.token_id, answer.hmac) == (-1, "", b"")


@pytest.mark.parametrize("version", range(3))
def test_no_token_is_renewed_or_expired(version: int):
    renewal = RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=-1)
    expiry = ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=-1)
    for asked in (renewal, expiry):
        answer = ask_about_tokens(asked, version)
        assert (answer.error_code, answer.expiry_timestamp_ms) == (NOT_ALLOWED, -1)


@pytest.mark.parametrize("version", range(4))
def test_no_token_is_described(version: int):
    answer = ask_about_tokens(DescribeDelegationTokenRequest(owners=None), version)
    assert (answer.error_code, answer.tokens) == (NOT_ALLOWED, [])
