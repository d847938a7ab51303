"""Actors in virtual time: seeded dice choose which of the ready actors runs next.

One thread runs everything, so that a seed and a program give one history. Time moves only when no
actor has a message.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Final

from regent.core.errors import RegentError

_MAX_STEPS_AT_AN_INSTANT: Final = 1_000_000


class VirtualTime:
    """A ``Dispatcher`` and a ``ActorClock`` that begins at 0 ms."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._now_ms = 0
        self._ready: list[Callable[[], None]] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        """See ``ActorClock.now_ms``."""
        return self._now_ms

    def submit(self, step: Callable[[], None], /) -> None:
        """See ``Dispatcher.submit``."""
        self._ready.append(step)

    def later(self, after_ms: int, callback: Callable[[], None], /) -> None:
        """See ``ActorClock.later``."""
        heapq.heappush(self._timers, (self._now_ms + after_ms, next(self._order), callback))

    def run_for(self, duration_ms: int) -> None:
        """Run everything that happens in the next ``duration_ms``, the last instant included.

        An actor may call it: then it stands still meanwhile, and the others go on.
        """
        until_ms = self._now_ms + duration_ms
        self._run_ready()
        while self._timers and self._timers[0][0] <= until_ms:
            self._now_ms, _, callback = heapq.heappop(self._timers)
            callback()
            self._run_ready()
        self._now_ms = max(self._now_ms, until_ms)

    def _run_ready(self) -> None:
        for _ in range(_MAX_STEPS_AT_AN_INSTANT):
            if not self._ready:
                return
            chosen = self._dice.randrange(len(self._ready))
            self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
            self._ready.pop()()
        raise RegentError(f"actors send each other messages without end at {self._now_ms} ms")
