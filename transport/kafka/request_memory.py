"""The memory of large requests: its limit, and the buffers that are used again.

A connection that needs more than the limit allows waits in a queue.

Memory is reserved as the bytes of a request arrive, so that an announced size costs other clients
little. Kafka's ``MemoryPool`` reserves the announced size at once.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final

_SEQUENCE: Final = itertools.count()
_by_age: Final = attrgetter("sequence")
_AMPLE_BYTES: Final = 1024 * 1024
_AMPLE_SHARE: Final = 8  # at most an eighth of what is free
LIMIT_BYTES: Final = 12 * 1024 * 1024
_ROUNDED_BYTES: Final = 64 * 1024
_MAX_WASTE: Final = 2  # times the size that is asked for
_LOOKS: Final = 8  # with many clients most are in use, and each look takes a microsecond


class Reservation:
    """The memory of one request; ``on_granted`` is called when a wait for more ends."""

    __slots__ = ("on_granted", "received_before", "sequence", "size", "wanted")

    def __init__(self, on_granted: Callable[[], None]) -> None:
        self.on_granted = on_granted
        self.sequence = next(_SEQUENCE)
        self.size = 0
        self.wanted = 0  # 0: it does not wait
        self.received_before: int | None = None  # when its pace was last measured


class RequestMemory:
    """``limit`` bytes for all connections of a listener.

    The oldest request is first. If all memory is held by requests that wait for more, the oldest
    may exceed the limit, at most by the size of a request; else none could continue. ``on_short``
    is called when a request begins to wait.
    """

    def __init__(self, limit: int, on_short: Callable[[], object] = lambda: None) -> None:
        self._limit = limit
        self._on_short = on_short
        self._used = 0
        self._held_in_line = 0
        self._line: list[Reservation] = []  # by age

    @property
    def is_short(self) -> bool:
        """Whether a request waits for memory."""
        return bool(self._line)

    @property
    def ample_bytes(self) -> int:
        """How many bytes a request may reserve before they arrive: it is received in fewer pieces.

        It is little where memory is short.
        """
        return min(_AMPLE_BYTES, max(0, self._limit - self._used) // _AMPLE_SHARE)

    def reserve(self, reservation: Reservation, size: int) -> bool:
        """Let ``reservation`` grow to ``size`` bytes; False: it waits in the queue."""
        reservation.wanted = size
        insort(self._line, reservation, key=_by_age)
        self._held_in_line += reservation.size
        self._grant(but_tell=reservation)
        if not reservation.wanted:
            return True
        self._on_short()
        return False

    def release(self, reservation: Reservation) -> None:
        """Release the memory of ``reservation``, and end its wait; others continue. Idempotent."""
        if reservation.wanted:
            self._line.remove(reservation)
            self._held_in_line -= reservation.size
            reservation.wanted = 0
        self._used -= reservation.size
        reservation.size = 0
        self._grant()

    def _grant(self, but_tell: Reservation | None = None) -> None:
        """Grant memory to the queue; ``but_tell`` gets no call."""
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


class RequestBuffers:
    """Keeps about ``limit`` bytes, in use or free; what nothing refers to is used again.

    A new ``bytearray`` is filled with zeros, and its pages are not in a cache of the processor: for
    batches of a megabyte that is a twentieth of a broker's time.

    Use it on one thread. Views of what it returns may end on any thread.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._kept: deque[bytearray] = deque()  # first: looked at longest ago
        self.size = 0
        """The number of bytes that are kept."""

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes of any content, to which no other view refers."""
        for _ in range(min(_LOOKS, len(self._kept))):
            buffer = self._kept[0]
            self._kept.rotate(-1)
            if size <= len(buffer) <= _MAX_WASTE * size and _is_free(buffer):
                return memoryview(buffer)[:size]
        # Room for one more byte, so that ``_is_free`` moves nothing.
        buffer = bytearray(size - size % -_ROUNDED_BYTES + 1)
        del buffer[-1]
        self._kept.append(buffer)
        self.size += len(buffer)
        while self.size > self._limit:
            self.size -= len(self._kept.popleft())
        return memoryview(buffer)[:size]

    def release(self) -> None:
        """Release what is free."""
        self._kept = deque(buffer for buffer in self._kept if not _is_free(buffer))
        self.size = sum(map(len, self._kept))


def _is_free(buffer: bytearray) -> bool:
    """Whether no view refers to a buffer: Python refuses to change the length of one in use."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    del buffer[-1]
    return True
