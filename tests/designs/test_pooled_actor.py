"""Actors that share threads, or a single one in virtual time."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pykka
import pytest

from regent.core.errors import RegentError
from regent.designs.pooled_actor import Dispatcher, PooledActor
from regent.testing.waits import scaled
from tests.designs.virtual_time import VirtualTime


class Listing(PooledActor):
    """Lists what it is told, and answers with the list."""

    def __init__(
        self, dispatcher: Dispatcher, name: str = "", history: list[Any] | None = None
    ) -> None:
        super().__init__(dispatcher)
        self.name = name
        self.history: list[Any] = [] if history is None else history
        self.running = threading.Lock()
        self.ended = threading.Event()

    def handle(self, message: object) -> list[Any]:
        assert self.running.acquire(blocking=False), "two messages at once"
        try:
            if message == "fail":
                raise ValueError("told to fail")
            self.history.append((self.name, message) if self.name else message)
            return list(self.history)
        finally:
            self.running.release()

    def on_stop(self):
        self.ended.set()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_messages_of_one_sender_are_handled_one_at_a_time_in_their_sequence(
    pool: ThreadPoolExecutor,
):
    actors = [Listing.start(pool) for _ in range(50)]
    for number in range(100):
        for actor in actors:
            actor.tell(number)
    assert all(actor.ask("end", timeout=scaled(30)) == [*range(100), "end"] for actor in actors)
    for actor in actors:
        actor.stop()


def test_a_handler_that_raises_loses_its_message_only(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
):
    actor = Listing.start(pool)
    caplog.set_level(logging.CRITICAL, "regent.designs.pooled_actor")
    actor.tell("fail")
    with pytest.raises(ValueError, match="told to fail"):
        actor.ask("fail", timeout=scaled(30))
    assert actor.ask("next", timeout=scaled(30)) == ["next"]
    actor.stop()


def test_an_actor_that_was_stopped_is_dead_and_has_cleaned_up(pool: ThreadPoolExecutor):
    actor = Listing.start(pool)
    ended = actor.proxy().ended.get(timeout=scaled(30))
    actor.stop()
    assert ended.is_set()
    assert not actor.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        actor.tell("late")


def history_of(seed: int) -> list[tuple[str, int]]:
    time = VirtualTime(seed)
    history: list[tuple[str, int]] = []
    actors = [Listing.start(time, name, history) for name in "abc"]
    for actor in actors:
        for number in range(5):
            actor.tell(number)
    time.run_for(0)
    for actor in actors:
        actor.stop(block=False)
    time.run_for(0)
    return history


def test_a_seed_gives_one_history_and_another_seed_another():
    assert history_of(1) == history_of(1) != history_of(2)
    assert [number for name, number in history_of(1) if name == "a"] == [0, 1, 2, 3, 4]


def test_virtual_time_moves_to_the_next_timer_when_no_actor_has_a_message():
    time, seen = VirtualTime(1), []
    time.later(30, lambda: seen.append(time.now_ms()))
    time.later(10, lambda: time.later(5, lambda: seen.append(time.now_ms())))
    time.run_for(20)
    assert seen == [15]
    time.run_for(20)
    assert (seen, time.now_ms()) == ([15, 30], 40)


def test_time_never_goes_back_when_an_actor_lets_it_pass():
    time = VirtualTime(1)
    time.later(10, lambda: time.run_for(50))
    time.run_for(20)
    assert time.now_ms() == 60


def test_actors_that_never_rest_end_the_run():
    time = VirtualTime(1)

    def again() -> None:
        time.submit(again)

    again()
    with pytest.raises(RegentError, match="without end at 0 ms"):
        time.run_for(1)
