"""OAUTHBEARER: the tokens of SASL, and bearer tokens without a signature."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from regent.core.security.oauthbearer import (
    BearerToken,
    InvalidTokenError,
    OAuthBearerServer,
    acknowledged,
    bearer_of,
    bearer_token_message,
    unsecured_claims,
)
from regent.core.security.sasl_login import LoggedIn, SaslAuthenticationError, user

TOKEN = "a.b.c"


def validate(token: str) -> BearerToken:
    if token != TOKEN:
        raise InvalidTokenError("it is another one")
    return BearerToken("alice", 123)


AS_KAFKA_SAYS = "^Authentication failed during authentication due to invalid credentials with SASL"


def test_a_valid_token_logs_in():
    login = OAuthBearerServer(validate)
    assert login.evaluate(bearer_token_message(TOKEN)) == b""
    assert login.login == LoggedIn(user("alice"), 123)
    with pytest.raises(SaslAuthenticationError):
        login.evaluate(acknowledged())


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=bEARER   a.b.c\x01trace=on\x01\x01",
        b"n,,\x01trace=on\x01auth=Bearer a.b.c\x01\x01",
    ],
)
def test_other_forms_of_the_message_are_accepted(message: bytes):
    login = OAuthBearerServer(validate)
    assert login.evaluate(message) == b""
    assert login.login is not None


def test_the_client_learns_in_two_steps_that_its_token_is_refused():
    login = OAuthBearerServer(validate)
    assert json.loads(login.evaluate(bearer_token_message("x"))) == {"status": "invalid_token"}
    assert login.login is None
    with pytest.raises(SaslAuthenticationError) as caught:
        login.evaluate(acknowledged())
    assert str(caught.value) == '{"status":"invalid_token"}'
    assert caught.value.detail == "it is another one"


def test_after_a_refusal_a_valid_token_is_refused_too():
    login = OAuthBearerServer(validate)
    login.evaluate(bearer_token_message("x"))
    for _ in range(2):
        with pytest.raises(SaslAuthenticationError):
            login.evaluate(bearer_token_message(TOKEN))
    assert login.login is None


def test_cve_2017_12610_another_authorization_id_is_refused():
    login = OAuthBearerServer(validate)
    with pytest.raises(SaslAuthenticationError, match="authorization id"):
        login.evaluate(b"n,a=root,\x01auth=Bearer a.b.c\x01\x01")
    assert login.login is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        acknowledged(),
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearera.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\x01",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01au_th=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\n",
    ],
)
def test_a_message_that_is_none_is_refused(message: bytes):
    login = OAuthBearerServer(validate)
    with pytest.raises(SaslAuthenticationError, match=AS_KAFKA_SAYS):
        login.evaluate(message)
    assert login.login is None


def test_another_acknowledgement_is_refused_in_the_words_of_kafka():
    """Sarama sends four characters in the place of the byte."""
    login = OAuthBearerServer(validate)
    login.evaluate(bearer_token_message("x"))
    with pytest.raises(SaslAuthenticationError, match=AS_KAFKA_SAYS) as caught:
        login.evaluate(rb"\x01")
    assert caught.value.detail == "it is another one"


# --- claims ---------------------------------------------------------------------------------------

CLAIMS = {"sub": "alice", "iat": 1_000, "exp": 2_000}


def of(now_s: float = 1_500, skew_s: float = 0, **changes: Any) -> BearerToken:
    claims = {key: value for key, value in {**CLAIMS, **changes}.items() if value is not None}
    return bearer_of(claims, now_s=now_s, skew_s=skew_s, sub_claim="sub")


def test_the_times_of_a_token_count():
    assert of() == BearerToken("alice", 2_000_000)
    assert of(iat=None) == of()
    assert of(now_s=2_010, skew_s=30) == of()
    assert of(now_s=990, skew_s=30) == of()


@pytest.mark.parametrize(
    "changes",
    [
        {"now_s": 2_000},
        {"now_s": 999},
        {"exp": None},
        {"exp": "2000"},
        {"exp": True},
        {"exp": float("nan")},
        {"exp": 1e300},
        {"iat": 2_000, "now_s": 1_999},
        {"iat": "x"},
        {"sub": None},
        {"sub": 7},
        {"sub": " "},
    ],
)
def test_a_token_without_a_subject_or_out_of_its_time_is_refused(changes: dict[str, Any]):
    with pytest.raises(InvalidTokenError):
        of(**changes)


def unsecured(header: object, claims: object, signature: str = "") -> str:
    parts = (json.dumps(part).encode() for part in (header, claims))
    texts = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts]
    return ".".join([*texts, signature])


def test_an_unsecured_token_has_claims():
    assert unsecured_claims(unsecured({"alg": "none"}, CLAIMS)) == CLAIMS


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "!.b.",
        "a.b.",
        unsecured({"alg": "none"}, CLAIMS, "c2ln"),
        unsecured({"alg": "HS256"}, CLAIMS),
        unsecured({}, CLAIMS),
        unsecured([], CLAIMS),
        unsecured({"alg": "none"}, []),
        unsecured({"alg": "none"}, CLAIMS) + ".",
        "W" * 100_000 + ".e30.",
    ],
)
def test_a_signed_or_odd_token_is_no_unsecured_one(token: str):
    with pytest.raises(InvalidTokenError):
        unsecured_claims(token)
