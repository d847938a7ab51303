"""The metrics endpoint, as a stranger on the network meets it."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from regent.broker.metrics import metrics_server
from regent.broker.metrics.metric_table import Family
from regent.broker.metrics.metrics_server import MetricsServer, open_metrics_server
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.tls import TlsConfig
from regent.core.errors import RegentError
from regent.testing.waits import eventually, scaled
from regent.transport.local_users import EVERYBODY
from tests.support.certificates import Authority
from tests.support.free_ports import on_free_ports

HOST = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(HOST, 0, timeout_s=scaled(0.2))
    yield server
    server.close()


def test_a_silent_connection_is_closed(
    server: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection((HOST, server.port), timeout=scaled(10)) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection((HOST, server.port), timeout=scaled(10)) as halting:
        halting.sendall(b"GET /metrics HTT")
        assert halting.recv(1) == b""
    with urllib.request.urlopen(
        f"http://{HOST}:{server.port}/metrics", timeout=scaled(10)
    ) as found:
        assert found.status == 200
    assert capsys.readouterr() == ("", "")


def test_a_client_that_sends_a_byte_now_and_then_is_closed_at_its_time(
    server: MetricsServer,
) -> None:
    with socket.create_connection((HOST, server.port), timeout=scaled(0.02)) as slow:
        began = time.monotonic()
        is_open = True
        while is_open and time.monotonic() < began + scaled(10):
            try:
                slow.sendall(b"G")
                is_open = slow.recv(1) != b""
            except TimeoutError:
                continue
            except OSError:
                is_open = False
    assert not is_open


def request_nothing(client: socket.socket) -> None:
    """Stay silent."""


def request_and_read_nothing(client: socket.socket) -> None:
    client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize("act", [request_nothing, request_and_read_nothing])
@pytest.mark.parametrize("metrics_tls", [False, True])
def test_clients_for_which_their_requests_wait_keep_no_probe_out(
    tmp_path: Path, act: Callable[[socket.socket], None], metrics_tls: bool
) -> None:
    """Kubernetes kills a broker that does not answer."""
    authority, source = Authority(tmp_path), Source()
    source.may_tell.set()
    with (
        closing(opened(metrics_tls=metrics_tls, tls=authority.config())) as server,
        ExitStack() as stack,
    ):
        server.publish(source)
        for _ in range(2 * 16):
            client: socket.socket = socket.create_connection((HOST, server.port), scaled(10))
            stack.enter_context(client)
            if metrics_tls and act is not request_nothing:
                wrap = authority.client_context().wrap_socket
                client = stack.enter_context(wrap(client, server_hostname="localhost"))
            act(client)
        scheme, context = ("https", authority.client_context()) if metrics_tls else ("http", None)
        for _ in range(3):
            url = f"{scheme}://{HOST}:{server.port}/health"
            with urllib.request.urlopen(url, timeout=scaled(5), context=context) as answer:
                assert answer.status == 200
        assert requests_under_way() <= 16


def test_the_longest_silent_client_makes_room_and_a_request_that_is_handled_does_not() -> None:
    source = Source()
    with closing(MetricsServer(HOST, 0, timeout_s=scaled(60))) as server, ExitStack() as stack:
        server.publish(source)
        clients = [
            stack.enter_context(socket.create_connection((HOST, server.port), timeout=scaled(10)))
            for _ in range(17)
        ]
        assert clients[0].recv(1) == b""
        for client in clients[1:]:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        eventually(lambda: source.asked == 16, "all are handled")
        further = socket.create_connection((HOST, server.port), timeout=scaled(10))
        assert stack.enter_context(further).recv(1) == b""
        source.may_tell.set()
        for client in clients[1:]:
            assert client.recv(12) == b"HTTP/1.0 200"
            client.close()
        url = f"http://{HOST}:{server.port}/metrics"
        eventually(lambda: answers(url), "another request is answered")


def test_requests_for_which_there_was_no_thread_are_not_counted_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with closing(MetricsServer(HOST, 0, timeout_s=scaled(10))) as server:
        with monkeypatch.context() as patch:
            patch.setattr(metrics_server, "NamedThread", no_thread)
            for _ in range(17):
                with socket.create_connection((HOST, server.port), timeout=scaled(10)) as client:
                    assert client.recv(1) == b""
        assert answers(f"http://{HOST}:{server.port}/metrics")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            return bool(answer.status == 200)
    except OSError:  # the connection was closed
        return False


def test_another_port_is_used_when_one_is_taken_and_both_are_named(
    server: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    second = MetricsServer(HOST, server.port)
    try:
        with urllib.request.urlopen(
            f"http://{HOST}:{second.port}/metrics", timeout=scaled(10)
        ) as found:
            assert found.status == 200
    finally:
        second.close()
    assert caplog.messages == [
        f"{HOST}:{server.port} is in use: metrics are served on port {second.port} instead"
    ]


def page(server: MetricsServer, scheme: str = "http", **options: Any) -> int:
    """The status of the page."""
    token = options.pop("token", None)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"{scheme}://{HOST}:{server.port}/metrics"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=scaled(10), **options) as answer:
            assert b"process_cpu_seconds" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return -1 if error.read() else error.code


def opened(**settings: Any) -> MetricsServer:
    tls = settings.pop("tls", TlsConfig())
    config = replace(BrokerConfig(), host=HOST, **settings)
    return open_metrics_server(on_free_ports(Settings(broker=config, tls=tls)), EVERYBODY)


def test_without_the_token_there_are_no_metrics(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_private(path, "0123456789abcdef\n")
    with closing(opened(metrics_token_file=str(path))) as server:
        assert page(server, token="0123456789abcdef") == 200
        assert page(server) == 401
        for wrong in ("", "0123456789abcde", "0123456789abcdefg", "é" * 16):
            assert page(server, token=wrong.encode().decode("latin-1")) == 401


def test_metrics_are_encrypted_where_the_settings_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    tls = authority.config(ssl_client_auth="required")
    with closing(opened(metrics_tls=True, tls=tls)) as server:
        assert page(server, "https", context=authority.client_context("prometheus")) == 200
        assert page(server, "https", context=authority.client_context()) == 401
        with pytest.raises((OSError, http.client.RemoteDisconnected)):
            page(server)
        eventually(lambda: caplog.messages, "a line about the first client that is refused")
        with pytest.raises((OSError, http.client.RemoteDisconnected)):
            page(server)
        assert page(server, "https", context=authority.client_context("prometheus")) == 200
    assert caplog.messages == [
        f"metrics port closed the connection of {HOST}: the client does not speak TLS"
    ]


class Source:
    """Has many metrics, and waits before it tells them."""

    def __init__(self) -> None:
        self.is_asked, self.may_tell = threading.Event(), threading.Event()
        self.asked = 0

    def collect(self) -> Iterator[Family]:
        self.asked += 1
        self.is_asked.set()
        assert self.may_tell.wait(scaled(10))
        for number in range(200):
            yield Family("gauge", f"metric_{number}", "x" * 100_000)


def requests_under_way() -> int:
    return sum(thread.name.startswith("metrics-request") for thread in threading.enumerate())


def reset(client: socket.socket) -> None:
    """Leave without a word."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("metrics_tls", [False, True])
@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_leaves_before_its_answer_is_no_fault(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    leave: Callable[[socket.socket], None],
    metrics_tls: bool,
) -> None:
    authority, source = Authority(tmp_path), Source()
    with closing(opened(metrics_tls=metrics_tls, tls=authority.config())) as server:
        server.publish(source)
        client = socket.create_connection((HOST, server.port), timeout=scaled(10))
        if metrics_tls:
            client = authority.client_context().wrap_socket(client, server_hostname="localhost")
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert source.is_asked.wait(scaled(10))
        leave(client)
        source.may_tell.set()
        eventually(lambda: not requests_under_way(), "the request has ended")
    assert capsys.readouterr() == ("", "")


def test_a_client_that_does_not_read_its_answer_is_no_fault(
    server: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Source()
    source.may_tell.set()
    server.publish(source)
    with socket.create_connection((HOST, server.port), timeout=scaled(10)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert source.is_asked.wait(scaled(10))
        eventually(lambda: not requests_under_way(), "the request has ended")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("token", "mode", "problem"),
    [
        ("0123456789abcdef", 0o644, "mode 0644.*chmod 600"),
        ("short", 0o600, "at least 16 characters"),
        ("0123456789abcdef 0123456789abcdef", 0o600, "without blanks"),
    ],
)
def test_a_token_that_protects_nothing_ends_the_start(
    tmp_path: Path, token: str, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    write_private(path, token)
    path.chmod(mode)
    with pytest.raises(RegentError, match=problem):
        opened(metrics_token_file=str(path))
    with pytest.raises(RegentError, match=r"set tls.ssl_keystore_location"):
        opened(metrics_tls=True)


def test_an_unusable_address_is_refused() -> None:
    with pytest.raises(RegentError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        MetricsServer("192.0.2.1", 0)


class State:
    """A broker's state, as a test wants it."""

    def __init__(self, why_not_ready: str = "", *, is_controller: bool = False) -> None:
        self._why, self._is_controller = why_not_ready, is_controller

    def why_not_ready(self) -> str:
        return self._why

    def is_controller(self) -> bool:
        return self._is_controller


def asked(server: MetricsServer, path: str) -> tuple[int, str]:
    """Return status and text of a path."""
    try:
        url = f"http://{HOST}:{server.port}{path}"
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def test_a_starting_broker_is_alive_but_not_ready(server: MetricsServer) -> None:
    assert asked(server, "/health") == (200, "yes")
    assert asked(server, "/ready") == (503, "the broker starts or stops")
    assert asked(server, "/controller")[0] == 503


def test_a_broker_says_whether_it_is_ready_and_the_controller(server: MetricsServer) -> None:
    server.probes = State(is_controller=True)
    assert [asked(server, path)[0] for path in ("/ready", "/controller")] == [200, 200]
    server.probes = State("the broker is not in sync yet: t-0")
    assert asked(server, "/ready") == (503, "the broker is not in sync yet: t-0")


@pytest.mark.parametrize("path", ["/", "/healthz", "/metric", "/metrics/x"])
def test_there_are_no_other_paths(server: MetricsServer, path: str) -> None:
    assert asked(server, path)[0] == 404


def test_probes_need_no_certificate_where_prometheus_does(tmp_path: Path) -> None:
    """Kubernetes has none."""
    authority = Authority(tmp_path)
    tls = authority.config(ssl_client_auth="required")
    with closing(opened(metrics_tls=True, tls=tls)) as server:
        server.probes = State("secret-topic-0 is behind")
        for name, said in ((None, b""), ("prometheus", b"secret-topic-0 is behind\n")):
            context = authority.client_context(*([name] if name else []))
            for path, expected in (("/health", 200), ("/ready", 503)):
                connection = http.client.HTTPSConnection(
                    HOST, server.port, timeout=scaled(10), context=context
                )
                with closing(connection):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    assert answer.status == expected
                    assert path == "/health" or answer.read() == said
    with pytest.raises(RegentError, match="ssl_truststore_location"):
        opened(metrics_tls=True, tls=replace(tls, ssl_truststore_location=""))


def test_without_the_token_only_the_status_is_told(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_private(path, "0123456789abcdef\n")
    with closing(opened(metrics_token_file=str(path))) as server:
        server.probes = State("secret-topic-0 is behind")
        assert asked(server, "/health") == (200, "")
        assert asked(server, "/ready") == (503, "")
        assert asked(server, "/other") == (401, "")
