"""The threads of a broker: their names begin with the broker's prefix.

Kafka passes ``threadNamePrefix`` through the constructors of all parts that start threads. Here a
thread has a prefix, and the threads that it starts have the same. So brokers in one process can be
told apart, and each part names its threads without knowing whose they are.
``tests/test_architecture.py`` checks that the parts of a broker start threads in this way only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

_prefix: Final = ContextVar("thread_name_prefix", default="")
_PR_SET_NAME: Final = 15
_LIBC: Final = ctypes.CDLL(None)


class UnexpectedErrors:
    """How many messages, callbacks and threads have failed in this process; any thread may add."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one."""
        with self._lock:
            self.count += 1


UNEXPECTED_ERRORS: Final = UnexpectedErrors()
"""Of the process: who logs such an error counts it here, whichever part of a broker it is."""


STACKS_FILE: Final = "stacks.txt"
STACKS_SIGNAL: Final = signal.SIGUSR1


def write_stacks_when_asked(folder: Path) -> None:
    """Append the stacks of all threads to a file in this folder at each SIGUSR1.

    No Python code runs for that: it works, too, when a thread holds the GIL and does not return, or
    the main thread waits. A stack has files, lines and functions, and no value. Raises ``OSError``.
    """
    stacks = os.open(folder / STACKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)


@contextmanager
def thread_names_begin_with(prefix: str) -> Iterator[None]:
    """Give a prefix to the threads that are started in the ``with`` block, and by these threads."""
    token = _prefix.set(prefix)
    try:
        yield
    finally:
        _prefix.reset(token)


def prefixed(name: str) -> str:
    """Return the name of a thread with the prefix of the present one, as Kafka joins them."""
    prefix = _prefix.get()
    return f"{prefix}:{name}" if prefix else name


class NamedThread(threading.Thread):
    """A daemon thread with the prefix of the thread that creates it."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(target=target, name=prefixed(name), args=args, kwargs=kwargs, daemon=True)
        self._prefix = _prefix.get()

    def run(self) -> None:
        """Call the target."""
        _begin(self._prefix)
        try:
            super().run()
        except Exception:
            UNEXPECTED_ERRORS.add()
            raise


class NamedTimer(NamedThread):
    """Calls a function after a time, unless it is cancelled."""

    def __init__(self, after_s: float, function: Callable[[], object], name: str) -> None:
        super().__init__(self._wait, name)
        self._after_s = after_s
        self._function = function
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Do not call the function, if that has not begun."""
        self._cancelled.set()

    def _wait(self) -> None:
        if not self._cancelled.wait(self._after_s):
            self._function()


def at_once(most: int) -> int:
    """Return how many threads of Python code to start: up to ``most`` if they run at once.

    One in a process with the GIL, where more of them would only delay the others.
    """
    if sys.version_info >= (3, 13) and not sys._is_gil_enabled():
        return min(os.process_cpu_count() or 1, most)
    return 1


def named_executor(threads: int, name: str) -> ThreadPoolExecutor:
    """Return an executor whose threads have the prefix of the thread that creates it."""
    return ThreadPoolExecutor(threads, prefixed(name), _begin, (_prefix.get(),))


def _begin(prefix: str) -> None:
    """Let the present thread pass its prefix on, and show its name in ``ps -L`` and ``top -H``.

    The kernel keeps 15 bytes of the name. Python sets it by itself from 3.14 on.
    """
    _prefix.set(prefix)
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_NAME, threading.current_thread().name.encode())
