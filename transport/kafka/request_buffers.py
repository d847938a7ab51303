"""Memory for large requests, which is used again when nothing refers to it any more.

A new ``bytearray`` is filled with zeros, and its pages are not in a cache of the processor: for
batches of a megabyte that is a twentieth of a broker's time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LIMIT_BYTES: Final = 12 * 1024 * 1024
_ROUNDED_BYTES: Final = 64 * 1024
_MAX_WASTE: Final = 2  # times the size that is asked for
_LOOKS: Final = 8  # with many clients most are in use, and each look takes a microsecond


class RequestBuffers:
    """Keeps about ``limit`` bytes, whether they are in use or free.

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
