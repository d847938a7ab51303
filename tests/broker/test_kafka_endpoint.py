"""Limits of client connections as configured."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from regent.broker.machine_settings import dynamic_values
from regent.config.settings_file import load_settings
from regent.testing.waits import eventually
from regent.transport.kafka.metrics import Closed
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


def test_connections_are_limited():
    limits = {"max_connections_per_ip": 1, "max_connections_per_ip_overrides": "127.0.0.2:2"}
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), load_settings(None, {"broker": limits}))
        refused = [stack.enter_context(RawClient(served)) for _ in range(2)][1]
        assert refused.is_closed()
        there = [stack.enter_context(RawClient(served, "127.0.0.2")) for _ in range(3)]
        assert there[2].is_closed()
        assert served.closed == {Closed.TOO_MANY_OF_ADDRESS: 2}
