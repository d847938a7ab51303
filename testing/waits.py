"""Waiting for other processes: every wait has a limit, and names what it waited for.

The environment variable ``REGENT_TIMEOUT_FACTOR`` multiplies all limits of this package, for slow
machines. While more processes want to run than the machine has processors, limits grow with them.
A limit that a module computes once, when it is imported, knows the load of that moment.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import AnyStr, Final, TypeVar

from regent.core.errors import RegentError

T = TypeVar("T")

TIMEOUT_S = 20.0
TIMEOUT_FACTOR_VARIABLE: Final = "REGENT_TIMEOUT_FACTOR"
_POLL_S = 0.02


def timeout_factor() -> float:
    """Return ``REGENT_TIMEOUT_FACTOR``, 1 by default; raises ``ValueError`` for a bad one."""
    text = os.environ.get(TIMEOUT_FACTOR_VARIABLE) or "1"
    with suppress(ValueError):
        factor = float(text)
        if factor > 0 and math.isfinite(factor):
            return factor
    raise ValueError(f"{TIMEOUT_FACTOR_VARIABLE} must be a number above 0, not {text!r}")


def scaled(limit: float) -> float:
    """Return a limit for a machine as slow and as busy as this one is now.

    Raises ``ValueError`` for a bad ``REGENT_TIMEOUT_FACTOR``.
    """
    return limit * timeout_factor() * max(1.0, _load() / (os.cpu_count() or 1))


def _load() -> float:
    """Return how many threads want to run: now, or in the last minute if these were more."""
    average = os.getloadavg()[0]
    with suppress(OSError, ValueError, IndexError):
        running, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
        return max(average, float(running))
    return average


class Limit:
    """The end of a wait that began when this was created. It moves on while the machine is busy."""

    def __init__(self, timeout_s: float) -> None:
        self._started = monotonic()
        self._timeout_s = timeout_s
        self.allowed_s = scaled(timeout_s)

    def left_s(self) -> float:
        """Return how long the wait may still take; 0 or less if it is over."""
        left = self._started + self.allowed_s - monotonic()
        if left > 0:
            return left
        self.allowed_s = max(self.allowed_s, scaled(self._timeout_s))
        return self._started + self.allowed_s - monotonic()


def eventually(look: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Return the first true result of ``look``, which is called again and again.

    ``RegentError``, ``OSError`` and ``LookupError`` count as false. Raises ``AssertionError`` with
    ``what`` and the last result when the time is over.
    """
    limit = Limit(timeout_s)
    last: object = None
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = seen
        except (RegentError, OSError, LookupError) as error:
            last = error.with_traceback(None)
        if limit.left_s() <= 0:
            raise AssertionError(f"{what}: not within {limit.allowed_s:g} s; last: {last!r}")
        sleep(_POLL_S)


def next_line(process: subprocess.Popen[AnyStr], what: str, timeout_s: float = TIMEOUT_S) -> AnyStr:
    """Return the next line of a process's output; empty at the end of the output.

    Raises ``AssertionError`` with ``what`` when the time is over. The process does not print the
    next line before this one was read, or its output has no buffer (``bufsize=0``, bytes).
    """
    assert process.stdout is not None
    limit = Limit(timeout_s)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(max(0.0, limit.left_s())):
            if limit.left_s() <= 0:
                raise AssertionError(f"{what}: not within {limit.allowed_s:g} s")
    return process.stdout.readline()


def await_end(process: subprocess.Popen[str], what: str, timeout_s: float = TIMEOUT_S) -> str:
    """Wait for the end of a process, and return what it printed on standard error.

    Raises ``AssertionError`` with ``what`` when the time is over.
    """
    limit = Limit(timeout_s)
    while True:
        try:
            return process.communicate(timeout=max(0.0, limit.left_s()))[1] or ""
        except subprocess.TimeoutExpired:
            if process.poll() is not None:
                return ""  # a process that it started has its output still open
            if limit.left_s() <= 0:
                raise AssertionError(f"{what} has not ended within {limit.allowed_s:g} s") from None


def pause_process(pid: int) -> None:
    """Send SIGSTOP, and wait until every thread has stopped.

    A signal takes effect when a thread that handles it gets a processor: on a busy machine the
    other threads may work on until then.
    """
    os.kill(pid, signal.SIGSTOP)
    if Path("/proc/self/stat").exists():
        eventually(
            lambda: _states(pid) <= set("TtZX"), f"all threads of process {pid} have stopped"
        )


def _states(pid: int) -> set[str]:
    """Return the states of the threads of a process, letters as in ``ps``."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add(stat.read_text(errors="replace").rpartition(")")[2].split()[0])
    return found
