"""How much memory large requests may take together; a connection that needs more waits in line.

Memory is reserved as the bytes of a request arrive: what a client announces costs the others
nothing. Kafka's ``MemoryPool`` reserves what is announced, at once.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import Final

_SEQUENCE: Final = itertools.count()
_by_age: Final = attrgetter("sequence")


class Reservation:
    """What one request holds; ``on_granted`` is called when a wait for more is over."""

    __slots__ = ("on_granted", "received_before", "sequence", "size", "wanted")

    def __init__(self, on_granted: Callable[[], None]) -> None:
        self.on_granted = on_granted
        self.sequence = next(_SEQUENCE)
        self.size = 0
        self.wanted = 0  # 0: it does not wait
        self.received_before: int | None = None  # when its pace was last measured


class RequestMemory:
    """``limit`` bytes for all connections of a listener.

    The oldest request goes first. When all memory is held by requests that wait for more, none
    could ever go on, so the oldest one may exceed the limit: at most by the size of a request.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._held_in_line = 0
        self._line: list[Reservation] = []  # by age

    @property
    def is_short(self) -> bool:
        """Whether a request waits for memory."""
        return bool(self._line)

    def reserve(self, reservation: Reservation, size: int) -> bool:
        """Let ``reservation`` grow to ``size`` bytes; False: it waits in line."""
        reservation.wanted = size
        insort(self._line, reservation, key=_by_age)
        self._held_in_line += reservation.size
        self._grant(but_tell=reservation)
        return not reservation.wanted

    def release(self, reservation: Reservation) -> None:
        """Give back what ``reservation`` holds, and wait no more; others may go on. Idempotent."""
        if reservation.wanted:
            self._line.remove(reservation)
            self._held_in_line -= reservation.size
            reservation.wanted = 0
        self._used -= reservation.size
        reservation.size = 0
        self._grant()

    def _grant(self, but_tell: Reservation | None = None) -> None:
        """Let those in line go on; ``but_tell`` learns of it otherwise."""
        while self._line:
            first = self._line[0]
            used = self._used + first.wanted - first.size
            if used > self._limit and self._held_in_line < self._used:
                return
            del self._line[0]
            self._held_in_line -= first.size
            self._used = used
            first.size, first.wanted = first.wanted, 0
            if first is not but_tell:
                first.on_granted()
