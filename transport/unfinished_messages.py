"""Cuts off peers whose message does not end.

ZeroMQ bounds the size of a frame and not the number of frames: a message is delivered when its
last one is there, and all that came before is kept until then, without a limit. So the bytes that
came on each connection of a listening socket are compared with the messages it has delivered.

Only where the kernel tells how much a connection has received (Linux).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

CHECK_INTERVAL_S: Final = 0.2

_HEARTBEATS_BYTES_PER_S: Final = 100  # several times as much as they are
_LIBC: Final = ctypes.CDLL(None)
_NO_ADDRESS: Final = bytes(16)
_RECEIVED: Final = struct.Struct("=128xQ")  # tcp_info.tcpi_bytes_received


class _Mark(NamedTuple):
    """How much had come when a message was delivered, or the connection was new; and when."""

    received: int
    at: float


class UnfinishedMessages:
    """Watches the connections to ``port``; ``limit`` bytes may come without a whole message.

    Belongs to the thread of the socket.
    """

    def __init__(self, port: int, limit: int, on_cut_off: Callable[[str], None]) -> None:
        self._port = port
        self._limit = limit
        self._on_cut_off = on_cut_off
        self._marks: dict[int, _Mark] = {}  # by descriptor
        self._delivered: set[int] = set()
        self._check_at = 0.0

    def on_accepted(self, descriptor: int) -> None:
        """Watch a connection."""
        self._marks[descriptor] = _Mark(0, time.monotonic())

    def on_message(self, descriptor: int) -> None:
        """Note that a connection has delivered a whole message."""
        self._delivered.add(descriptor)

    def check(self) -> None:
        """Look at every connection, unless that was done just now."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_INTERVAL_S
        for descriptor in list(self._marks):
            try:
                # The number may be another file's by now.
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    self._look_at(connection, descriptor)
            except OSError:
                del self._marks[descriptor]
        self._delivered.clear()

    def _look_at(self, connection: socket.socket, descriptor: int) -> None:
        if connection.getsockname()[1] != self._port:
            raise OSError("it is another connection's")
        (received,) = _RECEIVED.unpack(
            connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        )
        mark, now = self._marks[descriptor], time.monotonic()
        if descriptor in self._delivered or received < mark.received:
            self._marks[descriptor] = _Mark(received, now)
        elif received > mark.received + self._limit + _HEARTBEATS_BYTES_PER_S * (now - mark.at):
            peer = connection.getpeername()[0]
            self._on_cut_off(f"{received - mark.received} bytes of {peer} and no whole message")
            # An address of no family: the connection is reset at once, whatever still comes
            # (connect(2)). Closing or shutting down a descriptor of ours would not do that.
            _LIBC.connect(connection.fileno(), _NO_ADDRESS, len(_NO_ADDRESS))
            del self._marks[descriptor]
