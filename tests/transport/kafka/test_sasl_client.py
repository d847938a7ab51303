"""A broker or command logs in to a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regent.config.private_files import write_private
from regent.config.tables.sasl import SaslConfig
from regent.core.errors import Errors, RegentError
from regent.transport.control.client import RequestFailedError, RequestTimeoutError
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.client_security import ClientSecurity
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.sasl_client import ClientSasl, sasl_of_broker
from tests.support.sasl_users import MECHANISMS, NAME, PASSWORD, sasl_for_test, unsecured_token

METADATA = KafkaApiKey.METADATA


async def who(request: KafkaRequest) -> KafkaAnswer:
    return (str(request.session.principal).encode(),)


Listen = Callable[..., KafkaListener]
Connect = Callable[..., BrokerConnection]


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def listen(undo: ExitStack, tmp_path: Path) -> Listen:
    def start(**settings: Any) -> KafkaListener:
        sasl = sasl_for_test(tmp_path, **settings)
        listener = KafkaListener("127.0.0.1", 0, [KafkaApi(METADATA, 0, 8, who)], sasl=sasl)
        listener.start()
        undo.callback(listener.close, 0.1)
        return listener

    return start


@pytest.fixture
def connect(undo: ExitStack) -> Connect:
    def start(listener: KafkaListener, mechanism: str, secret: str) -> BrokerConnection:
        security = ClientSecurity(sasl=ClientSasl(mechanism, NAME, lambda: secret))
        endpoint = f"tcp://127.0.0.1:{listener.port}"
        connection = BrokerConnection(endpoint, client_id="me", security=security)
        undo.callback(connection.close)
        return connection

    return start


def ask(connection: BrokerConnection) -> str:
    return bytes(connection.exchange(METADATA, 1, b"", timeout_ms=10_000)).decode()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_connection_logs_in_before_its_first_request(
    listen: Listen, connect: Connect, mechanism: str
):
    secret = unsecured_token() if mechanism == "OAUTHBEARER" else PASSWORD
    listener = listen()
    connection = connect(listener, mechanism, secret)
    assert [ask(connection) for _ in range(3)] == [f"User:{NAME}"] * 3
    assert listener.metrics.successful_authentications == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_one_clear_error(listen: Listen, connect: Connect, mechanism: str):
    secret = unsecured_token(exp=1) if mechanism == "OAUTHBEARER" else "wrong"
    with pytest.raises(RequestFailedError) as caught:
        ask(connect(listen(), mechanism, secret))
    assert caught.value.error_code is Errors.SASL_AUTHENTICATION_FAILED
    assert f"the login of the user {NAME} failed: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert secret not in str(caught.value)


def test_a_mechanism_that_is_not_enabled_is_named_with_those_that_are(
    listen: Listen, connect: Connect
):
    listener = listen(sasl_enabled_mechanisms="SCRAM-SHA-512")
    with pytest.raises(RequestFailedError, match="not log in with PLAIN there, but with SCRAM-SHA"):
        ask(connect(listener, "PLAIN", PASSWORD))


def test_a_listener_without_logins_is_an_error(undo: ExitStack, connect: Connect):
    listener = KafkaListener("127.0.0.1", 0, [KafkaApi(METADATA, 0, 8, who)])
    listener.start()
    undo.callback(listener.close, 0.1)
    with pytest.raises(RegentError):
        ask(connect(listener, "PLAIN", PASSWORD))


def test_a_login_that_hangs_ends_with_the_request(
    listen: Listen, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    listener = listen(connection_failed_authentication_delay_ms=60_000)
    connection = connect(listener, "SCRAM-SHA-256", "wrong")
    with pytest.raises(RequestTimeoutError):
        connection.exchange(METADATA, 1, b"", timeout_ms=200)


def test_a_connection_logs_in_again_before_its_login_ends(
    listen: Listen, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    listener = listen(connections_max_reauth_ms=60_000)
    connection = connect(listener, "SCRAM-SHA-256", PASSWORD)
    ask(connection)
    assert 50 < connection._login_ends_at - time.monotonic() < 51
    connection._login_ends_at = time.monotonic()
    assert [ask(connection) for _ in range(2)] == [f"User:{NAME}"] * 2
    metrics = listener.metrics
    assert metrics.successful_authentications == metrics.successful_reauthentications == 1


# --- the broker's own login -----------------------------------------------------------------------


def config(path: Path | None, **settings: Any) -> SaslConfig:
    file = "" if path is None else str(path)
    values = {"sasl_inter_broker_user": NAME, "sasl_inter_broker_password_file": file, **settings}
    return SaslConfig(**values)


def test_a_broker_reads_its_password_for_each_login(tmp_path: Path):
    path = tmp_path / "password"
    write_private(path, f"{PASSWORD}\n")
    sasl = sasl_of_broker(config(path))
    assert (sasl.mechanism, sasl.user, sasl.secret()) == ("SCRAM-SHA-512", NAME, PASSWORD)
    assert sasl_of_broker(config(path, sasl_mechanism_inter_broker_protocol="PLAIN")) != sasl
    write_private(path, "another")
    assert sasl.secret() == "another"
    assert PASSWORD not in repr(sasl)


def test_a_password_that_cannot_be_used_ends_the_start(tmp_path: Path):
    path = tmp_path / "password"
    for text in ("", "two\nlines", "\n"):
        write_private(path, text)
        with pytest.raises(RegentError, match="must have one line"):
            sasl_of_broker(config(path))
    path.chmod(0o644)
    with pytest.raises(RegentError, match=f"chmod 600 {path}"):
        sasl_of_broker(config(path))
    with pytest.raises(RegentError, match="sasl_inter_broker_password_file must be set"):
        sasl_of_broker(config(None))
    with pytest.raises(RegentError, match="sasl_inter_broker_user must be set"):
        sasl_of_broker(config(path, sasl_inter_broker_user=""))
