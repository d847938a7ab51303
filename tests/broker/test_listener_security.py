"""What the settings of a listener become: who may connect, and how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from regent.broker.listener_security import (
    ListenerKeys,
    ListenerSecurity,
    security_of,
    security_to_brokers,
)
from regent.broker.machine_settings import dynamic_values
from regent.broker.user_credentials import UserCredentials
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.transport.kafka.client_security import ClientSecurity
from regent.transport.kafka.tls import ServerTls
from tests.support.certificates import Authority

Tables = dict[str, dict[str, Any]]

NAMES = ("ONE", "INSIDE")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs a certificate for the broker."""
    return Authority(tmp_path)


@pytest.fixture
def settings(authority: Authority, tmp_path: Path) -> Callable[..., Settings]:
    """Make the settings of a broker with a listener ONE for clients, and INSIDE for brokers."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    of_tls = authority.config("broker")

    def make(of_clients: str, of_brokers: str = "PLAINTEXT", **more: Any) -> Settings:
        tables: Tables = {
            "broker": {
                "listeners": "ONE://127.0.0.1:0,INSIDE://127.0.0.1:0",
                "listener_security_protocol_map": f"ONE:{of_clients},INSIDE:{of_brokers}",
                "inter_broker_listener_name": "INSIDE",
            },
            "tls": {
                "ssl_keystore_location": of_tls.ssl_keystore_location,
                "ssl_truststore_location": of_tls.ssl_truststore_location,
            },
            "sasl": {
                "sasl_inter_broker_user": "broker-1",
                "sasl_inter_broker_password_file": str(password),
                "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
            },
        }
        for table, values in more.items():
            tables[table] = {**tables.get(table, {}), **values}
        return load_settings(None, tables)

    return make


def served(settings: Settings, name: str = "ONE") -> ListenerSecurity:
    (endpoint,) = (e for e in settings.listeners.listening if e.listener == name)
    security = security_of(endpoint, settings, UserCredentials())
    if security.sasl is not None:
        security.sasl.close()
    return security


@pytest.mark.parametrize(
    ("protocol", "encrypts", "logs_in"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_a_listener_is_secured_as_its_protocol_says(
    settings: Callable[..., Settings], protocol: str, encrypts: bool, logs_in: bool
):
    for made in (served(settings(protocol)), served(settings("PLAINTEXT", protocol), "INSIDE")):
        assert (made.tls is not None, made.sasl is not None) == (encrypts, logs_in)
    to_brokers = security_to_brokers(settings("PLAINTEXT", protocol)) or ClientSecurity()
    assert (to_brokers.tls is not None, to_brokers.sasl is not None) == (encrypts, logs_in)


def test_a_broker_logs_in_as_its_user(settings: Callable[..., Settings]):
    security = security_to_brokers(settings("PLAINTEXT", "SASL_SSL"))
    assert security is not None
    assert security.sasl is not None
    assert (security.sasl.mechanism, security.sasl.user) == ("SCRAM-SHA-512", "broker-1")
    assert security.sasl.secret() == "secret"
    assert "secret" not in repr(security.sasl).replace("secret=", "")


def test_a_listener_has_settings_of_its_own(settings: Callable[..., Settings]):
    both = settings(
        "SASL_PLAINTEXT",
        sasl={"sasl_enabled_mechanisms": "SCRAM-SHA-256"},
        listener_name={"one": {"sasl_enabled_mechanisms": "SCRAM-SHA-512"}},
    )
    sasl = served(both).sasl
    assert sasl is not None
    assert list(sasl.mechanisms) == ["SCRAM-SHA-512"]


MISTAKES: dict[str, tuple[str, Tables, str]] = {
    "no key": ("SSL", {"tls": {"ssl_keystore_location": ""}}, "ssl_keystore"),
    "a key that is not there": (
        "SSL",
        {"tls": {"ssl_keystore_location": "/nowhere/k.pem"}},
        "/nowhere/k.pem",
    ),
    "no mechanism": (
        "SASL_SSL",
        {"sasl": {"sasl_enabled_mechanisms": " "}},
        "enabled_mechanisms must",
    ),
    "certificates that Kafka does not ask for": (
        "SASL_SSL",
        {"tls": {"ssl_client_auth": "required"}},
        r"say in \[listener_name.one\]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_served_ends_the_start(settings: Callable[..., Settings], name: str):
    protocol, changed, problem = MISTAKES[name]
    with pytest.raises(RegentError, match=problem):
        served(settings(protocol, **changed))


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_brokers_must_trust_the_certificate_that_they_show_each_other(
    settings: Callable[..., Settings], authority: Authority, tmp_path: Path, protocol: str
):
    other = str(Authority(tmp_path, "other").trusted)
    mixed = settings(protocol, protocol, tls={"ssl_truststore_location": other})
    with pytest.raises(RegentError, match=r"could not connect to each other.*ssl_truststore_loc"):
        served(mixed, "INSIDE")
    assert served(mixed, "ONE").tls is not None, "clients trust whom they want"
    of_brokers = {"inside": {"ssl_truststore_location": str(authority.trusted)}}
    repaired = settings(
        protocol, protocol, tls={"ssl_truststore_location": other}, listener_name=of_brokers
    )
    assert served(repaired, "INSIDE").tls is not None


def test_who_logs_in_may_need_a_certificate_too(settings: Callable[..., Settings]):
    asked = settings("SASL_SSL", listener_name={"one": {"ssl_client_auth": "required"}})
    assert served(asked).tls is not None


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sasl_inter_broker_user": ""}, "sasl_inter_broker_user must be set"),
        ({"sasl_inter_broker_password_file": ""}, "password_file must be set"),
        ({"sasl_inter_broker_password_file": "/nowhere/password"}, "/nowhere/password"),
    ],
)
def test_a_broker_without_a_login_does_not_start(
    settings: Callable[..., Settings], changed: dict[str, str], problem: str
):
    with pytest.raises(RegentError, match=problem):
        security_to_brokers(settings("PLAINTEXT", "SASL_PLAINTEXT", sasl=changed))


def test_a_password_that_others_may_read_ends_the_start(
    settings: Callable[..., Settings], tmp_path: Path
):
    made = settings("PLAINTEXT", "SASL_PLAINTEXT")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(RegentError, match=r"mode 0644.*chmod 600"):
        security_to_brokers(made)


def test_an_endpoint_of_an_unknown_protocol_is_not_served(settings: Callable[..., Settings]):
    with pytest.raises(ValueError, match="TELEPATHY"):
        security_of(
            EndPoint("ONE", "127.0.0.1", 0, "TELEPATHY"), settings("SSL"), UserCredentials()
        )


# --- keys that change -----------------------------------------------------------------------------

LOCATION = "listener.name.one.ssl.keystore.location"


@pytest.fixture
def keys(settings: Callable[..., Settings]) -> tuple[ListenerKeys, ServerTls, Settings]:
    """Keys of the listener ONE, which follow settings."""
    started = settings("SSL")
    tls = served(started).tls
    assert tls is not None
    keys = ListenerKeys(started)
    keys.add({"ONE": tls})
    return keys, tls, started


def subject(tls: ServerTls) -> bytes:
    return tls._loaded.keys.certificates[0].public_bytes(Encoding.DER)


def test_overrides_that_no_listener_has_are_not_checked_with_its_keys(
    keys: tuple[ListenerKeys, ServerTls, Settings],
):
    """Kafka's tool sets such a throttle before it moves replicas."""
    throttle = "leader.replication.throttled.rate"
    keys[0].check({throttle: "100000"}, [throttle])


def test_a_listener_takes_the_keys_of_another_file_that_zookeeper_names(
    keys: tuple[ListenerKeys, ServerTls, Settings], authority: Authority, tmp_path: Path
):
    listener_keys, tls, settings = keys
    before, started = subject(tls), dynamic_values(settings)
    other = authority.keystore("broker").rename(tmp_path / "other.pem")
    new = {**started, LOCATION: str(other)}
    listener_keys.check({LOCATION: str(other)}, [LOCATION])
    listener_keys.reconfigure(started, new)
    after = subject(tls)
    assert after != before
    other.write_text("damaged")
    listener_keys.reconfigure(new, new)
    assert subject(tls) == after
    assert tls.reload_failures == 1
    authority.keystore("broker").rename(other)
    listener_keys.reconfigure(new, new)  # the same path is written again
    assert subject(tls) not in (before, after)
    authority.keystore("broker")
    listener_keys.reconfigure(new, started)  # the setting is removed
    assert tls.reload_failures == 1


def test_a_listener_takes_keys_whose_password_zookeeper_has(
    keys: tuple[ListenerKeys, ServerTls, Settings], authority: Authority, tmp_path: Path
):
    listener_keys, tls, settings = keys
    before, started = subject(tls), dynamic_values(settings)
    other = authority.keystore("broker").rename(tmp_path / "other.pem")
    pem = other.read_bytes()
    key = load_pem_private_key(pem, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"of the key")
    )
    other.write_bytes(key + pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    password = "listener.name.one.ssl.key.password"
    wrong = {LOCATION: str(other), password: "another"}
    with pytest.raises(RegentError):
        listener_keys.check(wrong, [*wrong])
    right = {**wrong, password: "of the key"}
    listener_keys.check(right, [*right])
    listener_keys.reconfigure(started, {**started, **right})
    assert subject(tls) != before
    assert tls.reload_failures == 0


def test_changed_files_are_read_again_when_that_is_asked_for(
    keys: tuple[ListenerKeys, ServerTls, Settings], authority: Authority
):
    listener_keys, tls, _ = keys
    before = subject(tls)
    listener_keys.read_again()
    assert subject(tls) == before
    authority.keystore("broker")
    listener_keys.read_again()
    assert subject(tls) != before


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("broker.pem", "nothing", "has 0 private keys"),
        ("stranger.pem", None, "another subject"),
        ("missing.pem", "", "missing.pem"),
    ],
)
def test_keys_that_cannot_serve_are_refused_before_they_are_written(
    keys: tuple[ListenerKeys, ServerTls, Settings],
    authority: Authority,
    name: str,
    content: str | None,
    expected: str,
):
    listener_keys, tls, _ = keys
    before, path = subject(tls), authority.folder / name
    if content is None:
        authority.keystore(path.stem)
    elif content:
        write_private(path, content)
    overrides = {LOCATION: str(path)}
    with pytest.raises(RegentError, match=expected):
        listener_keys.check(overrides, [LOCATION])
    listener_keys.check(overrides, ["num.io.threads"])  # what is written is another setting
    assert subject(tls) == before


def test_a_setting_of_a_listener_that_is_not_followed_is_refused(
    keys: tuple[ListenerKeys, ServerTls, Settings],
):
    listener_keys, _, _ = keys
    name = "listener.name.one.ssl.client.auth"
    with pytest.raises(RegentError, match="cannot change while the broker runs"):
        listener_keys.check({name: "required"}, [name])
    listener_keys.check({}, [name])  # it is removed
    other = "listener.name.another.ssl.client.auth"
    listener_keys.check({other: "required"}, [other])
