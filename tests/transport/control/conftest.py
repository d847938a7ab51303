"""A ZeroMQ context a test, servers on free ports, clients; all of them gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from regent.config.addresses import key_of, keyed_endpoint
from regent.transport.control.client import RequestClient
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.control.sockets import Context
from tests.support.keys import KEYS, context_for_test, everybody_is_broker
from tests.transport.control.raw_peer import TIMEOUT_MS


class Serve(Protocol):
    def __call__(
        self,
        dispatch: Callable[[IncomingRequest], None],
        bind: str = "tcp://127.0.0.1:0",
        max_outstanding: int = 1000,
        **limits: Any,
    ) -> ControlServer: ...


class Connect(Protocol):
    def __call__(
        self, endpoint: str, connect_timeout_ms: int = TIMEOUT_MS, **patience: float
    ) -> RequestClient: ...


@pytest.fixture
def context() -> Iterator[Context]:
    context = context_for_test()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(
            dispatch: Callable[[IncomingRequest], None],
            bind: str = "tcp://127.0.0.1:0",
            max_outstanding: int = 1000,
            **limits: Any,
        ) -> ControlServer:
            known = limits.pop("known", everybody_is_broker(1))
            server = ControlServer(
                KEYS,
                known,
                bind,
                dispatch,
                name="test-server",
                max_outstanding=max_outstanding,
                **limits,
            )
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture
def connect(context: Context) -> Iterator[Connect]:
    with ExitStack() as stack:

        def open_client(
            endpoint: str, connect_timeout_ms: int = TIMEOUT_MS, **patience: Any
        ) -> RequestClient:
            client = RequestClient(
                context,
                endpoint if key_of(endpoint) else keyed_endpoint(endpoint, KEYS.public),
                client_id="tester",
                connect_timeout_ms=connect_timeout_ms,
                **patience,
            )
            stack.callback(client.close)
            return client

        yield open_client
