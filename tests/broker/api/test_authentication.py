"""Clients that try to authenticate at a port that does not do this."""

from __future__ import annotations

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from regent.broker.api.authentication import authentication_apis
from regent.core.errors import Errors
from tests.transport.kafka.wire import ask

APIS = authentication_apis()


@pytest.mark.parametrize("version", range(2))
def test_no_mechanism_can_be_chosen(version: int):
    answer = ask(APIS, SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (answer.error_code, answer.mechanisms) == (Errors.ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", range(3))
def test_a_client_that_authenticates_gets_an_error_with_the_remedy(version: int):
    answer = ask(APIS, SaslAuthenticateRequest(auth_bytes=b"\0user\0password"), version)
    assert answer.error_code == Errors.ILLEGAL_SASL_STATE
    assert "security.protocol=PLAINTEXT" in answer.error_message
