"""Time as a number that moves when it is told to, and the timers that fire on the way."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from regent.core.controller.events import ControllerEvent, outlives_term

PAUSE_CHECK_MS = 100


class Owner(Protocol):
    """A process that has timers; those of a paused one fire when it is awake again."""

    is_paused: bool


@dataclass(slots=True, eq=False)
class Timer:
    """An action for later; ``event`` is set for what the controller scheduled."""

    owner: Owner
    action: Callable[[], None]
    event: ControllerEvent | None = None


class _Awake:
    """The owner of what the simulation itself schedules."""

    is_paused = False


_AWAKE = _Awake()


class VirtualTime:
    """Milliseconds since the beginning of the world."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._timers: list[tuple[int, int, Timer]] = []  # when it is due, its number
        self._numbers = itertools.count(1)
        self._overdue: dict[Owner, list[Timer]] = {}  # of paused processes, in their order

    def schedule(
        self,
        owner: Owner,
        after_ms: int,
        action: Callable[[], None],
        event: ControllerEvent | None = None,
    ) -> None:
        """Call ``action`` after a while."""
        self._push(Timer(owner, action, event), after_ms)

    def events_of(self, owner: Owner) -> list[ControllerEvent]:
        """Return what a controller has scheduled."""
        timers = [timer for _, _, timer in self._timers] + self._overdue.get(owner, [])
        return [t.event for t in timers if t.owner is owner and t.event is not None]

    def cancel_events(self, owner: Owner) -> None:
        """Forget what a controller has scheduled that ends with its term."""
        self._drop(owner, lambda timer: timer.event is not None and not outlives_term(timer.event))

    def forget(self, owner: Owner) -> None:
        """Forget every timer of a process that died."""
        self._drop(owner, lambda timer: True)
        self._overdue.pop(owner, None)

    def advance(self, by_ms: int) -> None:
        """Let time pass, timers firing in their order."""
        until = self.now_ms + by_ms
        while self._timers and self._timers[0][0] <= until:
            due_ms, _, timer = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, due_ms)
            self._fire(timer)
        self.now_ms = max(self.now_ms, until)

    def _push(self, timer: Timer, after_ms: int) -> None:
        heapq.heappush(self._timers, (self.now_ms + after_ms, next(self._numbers), timer))

    def _fire(self, timer: Timer) -> None:
        """Act, or wait until the process is awake again, behind what waits for that already."""
        overdue = self._overdue.get(timer.owner)
        if overdue is not None:
            overdue.append(timer)
        elif timer.owner.is_paused:
            self._overdue[timer.owner] = [timer]
            self._look_again(timer.owner)
        else:
            timer.action()

    def _look_again(self, owner: Owner) -> None:
        self._push(Timer(_AWAKE, partial(self._catch_up, owner)), PAUSE_CHECK_MS)

    def _catch_up(self, owner: Owner) -> None:
        """Fire what a process has slept through, unless it still sleeps."""
        while not owner.is_paused and (overdue := self._overdue.get(owner)):
            overdue.pop(0).action()
        if self._overdue.get(owner):
            self._look_again(owner)
        else:
            self._overdue.pop(owner, None)

    def _drop(self, owner: Owner, is_dropped: Callable[[Timer], bool]) -> None:
        self._timers = [
            entry
            for entry in self._timers
            if entry[2].owner is not owner or not is_dropped(entry[2])
        ]
        heapq.heapify(self._timers)
        if owner in self._overdue:
            self._overdue[owner] = [t for t in self._overdue[owner] if not is_dropped(t)]
