"""Brokers and commands that connect to a listener with TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from regent.config.closing import Closing
from regent.config.private_files import write_private
from regent.config.tables.tls import TlsConfig
from regent.core.security.session import KafkaPrincipal
from regent.testing.waits import scaled
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestAbandonedError,
    RequestTimeoutError,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaRequest
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.client_security import ClientSecurity, ClientTls
from regent.transport.kafka.key_material import TlsError
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.tls import ServerTls
from tests.support.certificates import Authority
from tests.transport.kafka.conftest import Listen
from tests.transport.kafka.raw_client import METADATA, WAIT_S, Desk

CONNECT_MS = 1_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connection_to(
    listener: KafkaListener, config: TlsConfig, stack: ExitStack, host: str = "127.0.0.1"
) -> BrokerConnection:
    security = ClientSecurity(ClientTls.of(config))
    connection = BrokerConnection(
        f"tcp://{host}:{listener.port}", client_id="me", security=security
    )
    stack.callback(connection.close)
    return connection


def ask(
    connection: BrokerConnection,
    body: bytes,
    timeout_s: float = WAIT_S,
    closing: Closing | None = None,
) -> bytes:
    timeout_ms = round(timeout_s * 1000)
    return bytes(connection.exchange(METADATA, 1, body, timeout_ms=timeout_ms, closing=closing))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_requests_of_all_sizes_follow_each_other(
    listen: Listen, authority: Authority, stack: ExitStack, version: str
):
    tls = ServerTls(authority.config(ssl_enabled_protocols=version))
    listener = listen(Desk().apis, tls=tls)
    connection = connection_to(listener, authority.config("client"), stack)
    for size in (0, 1, 16_384, 100_000, 3_000_000):
        body = b"now" + bytes(size)
        assert ask(connection, body) == body
    assert listener.metrics.accepted == 1


def test_a_broker_shows_its_certificate(listen: Listen, authority: Authority, stack: ExitStack):
    seen: list[KafkaPrincipal] = []

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        seen.append(request.session.principal)
        return (b"",)

    tls = ServerTls(authority.config(ssl_client_auth="required"))
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], tls=tls)
    ask(connection_to(listener, authority.config("broker-7"), stack), b"")
    assert [principal.name for principal in seen] == ["CN=broker-7,OU=Tests,O=Regent"]


@pytest.mark.parametrize("fault", ["foreign", "other host", "plain"])
def test_a_server_that_is_not_the_right_one_is_not_asked(
    listen: Listen, authority: Authority, tmp_path: Path, stack: ExitStack, fault: str
):
    desk = Desk()
    if fault == "other host":
        authority.keystore("broker", "else.where")
    path = str(authority.folder / "broker.pem")
    authority.keystore("broker", *(["else.where"] if fault == "other host" else []))
    tls = None if fault == "plain" else ServerTls(TlsConfig(ssl_keystore_location=path))
    listener = listen(desk.apis, tls=tls)
    signer = Authority(tmp_path, "foreign") if fault == "foreign" else authority
    config = TlsConfig(ssl_truststore_location=str(signer.trusted))
    expected = {
        "foreign": "the certificate of the server is not accepted: unable to get local issuer",
        "other host": "not accepted: IP address mismatch",
        "plain": "the other side left",
    }
    with pytest.raises(PeerUnreachableError, match=expected[fault]):
        ask(connection_to(listener, config, stack), b"now")
    assert desk.begun.empty()


def test_names_are_not_compared_where_the_setting_says_so(
    listen: Listen, authority: Authority, stack: ExitStack
):
    path = str(authority.keystore("broker", "else.where"))
    listener = listen(Desk().apis, tls=ServerTls(TlsConfig(ssl_keystore_location=path)))
    config = TlsConfig(
        ssl_truststore_location=str(authority.trusted), ssl_endpoint_identification_algorithm=""
    )
    assert ask(connection_to(listener, config, stack), b"now") == b"now"


def test_without_a_truststore_the_authorities_of_the_system_count(
    listen: Listen, authority: Authority, stack: ExitStack
):
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    with pytest.raises(PeerUnreachableError, match="not accepted"):
        ask(connection_to(listener, TlsConfig(), stack), b"now")


def test_a_client_that_is_refused_after_the_handshake_gets_an_error(
    listen: Listen, authority: Authority, stack: ExitStack
):
    """With TLS 1.3 a client without a certificate believes that it is connected."""
    listener = listen(Desk().apis, tls=ServerTls(authority.config(ssl_client_auth="required")))
    config = TlsConfig(ssl_truststore_location=str(authority.trusted))
    with pytest.raises(PeerDisconnectedError):
        ask(connection_to(listener, config, stack), b"now")


def test_an_answer_that_does_not_come_is_a_timeout_and_the_next_request_connects_again(
    listen: Listen, authority: Authority, stack: ExitStack
):
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    connection = connection_to(listener, authority.config("client"), stack)
    with pytest.raises(RequestTimeoutError):
        ask(connection, b"later", timeout_s=0.05)
    assert ask(connection, b"now") == b"now"


def test_who_closes_does_not_wait_for_an_answer(
    listen: Listen, authority: Authority, stack: ExitStack
):
    desk = Desk()
    listener = listen(desk.apis, tls=ServerTls(authority.config()))
    connection = connection_to(listener, authority.config("client"), stack)
    closing = Closing()

    def close() -> None:
        desk.next_begun()
        closing.set()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(RequestAbandonedError):
        ask(connection, b"later", closing=closing)
    thread.join(WAIT_S)


def test_a_connection_that_was_closed_meanwhile_is_opened_again(
    listen: Listen, authority: Authority, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.transport.kafka.broker_connection._IDLE_S", 0.0)
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    connection = connection_to(listener, authority.config("client"), stack)
    assert ask(connection, b"now 1") == b"now 1"
    assert ask(connection, b"now 2") == b"now 2"
    assert listener.metrics.accepted == 1


def test_another_thread_may_hurry_a_request_up(
    listen: Listen, authority: Authority, stack: ExitStack
):
    """OpenSSL must not be used by two threads at once: here one reads while others write."""
    desk = Desk()
    listener = listen(desk.apis, tls=ServerTls(authority.config()))
    connection = connection_to(listener, authority.config("client"), stack)
    pool = stack.enter_context(ThreadPoolExecutor(1))
    for number in range(50):
        body = b"%d" % number
        answered = pool.submit(ask, connection, body)
        assert desk.next_begun() == body
        connection.hurry()
        desk.answer(body, body * 10_000)
        assert answered.result(WAIT_S) == body * 10_000


def test_a_server_that_does_not_answer_the_handshake_is_given_up(
    authority: Authority, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.transport.kafka.broker_connection.CLIENT_HANDSHAKE_S", 0.05)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = silent.getsockname()[1]
    security = ClientSecurity(ClientTls.of(authority.config("client")))
    connection = BrokerConnection(f"tcp://127.0.0.1:{port}", client_id="me", security=security)
    with pytest.raises(PeerUnreachableError, match="took too long"):
        ask(connection, b"now")


def test_changed_keys_are_those_of_the_next_connection(
    listen: Listen, authority: Authority, stack: ExitStack
):
    seen: list[str] = []

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        seen.append(request.session.principal.name)
        return (b"",)

    tls = ServerTls(authority.config(ssl_client_auth="required"))
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], tls=tls)
    client = ClientTls.of(authority.config("first"))
    for _ in range(2):
        connection = BrokerConnection(
            f"tcp://127.0.0.1:{listener.port}", client_id="me", security=ClientSecurity(client)
        )
        ask(connection, b"")
        connection.close()
        second = authority.keystore("second").read_text()
        write_private(authority.folder / "first.pem", second)
    assert [name.partition(",")[0] for name in seen] == ["CN=first", "CN=second"]


def test_files_that_cannot_serve_are_named_at_the_start():
    with pytest.raises(TlsError, match=r"ssl_truststore_location: /none.pem cannot be read"):
        ClientTls.of(TlsConfig(ssl_truststore_location="/none.pem"))


def test_both_ends_of_the_handshake_see_who_left(authority: Authority):
    ours, theirs = socket.socketpair()
    ours.close()
    with pytest.raises(OSError, match="the other side left"):
        ClientTls.of(authority.config("client")).connect(theirs, "localhost", scaled(1.0))
    assert theirs.fileno() == -1
