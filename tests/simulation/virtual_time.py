"""Virtual time as a number, and timers that fire when it advances."""

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
    """A process with timers; those of a paused one fire when it continues."""

    is_paused: bool


@dataclass(slots=True, eq=False)
class VirtualTimer:
    """An action for later; ``event`` is set for events scheduled by a controller."""

    owner: Owner
    action: Callable[[], None]
    event: ControllerEvent | None = None


class _Awake:
    """The owner of the simulation's own timers."""

    is_paused = False


AWAKE = _Awake()


class VirtualTime:
    """Milliseconds since the start of the simulation."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []  # due time, number
        self._numbers = itertools.count(1)
        self._overdue: dict[
            Owner, list[VirtualTimer]
        ] = {}  # of paused processes, in the sequence of firing

    def schedule(
        self,
        owner: Owner,
        after_ms: int,
        action: Callable[[], None],
        event: ControllerEvent | None = None,
    ) -> None:
        """Call ``action`` after a time."""
        self._push(VirtualTimer(owner, action, event), after_ms)

    def events_of(self, owner: Owner) -> list[ControllerEvent]:
        """Return the scheduled events of a controller."""
        timers = [timer for _, _, timer in self._timers] + self._overdue.get(owner, [])
        return [t.event for t in timers if t.owner is owner and t.event is not None]

    def cancel_events(self, owner: Owner) -> None:
        """Cancel the scheduled events that end with a controller's term."""
        self._drop(owner, lambda timer: timer.event is not None and not outlives_term(timer.event))

    def forget(self, owner: Owner) -> None:
        """Cancel all timers of a process that died."""
        self._drop(owner, lambda timer: True)
        self._overdue.pop(owner, None)

    def advance(self, by_ms: int) -> None:
        """Let time pass, and fire timers in sequence."""
        until = self.now_ms + by_ms
        while self._timers and self._timers[0][0] <= until:
            due_ms, _, timer = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, due_ms)
            self._fire(timer)
        self.now_ms = max(self.now_ms, until)

    def _push(self, timer: VirtualTimer, after_ms: int) -> None:
        heapq.heappush(self._timers, (self.now_ms + after_ms, next(self._numbers), timer))

    def _fire(self, timer: VirtualTimer) -> None:
        """Run the action, or queue it while the process is paused."""
        overdue = self._overdue.get(timer.owner)
        if overdue is not None:
            overdue.append(timer)
        elif timer.owner.is_paused:
            self._overdue[timer.owner] = [timer]
            self._look_again(timer.owner)
        else:
            timer.action()

    def _look_again(self, owner: Owner) -> None:
        self._push(VirtualTimer(AWAKE, partial(self._catch_up, owner)), PAUSE_CHECK_MS)

    def _catch_up(self, owner: Owner) -> None:
        """Run the overdue actions of a process, unless it is still paused."""
        while not owner.is_paused and (overdue := self._overdue.get(owner)):
            overdue.pop(0).action()
        if self._overdue.get(owner):
            self._look_again(owner)
        else:
            self._overdue.pop(owner, None)

    def _drop(self, owner: Owner, is_dropped: Callable[[VirtualTimer], bool]) -> None:
        self._timers = [
            entry
            for entry in self._timers
            if entry[2].owner is not owner or not is_dropped(entry[2])
        ]
        heapq.heapify(self._timers)
        if owner in self._overdue:
            self._overdue[owner] = [t for t in self._overdue[owner] if not is_dropped(t)]
