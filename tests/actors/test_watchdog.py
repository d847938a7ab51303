import logging
import threading
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

import pytest
from pykka import ActorRef

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, start_actor, stop_actor
from regent.actors.watchdog import Watchdog
from regent.testing.waits import scaled

WAIT_S = scaled(10.0)


class Hold(NamedTuple):
    """Keeps its actor busy until the test releases it."""

    begun: threading.Event
    released: threading.Event


class Blocking(RegentActor):
    def handle(self, message: Hold, reply: Reply | None) -> None:
        message.begun.set()
        assert message.released.wait(WAIT_S)


@pytest.fixture
def ref() -> Iterator[ActorRef[Blocking]]:
    ref = start_actor(Blocking, "Broker-7-to-controller-thread")
    yield ref
    assert stop_actor(ref, WAIT_S)


def hold(ref: ActorRef[Blocking]) -> threading.Event:
    message = Hold(threading.Event(), threading.Event())
    ref.tell(message)
    assert message.begun.wait(WAIT_S)
    return message.released


def test_a_blocked_actor_is_logged_once_with_its_stack(
    ref: ActorRef[Blocking], caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog(limit_s=5.0)
    released = hold(ref)
    watchdog.check(monotonic())
    assert watchdog.incidents == 0
    watchdog.check(monotonic() + 6)
    watchdog.check(monotonic() + 7)
    assert watchdog.incidents == 1
    assert "Broker-7-to-controller-thread has been busy for 6.0 s with Hold(" in caplog.text
    assert "in handle" in caplog.text
    released.set()


def test_an_idle_actor_is_not_blocked(ref: ActorRef[Blocking]) -> None:
    watchdog = Watchdog(limit_s=5.0)
    watchdog.check(monotonic() + 3600)
    assert ref.is_alive()
    assert watchdog.incidents == 0


def test_the_next_blocking_message_is_logged_again(ref: ActorRef[Blocking]) -> None:
    watchdog = Watchdog(limit_s=5.0)
    for expected in (1, 2):
        released = hold(ref)
        watchdog.check(monotonic() + 6)
        assert watchdog.incidents == expected
        released.set()


def test_the_next_check_is_when_a_busy_actor_exceeds_the_limit(ref: ActorRef[Blocking]) -> None:
    watchdog = Watchdog(limit_s=5.0)
    now = monotonic()
    assert watchdog.check(now) == now + 5.0
    released = hold(ref)
    assert now + 5.0 <= watchdog.check(now + 4.0) <= monotonic() + 5.0
    assert watchdog.incidents == 0
    watchdog.check(monotonic() + 5.0)
    assert watchdog.incidents == 1
    released.set()


class EventHandler(logging.Handler):
    """Sets an event at the first log record."""

    def __init__(self) -> None:
        super().__init__()
        self.logged = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.set()


def test_the_watchdog_checks_periodically_until_it_is_stopped(ref: ActorRef[Blocking]) -> None:
    handler = EventHandler()
    logging.getLogger("regent.actors.watchdog").addHandler(handler)
    watchdog = Watchdog(limit_s=0.01)
    watchdog.start()
    released = hold(ref)
    assert handler.logged.wait(WAIT_S)
    released.set()
    watchdog.stop()
    logging.getLogger("regent.actors.watchdog").removeHandler(handler)
    assert "actor-watchdog" not in [thread.name for thread in threading.enumerate()]
