"""Time as a number that moves when it is told to, and the timers that fire on the way."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from core.controller.events import ControllerEvent, outlives_term

PAUSE_CHECK_MS = 100


class Owner(Protocol):
    """Whose timer it is; the timers of a sleeping process fire when it is awake again."""

    is_paused: bool


@dataclass(slots=True, eq=False)
class Timer:
    """What happens when; ``event`` is set for what the controller scheduled."""

    owner: Owner
    action: Callable[[], None]
    event: ControllerEvent | None = None


class VirtualTime:
    """Milliseconds since the beginning of the world."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._timers: list[tuple[int, int, Timer]] = []  # when it is due, its number
        self._numbers = itertools.count(1)

    def schedule(
        self,
        owner: Owner,
        after_ms: int,
        action: Callable[[], None],
        event: ControllerEvent | None = None,
    ) -> None:
        """Call ``action`` after a while."""
        timer = Timer(owner, action, event)
        heapq.heappush(self._timers, (self.now_ms + after_ms, next(self._numbers), timer))

    def events_of(self, owner: Owner) -> list[ControllerEvent]:
        """Return what a controller has scheduled."""
        timers = [timer for _, _, timer in self._timers]
        return [t.event for t in timers if t.owner is owner and t.event is not None]

    def cancel_events(self, owner: Owner) -> None:
        """Forget what a controller has scheduled that ends with its term."""
        self._keep(
            lambda timer: (
                timer.owner is not owner or timer.event is None or outlives_term(timer.event)
            )
        )

    def forget(self, owner: Owner) -> None:
        """Forget every timer of a process that died."""
        self._keep(lambda timer: timer.owner is not owner)

    def advance(self, by_ms: int) -> None:
        """Let time pass, timers firing in their order."""
        until = self.now_ms + by_ms
        while self._timers and self._timers[0][0] <= until:
            due_ms, _, timer = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, due_ms)
            if timer.owner.is_paused:
                self.schedule(timer.owner, PAUSE_CHECK_MS, timer.action, timer.event)
            else:
                timer.action()
        self.now_ms = max(self.now_ms, until)

    def _keep(self, keep: Callable[[Timer], bool]) -> None:
        self._timers = [entry for entry in self._timers if keep(entry[2])]
        heapq.heapify(self._timers)
