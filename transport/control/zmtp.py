"""ZMTP 3.1, the protocol of ZeroMQ, as a ROUTER speaks it without security; no I/O here.

ZeroMQ itself bounds the size of a frame and not the number of frames, and it keeps the frames of a
message that does not end without a limit: 8 MB of empty frames take 250 MB there, and seconds
to read. Here a message is limited as a whole, before memory is taken for it.

The specification is https://rfc.zeromq.org/spec/37/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from regent.core.errors import RegentError
from regent.core.records import RecordBytes

MAX_FRAMES: Final = 16
"""Maximum number of frames in a message of a peer."""
LARGE_BYTES: Final = 64 * 1024  # from here ZeroMQ sends without copying (``zmq.COPY_THRESHOLD``)
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)

_MAJOR_VERSION: Final = 10  # where it is in a greeting
_MECHANISM: Final = slice(12, 32)
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_FLAGS: Final = {0, _MORE, _LONG, _MORE | _LONG, _COMMAND, _COMMAND | _LONG}
_LONG_SIZE: Final = struct.Struct(">Q")
_MAX_COMMAND_BYTES: Final = 4096
_TTL_BYTES: Final = 2  # of a PING; the PONG repeats what follows
_MAX_CONTEXT_BYTES: Final = 16


class PeerError(RegentError):
    """A peer violated the protocol; its connection must be closed."""


class NotZmtpError(PeerError):
    """A peer that does not speak ZMTP 3 without security."""


class MessageTooLargeError(PeerError):
    """A message of more bytes or frames than allowed."""


def _frame_header(flags: int, size: int) -> bytes:
    if size < 256:
        return bytes((flags, size))
    return bytes((flags | _LONG,)) + _LONG_SIZE.pack(size)


def _command(name: bytes, data: bytes) -> bytes:
    body = bytes((len(name),)) + name + data
    return _frame_header(_COMMAND, len(body)) + body


_READY: Final = _command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER")
PING: Final = _command(b"PING", bytes(_TTL_BYTES))


def message_pieces(frames: Sequence[RecordBytes]) -> Iterator[RecordBytes]:
    """Yield the bytes of a message; a large frame is a piece of its own and is not copied."""
    small = bytearray()
    for number, frame in enumerate(frames, start=1):
        small += _frame_header(_MORE if number < len(frames) else 0, len(frame))
        if len(frame) < LARGE_BYTES:
            small += frame
        else:
            yield small
            yield frame
            small = bytearray()
    if small:
        yield small


class ZmtpConnection:
    """Decodes the bytes of ``peer`` (a name for messages), and makes the protocol's answers."""

    def __init__(self, peer: str, max_message_bytes: int) -> None:
        self.is_ready = False
        """Whether the peer has introduced itself."""
        self.peer = peer
        self._max_message_bytes = max_message_bytes
        self._is_greeted = False
        self._received = bytearray()
        self._position = 0  # of the next frame in it
        self._frames: list[RecordBytes] = []  # of the message that has not ended
        self._message_bytes = 0
        self._to_send = bytearray(GREETING)

    @property
    def held_bytes(self) -> int:
        """The bytes of a message that has not ended."""
        return len(self._received) + self._message_bytes

    def take_to_send(self) -> bytes:
        """Return and remove the bytes to send now."""
        data, self._to_send = bytes(self._to_send), bytearray()
        return data

    def receive(self, data: bytes) -> list[list[RecordBytes]]:
        """Decode bytes of the peer; return the complete messages, each as its frames.

        Raises NotZmtpError or MessageTooLargeError; then the connection must be closed.
        """
        self._received += data
        messages = []
        if self._is_greeted or self._read_greeting():
            while (frame := self._next_frame()) is not None:
                flags, body = frame
                if flags & _COMMAND:
                    self._on_command(bytes(body))
                    continue
                self._frames.append(body)
                self._message_bytes += len(body)
                if not flags & _MORE:
                    messages.append(self._frames)
                    self._frames, self._message_bytes = [], 0
        del self._received[: self._position]
        self._position = 0
        return messages

    def _read_greeting(self) -> bool:
        """Return whether the greeting is complete."""
        if not self._received.startswith(GREETING[:1]):
            raise NotZmtpError(f"{self.peer}: no greeting of ZMTP")
        if len(self._received) < len(GREETING):
            return False
        greeting = self._received[: len(GREETING)]
        if greeting[_MAJOR_VERSION] < GREETING[_MAJOR_VERSION]:
            raise NotZmtpError(f"{self.peer}: ZMTP of version {greeting[_MAJOR_VERSION]}")
        if greeting[_MECHANISM] != GREETING[_MECHANISM]:
            raise NotZmtpError(f"{self.peer}: another security mechanism than NULL")
        self._is_greeted = True
        self._position = len(GREETING)
        return True

    def _next_frame(self) -> tuple[int, RecordBytes] | None:
        """Return flags and body of the next frame, ``None`` until it is complete."""
        received, start = self._received, self._position
        if len(received) < start + 2:
            return None
        flags, size = received[start], received[start + 1]
        start += 2
        if flags not in _FLAGS:
            raise NotZmtpError(f"{self.peer}: a frame with flags {flags}")
        if flags & _LONG:
            start += _LONG_SIZE.size - 1
            if len(received) < start:
                return None
            (size,) = _LONG_SIZE.unpack_from(received, start - _LONG_SIZE.size)
        self._check_size(flags, size)
        end = start + size
        if len(received) < end:
            return None
        if size >= LARGE_BYTES:  # not copied: a copy would delay all other peers
            self._received, self._position = received[end:], 0
            del received[end:], received[:start]
            return flags, received
        self._position = end
        with memoryview(received) as view:
            return flags, bytes(view[start:end])

    def _check_size(self, flags: int, size: int) -> None:
        if flags & _COMMAND:
            if size > _MAX_COMMAND_BYTES:
                raise NotZmtpError(f"{self.peer}: a command of {size} bytes")
            return
        if not self.is_ready:
            raise NotZmtpError(f"{self.peer}: a message before READY")
        if self._message_bytes + size > self._max_message_bytes:
            raise MessageTooLargeError(
                f"{self.peer}: {self._message_bytes + size} bytes exceed {self._max_message_bytes}"
            )
        if len(self._frames) == MAX_FRAMES:
            raise MessageTooLargeError(f"{self.peer}: more than {MAX_FRAMES} frames")

    def _on_command(self, body: bytes) -> None:
        name, data = body[1 : 1 + body[0]] if body else b"", body[1 + body[0] :] if body else b""
        if name == b"READY" and not self.is_ready:
            self.is_ready = True
            self._to_send += _READY
        elif name == b"PING" and self.is_ready:
            self._to_send += _command(b"PONG", data[_TTL_BYTES:][:_MAX_CONTEXT_BYTES])
        elif name != b"PONG" or not self.is_ready:
            raise NotZmtpError(f"{self.peer}: an unexpected command {name[:16]!r}")
