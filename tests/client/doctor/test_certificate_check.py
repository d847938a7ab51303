"""Until when certificates of listeners are valid, asked of a server that shows one."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from regent.client.doctor.certificate_check import check_certificates
from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Severity
from regent.config.threads import NamedThread
from regent.core.model import BrokerInfo, EndPoint
from regent.testing.waits import scaled
from tests.support.certificates import Authority
from tests.support.free_ports import free_ports


@contextmanager
def shown(keystore: Path) -> Iterator[int]:
    """Show a certificate to one client; yields the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keystore)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(scaled(10))

        def serve() -> None:
            client, _ = listening.accept()
            with suppress(OSError), closing(context.wrap_socket(client, server_side=True)):
                pass

        thread = NamedThread(serve, "certificate")
        thread.start()
        yield listening.getsockname()[1]
        thread.join(scaled(10))
        assert not thread.is_alive()


def cluster(*endpoints: tuple[str, int]) -> ExaminedCluster:
    listed = tuple(EndPoint("CLIENTS", "127.0.0.1", port, protocol) for protocol, port in endpoints)
    return ExaminedCluster(registrations={1: BrokerInfo(1, listed)})


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize(
    ("days", "severity", "says"),
    [
        (90, Severity.OK, "expires in 89 days"),
        (20, Severity.WARNING, "expires in 19 days"),
        (-1, Severity.PROBLEM, "has expired 1 day ago"),
    ],
)
def test_a_certificate_is_a_finding_before_it_expires(
    tmp_path: Path, protocol: str, days: int, severity: Severity, says: str
) -> None:
    with shown(Authority(tmp_path).keystore("broker-1", days=days)) as port:
        (finding,) = check_certificates(cluster((protocol, port)))
    assert (finding.severity, finding.subject) == (severity, "broker 1")
    assert says in finding.message
    assert bool(finding.remedy) is (severity is not Severity.OK)


def test_a_listener_that_shows_no_certificate_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def refuse() -> None:
            client, _ = listening.accept()
            with closing(client):
                client.sendall(b"this is not TLS")

        thread = NamedThread(refuse, "no-tls")
        thread.start()
        (finding,) = check_certificates(cluster(("SSL", port)))
        thread.join(scaled(10))
    assert finding.severity is Severity.WARNING
    assert f"CLIENTS (127.0.0.1:{port}) is not shown (" in finding.message


def test_a_listener_without_tls_and_one_that_does_not_answer_are_no_findings() -> None:
    nobody, plain = free_ports(2)
    assert not list(check_certificates(cluster(("SSL", nobody), ("PLAINTEXT", plain))))


def test_without_zookeeper_no_certificate_is_known() -> None:
    assert not list(check_certificates(ExaminedCluster()))
