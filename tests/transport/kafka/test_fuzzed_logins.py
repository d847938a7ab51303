"""Logins with random changes: nobody is let in whom an independent decision refuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from regent.config.private_files import write_private
from regent.config.tables.sasl import SaslConfig
from regent.core.security.sasl_login import SaslAuthenticationError, SaslServer
from regent.core.security.scram import ScramMechanism, derive
from regent.transport.kafka.sasl_mechanisms import sasl_listener
from tests.support.fuzzed_logins import (
    AUDIENCE,
    ISSUER,
    MECHANISMS,
    USERS,
    Issuer,
    Login,
    plain_users,
)
from tests.support.sasl_users import Users

CHANGES = ("first", "first", "final", "final", "none")


class Credentials(Users):
    """Those of ``USERS``."""

    def __init__(self) -> None:
        self.credentials = {
            (mechanism, name.decode()): derive(mechanism, password.decode(), b"salt of " + name)
            for mechanism in ScramMechanism
            for name, password in USERS.items()
        }


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def mechanisms(tmp_path: Path, issuer: Issuer) -> Iterator[Mapping[str, Callable[[], SaslServer]]]:
    users = tmp_path / "plain.users"
    write_private(users, plain_users())
    config = SaslConfig(
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        sasl_plain_users_file=str(users),
        sasl_oauthbearer_jwks_endpoint_url=issuer.write_keys(tmp_path / "keys.json"),
        sasl_oauthbearer_expected_audience=AUDIENCE,
        sasl_oauthbearer_expected_issuer=ISSUER,
    )
    listener = sasl_listener(
        config, Credentials(), salt_secret=b"secret", has_tls=False, is_loopback=True
    )
    yield listener.mechanisms
    listener.close()


def logged_in(login: Login, server: SaslServer) -> tuple[str | None, str | None]:
    """Give the tokens of a login to a server; return who is logged in, and who may be."""
    tokens = login.tokens()
    token = next(tokens)
    while True:
        answer: bytes | None = None
        login.sent.append(token)
        with suppress(SaslAuthenticationError):
            answer = server.evaluate(token)
        try:
            token = tokens.send(answer)
        except StopIteration as end:
            return None if server.login is None else server.login.principal.name, end.value


@pytest.mark.parametrize(
    ("logins", "seed"),
    [(1_500, 1), pytest.param(50_000, random.randrange(2**32), marks=pytest.mark.nightly)],
    ids=["few", "many"],
)
def test_nobody_is_let_in_who_may_not_be_and_genuine_logins_are(
    mechanisms: Mapping[str, Callable[[], SaslServer]], issuer: Issuer, logins: int, seed: int
):
    chance = random.Random(seed)
    seen: Counter[tuple[str, bool]] = Counter()
    for _ in range(logins):
        mechanism, change = chance.choice(MECHANISMS), chance.choice(CHANGES)
        login = Login(mechanism, issuer, chance, chance.choice(tuple(USERS)), change)
        found, allowed = logged_in(login, mechanisms[mechanism]())
        where = f"seed {seed}: {mechanism}, {change}: {login.sent}"
        assert found in (None, allowed), f"{found} is let in, and {allowed} may be: {where}"
        assert change != "none" or found is not None, f"refused: {where}"
        seen[mechanism, found is not None] += 1
    assert len(seen) == 2 * len(MECHANISMS)
