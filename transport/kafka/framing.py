"""The bytes of one connection: splits what arrives into requests, and sends responses in sequence.

A request is four bytes of size and what follows. Neither requests nor responses are copied. A
request is a writable view of the memory that it was received into, so
that record batches are patched in place and written to disk from there. This memory is used again
only when nothing refers to it.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from regent.core.errors import StorageError
from regent.core.records import HasFileno, RecordBytes, Records
from regent.transport.kafka.primitives import MalformedRequestError
from regent.transport.kafka.request_memory import RequestBuffers

CHUNK_BYTES: Final = 64 * 1024  # smaller requests share one piece of memory

_FIRST_CHUNK_BYTES: Final = 4 * 1024  # enough for clients that send little, as most do
_SIZE: Final = struct.Struct(">i")
_API_KEY: Final = struct.Struct(">h")
_TLS_HANDSHAKE: Final = 0x1603  # how a connection with TLS begins
_MIN_REQUEST_BYTES: Final = 8  # key, version and correlation id
_MIN_ROOM_SHARE: Final = 8  # at least an eighth of a chunk is free for the next bytes
_ALL: Final = 2**31
_MAPPED_BYTES: Final = 1024 * 1024  # larger buffers use no memory before their bytes arrive


SENDFILE_MIN_BYTES: Final = 64 * 1024  # less is faster to read and send
TURN_BYTES: Final = 1024 * 1024  # sent in one turn; then other connections send
_PIECES_AT_ONCE: Final = 64
_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)  # Linux: wait for more before sending


class UnexpectedTlsError(MalformedRequestError):
    """The first bytes of a connection are those of TLS."""


class FrameBuffer:
    """The bytes of one connection that were received and not taken."""

    __slots__ = (
        *("_buffers", "_chunk_bytes", "_end", "_max_bytes", "_memory", "_min_bytes", "_start"),
    )

    def __init__(self, max_bytes: int, buffers: RequestBuffers) -> None:
        self._max_bytes = max_bytes
        self._min_bytes = _MIN_REQUEST_BYTES
        self._buffers = buffers
        self._chunk_bytes = _FIRST_CHUNK_BYTES
        self._memory = memoryview(b"")
        self._start = 0  # of what was not taken
        self._end = 0  # of what was received

    def limit(self, max_bytes: int, *, has_headers: bool) -> None:
        """Accept requests of up to ``max_bytes`` from now on, with headers or without."""
        self._max_bytes = max_bytes
        self._min_bytes = _MIN_REQUEST_BYTES if has_headers else 0

    def room(self, large_bytes: int = _ALL) -> memoryview:
        """Return the memory for the next bytes: never empty, and enough for a begun request.

        Of a request larger than a chunk, no more than a chunk or ``large_bytes`` are received.
        """
        size = self.next_size
        capacity = len(self._memory)
        needed = _SIZE.size if size is None else _SIZE.size + size
        if needed > self._chunk_bytes:
            self._chunk_bytes = CHUNK_BYTES
        least_room = self._chunk_bytes // _MIN_ROOM_SHARE if size is None else 1
        if capacity - self._start < needed or capacity - self._end < least_room:
            self._move(max(self._chunk_bytes, needed))
        if needed <= CHUNK_BYTES:
            return self._memory[self._end :]
        return self._memory[self._end : self._start + _SIZE.size + max(large_bytes, CHUNK_BYTES)]

    def received(self, count: int) -> None:
        """Note that ``count`` bytes came into ``room()``."""
        self._end += count
        if self._end == len(self._memory):  # there may be more to come
            self._chunk_bytes = CHUNK_BYTES

    def shrink(self) -> None:
        """Release unused memory."""
        if self._start == self._end:
            self._memory = memoryview(b"")
            self._start = self._end = 0
            self._chunk_bytes = _FIRST_CHUNK_BYTES

    @property
    def size(self) -> int:
        """The number of received bytes that were not taken."""
        return max(0, self._end - self._start - _SIZE.size)

    @property
    def next_size(self) -> int | None:
        """The size of the next request, complete or not; None: it is not known yet.

        Raises ``MalformedRequestError`` when no request is of that size.
        """
        if self._end - self._start < _SIZE.size:
            return None
        size: int = _SIZE.unpack_from(self._memory, self._start)[0]
        if not self._min_bytes <= size <= self._max_bytes:
            if size >> 16 == _TLS_HANDSHAKE:
                raise UnexpectedTlsError("the client speaks TLS, and this listener does not")
            raise MalformedRequestError(
                f"a request of {size} bytes; {self._min_bytes} to {self._max_bytes} are accepted"
            )
        return size

    @property
    def lacking(self) -> int:
        """How many bytes of a begun request are still to come; 0: its size is not known yet."""
        size = self.next_size
        return 0 if size is None else max(0, size - self.size)

    @property
    def api_key(self) -> int:
        """The API key of the next request, whose first bytes were received."""
        key: int = _API_KEY.unpack_from(self._memory, self._start + _SIZE.size)[0]
        return key

    @property
    def has_request(self) -> bool:
        """Whether the next request is complete."""
        size = self.next_size
        return size is not None and size <= self.size

    def take(self) -> memoryview | None:
        """Take the next request; None while it is not complete."""
        size = self.next_size
        if size is None or size > self.size:
            return None
        start = self._start + _SIZE.size
        self._start = start + size
        return self._memory[start : self._start]

    def _move(self, capacity: int) -> None:
        """Continue in new memory, with the bytes that were not taken."""
        rest = self._memory[self._start : self._end]
        if capacity >= _MAPPED_BYTES:
            self._memory = memoryview(mmap.mmap(-1, capacity))
        elif capacity > CHUNK_BYTES:
            self._memory = self._buffers.take(capacity)
        else:
            self._memory = memoryview(bytearray(capacity))
        self._memory[: len(rest)] = rest
        self._start, self._end = 0, len(rest)


@dataclass(slots=True)
class FilePart:
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
        self._parts: deque[memoryview | FilePart] = deque()

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
            self._parts.append(FilePart(where.file, where.position, piece.size))

    def send(self) -> int:
        """Send what the socket accepts, up to ``TURN_BYTES``; return the number of bytes.

        Raises ``ConnectionError`` when the connection is broken, ``StorageError`` when a file is
        too short or cannot be read.
        """
        total = 0
        while self._parts and total < TURN_BYTES:
            first = self._parts[0]
            try:
                if isinstance(first, FilePart):
                    total += self._send_file(first)
                else:
                    total += self._send_memory()
            except BlockingIOError:
                break
            except OSError as error:  # no route, no answer in time, or the peer has left
                raise ConnectionError(*error.args) from None
        self.size -= total
        return total

    def _send_file(self, part: FilePart) -> int:
        count = min(part.size, TURN_BYTES)
        try:
            sent = os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, count)
        except OSError as error:
            if error.errno != errno.EIO:  # a socket never has this error
                raise
            raise StorageError(f"a segment cannot be read: {error}") from None
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
            if isinstance(part, FilePart):
                return
            yield part
