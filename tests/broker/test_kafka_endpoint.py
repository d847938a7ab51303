"""Limits of client connections as configured."""

from __future__ import annotations

from contextlib import ExitStack

from regent.config.settings_file import load_settings
from regent.transport.kafka.metrics import Closed
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import ServedEndpoint
from tests.transport.kafka.raw_client import RawClient, request_bytes

PRODUCE = 0


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


def test_connections_are_limited():
    limits = {"max_connections_per_ip": 1, "max_connections_per_ip_overrides": "127.0.0.2:2"}
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), load_settings(None, {"broker": limits}))
        refused = [stack.enter_context(RawClient(served)) for _ in range(2)][1]
        assert refused.is_closed()
        there = [stack.enter_context(RawClient(served, "127.0.0.2")) for _ in range(3)]
        assert there[2].is_closed()
        assert served.closed == {Closed.TOO_MANY_OF_ADDRESS: 2}
