"""Timers: one thread that runs callbacks later. Mirrors ``kafka.utils.KafkaScheduler``."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from time import monotonic, monotonic_ns

from regent.config.threads import UNEXPECTED_ERRORS, NamedThread
from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

_IDLE_S = 60.0


class SchedulerFullError(RegentError):
    """A scheduler has reached its limit of pending timers."""


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """One scheduled callback; equal only to itself."""

    due: float
    callback: Callable[[], None]
    key: Hashable | None


class Scheduler:
    """Runs each callback once, after a delay, in the order of due times, on one daemon thread.

    While a callback runs no other timer fires, so on a shared scheduler a callback must only tell
    an actor. A callback that raises is logged and counted. A callback may have
    begun before its timer is cancelled, so the actor must check whether the message still applies.
    """

    def __init__(self, name: str = "scheduler", *, limit: int = 100_000) -> None:
        self.name = name
        self._limit = limit
        self._changed = threading.Condition(threading.RLock())
        self._pending: set[Handle] = set()
        self._heap: list[tuple[float, int, Handle]] = []  # may hold cancelled entries
        self._order = count()
        self._stopped = False
        self._thread = NamedThread(self._run, name)
        self._thread.start()

    @property
    def size(self) -> int:
        """How many callbacks are pending."""
        return len(self._pending)

    def schedule(
        self, after_ms: float, callback: Callable[[], None], *, key: Hashable | None = None
    ) -> Handle:
        """Call ``callback`` once in ``after_ms``; ignored after ``shutdown``.

        Raises ``SchedulerFullError`` if too many are pending.
        """
        handle = Handle(monotonic() + after_ms / 1000, callback, key)
        with self._changed:
            if self._stopped:
                return handle
            if len(self._pending) >= self._limit:
                raise SchedulerFullError(f"{self.name}: {self._limit} timers are already pending")
            self._pending.add(handle)
            heapq.heappush(self._heap, (handle.due, next(self._order), handle))
            if self._heap[0][2] is handle:
                self._changed.notify()
        return handle

    def cancel(self, handle: Handle) -> bool:
        """Cancel a callback; return whether it was still pending."""
        with self._changed:
            if handle not in self._pending:
                return False
            self._pending.remove(handle)
            self._sweep()
            return True

    def cancel_key(self, key: Hashable) -> int:
        """Cancel all pending callbacks with ``key``; return how many."""
        with self._changed:
            found = {handle for handle in self._pending if handle.key == key}
            self._pending -= found
            self._sweep()
            return len(found)

    def shutdown(self, timeout: float = 5.0) -> None:
        """Drop pending callbacks and end the thread; wait ``timeout`` seconds for a running one."""
        with self._changed:
            self._stopped = True
            self._pending.clear()
            self._heap.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error("%s did not stop within %s s", self.name, timeout)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._pending) + 100:
            self._heap = [entry for entry in self._heap if entry[2] in self._pending]
            heapq.heapify(self._heap)

    def _run(self) -> None:
        while (handle := self._next_due()) is not None:
            try:
                handle.callback()
            except BaseException:  # even SystemExit must not end all timers of the process
                UNEXPECTED_ERRORS.add()
                logger.exception("%s: a callback failed (key %r)", self.name, handle.key)

    def _next_due(self) -> Handle | None:
        with self._changed:
            while not self._stopped:
                while self._heap and self._heap[0][2] not in self._pending:
                    heapq.heappop(self._heap)
                remaining = self._heap[0][0] - monotonic() if self._heap else _IDLE_S
                if remaining > 0:
                    self._changed.wait(min(remaining, _IDLE_S))
                    continue
                handle = heapq.heappop(self._heap)[2]
                self._pending.remove(handle)
                return handle
            return None


def monotonic_ms() -> int:
    """Return the monotonic time in milliseconds."""
    return monotonic_ns() // 1_000_000


class OneShotTimer:
    """A timer with at most one pending callback; one thread calls ``set`` and ``cancel``.

    The callback runs on the scheduler's thread and only tells an actor.
    """

    def __init__(self, scheduler: Scheduler, callback: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._callback = callback
        self._handle: Handle | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it is set and not due yet."""
        return self._handle is not None and monotonic() < self._handle.due

    def set(self, after_ms: float) -> None:
        """Fire in ``after_ms``; this replaces an earlier ``set``."""
        self.cancel()
        self._handle = self._scheduler.schedule(after_ms, self._callback)

    def cancel(self) -> None:
        """Do not fire. A callback that has begun continues."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._scheduler.cancel(handle)


class RepeatingTimer:
    """Calls back every ``period_ms`` until cancelled, even if the callback raises.

    ``first_after_ms``: the delay of the first call, if it is shorter.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        period_ms: float,
        callback: Callable[[], object],
        *,
        first_after_ms: float | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._period_ms = period_ms
        self._callback = callback
        self._cancelled = False
        self._lock = threading.Lock()  # at most one call is pending
        self._schedule(period_ms if first_after_ms is None else min(first_after_ms, period_ms))

    def cancel(self) -> None:
        """Stop calling back. Thread-safe, idempotent; one call may still be running."""
        self._cancelled = True
        self._scheduler.cancel_key(self)

    def set_period(self, period_ms: float) -> None:
        """Call back every ``period_ms`` from now on. Thread-safe."""
        with self._lock:
            self._period_ms = period_ms
            self._reschedule()

    def _schedule(self, after_ms: float) -> None:
        self._scheduler.schedule(after_ms, self._fire, key=self)

    def _reschedule(self) -> None:
        self._scheduler.cancel_key(self)
        if not self._cancelled:
            self._schedule(self._period_ms)

    def _fire(self) -> None:
        if not self._cancelled:
            with self._lock:
                self._reschedule()  # first, because the callback may raise
            self._callback()
