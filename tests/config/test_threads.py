"""Threads have the prefix of the thread that starts them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from regent.config.threads import (
    UNEXPECTED_ERRORS,
    NamedThread,
    NamedTimer,
    at_once,
    named_executor,
    thread_names_begin_with,
)
from regent.testing.waits import scaled

TIMEOUT_S = scaled(20.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_by_an_error_is_counted() -> None:
    def fail() -> None:
        raise ValueError("bad")

    before = UNEXPECTED_ERRORS.count
    by_thread(fail)
    assert UNEXPECTED_ERRORS.count == before + 1


def by_thread(act: Callable[[], None]) -> None:
    thread = NamedThread(act, "starter")
    thread.start()
    thread.join(TIMEOUT_S)


def by_timer(act: Callable[[], None]) -> None:
    timer = NamedTimer(0, act, "starter")
    timer.start()
    timer.join(TIMEOUT_S)


def by_executor(act: Callable[[], None]) -> None:
    with named_executor(1, "starter") as executor:
        executor.submit(act).result(TIMEOUT_S)


@pytest.mark.parametrize("start", [by_thread, by_timer, by_executor])
def test_a_thread_has_the_prefix_and_passes_it_on(start: Callable[[Callable[[], None]], None]):
    names = []

    def note() -> None:
        names.append(threading.current_thread().name)

    def note_and_start() -> None:
        note()
        by_thread(note)

    with thread_names_begin_with("b1"):
        start(note_and_start)
    start(note)
    first, passed_on, without = names
    assert first.startswith("b1:starter")
    assert passed_on == "b1:starter"
    assert without.startswith("starter")


def test_brokers_in_one_process_have_their_own_prefixes():
    with thread_names_begin_with("b1"):
        one = NamedThread(print, "scheduler")
        with thread_names_begin_with("b2"):
            two = NamedThread(print, "scheduler")
        third = NamedThread(print, "guardian")
    assert [thread.name for thread in (one, two, third)] == [
        "b1:scheduler",
        "b2:scheduler",
        "b1:guardian",
    ]


def test_a_cancelled_timer_does_not_call():
    called = threading.Event()
    timer = NamedTimer(60, called.set, "timer")
    timer.start()
    timer.cancel()
    timer.join(TIMEOUT_S)
    assert not called.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's /proc")
def test_the_kernel_knows_the_beginning_of_the_name():
    known = []

    def read() -> None:
        task = Path(f"/proc/self/task/{threading.get_native_id()}")
        known.append((task / "comm").read_text().rstrip("\n"))

    with thread_names_begin_with("b1"):
        by_executor(read)
        thread = NamedThread(read, "ReplicaFetcherThread-0-2")
        thread.start()
        thread.join(TIMEOUT_S)
    assert known == ["b1:starter_0", "b1:ReplicaFetch"]


def test_python_code_is_given_more_threads_only_where_they_run_at_the_same_time() -> None:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert at_once(1) == 1
    assert at_once(2) == (1 if has_gil else min(2, len(os.sched_getaffinity(0))))
