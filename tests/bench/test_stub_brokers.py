"""Stub brokers, as a controller that waits for them sees them."""

from __future__ import annotations

import zmq

from bench.stub_brokers import StubBroker
from regent.config.addresses import keyed_endpoint
from regent.transport.control.codec import PING
from regent.transport.control.sockets import connect_to, open_socket
from tests.support.keys import KEYS, context_for_test

_PATIENCE_MS = 10_000


def test_a_stub_answers_whether_it_runs() -> None:
    with context_for_test() as context, open_socket(context, zmq.DEALER) as controller:
        stub = StubBroker(context, 1)
        try:
            connect_to(controller, keyed_endpoint(f"tcp://127.0.0.1:{stub.port}", KEYS.public))
            assert controller.poll(_PATIENCE_MS, zmq.POLLOUT)
            controller.send_multipart(PING)
            stub.answer({})
            assert controller.poll(_PATIENCE_MS)
            assert tuple(controller.recv_multipart()) == PING
            assert not stub.arrivals
        finally:
            stub.crash()
