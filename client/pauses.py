"""Pauses between polls, for conditions that send no notification."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

_FIRST_S: Final = 0.05
_GROWTH: Final = 1.5
_LONGEST_S: Final = 0.5


def pauses(deadline: float, longest_s: float = _LONGEST_S) -> Iterator[None]:
    """Yield at once and after growing pauses, the last time at ``deadline`` (monotonic seconds)."""
    pause_s = _FIRST_S
    while True:
        yield
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * _GROWTH, longest_s)
