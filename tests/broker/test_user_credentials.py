"""The credentials of users, as a broker follows them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import regent.broker.user_credentials
from regent.broker.user_credentials import UserCredentials, salt_secret
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.core.security.sasl_login import SaslAuthenticationError
from regent.core.security.scram import ScramCredential, ScramMechanism, derive
from regent.testing.waits import scaled
from tests.support.sasl_users import Users

SHA_256, SHA_512 = ScramMechanism
CREDENTIAL = derive(SHA_256, "password", b"salt")


def test_a_changed_or_removed_credential_counts_at_once() -> None:
    users = UserCredentials()
    users.replace(list, {"users/a%20b": {"SCRAM-SHA-256": CREDENTIAL.text}, "clients/x": {}})
    assert users.scram(SHA_256, "a b", by_token=False) == CREDENTIAL
    assert users.scram(SHA_512, "a b", by_token=False) is None
    assert users.scram(SHA_256, "x", by_token=False) is None
    users.replace(list, {})
    assert users.scram(SHA_256, "a b", by_token=False) is None


def test_the_default_user_and_users_of_clients_cannot_log_in() -> None:
    users = UserCredentials()
    text = {"SCRAM-SHA-256": CREDENTIAL.text}
    users.replace(list, {"users/<default>": text, "users/u/clients/c": text})
    for name in ("", "<default>", "u/clients/c", "u"):
        assert users.scram(SHA_256, name, by_token=False) is None


def test_what_credentials_look_like_follows_the_users() -> None:
    users = UserCredentials()
    assert users.shapes(SHA_256) == []
    longer = derive(SHA_256, "password", b"0123456789abcdefghijklmnop", 8192)
    configs = {"users/a": {"SCRAM-SHA-256": longer.text}, "users/b": {"SCRAM-SHA-256": "damaged"}}
    users.replace(list, {**configs, "users/c": {"SCRAM-SHA-256": CREDENTIAL.text}})
    assert users.shapes(SHA_256) == [(4096, 4), (8192, None)]
    assert users.shapes(SHA_512) == []
    users.replace(list, configs)
    assert users.shapes(SHA_256) == [(8192, None)]


def test_kafka_6772_a_login_waits_until_the_users_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users, found = UserCredentials(), []

    def look_up() -> None:
        found.append(users.scram(SHA_256, "u", by_token=False))

    waiting = threading.Thread(target=look_up)
    waiting.start()
    users.replace(list, {"users/u": {"SCRAM-SHA-256": CREDENTIAL.text}})
    waiting.join(scaled(10.0))
    assert found == [CREDENTIAL]
    monkeypatch.setattr(regent.broker.user_credentials, "_READ_TIMEOUT_S", 0.0)
    with pytest.raises(SaslAuthenticationError, match="try again"):
        UserCredentials().scram(SHA_256, "u", by_token=False)


def test_a_damaged_credential_is_logged_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = UserCredentials()
    users.replace(list, {"users/u": {"SCRAM-SHA-256": "salt=secret"}})
    assert users.scram(SHA_256, "u", by_token=False) is None
    assert "set it again" in caplog.text
    assert "secret" not in caplog.text


def test_tokens_have_their_own_credentials() -> None:
    class Tokens(Users):
        def scram(
            self, mechanism: ScramMechanism, username: str, by_token: bool
        ) -> ScramCredential | None:
            return CREDENTIAL if by_token else None

    assert UserCredentials(Tokens()).scram(SHA_256, "id", by_token=True) == CREDENTIAL
    assert UserCredentials().scram(SHA_256, "id", by_token=True) is None


def test_brokers_with_a_secret_in_common_make_up_the_same_salts(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.secret"
    write_private(path, "regent:secret")
    shared = Settings()
    shared = replace(shared, zookeeper=replace(shared.zookeeper, secret_file=str(path)))
    assert salt_secret(shared) == salt_secret(shared)
    assert salt_secret(Settings()) != salt_secret(Settings())
