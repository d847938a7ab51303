"""A lock that goes to the thread that waited longest, but to one thread before all others.

``threading.Lock`` promises nothing of the kind: a thread that takes it again and again, as one that
serves producers does, may keep an order of the controller waiting for a second. And where each of
those before it waits for a busy disk, so would the order.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A context manager; a thread must not take it twice. ``first`` waits for one at most."""

    def __init__(self, first: threading.Thread | None = None) -> None:
        self._first = first
        self._state = threading.Lock()  # held for a moment, never while waiting
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._state:
            if not self._is_held:
                self._is_held = True
                return
            turn = threading.Lock()
            turn.acquire()
            if threading.current_thread() is self._first:
                self._waiting.appendleft(turn)
            else:
                self._waiting.append(turn)
        turn.acquire()  # until it is handed over, still held

    def __exit__(self, *exc_info: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False
