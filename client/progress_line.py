"""Progress of a long job on stderr: a changing line on a terminal, one line a minute elsewhere.

Also its speed in the last minutes, and the time that is left.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from typing import Final, Self

_HEARTBEAT_S: Final = 60.0
_ERASE: Final = "\r\x1b[K"
_WINDOW_S: Final = 300.0
_SAMPLE_S: Final = 1.0
_UNITS: Final = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


class ProgressLine:
    """The last line of a terminal, which disappears at the end; elsewhere, a line a minute."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            _print(_ERASE)

    def show(self, text: str) -> None:
        """Replace the line by ``text``; without a terminal, print one line a minute."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            _print(_ERASE + text[:width])
        elif time.monotonic() >= self._next_heartbeat:
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        _print(f"{_ERASE if self._is_terminal else ''}{text}\n")
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_S


def _print(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class Speed:
    """How fast the work that is left has become less, per second, in the last ``window_s``."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now: float, left: int) -> None:
        """Note the work that is left at a time (monotonic seconds)."""
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now, left))
        while self._samples[0][0] < now - self._window_s:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """The mean; 0 when it is not known."""
        return self.measured or 0.0

    @property
    def measured(self) -> float | None:
        """The mean; None when it is not known."""
        if len(self._samples) < 2:
            return None
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
