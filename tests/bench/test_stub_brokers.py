"""Stub brokers, as a controller that waits for them sees them."""

from __future__ import annotations

import zmq

from bench.stub_brokers import StubBroker
from regent.transport.control.codec import PING
from regent.transport.control.sockets import new_context

_PATIENCE_MS = 10_000


def test_a_stub_answers_whether_it_runs() -> None:
    with new_context() as context, context.socket(zmq.DEALER) as controller:
        stub = StubBroker(context, 1)
        try:
            controller.connect(f"tcp://127.0.0.1:{stub.port}")
            controller.send_multipart(PING)
            stub.answer({})
            assert controller.poll(_PATIENCE_MS)
            assert tuple(controller.recv_multipart()) == PING
            assert not stub.arrivals
        finally:
            stub.crash()
