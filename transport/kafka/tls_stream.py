"""Handshakes of TLS, and a connection with TLS for a thread that waits."""

from __future__ import annotations

import select
import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Final

CLIENT_HANDSHAKE_S: Final = 5.0
_THROWN_AWAY: Final = 64 * 1024  # bytes; no client sends more before its handshake is complete
_POLL_ERRORS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
_REASONS: Final = {
    "HTTP_REQUEST": "the client does not speak TLS",
    "HTTPS_PROXY_REQUEST": "the client does not speak TLS",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the client speaks an old version of TLS only",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate",
    "NO_SHARED_CIPHER": "the client has none of our ciphers",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not trust our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not trust our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds our certificate expired",
}
"""What OpenSSL calls the failures that are seen most, in other words."""


class TlsStream:
    """A connection with TLS for a thread that waits for each answer.

    It has the methods of a blocking socket that ``BrokerConnection`` uses. Any thread may send with
    ``MSG_DONTWAIT`` and shut down; OpenSSL is used by one thread at a time, and never while that
    waits.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """Take a socket before its handshake."""
        self._socket = sock
        self._lock = threading.Lock()
        self.timeout_s: float | None = None
        """The time for each call that waits."""

    def handshake(self, timeout_s: float) -> None:
        """Do a whole handshake. Raises ``OSError``, which says why."""
        try:
            complete_handshake(self._socket, time.monotonic() + timeout_s)
        except OSError as error:
            raise OSError(failure(error)) from None

    def recv_into(self, memory: memoryview) -> int:
        """Wait for bytes; return how many came, 0: the other side has closed."""
        while True:
            with self._lock:
                try:
                    return self._socket.recv_into(memory)
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            self._wait(event)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Wait for bytes, or with flags raise ``BlockingIOError`` if none have come."""
        if not flags:
            memory = bytearray(size)
            return bytes(memory[: self.recv_into(memoryview(memory))])
        with self._lock:
            try:
                return self._socket.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def sendall(self, data: bytes) -> None:
        """Send all, and wait for it."""
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._socket.send(rest) :]
                    continue
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                except ssl.SSLWantReadError:
                    event = select.POLLIN
            self._wait(event)

    def send(self, data: bytes, flags: int) -> int:
        """Send at once, and never wait; return how much went out."""
        del flags
        with self._lock:
            try:
                return self._socket.send(data)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return 0

    def shutdown(self, how: int) -> None:
        """Cut the connection off; who waits is woken."""
        socket.socket.shutdown(self._socket, how)

    def close(self) -> None:
        """Close at once."""
        self._socket.close()

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket, event | _POLL_ERRORS)
        limit_ms = None if self.timeout_s is None else max(1.0, self.timeout_s * 1000)
        if not poll.poll(limit_ms):
            raise TimeoutError("no answer in time")


def complete_handshake(sock: ssl.SSLSocket, deadline: float) -> None:
    """Do a whole handshake until an instant of the monotonic clock. Raises ``OSError``."""
    sock.setblocking(False)
    with selectors.DefaultSelector() as selector:
        while True:
            try:
                sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                event = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                event = selectors.EVENT_WRITE
            left_s = deadline - time.monotonic()
            selector.register(sock, event)
            if left_s <= 0 or not selector.select(left_s):
                raise TimeoutError("the handshake took too long")
            selector.unregister(sock)


def close_refused(sock: socket.socket) -> None:
    """Close a socket after a handshake that failed.

    What has come is thrown away first: while there is some, a close resets the connection, and
    the client may not see the alert that says why.
    """
    with suppress(OSError):
        socket.socket.recv(sock, _THROWN_AWAY, socket.MSG_DONTWAIT)
    sock.close()


def has_left(error: BaseException) -> bool:
    """Return whether a handshake ended because the other side closed the connection."""
    return isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError)


def reason_of(error: BaseException) -> str:
    """Return why a handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if has_left(error):
        return "the other side left during the handshake"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _REASONS.get(reason, reason.lower().replace("_", " "))
    return str(error)


def failure(error: OSError) -> str:
    """Return why a handshake failed, as the client sees it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the server is not accepted: {error.verify_message}: is"
            " ssl_truststore_location (ssl.truststore.location) that of its authority?"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "the server does not speak TLS"
    return f"the handshake of TLS failed: {reason_of(error)}"
