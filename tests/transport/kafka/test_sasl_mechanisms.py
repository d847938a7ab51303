"""What a listener's settings allow, and what ends the start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from regent.config.private_files import write_private
from regent.config.tables.sasl import SaslConfig
from regent.core.errors import RegentError
from regent.core.security.plain import plain_token
from regent.core.security.sasl_login import SaslAuthenticationError
from regent.core.setting import settings_of
from regent.transport.kafka.sasl_mechanisms import PlainUsersFile, sasl_listener
from tests.support.sasl_users import NAME, PASSWORD, SALT_SECRET, Users, sasl_for_test, users_file


def problem(*, has_tls: bool = False, is_loopback: bool = False, **settings: object) -> str:
    with pytest.raises(RegentError) as caught:
        sasl_listener(
            SaslConfig(**settings),  # type: ignore[arg-type]
            Users(),
            salt_secret=SALT_SECRET,
            has_tls=has_tls,
            is_loopback=is_loopback,
        )
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_default_is_scram_and_needs_no_file() -> None:
    listener = sasl_listener(
        SaslConfig(), Users(), salt_secret=SALT_SECRET, has_tls=False, is_loopback=False
    )
    assert list(listener.mechanisms) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    listener.close()


def test_a_setting_that_cannot_be_honoured_is_named(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"sasl_enabled_mechanisms": "PLAIN"}
    users: dict[str, Any] = {**plain, "sasl_plain_users_file": str(users_file(tmp_path, NAME))}
    bearer: dict[str, Any] = {"sasl_enabled_mechanisms": "OAUTHBEARER"}
    keys: dict[str, Any] = {
        **bearer,
        "sasl_oauthbearer_jwks_endpoint_url": f"file://{tmp_path}/keys.json",
    }
    assert "sasl_enabled_mechanisms must name" in problem(sasl_enabled_mechanisms=" ")
    assert "GSSAPI is not offered" in problem(sasl_enabled_mechanisms="GSSAPI", has_tls=True)
    assert "sasl_plain_users_file must name" in problem(**plain, is_loopback=True)
    assert "allow_plain_without_tls" in problem(**users)
    assert "allow_plain_without_tls" in problem(**bearer)
    assert "jwks_endpoint_url must be set" in problem(**bearer, has_tls=True)
    assert "expected_audience must be set" in problem(**keys, has_tls=True)
    known: dict[str, Any] = {
        **keys,
        "sasl_oauthbearer_expected_audience": "a",
        "sasl_oauthbearer_unsecured": True,
    }
    assert "exclude each other" in problem(**known, is_loopback=True)
    assert "on loopback only" in problem(**bearer, sasl_oauthbearer_unsecured=True, has_tls=True)


def test_gssapi_is_refused_by_the_settings() -> None:
    (row,) = (r for r in settings_of(SaslConfig()) if r.name == "sasl_enabled_mechanisms")
    assert "GSSAPI, Kerberos, is not offered" in (row.problem("GSSAPI") or "")
    assert row.problem("PLAIN,SCRAM-SHA-512") is None


def test_plain_without_tls_beyond_loopback_is_a_setting(tmp_path: Path) -> None:
    config = SaslConfig(
        sasl_enabled_mechanisms="PLAIN",
        sasl_plain_users_file=str(users_file(tmp_path, NAME)),
        allow_plain_without_tls=True,
    )
    sasl_listener(
        config, Users(), salt_secret=SALT_SECRET, has_tls=False, is_loopback=False
    ).close()


def test_a_users_file_that_others_may_read_ends_the_start(tmp_path: Path) -> None:
    path = users_file(tmp_path, NAME)
    path.chmod(0o644)
    plain: dict[str, Any] = {"sasl_enabled_mechanisms": "PLAIN", "sasl_plain_users_file": str(path)}
    message = problem(**plain, has_tls=True)
    assert f"{path} has mode 0644" in message
    assert f"chmod 600 {path}" in message
    assert "cannot be read" in problem(**{**plain, "sasl_plain_users_file": "/no"}, has_tls=True)


def test_changed_users_count_at_once_and_a_bad_change_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = users_file(tmp_path, NAME)
    file = PlainUsersFile(path)
    assert set(file.users()) == {NAME}
    users_file(tmp_path, NAME, "bob")
    assert set(file.users()) == {NAME, "bob"}
    write_private(path, "nonsense")
    os.utime(path, ns=(1, 1))
    assert set(file.users()) == {NAME, "bob"}
    assert "stay as they are" in caplog.text
    path.unlink()
    assert set(file.users()) == {NAME, "bob"}


def test_a_removed_user_does_not_log_in(tmp_path: Path) -> None:
    listener = sasl_for_test(tmp_path)
    users_file(tmp_path, "bob")
    with pytest.raises(SaslAuthenticationError):
        listener.mechanisms["PLAIN"]().evaluate(plain_token(NAME, PASSWORD))
    listener.mechanisms["PLAIN"]().evaluate(plain_token("bob", PASSWORD))
    listener.close()
