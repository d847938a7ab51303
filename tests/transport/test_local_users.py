"""Which users of this machine may connect on loopback. Our own process plays the other user."""

from __future__ import annotations

import errno
import logging
import os
import pwd
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from regent.broker.metrics import metrics_server
from regent.broker.metrics.metrics_server import MetricsServer
from regent.config.addresses import port_of
from regent.core.errors import RegentError
from regent.testing.waits import eventually, scaled
from regent.transport.control import server
from regent.transport.control.client import RequestClient
from regent.transport.control.rejections import Rejection
from regent.transport.control.server import ControlServer
from regent.transport.kafka import acceptor
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import KafkaListener
from regent.transport.local_users import (
    ANY,
    EVERYBODY,
    SAME,
    LocalUsers,
    local_users,
    rest_after_strangers,
)
from tests.support.keys import EVERYBODY_OPERATES, KEYS, context_for_test
from tests.transport.control.raw_peer import READY, STATUS, TIMEOUT_MS, answer_ready

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


class Ports(NamedTuple):
    """One port of each kind."""

    kafka: KafkaListener
    control: ControlServer
    metrics: MetricsServer

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.kafka.port, port_of(self.control.endpoint), self.metrics.port


@contextmanager
def ports(users: LocalUsers, limits: KafkaLimits | None = None) -> Iterator[Ports]:
    with ExitStack() as stack:
        kafka = KafkaListener("127.0.0.1", 0, [], limits or KafkaLimits(), users=users)
        kafka.start()
        stack.callback(kafka.close, 0.0)
        control = ControlServer(
            KEYS,
            EVERYBODY_OPERATES,
            "tcp://127.0.0.1:0",
            answer_ready,
            name="control",
            users=users,
        )
        control.start()
        stack.callback(control.stop)
        metrics = MetricsServer("127.0.0.1", 0, users=users)
        stack.callback(metrics.close)
        yield Ports(kafka, control, metrics)


def test_every_port_closes_the_connections_of_others_before_it_reads() -> None:
    users = LocalUsers({OTHER})
    with ports(users) as opened:
        control = opened.control
        for port in opened.numbers:
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as stranger:
                said = b"".join(iter(partial(stranger.recv, 100), b""))
                # ZeroMQ greets before it reports a connection.
                assert len(said) <= (
                    ZMTP_GREETING_BYTES if port == port_of(control.endpoint) else 0
                )
    assert users.refused == {"kafka-listener": 1, "control port": 1, "metrics port": 1}
    assert control.rejected.counts[Rejection.OTHER_USER] == 1


def test_strangers_take_a_twentieth_of_the_time_of_a_port() -> None:
    assert rest_after_strangers(0.002) == 0.038
    assert rest_after_strangers(1.0) == 0.05  # others wait


@pytest.fixture
def rest_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for accepting in (acceptor, metrics_server, server):
        monkeypatch.setattr(accepting, "rest_after_strangers", lambda _: 60 * TIMEOUT_S)


@pytest.mark.usefixtures("rest_is_long")
def test_a_port_that_refused_a_stranger_rests() -> None:
    users = LocalUsers({OTHER})
    with ports(users) as opened, ExitStack() as stack:
        for _ in range(2):
            strangers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
                for port in opened.numbers
            ]
            eventually(lambda: len(users.refused) == 3, "all ports have refused a stranger")
        for stranger in strangers:
            stranger.settimeout(0.1)
            with pytest.raises(TimeoutError):
                b"".join(iter(partial(stranger.recv, 100), b""))  # ZeroMQ greets
        assert set(users.refused.values()) == {1}


@pytest.mark.usefixtures("rest_is_long")
def test_a_port_that_rests_answers_those_who_are_connected() -> None:
    users = LocalUsers({os.geteuid()})
    with ports(users) as opened, ExitStack() as stack:
        context = context_for_test()
        stack.callback(context.destroy, linger=0)
        client = RequestClient(context, opened.control.endpoint, client_id="c")
        stack.callback(client.close)
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
        users.admits = lambda *_: False  # type: ignore[method-assign]
        for port in opened.numbers:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as stranger:
                while stranger.recv(100):
                    pass
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_strangers_do_not_count_in_the_rate_of_connections() -> None:
    users = LocalUsers({OTHER})
    with ports(users, KafkaLimits(max_connection_creation_rate=1)) as opened:
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", opened.kafka.port), TIMEOUT_S) as stranger:
                assert stranger.recv(1) == b""
        assert opened.kafka.metrics.accept_pauses == 0


def test_an_answer_that_is_late_is_not_taken_for_that_to_the_next_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = [BlockingIOError(errno.EAGAIN, "nothing has come")]

    class LateSocket(socket.socket):
        def recv(self, *arguments: Any) -> bytes:
            if late:
                raise late.pop()
            return super().recv(*arguments)

    users = LocalUsers({os.geteuid()})
    with connected("127.0.0.1", "127.0.0.1") as (client, accepted), ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(socket, "socket", LateSocket)
        assert not thread.submit(users.admits, accepted, "port").result(TIMEOUT_S)
        assert thread.submit(users.admits, accepted, "port").result(TIMEOUT_S)
        late.append(BlockingIOError(errno.EAGAIN, "nothing has come"))
        assert not thread.submit(users.admits, accepted, "port").result(TIMEOUT_S)
        client.close()
        assert not thread.submit(users.admits, accepted, "port").result(TIMEOUT_S)
