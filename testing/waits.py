"""Waiting for other processes: every wait has a limit, and names what it waited for.

The environment variable ``REGENT_TIMEOUT_FACTOR`` multiplies all limits of this package, for
machines that are slow or busy.
"""

from __future__ import annotations

import math
import os
import selectors
import subprocess
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Final, TypeVar

from regent.core.errors import RegentError

T = TypeVar("T")

TIMEOUT_S = 20.0
TIMEOUT_FACTOR_VARIABLE: Final = "REGENT_TIMEOUT_FACTOR"
_POLL_S = 0.02


def scaled(limit: float) -> float:
    """Return a limit times ``REGENT_TIMEOUT_FACTOR``; raises ``ValueError`` for a bad factor."""
    text = os.environ.get(TIMEOUT_FACTOR_VARIABLE) or "1"
    with suppress(ValueError):
        factor = float(text)
        if factor > 0 and math.isfinite(factor):
            return limit * factor
    raise ValueError(f"{TIMEOUT_FACTOR_VARIABLE} must be a number above 0, not {text!r}")


def eventually(look: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Return the first true result of ``look``, which is called again and again.

    ``RegentError``, ``OSError`` and ``LookupError`` count as false. Raises ``AssertionError`` with
    ``what`` and the last result when the time is over.
    """
    limit_s = scaled(timeout_s)
    deadline = monotonic() + limit_s
    last: object = None
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = seen
        except (RegentError, OSError, LookupError) as error:
            last = error.with_traceback(None)
        if monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit_s:g} s; last: {last!r}")
        sleep(_POLL_S)


def next_line(process: subprocess.Popen[str], what: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return the next line of a process's output; empty at the end of the output.

    Raises ``AssertionError`` with ``what`` when the time is over. The process prints one line at a
    time: it does not print the next before this one was read.
    """
    assert process.stdout is not None
    limit_s = scaled(timeout_s)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(limit_s):
            raise AssertionError(f"{what}: not within {limit_s:g} s")
    return process.stdout.readline()


def await_end(process: subprocess.Popen[str], what: str, timeout_s: float = TIMEOUT_S) -> str:
    """Wait for the end of a process, and return what it printed on standard error.

    Raises ``AssertionError`` with ``what`` when the time is over.
    """
    limit_s = scaled(timeout_s)
    try:
        return process.communicate(timeout=limit_s)[1] or ""
    except subprocess.TimeoutExpired:
        if process.poll() is None:
            raise AssertionError(f"{what} has not ended within {limit_s:g} s") from None
        return ""  # a process that it started has its output still open
