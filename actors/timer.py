"""Reusable timers on a ``Scheduler``, and their clock."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic, monotonic_ns

from regent.actors.scheduler import Handle, Scheduler


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
        self._lock = Lock()  # at most one call is pending
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
