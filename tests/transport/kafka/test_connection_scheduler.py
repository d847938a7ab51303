"""Who asks little waits for little, however many ask much."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from regent.transport.kafka.listener_loop import SHORT_TURN_S, ConnectionScheduler

REQUEST_S = 0.0003


class Loop:
    """Time that passes only where somebody works, and what is called soon."""

    def __init__(self) -> None:
        self.now = 0.0
        self._soon: deque[Callable[[], None]] = deque()

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def go_round(self) -> bool:
        """Call what was to be called soon; return whether there was anything."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        return bool(self._soon)


class Client:
    """Has so many requests, each of which takes the same time."""

    def __init__(self, loop: Loop, scheduler: ConnectionScheduler, requests: int) -> None:
        self.left = requests
        self.done_at = 0.0
        self._loop = loop
        self._scheduler = scheduler

    def ask(self) -> None:
        """Become ready."""
        self._scheduler.schedule(self._serve, goes_on=False)

    def _serve(self, until: float) -> None:
        while True:
            self._loop.now += REQUEST_S
            self.left -= 1
            if not self.left:
                self.done_at = self._loop.now
                return
            if self._loop.now >= until:
                self._scheduler.schedule(self._serve, goes_on=True)
                return


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def scheduler(loop: Loop) -> ConnectionScheduler:
    return ConnectionScheduler(cast("asyncio.AbstractEventLoop", cast("Any", loop)))


def test_a_new_client_among_many_busy_ones_waits_for_one_turn(
    loop: Loop, scheduler: ConnectionScheduler
) -> None:
    greedy = [Client(loop, scheduler, 10_000) for _ in range(200)]
    for client in greedy:
        client.ask()
    for _ in range(100):
        loop.go_round()
    began = loop.now
    newcomer = Client(loop, scheduler, 1)
    newcomer.ask()
    loop.go_round()
    assert newcomer.left == 0
    assert newcomer.done_at - began < 0.005
    assert all(client.left < 10_000 for client in greedy)


def test_many_that_come_at_once_have_short_turns_first(
    loop: Loop, scheduler: ConnectionScheduler
) -> None:
    greedy = [Client(loop, scheduler, 1_000) for _ in range(50)]
    small = Client(loop, scheduler, 1)
    for client in (*greedy, small):
        client.ask()
    while small.left:
        loop.go_round()
    assert small.done_at < 50 * (SHORT_TURN_S + REQUEST_S) * 2


def test_everybody_is_done_in_the_end(loop: Loop, scheduler: ConnectionScheduler) -> None:
    clients = [Client(loop, scheduler, requests) for requests in (1, 10, 1_000) for _ in range(10)]
    for client in clients:
        client.ask()
    while loop.go_round():
        pass
    assert [client.left for client in clients] == [0] * 30
    assert not scheduler.has_waiting
    assert loop.now == pytest.approx(10 * 1_011 * REQUEST_S)


def test_a_failed_callback_does_not_stop_other_callbacks(
    loop: Loop, scheduler: ConnectionScheduler
) -> None:
    def fail(_until: float) -> None:
        raise ZeroDivisionError

    scheduler.schedule(fail, goes_on=False)
    client = Client(loop, scheduler, 1)
    client.ask()
    with pytest.raises(ZeroDivisionError):
        loop.go_round()
    loop.go_round()
    assert client.left == 0
