"""Waiting for a condition in other processes, by polling."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from regent.core.errors import RegentError

T = TypeVar("T")

TIMEOUT_S = 20.0
_POLL_S = 0.02


def eventually(look: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Return the first true result of ``look``, which is called again and again.

    ``RegentError``, ``OSError`` and ``LookupError`` count as false. Raises ``AssertionError`` with
    ``what`` and the last result when the time is over.
    """
    deadline = monotonic() + timeout_s
    last: object = None
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = seen
        except (RegentError, OSError, LookupError) as error:
            last = error
        if monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s; last: {last!r}")
        sleep(_POLL_S)
