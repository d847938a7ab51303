"""The speed of an execution in the last minutes, and the time that is left."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW_S: Final = 300.0
_SAMPLE_S: Final = 1.0
_UNITS: Final = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


class Speed:
    """How fast the work that is left has become less, per second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now: float, left: int) -> None:
        """Note the work that is left at a time (monotonic seconds)."""
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, left))
        while self._samples[0][0] < now - _WINDOW_S:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """The mean of the last five minutes; 0 when it is not known."""
        if len(self._samples) < 2:
            return 0.0
        (began, before), (now, left) = self._samples[0], self._samples[-1]
        return max(0.0, (before - left) / (now - began))


def seconds_left(left: int, per_second: float) -> int | None:
    """Return the seconds that ``left`` takes; None when that is not known."""
    return round(left / per_second) if per_second > 0 and left else None


def in_words(seconds: int | None) -> str:
    """Return "about 12 min left", or nothing."""
    if seconds is None:
        return ""
    for size, name in _UNITS:
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {name} left"
    return f"about {seconds} s left"
