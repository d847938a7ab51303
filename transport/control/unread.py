"""Limits the bytes that were sent to peers and not read yet; ZeroMQ keeps them in memory.

Each peer has a limit, and all peers of all ports together have one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import zmq

from regent.core.records import RecordBytes
from regent.transport.control.zmtp import LARGE_BYTES

MAX_UNREAD_BYTES: Final = 16 * 1024 * 1024
"""A peer with more unread bytes is sent nothing more until it has read some."""
MAX_UNREAD_BYTES_OF_ALL: Final = 256 * 1024 * 1024  # the default of queued_max_request_bytes


class Unread:
    """Counts the bytes sent to one peer that are still in our memory."""

    def __init__(self) -> None:
        self._tracked: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._tracked_bytes = 0
        self._bytes_since = 0

    @property
    def size(self) -> int:
        """The unread bytes, approximately: small frames count until a later large one is gone."""
        return self.known_size + self._bytes_since

    @property
    def known_size(self) -> int:
        """The bytes that are certainly unread."""
        while self._tracked and self._tracked[0][0].done:
            self._tracked_bytes -= self._tracked.popleft()[1]
        return self._tracked_bytes

    def frame(self, piece: RecordBytes) -> zmq.Frame:
        """Return the frame to send for a piece of a message."""
        self._bytes_since += len(piece)
        if self._bytes_since < LARGE_BYTES:
            return zmq.Frame(piece, copy=True)
        frame = zmq.Frame(piece, track=True, copy=False)
        assert frame.tracker is not None
        self._tracked.append((frame.tracker, self._bytes_since))
        self._tracked_bytes += self._bytes_since
        self._bytes_since = 0
        return frame


class _OfPort(NamedTuple):
    """The unread bytes of all peers of a port, and of the peer with the most."""

    size: int
    largest: int


class UnreadLimit:
    """A limit of unread bytes for the peers of all ports that share it. Thread-safe."""

    def __init__(self, limit: int = MAX_UNREAD_BYTES_OF_ALL) -> None:
        self._limit = limit
        self._ports: WeakKeyDictionary[object, _OfPort] = WeakKeyDictionary()

    def is_exceeded_by(self, port: object, size: int, largest: int) -> bool:
        """Note the unread bytes of ``port``; return whether to disconnect its peer with the most.

        True when all ports together exceed the limit, and no peer of another port has more.
        """
        self._ports[port] = _OfPort(size, largest)
        ports = list(self._ports.copy().values())
        is_too_much = sum(of_port.size for of_port in ports) > self._limit
        return is_too_much and largest == max(of_port.largest for of_port in ports)


OF_ALL_PORTS: Final = UnreadLimit()
"""The limit that all ports share."""
