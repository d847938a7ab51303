"""Ends another thread's poll."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Wakeup:
    """Ends the poll of the thread that polls ``fileno()``; set from any thread.

    ``set`` does nothing once closed.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_open = True
        # Without the lock a late ``set`` could write to a descriptor that has been reused. It is
        # reentrant because a garbage collection inside ``set`` may call ``set``.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._reader.fileno()

    def set(self) -> None:
        """End the current poll, or else the next one."""
        with self._lock:
            if self._is_open:
                with suppress(BlockingIOError):  # enough of them are pending
                    self._writer.send(b"\0")

    def clear(self) -> None:
        """Discard all earlier calls of ``set``."""
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            self._is_open = False
            self._reader.close()
            self._writer.close()
