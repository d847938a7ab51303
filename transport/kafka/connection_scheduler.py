"""Shares the loop's time between connections, so that no client waits for another's requests.

Time is shared and not requests. Between two polls of all sockets, the connections that have just
become ready share ``_READY_S``, each with a short turn first; then one connection with more work
gets a longer turn. A client with few requests waits for milliseconds even when others send many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

Serve: TypeAlias = Callable[[float], None]
"""Serves until an instant of the loop's clock, or one request longer."""

SHORT_TURN_S: Final = 0.0005
_LONG_TURN_S: Final = 0.002
_READY_S: Final = 0.004


class ConnectionScheduler:
    """The connections that wait for a turn; used on the loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[Serve] = deque()
        self._going_on: deque[Serve] = deque()
        self._is_coming = False

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for a turn."""
        return self._is_coming

    def size(self) -> int:
        """Return how many wait. Thread-safe."""
        return len(self._ready) + len(self._going_on)

    def schedule(self, serve: Serve, *, goes_on: bool) -> None:
        """Queue ``serve`` for a turn; ``goes_on``: it just had one."""
        (self._going_on if goes_on else self._ready).append(serve)
        if not self._is_coming:
            self._is_coming = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        clock = self._loop.time
        end = clock() + _READY_S
        try:
            for _ in range(len(self._ready)):
                self._ready.popleft()(clock() + SHORT_TURN_S)
                if clock() >= end:
                    break
            if self._going_on:
                self._going_on.popleft()(clock() + _LONG_TURN_S)
        finally:
            self._is_coming = bool(self._ready or self._going_on)
            if self._is_coming:
                self._loop.call_soon(self._run)
