"""Pauses of Python's garbage collector while a thread builds many objects that stay.

The collector would look at them again and again while they become more, and at each long list of
them as a whole; no other thread runs meanwhile.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MANY_OBJECTS: Final = 50_000  # the collector would look at them for about 10 ms


class Collector:
    """The garbage collector of this process, which any thread may pause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0  # that last
        self._was_enabled = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Collect no garbage in the ``with`` block of any thread.

        If many objects were built, they are not looked at afterwards either. They are freed when
        nothing refers to them; only a cycle among them would stay.
        """
        with self._lock:
            if not self._pauses:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if gc.get_count()[0] > _MANY_OBJECTS:
                    gc.freeze()
                if not self._pauses and self._was_enabled:
                    gc.enable()


collector: Final = Collector()
"""The only one."""
