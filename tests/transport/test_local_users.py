"""Which users of this machine may connect on loopback. Our own process plays the other user."""

from __future__ import annotations

import logging
import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from regent.broker.metrics.metrics_server import MetricsServer
from regent.config.addresses import port_of
from regent.core.errors import RegentError
from regent.testing.waits import eventually, scaled
from regent.transport.control.server import ControlServer, Rejection
from regent.transport.kafka.listener import KafkaListener
from regent.transport.local_users import ANY, EVERYBODY, SAME, LocalUsers, local_users
from tests.support.keys import EVERYBODY_OPERATES, KEYS

TIMEOUT_S = scaled(20.0)
ZMTP_GREETING_BYTES = 64
OTHER = os.geteuid() + 1
NOBODY = pwd.getpwnam("nobody").pw_uid


@contextmanager
def connected(listening_at: str, connect_to: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the client's end of a connection over loopback and the accepted end."""
    is_ipv6 = ":" in listening_at
    listening = socket.create_server(
        (listening_at, 0),
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        dualstack_ipv6=listening_at == "::",
    )
    with (
        listening,
        socket.socket(socket.AF_INET6 if ":" in connect_to else socket.AF_INET) as client,
    ):
        client.settimeout(TIMEOUT_S)
        client.connect((connect_to, listening.getsockname()[1]))
        accepted, _ = listening.accept()
        with accepted:
            yield client, accepted


@pytest.mark.parametrize(
    ("listening_at", "connect_to"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("::", "::ffff:127.0.0.1"),
        ("::", "::1"),
    ],
)
def test_own_processes_are_admitted_and_others_are_not(listening_at: str, connect_to: str) -> None:
    with connected(listening_at, connect_to) as (_, accepted):
        assert LocalUsers({os.geteuid()}).admits(accepted, "port")
        assert not LocalUsers({OTHER}).admits(accepted, "port")


def test_a_refusal_is_counted_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = LocalUsers({OTHER})
    with caplog.at_level(logging.WARNING), connected("127.0.0.1", "127.0.0.1") as (_, accepted):
        for _ in range(3):
            users.admits(accepted, "port")
    assert users.refused == {"port": 3}
    (line,) = caplog.messages
    assert f"({os.geteuid()})" in line
    assert "local_users" in line


def test_a_client_that_has_sent_all_is_admitted_and_one_that_is_gone_is_not() -> None:
    users = LocalUsers({os.geteuid()})
    with connected("127.0.0.1", "127.0.0.1") as (client, accepted):
        client.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""
        assert users.admits(accepted, "port")
        client.close()
        eventually(lambda: not users.admits(accepted, "port"), "the end of the client is seen")


@pytest.mark.parametrize("family", [socket.AF_NETLINK, socket.AF_UNIX])
def test_a_descriptor_that_is_another_kind_of_socket_by_now_is_not_admitted(family: int) -> None:
    """ZeroMQ tells descriptors of connections that it may have closed since."""
    users = LocalUsers({os.geteuid()})
    with ExitStack() as stack:
        if family == socket.AF_UNIX:
            one, other = socket.socketpair()
            stack.enter_context(other)
        else:
            one = socket.socket(family, socket.SOCK_RAW, 0)
            one.connect((0, 0))
        stack.enter_context(one)
        told = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, one.fileno())
        stack.callback(told.detach)
        assert not users.admits(told, "port")
    assert users.refused["port"] == 1


def test_a_listener_that_other_machines_reach_admits_everybody() -> None:
    users = LocalUsers({OTHER})
    assert users.at("127.0.0.1") is users
    assert users.at("localhost") is users
    assert users.at("::1") is users
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        assert users.at(host) is EVERYBODY


def test_the_setting_names_users_beside_our_own() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (_, accepted):
        for setting in (SAME, ANY, "nobody", f"nobody, {OTHER}", f"{SAME},nobody"):
            assert local_users(setting).admits(accepted, "port"), setting
    assert local_users(ANY) is EVERYBODY


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(RegentError, match="local_users: this machine has no user 'no-such-user'"):
        local_users("same,no-such-user")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket of another user")
def test_a_socket_of_another_user_is_refused_unless_the_user_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.seteuid(NOBODY)
        try:
            stranger = socket.create_connection(listening.getsockname(), timeout=TIMEOUT_S)
        finally:
            os.seteuid(0)
        accepted, _ = listening.accept()
        with stranger, accepted:
            assert not local_users(SAME).admits(accepted, "port")
            assert local_users("nobody").admits(accepted, "port")


def test_every_port_closes_the_connections_of_others_before_it_reads() -> None:
    users = LocalUsers({OTHER})
    with ExitStack() as stack:
        kafka = KafkaListener("127.0.0.1", 0, [], users=users)
        kafka.start()
        stack.callback(kafka.close, 0.0)
        control = ControlServer(
            KEYS,
            EVERYBODY_OPERATES,
            "tcp://127.0.0.1:0",
            lambda _: None,
            name="control",
            users=users,
        )
        control.start()
        stack.callback(control.stop)
        metrics = MetricsServer("127.0.0.1", 0, users=users)
        stack.callback(metrics.close)
        for port in (kafka.port, port_of(control.endpoint), metrics.port):
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as stranger:
                said = b"".join(iter(partial(stranger.recv, 100), b""))
                # ZeroMQ greets before it reports a connection.
                assert len(said) <= (
                    ZMTP_GREETING_BYTES if port == port_of(control.endpoint) else 0
                )
    assert users.refused == {"kafka-listener": 1, "control port": 1, "metrics port": 1}
    assert control.rejected.counts[Rejection.OTHER_USER] == 1
