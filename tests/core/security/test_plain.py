"""PLAIN, and its file of users."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from regent.core.errors import BadDataError
from regent.core.security.plain import PlainServer, hashed, parsed_users, plain_token
from regent.core.security.sasl_login import LoggedIn, SaslAuthenticationError, user

SALT = b"a salt of theirs"
USERS = parsed_users("# people\n\nalice:plain$se:cret\nbob:" + hashed("b", SALT).text, SALT)


def server() -> PlainServer:
    return PlainServer(lambda: USERS, b"a secret")


def refusal(token: bytes) -> SaslAuthenticationError:
    login = server()
    with pytest.raises(SaslAuthenticationError) as caught:
        login.evaluate(token)
    assert login.login is None
    return caught.value


@pytest.mark.parametrize("token", [plain_token("alice", "se:cret"), b"alice\0alice\0se:cret"])
def test_the_right_password_logs_in(token: bytes):
    login = server()
    assert login.evaluate(token) == b""
    assert login.login == LoggedIn(user("alice"))
    with pytest.raises(SaslAuthenticationError):
        login.evaluate(token)


def test_a_hashed_password_logs_in():
    login = server()
    login.evaluate(plain_token("bob", "b"))
    assert login.login == LoggedIn(user("bob"))


def test_a_client_does_not_learn_who_exists():
    messages = {str(refusal(plain_token(name, "x"))) for name in ("alice", "bob", "carol")}
    assert messages == {"Authentication failed: Invalid username or password"}
    assert "no such user" in refusal(plain_token("carol", "x")).detail
    assert "wrong password" in refusal(plain_token("bob", "x")).detail


def test_an_unknown_user_takes_as_long_as_those_that_exist(monkeypatch: pytest.MonkeyPatch):
    costs: list[int] = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, *, n: int, **settings: Any) -> bytes:
        costs.append(n)
        return scrypt(password, n=n, **settings)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    cheap = hashed("c", SALT)._replace(cost=2)
    for name in ("carol", "dave"):
        with pytest.raises(SaslAuthenticationError):
            PlainServer(lambda: {"bob": cheap}, b"a secret").evaluate(plain_token(name, "x"))
    assert costs == [16384, 2, 2]
    with pytest.raises(SaslAuthenticationError):
        PlainServer(dict, b"a secret").evaluate(plain_token("carol", "x"))


def test_the_password_of_another_user_does_not_log_an_unknown_one_in():
    with pytest.raises(SaslAuthenticationError):
        PlainServer(lambda: {"bob": USERS["bob"]}, b"").evaluate(plain_token("carol", "b"))


def test_cve_2017_12610_another_authorization_id_is_refused():
    assert "authorization id" in str(refusal(b"bob\0alice\0se:cret"))


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0se:cret",
        b"\0alice\0se:cret\0",
        b"\0alice\0\xff",
        b"\0alice\0se:cret\n",
    ],
)
def test_a_token_that_is_none_is_refused(token: bytes):
    refusal(token)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        ":plain$x",
        "alice:secret",
        "alice:plain$",
        "alice:scrypt$",
        "alice:scrypt$3$8$1$YQ==$YQ==",
        "alice:scrypt$1048576$999$1$YQ==$" + hashed("x", SALT).text.rpartition("$")[2],
        "alice:plain$secret\nalice:plain$secret",
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str):
    with pytest.raises(BadDataError, match=r"^line \d must be") as caught:
        parsed_users(line, SALT)
    assert "secret" not in str(caught.value)


def test_hashes_are_not_printed():
    assert repr(USERS["bob"]) == "PasswordHash(cost=16384)"
