"""The metrics endpoint, as a stranger on the network meets it."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from regent.broker.metrics.metrics_server import MetricsServer
from regent.core.errors import RegentError
from regent.testing.waits import scaled

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
