"""Signed tokens: which are accepted, and how keys are replaced."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from regent.config.tables.sasl import SaslConfig
from regent.core.errors import RegentError
from regent.core.security.oauthbearer import BearerToken, InvalidTokenError
from regent.testing.waits import eventually
from regent.transport.kafka import jwt_keys
from regent.transport.kafka.jwt_keys import JwtValidator

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
SHORT_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
AUDIENCE, ISSUER = "regent", "https://issuer.example"
PUBLIC_PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def row(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    kinds = ((rsa.RSAPrivateKey, RSAAlgorithm), (ec.EllipticCurvePrivateKey, ECAlgorithm))
    algorithm = next((a for kind, a in kinds if isinstance(key, kind)), OKPAlgorithm)
    found = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def write_keys(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text(json.dumps({"keys": rows}))
    return f"file://{path}"


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "1", **changes: Any) -> str:
    now = time.time()
    claims = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 60}
    claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims, key, algorithm, headers)


Validator = Callable[..., JwtValidator]


@pytest.fixture
def validator(tmp_path: Path) -> Iterator[Validator]:
    with ExitStack() as stack:

        def start(*rows: dict[str, Any], **settings: Any) -> JwtValidator:
            url = write_keys(tmp_path / "keys.json", *(rows or (row(RSA, "1"),)))
            config = SaslConfig(
                **{
                    "sasl_oauthbearer_jwks_endpoint_url": url,
                    "sasl_oauthbearer_expected_audience": f"other, {AUDIENCE}",
                    "sasl_oauthbearer_expected_issuer": ISSUER,
                    **settings,
                }
            )
            started = JwtValidator(config)
            stack.callback(started.close)
            return started

        yield start


def assert_refused(validator: JwtValidator, text: str) -> None:
    with pytest.raises(InvalidTokenError) as caught:
        validator.validate(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA")],
)
def test_a_signed_token_is_its_subjects(validator: Validator, key: Any, algorithm: str):
    found = validator(row(key, "1")).validate(token(key, algorithm, exp=2_000_000_000))
    assert found == BearerToken("alice", 2_000_000_000_000)


def test_a_token_need_not_name_the_only_key(validator: Validator):
    assert validator(row(RSA, "1")).validate(token(kid=None)).name == "alice"
    assert_refused(validator(row(RSA, "1"), row(EC, "2")), token(kid=None))


def test_another_claim_may_name_the_user(validator: Validator):
    checks = validator(sasl_oauthbearer_sub_claim_name="client")
    assert checks.validate(token(client="bob")).name == "bob"
    assert_refused(checks, token())


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "somebody"},
        {"aud": None},
        {"iss": "https://issuer.example.evil"},
        {"iss": "https://issuer"},
        {"iss": None},
        {"exp": 1},
        {"exp": None},
        {"iat": None},
        {"iat": 2_000_000_000, "exp": 2_000_000_100},
        {"nbf": 2_000_000_000},
        {"sub": None},
        {"kid": "2"},
        {"key": OTHER_RSA},
    ],
)
def test_a_token_of_others_is_refused(validator: Validator, changes: dict[str, Any]):
    assert_refused(validator(), token(**changes))


def unsigned(header: dict[str, Any], text: str) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    return f"{encoded}.{text.split('.')[1]}."


def test_cve_2022_29217_the_algorithm_is_the_keys(validator: Validator):
    checks = validator()
    assert_refused(checks, unsigned({"alg": "none", "kid": "1"}, token()))
    secret = base64.urlsafe_b64encode(PUBLIC_PEM).decode().rstrip("=")
    forged = jwt.encode(
        {"sub": "root", "aud": AUDIENCE, "iss": ISSUER, "iat": 1, "exp": 2_000_000_000},
        "x" * 64,
        "HS256",
        {"kid": "1", "jwk": {"kty": "oct", "k": secret}},
    )
    assert_refused(checks, forged)
    assert_refused(validator(row(RSA, "1", alg="RS512")), token())


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "....", "é.é.é", "e30.e30.e30"])
def test_what_is_no_token_is_refused(validator: Validator, text: str):
    assert_refused(validator(), text)


def test_a_changed_token_is_refused(validator: Validator):
    checks, text = validator(), token()
    for at in range(0, len(text) - 1, 7):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        assert_refused(checks, changed)


def test_keys_that_do_not_sign_are_left_out(validator: Validator):
    left_out = [
        row(OTHER_RSA, "2", use="enc"),
        row(SHORT_RSA, "3"),
        {"kty": "oct", "kid": "4", "k": "AAAA"},
        {"kty": "RSA", "kid": "5"},
        row(EC, "6", alg="HS256"),
    ]
    checks = validator(row(RSA, "1", use="sig"), *left_out)
    checks.validate(token())
    for key, algorithm, kid in ((OTHER_RSA, "RS256", "2"), (EC, "ES256", "6")):
        assert_refused(checks, token(key, algorithm, kid))
    assert_refused(checks, token("x" * 64, "HS256", "4"))


def test_a_new_key_is_read_when_a_token_names_it(validator: Validator, tmp_path: Path):
    checks = validator()
    write_keys(tmp_path / "keys.json", row(RSA, "1"), row(OTHER_RSA, "2"))
    named = token(OTHER_RSA, kid="2")
    assert_refused(checks, named)

    def is_known() -> bool:
        try:
            return checks.validate(named).name == "alice"
        except InvalidTokenError:
            return False

    eventually(is_known, "the new key is known")


def test_made_up_keys_do_not_make_the_broker_read_all_the_time(
    validator: Validator, monkeypatch: pytest.MonkeyPatch
):
    reads = []
    content = jwt_keys._content

    def read(url: str) -> bytes:
        reads.append(url)
        return content(url)

    monkeypatch.setattr(jwt_keys, "_content", read)
    checks = validator()
    for number in range(100):
        assert_refused(checks, token(kid=f"made up {number}"))
    eventually(lambda: len(reads) == 2, "the keys are read again")
    checks.close()
    assert len(reads) == 2


def test_keys_stay_when_they_cannot_be_read_again(
    validator: Validator, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    checks = validator()
    (tmp_path / "keys.json").write_text("{")
    assert_refused(checks, token(kid="2"))
    eventually(lambda: "cannot be read" in caplog.text, "the file is read again")
    checks.validate(token())


@pytest.mark.parametrize("content", [None, "{", "[]", '{"keys": []}', '{"keys": [7]}'])
def test_a_file_without_keys_ends_the_start(tmp_path: Path, content: str | None):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    config = SaslConfig(sasl_oauthbearer_jwks_endpoint_url=f"file://{path}")
    with pytest.raises(RegentError, match=r"keys\.json has no keys that can be read"):
        JwtValidator(config)


def test_cve_2025_27817_only_https_and_files_are_read():
    for url in ("http://127.0.0.1/keys", "ftp://127.0.0.1/keys", "data:,{}"):
        with pytest.raises(ValueError, match="https"):
            jwt_keys._content(url)


def test_the_skew_of_clocks_is_a_setting(validator: Validator):
    now = time.time()
    late = token(iat=now - 60, exp=now - 5)
    assert validator().validate(late).name == "alice"
    assert_refused(validator(sasl_oauthbearer_clock_skew_seconds=0), late)


def test_keys_are_read_again_from_time_to_time(validator: Validator, tmp_path: Path):
    checks = validator(sasl_oauthbearer_jwks_endpoint_refresh_ms=1)
    write_keys(tmp_path / "keys.json", row(OTHER_RSA, "2"))
    eventually(lambda: set(checks._keys) == {"2"}, "the new keys are read")


def test_keys_that_cannot_be_reached_are_asked_for_again(
    validator: Validator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    later = write_keys(tmp_path / "later", row(RSA, "1"))
    content, asked = jwt_keys._content, []

    def read(url: str) -> bytes:
        asked.append(url)
        if len(asked) < 3:
            raise OSError("away")
        return content(later)

    monkeypatch.setattr(jwt_keys, "_content", read)
    checks = validator(
        sasl_oauthbearer_jwks_endpoint_url="https://127.0.0.1:1/keys",
        sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=1,
        sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=1,
    )
    eventually(lambda: set(checks._keys) == {"1"}, "the keys are read")
    assert checks.validate(token()).name == "alice"
