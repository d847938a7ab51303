"""Timers of a machine that has no clock: it is told the time, and says when it wants to be told.

Timers fire in the order of their due times; equal ones in the order in which they were started.
A timer that is started again costs no search: its entry stays in the heap, and is put back when it
comes up too early.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class TimerTask:
    """One timer, which calls ``fire`` when its time has come. It may be started again and again."""

    __slots__ = ("_order", "_queued_ms", "_timers", "due_ms", "fire")

    def __init__(self, timers: Timers, fire: Callable[[], None]) -> None:
        self.fire = fire
        self.due_ms: int | None = None
        """When it fires; None: it is not running."""
        self._timers = timers
        self._order = 0
        self._queued_ms: int | None = None

    def start(self, due_ms: int) -> None:
        """Fire at ``due_ms``, and not at the time of an earlier start."""
        self.due_ms, self._order = due_ms, self._timers.next_order()
        if self._queued_ms is None or due_ms < self._queued_ms:
            self._push()

    def cancel(self) -> None:
        """Do not fire. Idempotent."""
        self.due_ms = None

    def pop(self, queued_ms: int, order: int) -> bool:
        """Return whether it fires, now that its entry came up."""
        if self._queued_ms != queued_ms:  # an entry of an earlier start, which was too late
            return False
        self._queued_ms = None
        if self.due_ms is None:
            return False
        if (self.due_ms, self._order) > (queued_ms, order):
            self._push()
            return False
        self.due_ms = None
        return True

    def _push(self) -> None:
        assert self.due_ms is not None
        self._queued_ms = self.due_ms
        self._timers.push(self.due_ms, self._order, self)


class Timers:
    """The timers of one machine."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._order = count()

    @property
    def next_ms(self) -> int | None:
        """When ``run`` should be called at the latest; None: no timer is running."""
        return self._heap[0][0] if self._heap else None

    def new(self, fire: Callable[[], None]) -> TimerTask:
        """Return a timer that is not running."""
        return TimerTask(self, fire)

    def run(self, now_ms: int) -> None:
        """Fire the timers that are due."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, order, timer = heapq.heappop(self._heap)
            if timer.pop(queued_ms, order):
                timer.fire()

    def push(self, due_ms: int, order: int, timer: TimerTask) -> None:
        """Add an entry; for ``TimerTask``."""
        heapq.heappush(self._heap, (due_ms, order, timer))

    def next_order(self) -> int:
        """Return a number that is larger than those before; for ``TimerTask``."""
        return next(self._order)
