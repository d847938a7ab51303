"""Limits of client connections as configured."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from regent.broker.kafka_endpoint import OwnController
from regent.broker.machine_settings import dynamic_values, kafka_limits
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.protocol.controller import ControllerRequest
from regent.core.setting import INT_MAX
from regent.testing.waits import eventually
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.metrics import Closed
from tests.support.fuzzed_requests import ask_versions
from tests.support.kafka_versions import BETWEEN_BROKERS, KAFKA_3_9
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import ServedEndpoint
from tests.transport.kafka.raw_client import RawClient, request_bytes

PRODUCE = 0
NO_TOPICS = bytes(4)  # of a Metadata request


def test_the_memory_of_all_requests_is_limited():
    settings = load_settings(None, {"broker": {"queued_max_request_bytes": 1_000_000}})
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), settings)
        stalled = stack.enter_context(RawClient(served))
        other = stack.enter_context(RawClient(served))
        stalled.send(request_bytes(bytes(900_000), api_key=PRODUCE, version=8)[:800_000])
        other.send(request_bytes(b"\xff" * 900_000, api_key=PRODUCE, version=8))
        assert stalled.is_closed()
        assert other.is_closed()
        assert served.closed == {Closed.SLOW: 1, Closed.MALFORMED: 1}


def test_minus_one_is_no_limit_of_memory_and_of_silence():
    """As in Kafka, where -1 is the default of queued.max.request.bytes."""
    limits = {"queued_max_request_bytes": -1, "connections_max_idle_ms": -1}
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), load_settings(None, {"broker": limits}))
        stalled = stack.enter_context(RawClient(served))
        other = stack.enter_context(RawClient(served))
        stalled.send(request_bytes(bytes(40_000_000), api_key=PRODUCE, version=8)[:30_000_000])
        other.send(request_bytes(b"\xff" * 30_000_000, api_key=PRODUCE, version=8))
        assert other.is_closed()
        assert served.closed == {Closed.MALFORMED: 1}


def test_the_limits_of_connections_follow_the_settings_in_zookeeper(
    caplog: pytest.LogCaptureFixture,
):
    settings = load_settings(None, {"broker": {"max_connections_per_ip": 2}})
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), settings)
        started = dynamic_values(settings)
        served.endpoint.reconfigure(started, {**started, "max.connections.per.ip": 1})
        first = stack.enter_context(RawClient(served))
        assert stack.enter_context(RawClient(served)).is_closed()
        served.endpoint.reconfigure(started, {**started, "max.connections.per.ip": 0})
        assert "max_connections_per_ip_overrides must name a host" in caplog.text
        assert stack.enter_context(RawClient(served)).is_closed()
        served.endpoint.reconfigure(started, started)
        first.ask(NO_TOPICS)  # the listener changes its limits before it answers
        stack.enter_context(RawClient(served))
        assert stack.enter_context(RawClient(served)).is_closed()
        assert served.closed == {Closed.TOO_MANY_OF_ADDRESS: 3}


def test_the_limit_of_one_listener_follows_its_setting_in_zookeeper():
    settings = load_settings(None, {})
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), settings)
        name = "listener.name.plaintext.max.connections"
        started = dynamic_values(settings)
        served.endpoint.reconfigure(started, {**started, name: 1})
        first = stack.enter_context(RawClient(served))
        first.ask(NO_TOPICS)
        second = stack.enter_context(RawClient(served))
        second.send(request_bytes(NO_TOPICS))
        (metrics,) = served.endpoint.metrics.values()
        eventually(lambda: metrics.accept_pauses == 1, "the second one waits")
        assert metrics.connections == 1
        served.endpoint.reconfigure(started, {**started, name: 2})
        second.answer()
        assert served.closed == {}


@pytest.mark.parametrize("name", ["", "listener.name.plaintext."])
def test_the_rate_of_new_connections_follows_its_settings_in_zookeeper(name: str):
    settings = load_settings(None, {})
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), settings)
        started = dynamic_values(settings)
        served.endpoint.reconfigure(started, {**started, f"{name}max.connection.creation.rate": 0})
        (metrics,) = served.endpoint.metrics.values()
        for count in (1, 2):
            stack.enter_context(RawClient(served)).ask(NO_TOPICS)
            assert metrics.accept_pauses >= count
        served.endpoint.reconfigure(started, started)
        stack.enter_context(RawClient(served)).ask(NO_TOPICS)
        pauses = metrics.accept_pauses
        stack.enter_context(RawClient(served)).ask(NO_TOPICS)
        assert metrics.accept_pauses == pauses


def test_connections_are_limited():
    limits = {"max_connections_per_ip": 1, "max_connections_per_ip_overrides": "127.0.0.2:2"}
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), load_settings(None, {"broker": limits}))
        refused = [stack.enter_context(RawClient(served)) for _ in range(2)][1]
        assert refused.is_closed()
        there = [stack.enter_context(RawClient(served, "127.0.0.2")) for _ in range(3)]
        assert there[2].is_closed()
        assert served.closed == {Closed.TOO_MANY_OF_ADDRESS: 2}


class ActiveController(OwnController):
    """It answers nothing."""

    def is_active(self) -> bool:
        return True

    def ask(self, request: ControllerRequest, respond: Callable[[object], None]) -> None:
        raise AssertionError(request)


@dataclass
class Port:
    port: int


def two_listeners(**broker: object) -> Settings:
    return load_settings(
        None,
        {
            "broker": {
                "listeners": "CLIENT://127.0.0.1:0,BROKER://127.0.0.1:0",
                "listener_security_protocol_map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
                "inter_broker_listener_name": "BROKER",
                **broker,
            }
        },
    )


def test_the_listener_of_brokers_serves_clients_too_and_others_serve_no_brokers():
    with ExitStack() as stack:
        controller = ActiveController()
        served = ServedEndpoint(stack, MemoryLogs(), two_listeners(), controller=controller)
        of_clients, of_all = (
            ask_versions(("127.0.0.1", served.endpoint.ports[name]))
            for name in ("CLIENT", "BROKER")
        )
    assert {key: (row.min_version, row.max_version) for key, row in of_all.items()} == {
        **{key: (row.min_version, row.max_version) for key, row in of_clients.items()},
        **BETWEEN_BROKERS,
    }
    assert of_clients.keys() == KAFKA_3_9.keys()


def test_connections_of_brokers_do_not_count_among_those_of_clients():
    settings = two_listeners(max_connections=2)
    assert kafka_limits(settings, "CLIENT").max_connections == 2
    assert kafka_limits(settings, "BROKER").max_connections == INT_MAX
    settings = two_listeners(max_connection_creation_rate=3)
    assert kafka_limits(settings, "CLIENT").max_connection_creation_rate == 3
    assert kafka_limits(settings, "BROKER").max_connection_creation_rate == INT_MAX
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), settings)
        clients, brokers = (Port(served.endpoint.ports[name]) for name in ("CLIENT", "BROKER"))
        for port in (clients, clients, brokers, brokers):
            client = stack.enter_context(RawClient(port))
            client.ask(NO_TOPICS)


def test_names_that_a_stranger_lets_look_up_do_not_delay_brokers(monkeypatch: pytest.MonkeyPatch):
    """A name server may take seconds; the thread of brokers' requests is not the one that waits."""
    threads: list[str] = []

    def look_up(*_: object) -> list[object]:
        threads.append(threading.current_thread().name)
        return []

    unknown_epoch = struct.pack(">bbqhbbibb", 0, 2, 7, 1, 0, 1, 9, 0, 0)
    asked = request_bytes(unknown_epoch, 8, api_key=KafkaApiKey.WRITE_TXN_MARKERS)
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), two_listeners())
        port = Port(served.endpoint.ports["BROKER"])
        stranger = stack.enter_context(RawClient(port, "127.0.0.2"))
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        stranger.send(asked)
        assert stranger.answer()[0] == 8
    assert [name.rpartition("_")[0] for name in threads] == ["long-queries"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PLAINTEXT", load_settings(None, {"broker": {"listeners": "PLAINTEXT://127.0.0.1:0"}})),
        ("BROKER", two_listeners()),
        ("CLIENT", two_listeners(control_plane_listener_name="CLIENT")),
    ],
)
def test_brokers_are_answered_before_clients(name: str, settings: Settings):
    """A controller makes the broker ready: it cannot wait until it is ready."""
    with ExitStack() as stack:
        served = ServedEndpoint(
            stack, MemoryLogs(), settings, controller=ActiveController(), admits_clients=False
        )
        port = Port(served.endpoint.ports[name])
        client, broker = (stack.enter_context(RawClient(port)) for _ in range(2))
        client.send(request_bytes(NO_TOPICS, 7))
        shutdown = struct.pack(">iq", 9, 9)
        broker.send(request_bytes(shutdown, 8, api_key=KafkaApiKey.CONTROLLED_SHUTDOWN, version=2))
        assert broker.answer()[0] == 8
        # Only this request has no client id in its header.
        oldest = struct.pack(">hhii", KafkaApiKey.CONTROLLED_SHUTDOWN, 0, 9, 1)
        broker.send(struct.pack(">i", len(oldest)) + oldest)
        assert broker.answer()[0] == 9
        versions = ask_versions(("127.0.0.1", port.port))
        assert KafkaApiKey.ALTER_PARTITION in versions
        served.endpoint.admit_clients()
        assert client.answer()[0] == 7
