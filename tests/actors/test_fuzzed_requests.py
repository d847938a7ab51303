"""Random changes of requests of every kind and version: answered, or the connection is closed."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from regent.config.settings import Settings
from regent.transport.kafka.metrics import Closed
from tests.support.disk_logs import Machine
from tests.support.fuzzed_requests import (
    WAIT_S,
    Conversation,
    ask,
    ask_versions,
    conversations,
    genuine_requests,
    talk,
)
from tests.support.served_endpoint import ServedEndpoint
from tests.transport.kafka.raw_client import RawClient, request_bytes

API_VERSIONS = 18
EXAMPLES, CONNECTIONS = 60, 25  # some 3,000 requests


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedEndpoint]:
    machine = Machine(tmp_path / "log")
    with ExitStack() as stack:
        stack.callback(machine.end)
        yield ServedEndpoint(stack, machine.start(), Settings())


@pytest.mark.timeout(300)  # elections and moves in it wait for their own time to be over
def test_every_request_is_answered_or_closed_and_other_clients_are_served(
    served: ServedEndpoint, caplog: pytest.LogCaptureFixture
):
    address = ("127.0.0.1", served.port)
    genuine = genuine_requests(ask_versions(address))
    for request in genuine:
        assert ask(address, request)
    before = threading.active_count()
    outcomes: Counter[str] = Counter()

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
    )
    @given(conversations(genuine, CONNECTIONS))
    def check(sent: list[Conversation]) -> None:
        outcomes.update(talk(address, sent))
        assert ask_versions(address)
        assert Closed.FAILED not in served.closed

    check()
    assert outcomes["answered"] > EXAMPLES
    assert outcomes["closed"] > EXAMPLES
    (metrics,) = served.endpoint.metrics.values()
    deadline = time.monotonic() + WAIT_S
    with RawClient(served) as client:
        while metrics.connections > 1:  # the listener handles all of them between two answers
            assert time.monotonic() < deadline, "connections that clients closed stay open"
            client.send(request_bytes(api_key=API_VERSIONS, version=0))
            client.answer()
    gc.collect()
    assert metrics.errors == 0
    assert threading.active_count() <= before + 5
    assert [record for record in caplog.records if record.exc_info] == []
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
