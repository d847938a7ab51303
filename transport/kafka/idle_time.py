"""Measures how long an event loop has had nothing to do."""

from __future__ import annotations

import selectors
import time


class IdleTimeSelector(selectors.DefaultSelector):
    """A selector that adds up the time of its waits. One thread selects, any thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self._idle_s = 0.0
        self._waiting_since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events; a call that must not wait is not measured."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._waiting_since = since = time.monotonic()
        try:
            return super().select(timeout)
        finally:
            self._waiting_since = None
            self._idle_s += time.monotonic() - since

    def idle_s(self) -> float:
        """Return the sum, with the wait in progress."""
        since = self._waiting_since
        return self._idle_s + (0.0 if since is None else max(0.0, time.monotonic() - since))
