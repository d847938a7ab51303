"""The end of what a thread waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Closing(threading.Event):
    """Set when an actor is to stop; it also interrupts what the actor waits for.

    ``set`` may be called by any thread, and by a signal handler of any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._interrupts: list[Callable[[], object]] = []

    def set(self) -> None:
        """Set the event, and interrupt the present wait."""
        with self._lock:
            super().set()
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call ``interrupt``, on any thread, if the event is set in the ``with`` block."""
        with self._lock:
            self._interrupts.append(interrupt)
        try:
            if self.is_set():
                interrupt()
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
