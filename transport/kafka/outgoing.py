"""Sends responses on one socket, in sequence, without copying from files or memory."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from regent.core.errors import StorageError
from regent.core.records import HasFileno, RecordBytes, Records

SENDFILE_MIN_BYTES: Final = 64 * 1024  # less is faster to read and send
TURN_BYTES: Final = 1024 * 1024  # sent in one turn; then other connections send
_PIECES_AT_ONCE: Final = 64
_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)  # Linux: wait for more before sending


@dataclass(slots=True)
class _FilePart:
    """The unsent part of a file."""

    file: HasFileno
    position: int
    size: int


class Outgoing:
    """The pieces that the socket has not accepted yet."""

    __slots__ = ("_parts", "_socket", "size")

    def __init__(self, sock: socket.socket) -> None:
        self.size = 0
        """The number of bytes to send."""
        self._socket = sock
        self._parts: deque[memoryview | _FilePart] = deque()

    def add(self, piece: RecordBytes | Records) -> None:
        """Send ``piece`` after the earlier ones. Raises ``StorageError``."""
        if isinstance(piece, bytes | bytearray | memoryview):
            if len(piece):
                self.size += len(piece)
                self._parts.append(memoryview(piece))
            return
        self.size += piece.size
        where = piece.file_range if piece.size >= SENDFILE_MIN_BYTES else None
        if where is None:
            self._parts.append(memoryview(piece.read()))
        else:
            self._parts.append(_FilePart(where.file, where.position, piece.size))

    def send(self) -> int:
        """Send what the socket accepts, up to ``TURN_BYTES``; return the number of bytes.

        Raises ``OSError`` when the peer left, ``StorageError`` when a file is too short.
        """
        total = 0
        while self._parts and total < TURN_BYTES:
            first = self._parts[0]
            try:
                if isinstance(first, _FilePart):
                    total += self._send_file(first)
                else:
                    total += self._send_memory()
            except BlockingIOError:
                break
        self.size -= total
        return total

    def _send_file(self, part: _FilePart) -> int:
        count = min(part.size, TURN_BYTES)
        sent = os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, count)
        if sent == 0:
            raise StorageError(f"{part.size} bytes are missing at {part.position} of a segment")
        part.position += sent
        part.size -= sent
        if part.size == 0:
            self._parts.popleft()
        return sent

    def _send_memory(self) -> int:
        pieces = list(self._leading_memory())
        is_all = len(pieces) == len(self._parts)
        sent = total = self._socket.sendmsg(pieces, (), 0 if is_all else _MSG_MORE)
        for piece in pieces:
            if sent < len(piece):
                self._parts[0] = piece[sent:]
                break
            sent -= len(piece)
            self._parts.popleft()
        return total

    def _leading_memory(self) -> Iterator[memoryview]:
        for part, _ in zip(self._parts, range(_PIECES_AT_ONCE), strict=False):
            if isinstance(part, _FilePart):
                return
            yield part
