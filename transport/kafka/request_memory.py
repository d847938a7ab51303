"""How much memory large requests may take together; who wants more waits in line."""

from __future__ import annotations

from collections.abc import Callable


class RequestMemory:
    """``limit`` bytes for all connections of a listener. Mirrors Kafka's ``MemoryPool``.

    A request that is larger than the limit is let through when it is alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: dict[Callable[[], None], int] = {}

    def reserve(self, size: int, on_granted: Callable[[], None]) -> bool:
        """Reserve ``size`` bytes; if that must wait, ``on_granted`` is called once it is done.

        The same ``on_granted`` may wait only once at a time.
        """
        if self._waiting or not self._has_room(size):
            self._waiting[on_granted] = size
            return False
        self._used += size
        return True

    def release(self, size: int) -> None:
        """Give ``size`` bytes back; whoever waits may go on."""
        self._used -= size
        self._grant()

    def cancel(self, on_granted: Callable[[], None]) -> None:
        """Wait no more; nothing happens when nobody did."""
        self._waiting.pop(on_granted, None)
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            on_granted, size = next(iter(self._waiting.items()))
            if not self._has_room(size):
                return
            del self._waiting[on_granted]
            self._used += size
            on_granted()

    def _has_room(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._limit
