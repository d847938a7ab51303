"""Asking and telling an actor of another process."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from regent.config.addresses import without_key
from regent.core.errors import Errors
from regent.core.protocol.controller import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from regent.testing.waits import scaled
from regent.transport.control.client import (
    PeerUnreachableError,
    RequestAbandonedError,
    RequestTimeoutError,
)
from regent.transport.control.remote_ref import RemoteActorRef
from regent.transport.control.server import IncomingRequest
from regent.transport.control.sockets import Context
from tests.support.topic_requests import deleted, forwarded_deletion, name_in
from tests.transport.control.conftest import Serve

SHUTDOWN = ControlledShutdownRequest(1, 2)
SAFE = ControlledShutdownResponse(Errors.NONE)


def test_ask_returns_the_answer(serve: Serve, context: Context) -> None:
    server = serve(lambda request: request.reply(SAFE))
    with RemoteActorRef(context, server.endpoint, client_id="broker-1") as ref:
        assert ref.ask(SHUTDOWN, timeout=scaled(5)) == SAFE
        assert ref.ask(SHUTDOWN, timeout=scaled(5)) == SAFE


def test_a_reference_does_not_connect_before_it_is_used(context: Context) -> None:
    with RemoteActorRef(context, "tcp://127.0.0.1:1", client_id="broker-1"):
        pass


def test_ask_raises_what_the_client_raises(serve: Serve, context: Context) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    with RemoteActorRef(context, server.endpoint, client_id="broker-1") as ref:
        with pytest.raises(RequestTimeoutError):
            ref.ask(SHUTDOWN, timeout=0.05)
        server.stop()
    with (
        RemoteActorRef(context, server.endpoint, client_id="broker-1") as ref,
        pytest.raises(PeerUnreachableError),
    ):
        ref.ask(SHUTDOWN, timeout=0.1)


def test_a_tell_before_an_ask_arrives_first(serve: Serve, context: Context) -> None:
    told: queue.Queue[str] = queue.Queue()

    def dispatch(request: IncomingRequest) -> None:
        told.put(name_in(request.body))
        request.reply(deleted(name_in(request.body)))

    server = serve(dispatch)
    with RemoteActorRef(context, server.endpoint, client_id="broker-1") as ref:
        for number in range(500):
            ref.tell(forwarded_deletion(str(number)))
        answer = ref.ask(forwarded_deletion("500"), timeout=scaled(5))
    assert answer == deleted(str(500))
    assert [told.get(timeout=scaled(5)) for _ in range(501)] == [
        str(number) for number in range(501)
    ]


def test_a_tell_just_before_closing_arrives(serve: Serve, context: Context) -> None:
    told: queue.Queue[IncomingRequest] = queue.Queue()
    with RemoteActorRef(context, serve(told.put).endpoint, client_id="broker-1") as ref:
        ref.tell(SHUTDOWN)
    assert told.get(timeout=scaled(5)).body == SHUTDOWN


def test_a_message_to_an_absent_receiver_is_logged_and_raises_nothing(
    serve: Serve, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda _: None)
    server.stop()
    with RemoteActorRef(context, server.endpoint, client_id="broker-1") as ref:
        ref.tell(SHUTDOWN)
    assert f"Dropping ControlledShutdownRequest: {without_key(server.endpoint)}" in caplog.text


def test_threads_that_ask_at_once_get_their_own_answers(serve: Serve, context: Context) -> None:
    def echo(request: IncomingRequest) -> None:
        request.reply(deleted(name_in(request.body)))

    answers: queue.Queue[tuple[int, object]] = queue.Queue()
    with RemoteActorRef(context, serve(echo).endpoint, client_id="broker-1") as ref:

        def ask(number: int) -> None:
            for _ in range(20):
                request = forwarded_deletion(str(number))
                answers.put((number, ref.ask(request, timeout=scaled(10))))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(20))
    for _ in range(8 * 20):
        number, answer = answers.get(timeout=scaled(5))
        assert answer == deleted(str(number))


def test_closing_abandons_the_ask_that_is_going_on(serve: Serve, context: Context) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    ref = RemoteActorRef(context, serve(held.put).endpoint, client_id="broker-1")
    caught: queue.Queue[RequestAbandonedError] = queue.Queue()

    def ask() -> None:
        try:
            ref.ask(SHUTDOWN, timeout=scaled(60))
        except RequestAbandonedError as error:
            caught.put(error)

    thread = threading.Thread(target=ask)
    thread.start()
    request = held.get(timeout=scaled(5))
    started = time.monotonic()
    ref.close()
    caught.get(timeout=scaled(5))
    assert time.monotonic() - started < scaled(5)
    thread.join(scaled(5))
    request.reply(SAFE)
    ref.close()
    with pytest.raises(RequestAbandonedError):
        ref.ask(SHUTDOWN, timeout=scaled(5))


def test_waiting_for_a_turn_counts_towards_the_timeout(serve: Serve, context: Context) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    with RemoteActorRef(context, serve(held.put).endpoint, client_id="broker-1") as ref:
        thread = threading.Thread(target=lambda: ref.ask(SHUTDOWN, timeout=scaled(10)))
        thread.start()
        first = held.get(timeout=scaled(5))
        with pytest.raises(RequestTimeoutError, match="other threads"):
            ref.ask(SHUTDOWN, timeout=0.05)
        first.reply(SAFE)
        thread.join(scaled(5))
