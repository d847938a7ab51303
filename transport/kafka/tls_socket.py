"""The bytes of a connection with TLS: what takes the place of a socket, and how it sends.

The facts behind it: a piece that was refused must come again and not shorter, what TLS has
decrypted is not seen by a selector, and without TLS in the kernel ``sendfile`` would send clear
text.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from typing import Final

from regent.core.errors import StorageError
from regent.transport.kafka.framing import TURN_BYTES, FilePart, Outgoing
from regent.transport.kafka.primitives import MalformedRequestError

_PIECE_BYTES: Final = 64 * 1024  # larger ones are not faster
_READ_BYTES: Final = 256 * 1024  # received in one turn
_HAS_LEFT: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_WAKE_BYTES: Final = 64 * 1024  # less is not worth a turn, if more of a request must come
_RECORD_BYTES: Final = 17 * 1024  # the most that one record takes


class TlsSocket:
    """A connection with TLS, as far as a socket without it is used; it does not block.

    Of what the other side sent, TLS may hold a part that the selector does not see: who waits for
    more must look at ``has_more`` first.
    """

    __slots__ = ("_least_bytes", "socket")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.socket = sock
        self._least_bytes = 1

    def fileno(self) -> int:
        """Return the number for a selector."""
        return self.socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether bytes were received and decrypted that were not taken."""
        return self.socket.pending() > 0

    def expect(self, lacking: int) -> None:
        """Let the selector wait for more than a byte while a request lacks so many bytes.

        Encrypted they are more, but a part of a record may have been read already. To wake up and
        to find nothing more costs as much as to decrypt a record. The kernel reports an end of the
        connection, and a full buffer, at once.
        """
        least = _WAKE_BYTES if lacking >= _WAKE_BYTES + _RECORD_BYTES else 1
        if least != self._least_bytes:
            self._least_bytes = least
            with suppress(OSError):  # the other side has left
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def recv_into(self, memory: memoryview) -> int:
        """Receive what has come, up to the size of ``memory``; 0: the other side has closed.

        Raises ``BlockingIOError`` if nothing has come, ``ssl.SSLWantWriteError`` if TLS must send
        first what does not go out now, and other ``OSError``s when the connection is broken.
        """
        read, total, most = self.socket.read, 0, min(len(memory), _READ_BYTES)
        try:
            while total < most:
                count = read(most - total, memory[total:])  # one record of TLS at most
                if not count:
                    break
                total += int(count)
        except ssl.SSLWantReadError:
            if not total:
                raise BlockingIOError from None
        except OSError:
            if not total:
                raise
        return total

    def send(self, piece: memoryview | bytes) -> int:
        """Send what goes out now. After a ``BlockingIOError`` send the same piece again.

        Nothing has to be received to send: renegotiation is off. Raises ``ConnectionError`` when
        the connection is broken, ``MalformedRequestError`` when the other side broke TLS before.
        """
        try:
            return self.socket.send(piece)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except OSError as error:
            if isinstance(error, ssl.SSLError) and not isinstance(error, _HAS_LEFT):
                raise MalformedRequestError(error.reason or str(error)) from None
            raise ConnectionError(*error.args) from None

    def close(self) -> None:
        """Tell the other side, and close."""
        with suppress(OSError, ValueError):  # it may have left, and no answer is awaited
            self.socket.unwrap()
        self.socket.close()


AnySocket = socket.socket | TlsSocket


class TlsOutgoing(Outgoing):
    """Sends through TLS, which encrypts: the kernel cannot send from a file by itself."""

    __slots__ = ("_piece", "_tls")

    def __init__(self, sock: TlsSocket) -> None:
        super().__init__(sock.socket)
        self._tls = sock
        self._piece: memoryview | bytes = b""  # must go out next, and not less of it than before

    def send(self) -> int:
        """Send what the socket accepts, up to ``TURN_BYTES``; return the number of bytes."""
        total = 0
        while (self._piece or self._parts) and total < TURN_BYTES:
            piece = self._piece or self._next_piece()
            try:
                sent = self._tls.send(piece)
            except BlockingIOError:
                self._piece = piece
                break
            self._piece = memoryview(piece)[sent:]
            total += sent
        self.size -= total
        return total

    def _next_piece(self) -> memoryview | bytes:
        """Take small pieces together, each record of TLS costs; and large ones in parts."""
        pieces: list[memoryview | bytes] = []
        room = _PIECE_BYTES
        while self._parts and room:
            part = self._parts[0]
            if isinstance(part, FilePart):
                piece: memoryview | bytes = _read(part, room)
                if not part.size:
                    self._parts.popleft()
            else:
                piece = part[:room]
                if len(part) > room:
                    self._parts[0] = part[room:]
                else:
                    self._parts.popleft()
            room -= len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read(part: FilePart, most: int) -> bytes:
    """Take the next bytes of a file. Raises ``StorageError``."""
    try:
        found = os.pread(part.file.fileno(), min(part.size, most), part.position)
    except OSError as error:
        raise StorageError(f"a segment cannot be read: {error}") from None
    if not found:
        raise StorageError(f"{part.size} bytes are missing at {part.position} of a segment")
    part.position += len(found)
    part.size -= len(found)
    return found


def outgoing_to(sock: AnySocket) -> Outgoing:
    """Return what sends the bytes of a connection."""
    return TlsOutgoing(sock) if isinstance(sock, TlsSocket) else Outgoing(sock)
