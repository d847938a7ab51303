"""The metrics endpoint, as a stranger on the network meets it."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from regent.broker.metrics.metrics_server import MetricsServer
from regent.core.errors import RegentError
from regent.testing.waits import eventually, scaled

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
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics", timeout=scaled(10)) as page:
        assert page.status == 200
    assert capsys.readouterr() == ("", "")


def test_sixteen_requests_are_answered_at_a_time_and_the_others_are_closed_at_once() -> None:
    server = MetricsServer(HOST, 0, timeout_s=scaled(60))
    with closing(server), ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((HOST, server.port), timeout=scaled(10)))
            for _ in range(17)
        ]
        assert connections[16].recv(1) == b""
        connections[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connections[0].recv(12) == b"HTTP/1.0 200"
        while connections[0].recv(65_536):
            pass
        page = f"http://{HOST}:{server.port}/metrics"
        eventually(lambda: answers(page), "another request is answered")


def answers(page: str) -> bool:
    try:
        with urllib.request.urlopen(page, timeout=scaled(10)) as answer:
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
        ) as page:
            assert page.status == 200
    finally:
        second.close()
    assert caplog.messages == [
        f"{HOST}:{server.port} is in use: metrics are served on port {second.port} instead"
    ]


def test_an_unusable_address_is_refused() -> None:
    with pytest.raises(RegentError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        MetricsServer("192.0.2.1", 0)
