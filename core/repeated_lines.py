"""Log lines about a condition that lasts: at once, and then once in ten seconds."""

from __future__ import annotations

from collections.abc import Hashable

REPEATED_EVERY_MS = 10_000
_MAX_CONDITIONS = 1_000


class RepeatedLines:
    """Tells which lines are due. ``now_ms`` is of any one clock. Not thread-safe."""

    def __init__(self) -> None:
        self._logged_ms: dict[Hashable, int] = {}  # when the line about a condition was logged

    def is_due(self, condition: Hashable, now_ms: int) -> bool:
        """Whether to log a line about ``condition`` now; the next one is due much later."""
        if self._is_recent(self._logged_ms.get(condition), now_ms):
            return False
        if len(self._logged_ms) >= _MAX_CONDITIONS:
            recent = {c: at for c, at in self._logged_ms.items() if self._is_recent(at, now_ms)}
            self._logged_ms = recent
            if len(recent) >= _MAX_CONDITIONS:
                return False
        self._logged_ms[condition] = now_ms
        return True

    @staticmethod
    def _is_recent(logged_ms: int | None, now_ms: int) -> bool:
        """Whether a line was logged a short time ago; a clock that was set back tells nothing."""
        return logged_ms is not None and 0 <= now_ms - logged_ms < REPEATED_EVERY_MS
