"""Log lines about a condition that lasts: at once, and then once in ten seconds."""

from __future__ import annotations

from collections.abc import Hashable

REPEATED_EVERY_MS = 10_000
_MAX_CONDITIONS = 1_000


class RepeatedLines:
    """Tells which lines are due. ``now_ms`` is monotonic. Not thread-safe."""

    def __init__(self) -> None:
        self._next_ms: dict[Hashable, int] = {}  # when the line about a condition is due again

    def is_due(self, condition: Hashable, now_ms: int) -> bool:
        """Whether to log a line about ``condition`` now; if so, it is due again much later."""
        if now_ms < self._next_ms.get(condition, now_ms):
            return False
        if len(self._next_ms) >= _MAX_CONDITIONS:
            self._next_ms = {c: due for c, due in self._next_ms.items() if now_ms < due}
            if len(self._next_ms) >= _MAX_CONDITIONS:
                return False
        self._next_ms[condition] = now_ms + REPEATED_EVERY_MS
        return True
