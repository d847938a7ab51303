"""A RequestClient and peers that are absent, leave, are killed or stand still."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from regent.config.addresses import without_key
from regent.core.errors import Errors
from regent.core.protocol.placement import PlacementStatusResponse
from regent.testing.waits import next_line, pause_process, scaled
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestTimeoutError,
)
from regent.transport.control.server import IncomingRequest
from tests.support.keys import KEYS
from tests.transport.control.conftest import Connect, Serve
from tests.transport.control.raw_peer import READY, STATUS, TIMEOUT_MS

WARMING = PlacementStatusResponse(Errors.NONE, "warming")


def test_an_unreachable_peer_is_detected_long_before_the_timeout(
    serve: Serve, connect: Connect
) -> None:
    server = serve(lambda request: request.reply(READY))
    server.stop()
    client = connect(server.endpoint, connect_timeout_ms=round(scaled(100)))
    started = time.monotonic()
    with pytest.raises(PeerUnreachableError, match=without_key(server.endpoint)):
        client.request(STATUS, timeout_ms=60_000)
    assert time.monotonic() - started < scaled(5)
    serve(lambda request: request.reply(READY), server.endpoint)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_peer_that_comes_while_we_connect_is_reached(serve: Serve, connect: Connect) -> None:
    server = serve(lambda request: request.reply(READY))
    server.stop()
    client = connect(server.endpoint)
    answers: queue.Queue[object] = queue.Queue()
    asking = threading.Event()

    def ask() -> None:
        asking.set()
        answers.put(client.request(STATUS, timeout_ms=TIMEOUT_MS))
        client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    assert asking.wait(scaled(5))
    serve(lambda request: request.reply(READY), server.endpoint)
    assert answers.get(timeout=scaled(5)) == READY
    thread.join(scaled(5))


def test_an_invalid_endpoint_is_unreachable(connect: Connect) -> None:
    for endpoint in ("nonsense", "tcp://*:0", "tcp://127.0.0.1", ""):
        with pytest.raises(PeerUnreachableError):
            connect(endpoint).request(STATUS, timeout_ms=TIMEOUT_MS)


def test_a_peer_replaced_between_two_requests_is_the_one_that_answers(
    serve: Serve, connect: Connect
) -> None:
    def answer_with(response: PlacementStatusResponse) -> Callable[[IncomingRequest], None]:
        return lambda request: request.reply(response)

    def request_until_answered() -> object:
        # That the old connection is lost may become known only while a request is on its way.
        for _ in range(3):
            with suppress(PeerDisconnectedError, PeerUnreachableError):
                return client.request(STATUS, timeout_ms=TIMEOUT_MS)
        return None

    server = serve(answer_with(WARMING))
    client = connect(server.endpoint)
    assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == WARMING
    for expected in (READY, WARMING, READY):
        server.stop()
        server = serve(answer_with(expected), server.endpoint)
        assert request_until_answered() == expected


def test_a_connection_that_breaks_ends_the_wait(serve: Serve, connect: Connect) -> None:
    held: queue.Queue[IncomingRequest] = queue.Queue()
    server = serve(held.put)
    unanswered: list[IncomingRequest] = []

    def stop_when_asked() -> None:
        unanswered.append(held.get(timeout=scaled(5)))
        server.stop()

    thread = threading.Thread(target=stop_when_asked)
    thread.start()
    started = time.monotonic()
    with pytest.raises(PeerDisconnectedError, match=without_key(server.endpoint)):
        connect(server.endpoint).request(STATUS, timeout_ms=60_000)
    assert time.monotonic() - started < scaled(10)
    thread.join(scaled(5))


PROGRAM = Path(__file__).with_name("status_server.py")


@contextmanager
def peer_process(bind: str, answer: str) -> Iterator[subprocess.Popen[str]]:
    """A ControlServer in a process of its own, which ends with us."""
    root = PROGRAM.parents[3]
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), bind, answer, *KEYS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    return next_line(process, "the peer says something").strip()


def test_a_killed_peer_is_noticed_at_once_and_its_successor_answers(connect: Connect) -> None:
    with peer_process("tcp://127.0.0.1:0", "silent") as process:
        endpoint = read_line(process)
        client = connect(endpoint)

        def kill_when_asked() -> None:
            assert read_line(process) == "asked"
            process.kill()

        thread = threading.Thread(target=kill_when_asked)
        thread.start()
        started = time.monotonic()
        with pytest.raises(PeerDisconnectedError):
            client.request(STATUS, timeout_ms=60_000)
        assert time.monotonic() - started < scaled(10)
        thread.join(scaled(5))
    with peer_process(endpoint, "ready") as process:
        assert read_line(process) == endpoint
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_stopped_peer_is_a_timeout_and_serves_again_when_continued(connect: Connect) -> None:
    with peer_process("tcp://127.0.0.1:0", "ready") as process:
        client = connect(read_line(process), connect_timeout_ms=1000)
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY
        pause_process(process.pid)
        os.waitpid(process.pid, os.WUNTRACED)  # until it really stands still
        with pytest.raises(RequestTimeoutError):
            client.request(STATUS, timeout_ms=100)
        with pytest.raises(PeerUnreachableError):  # the kernel accepts, nobody shakes hands
            client.request(STATUS, timeout_ms=100)
        process.send_signal(signal.SIGCONT)
        assert client.request(STATUS, timeout_ms=TIMEOUT_MS) == READY


def test_a_stopped_peer_ends_a_wait_long_before_the_timeout(connect: Connect) -> None:
    with peer_process("tcp://127.0.0.1:0", "silent") as process:
        client = connect(read_line(process), silent_s=0.1, gone_s=0.2)

        def stop_when_asked() -> None:
            assert read_line(process) == "asked"
            pause_process(process.pid)

        thread = threading.Thread(target=stop_when_asked)
        thread.start()
        with pytest.raises(PeerDisconnectedError, match="stands still"):
            client.request(STATUS, timeout_ms=60_000)
        thread.join(scaled(5))


def test_a_peer_that_takes_its_time_is_waited_for(serve: Serve, connect: Connect) -> None:
    gone_s = scaled(0.5)

    def answer_late(request: IncomingRequest) -> None:
        threading.Timer(2 * gone_s, lambda: request.reply(READY)).start()

    server = serve(answer_late)
    client = connect(server.endpoint, silent_s=0.01, gone_s=gone_s)
    for _ in range(2):
        assert client.request(STATUS, timeout_ms=60_000) == READY
    assert server.rejected.counts == {}
