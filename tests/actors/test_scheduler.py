import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from regent.actors.scheduler import Scheduler, SchedulerFullError
from regent.config.threads import UNEXPECTED_ERRORS
from regent.testing.waits import scaled

WAIT_S = scaled(10.0)
NEVER_MS = 3_600_000


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler("scheduler-test")
    yield scheduler
    scheduler.shutdown(WAIT_S)
    assert "scheduler-test" not in [thread.name for thread in threading.enumerate()]


def settle(scheduler: Scheduler) -> None:
    """Wait until all callbacks due by now have been called."""
    done = threading.Event()
    scheduler.schedule(0, done.set)
    assert done.wait(WAIT_S)


def nothing() -> None:
    pass


def test_a_callback_is_called_once_not_before_its_time_on_the_named_thread(
    scheduler: Scheduler,
) -> None:
    calls: list[tuple[float, str]] = []
    done = threading.Event()

    def callback() -> None:
        calls.append((monotonic(), threading.current_thread().name))
        done.set()

    start = monotonic()
    scheduler.schedule(20, callback)
    assert done.wait(WAIT_S)
    settle(scheduler)
    [(called_at, thread)] = calls
    assert called_at >= start + 0.020
    assert thread == "scheduler-test"
    assert scheduler.size == 0


def test_callbacks_are_called_in_the_sequence_of_their_times(scheduler: Scheduler) -> None:
    calls: list[str] = []
    done = threading.Event()
    scheduler.schedule(NEVER_MS, nothing)
    scheduler.schedule(40, done.set)
    scheduler.schedule(20, lambda: calls.append("later"))
    scheduler.schedule(1, lambda: calls.append("sooner"))
    assert done.wait(WAIT_S)
    assert calls == ["sooner", "later"]


def test_callbacks_of_one_time_are_called_in_the_sequence_they_were_scheduled(
    scheduler: Scheduler,
) -> None:
    calls: list[int] = []

    def append(number: int) -> Callable[[], None]:
        return lambda: calls.append(number)

    for number in range(100):
        scheduler.schedule(-1, append(number))
    settle(scheduler)
    assert calls == sorted(calls)
    assert len(calls) == 100


def test_a_cancelled_callback_is_not_called(scheduler: Scheduler) -> None:
    calls: list[int] = []
    done = threading.Event()
    handle = scheduler.schedule(10, lambda: calls.append(1))
    scheduler.schedule(20, done.set)
    assert scheduler.cancel(handle)
    assert not scheduler.cancel(handle)
    assert done.wait(WAIT_S)
    assert calls == []


def test_a_callback_that_was_called_cannot_be_cancelled(scheduler: Scheduler) -> None:
    handle = scheduler.schedule(0, nothing)
    settle(scheduler)
    assert not scheduler.cancel(handle)


def test_a_key_stands_for_all_timers_scheduled_with_it(scheduler: Scheduler) -> None:
    rebalances = [scheduler.schedule(NEVER_MS, nothing, key="rebalance") for _ in range(3)]
    other = scheduler.schedule(NEVER_MS, nothing, key="checkpoint")
    keyless = scheduler.schedule(NEVER_MS, nothing)
    assert scheduler.cancel(rebalances[0])
    assert scheduler.cancel_key("rebalance") == 2
    assert scheduler.cancel_key("rebalance") == 0
    assert scheduler.size == 2
    assert scheduler.cancel(other)
    assert scheduler.cancel(keyless)


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_a_failing_callback_is_logged_and_counted_and_the_next_is_called(
    scheduler: Scheduler, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    before = UNEXPECTED_ERRORS.count
    scheduler.schedule(0, fail, key="rebalance")
    settle(scheduler)
    assert UNEXPECTED_ERRORS.count == before + 1
    assert "scheduler-test: a callback failed (key 'rebalance')" in caplog.text


def test_a_callback_may_schedule_the_next(scheduler: Scheduler) -> None:
    done = threading.Event()

    def schedule_the_next() -> None:
        scheduler.schedule(0, done.set)

    scheduler.schedule(0, schedule_the_next)
    assert done.wait(WAIT_S)


def test_shutdown_is_prompt_and_drops_pending_callbacks() -> None:
    scheduler = Scheduler("scheduler-test")
    calls: list[int] = []
    scheduler.schedule(NEVER_MS, lambda: calls.append(1))
    start = monotonic()
    scheduler.shutdown(WAIT_S)
    assert monotonic() - start < WAIT_S / 2
    assert not [t for t in threading.enumerate() if t.name == "scheduler-test"]
    scheduler.schedule(0, lambda: calls.append(2))
    scheduler.shutdown(WAIT_S)
    assert scheduler.size == 0
    assert calls == []


def test_a_callback_may_shut_its_scheduler_down() -> None:
    scheduler = Scheduler("scheduler-test")
    done = threading.Event()

    def shut_down() -> None:
        scheduler.shutdown()
        done.set()

    scheduler.schedule(0, shut_down)
    assert done.wait(WAIT_S)
    scheduler.shutdown(WAIT_S)


def test_shutdown_waits_for_a_blocked_callback_only_until_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler("scheduler-test")
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert release.wait(WAIT_S)

    scheduler.schedule(0, block)
    assert begun.wait(WAIT_S)
    scheduler.shutdown(timeout=0.01)
    assert "scheduler-test did not stop within 0.01 s" in caplog.text
    release.set()
    scheduler.shutdown(WAIT_S)


def test_cancelled_timers_are_removed(scheduler: Scheduler) -> None:
    for _ in range(10_000):
        scheduler.cancel(scheduler.schedule(NEVER_MS, nothing))
    assert scheduler.size == 0
    assert len(scheduler._heap) < 200


def test_the_number_of_timers_is_limited() -> None:
    scheduler = Scheduler("scheduler-test", limit=2)
    scheduler.schedule(NEVER_MS, nothing), scheduler.schedule(NEVER_MS, nothing)
    with pytest.raises(SchedulerFullError, match="2 timers are already pending"):
        scheduler.schedule(NEVER_MS, nothing)
    scheduler.shutdown(WAIT_S)
