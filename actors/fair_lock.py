"""A first-in first-out lock that prefers one thread to all others.

``threading.Lock`` is not fair: a thread that takes it again and again to serve producers may delay
a control request for a second. In a fair queue a control request would still wait until all earlier
threads have written to a busy disk. So the thread of control requests goes first.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A context manager; not re-entrant. ``first`` waits for at most one other thread."""

    def __init__(self, first: threading.Thread | None = None) -> None:
        self._first = first
        self._state = threading.Lock()  # held briefly, never while waiting
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
        turn.acquire()  # blocks until the lock, still held, is handed over

    def __exit__(self, *exc_info: object) -> None:
        with self._state:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False
