from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from regent.actors.scheduler import OneShotTimer, RepeatingTimer, Scheduler
from regent.testing.waits import scaled

TIMEOUT_S = scaled(5.0)
FAR_MS = 60_000


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.shutdown()


def test_a_timer_is_pending_until_it_fires(scheduler: Scheduler):
    fired = threading.Event()
    timer = OneShotTimer(scheduler, fired.set)
    seen = [timer.is_pending]
    timer.set(FAR_MS)
    seen.append(timer.is_pending)
    timer.set(1)
    assert fired.wait(TIMEOUT_S)
    assert [*seen, timer.is_pending] == [False, True, False]
    assert scheduler.size == 0, "the earlier one was replaced"


def test_a_cancelled_timer_can_be_set_again(scheduler: Scheduler):
    fired = threading.Event()
    timer = OneShotTimer(scheduler, fired.set)
    timer.set(FAR_MS)
    timer.cancel()
    timer.cancel()
    assert not timer.is_pending
    assert scheduler.size == 0
    timer.set(0)
    assert fired.wait(TIMEOUT_S)


def test_a_repeating_timer_continues_after_an_exception(scheduler: Scheduler):
    calls = threading.Semaphore(0)

    def fail() -> None:
        calls.release()
        raise ValueError("a defect")

    timer = RepeatingTimer(scheduler, 1, fail)
    for _ in range(3):
        assert calls.acquire(timeout=TIMEOUT_S)
    timer.cancel()


def test_a_repeating_timer_waits_one_period_first(scheduler: Scheduler):
    fired = threading.Event()
    started = monotonic()
    timer = RepeatingTimer(scheduler, 30, fired.set)
    assert fired.wait(TIMEOUT_S)
    assert monotonic() - started >= 0.03
    timer.cancel()


def test_the_first_period_may_be_shorter(scheduler: Scheduler):
    fired = threading.Event()
    timer = RepeatingTimer(scheduler, FAR_MS, fired.set, first_after_ms=1)
    assert fired.wait(TIMEOUT_S)
    timer.cancel()


def test_a_cancelled_timer_leaves_nothing_in_the_scheduler(scheduler: Scheduler):
    timer = RepeatingTimer(scheduler, FAR_MS, lambda: None)
    other = RepeatingTimer(scheduler, FAR_MS, lambda: None)
    assert scheduler.size == 2
    timer.cancel()
    timer.cancel()
    assert scheduler.size == 1
    other.cancel()


def test_a_timer_that_cancels_itself_is_not_called_again(scheduler: Scheduler):
    called = threading.Event()
    timers: list[RepeatingTimer] = []

    def once() -> None:
        timers[0].cancel()
        called.set()

    timers.append(RepeatingTimer(scheduler, 20, once))
    assert called.wait(TIMEOUT_S)
    assert scheduler.size == 0


def test_a_repeating_timer_has_its_new_period_at_once(scheduler: Scheduler):
    fired = threading.Event()
    timer = RepeatingTimer(scheduler, FAR_MS, fired.set)
    timer.set_period(1)
    assert fired.wait(TIMEOUT_S)
    timer.cancel()
    timer.set_period(1)
    assert scheduler.size == 0
