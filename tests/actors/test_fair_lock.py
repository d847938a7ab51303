"""The lock of the replicas: one thread at a time, in the sequence of arrival."""

from __future__ import annotations

import threading

from regent.actors.fair_lock import FairLock
from regent.testing.waits import eventually, scaled

TIMEOUT_S = scaled(10.0)


def wait_for(lock: FairLock, threads: int) -> None:
    """Wait until so many threads wait for a lock."""
    eventually(lambda: len(lock._waiting) >= threads, f"{threads} threads wait", TIMEOUT_S)


def test_one_thread_at_a_time_has_the_lock():
    lock, inside, most = FairLock(), 0, 0

    def use() -> None:
        nonlocal inside, most
        for _ in range(500):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert (inside, most) == (0, 1)
    with lock:
        pass


def test_threads_get_the_lock_in_the_sequence_of_arrival():
    lock, sequence = FairLock(), list[str]()

    def use(name: str) -> None:
        with lock:
            sequence.append(name)

    threads = [threading.Thread(target=use, args=(name,)) for name in ("a", "b", "c")]
    with lock:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lock, number)
    use("again")
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sequence == ["a", "b", "c", "again"]


def test_one_thread_has_priority_over_all_waiting_threads():
    sequence = list[str]()

    def use() -> None:
        with lock:
            sequence.append(threading.current_thread().name)

    threads = [threading.Thread(target=use, name=name) for name in ("a", "b", "first")]
    lock = FairLock(first=threads[-1])
    with lock:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lock, number)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sequence == ["first", "a", "b"]


def test_an_exception_releases_the_lock():
    lock = FairLock()
    try:
        with lock:
            raise ConnectionError
    except ConnectionError:
        pass
    with lock:
        assert lock._is_held
    assert not lock._is_held
