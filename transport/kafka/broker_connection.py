"""A connection to another broker's Kafka protocol, for a thread that waits for each answer.

The thread reads and writes the socket itself: nothing is handed to another thread. Errors are
those of ``transport.client``. After an error the connection is closed, and the next request opens
a new one. Mirrors ``kafka.server.BrokerBlockingSender``.
"""

from __future__ import annotations

import itertools
import math
import socket
import struct
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from regent.config.addresses import host_of, port_of, resolve
from regent.config.closing import Closing
from regent.core.errors import Errors, RegentError
from regent.core.setting import INT_MAX
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestAbandonedError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
)
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.kafka_releases import ApiVersionsAnswer, Versions
from regent.transport.kafka.message_codec import decoded
from regent.transport.kafka.primitives import MalformedRequestError, Reader
from regent.transport.kafka.sasl_client import ClientSasl
from regent.transport.kafka.tls_stream import CLIENT_HANDSHAKE_S, TlsStream

if TYPE_CHECKING:  # it reads certificates with a library that is not loaded without TLS
    from regent.transport.kafka.client_security import ClientSecurity

AnyStream = socket.socket | TlsStream

MAX_RESPONSE_BYTES: Final = INT_MAX
"""As in Kafka: one batch may be as large as the largest request of a producer.

The memory for a response takes pages only as its bytes arrive.
"""

_HEADER: Final = struct.Struct(">ihhih")  # size, API key, version, correlation id, client id
_SIZE: Final = struct.Struct(">i")
_ANSWER_HEADER: Final = struct.Struct(">ii")  # size of what follows, correlation id
_NO_TAGGED_FIELDS: Final = b"\0"
_TIMEVAL: Final = struct.Struct("ll")
_KEPT_BYTES: Final = 16 * 1024 * 1024  # a larger buffer is not kept for the next response
_FIRST_BYTES: Final = 64 * 1024
_USED_LIFETIME: Final = 0.85  # of a login; Kafka's clients use up to 95 percent
_IDLE_S: Final = 0.1  # after that the peer may have closed the connection
# A host that has gone is noticed after some five seconds; a stopped process when a wait is over.
_SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 2),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 5_000),
        )
        if hasattr(socket, name)
    ),
)


class BrokerConnection:
    """Sends one request at a time to ``endpoint``; one thread uses and closes it.

    Only ``hurry`` may be called by any thread. ``security``: None if nothing is encrypted.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        client_id: str,
        connect_timeout_ms: int = 1000,
        security: ClientSecurity | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._sasl = None if security is None else security.sasl
        self._login_ends_at = math.inf  # a part of its time is over then
        self._client_id = client_id.encode()
        self._tls = None if security is None else security.tls
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._correlation_ids = itertools.count(1)
        self._socket: AnyStream | None = None
        self._timeout_s = 0.0  # of the socket
        self._used_at = 0.0
        self._versions: Versions | None = None
        self._buffer = bytearray(_FIRST_BYTES)
        self._rest = b""  # received after the last response
        self._hurry_lock = threading.Lock()
        self._awaiting: AnyStream | None = None  # a response
        self._is_in_a_hurry = False
        self._hurry_id: int | None = None  # the correlation id of the request that says so

    def exchange(
        self,
        api_key: KafkaApiKey,
        version: int,
        body: bytes,
        *,
        timeout_ms: int,
        closing: Closing | None = None,
    ) -> memoryview:
        """Send a request and return the body of its response, which the next call overwrites.

        Raises a ``RequestError``, soon after ``closing`` is set.
        """
        if len(self._buffer) > _KEPT_BYTES:
            self.keep_response()
        interrupting = nullcontext() if closing is None else closing.interrupting(self._interrupt)
        try:
            with interrupting:
                return self._exchange(api_key, version, body, timeout_ms / 1000, closing)
        except RequestError as error:
            self.close()
            self._check_open(closing, error)
            raise
        except (OSError, MalformedRequestError) as error:
            self.close()
            self._check_open(closing, error)
            raise self._as_request_error(error) from error

    def versions(self, *, timeout_ms: int, closing: Closing | None = None) -> Versions:
        """Return which requests the peer knows; it is asked once on each connection.

        Raises a ``RequestError``.
        """
        self._forget_peer_that_left()
        if self._versions is None:
            view = self.exchange(
                KafkaApiKey.API_VERSIONS, 0, b"", timeout_ms=timeout_ms, closing=closing
            )
            try:
                self._versions = decoded(ApiVersionsAnswer, view, 0, is_flexible=False).versions
            except MalformedRequestError as error:
                raise self.failed(error) from error
        return self._versions

    def hurry(self) -> None:
        """Let the peer answer the present request, or else the next one, without a further wait.

        The peer gets an ApiVersions request meanwhile. A broker of Kafka answers it after the
        present request, as usual: nothing is gained, and nothing lost.
        """
        with self._hurry_lock:
            self._is_in_a_hurry = True
            self._tell_hurry()

    def keep_response(self) -> None:
        """Keep the last response: the next one gets other memory."""
        self._buffer = bytearray(_FIRST_BYTES)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._versions = None  # another process may listen there next time
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def failed(self, why: object) -> RequestFailedError:
        """Close the connection to a peer that answered nonsense; return the error to raise."""
        self.close()
        reason = f"the peer does not speak Kafka's protocol as expected: {why}"
        return RequestFailedError(self.endpoint, Errors.UNKNOWN_SERVER_ERROR, reason)

    def _interrupt(self) -> None:
        sock = self._socket
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _check_open(self, closing: Closing | None, cause: Exception | None = None) -> None:
        if closing is not None and closing.is_set():
            raise RequestAbandonedError(
                self.endpoint, "closing while a request is in flight"
            ) from cause

    def _as_request_error(self, error: Exception) -> RequestError:
        match error:
            case MalformedRequestError():
                return self.failed(error)
            case BlockingIOError() | TimeoutError():
                return RequestTimeoutError(self.endpoint, "connected, but no answer in time")
            case _:
                return PeerDisconnectedError(self.endpoint, f"the connection broke: {error}")

    def _exchange(
        self,
        api_key: KafkaApiKey,
        version: int,
        body: bytes,
        timeout_s: float,
        closing: Closing | None,
    ) -> memoryview:
        deadline = time.monotonic() + timeout_s
        sock = self._connected(closing, timeout_s)
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[api_key]
        correlation_id = next(self._correlation_ids) & INT_MAX
        tagged_fields = _NO_TAGGED_FIELDS if is_flexible else b""
        sock.sendall(self._framed(api_key, version, correlation_id, tagged_fields + body))
        self._begin_wait(sock)
        try:
            response = self._receive(sock, correlation_id, deadline)
        finally:
            hurry_id = self._end_wait()
        if hurry_id is not None:
            self._receive_rest(sock, hurry_id)
        elif self._rest:
            raise MalformedRequestError(f"{len(self._rest)} bytes follow the response")
        self._used_at = time.monotonic()
        if not is_flexible:
            return response
        reader = Reader(response, is_flexible=True)
        reader.end_struct()
        return response[reader.position :]

    def _framed(
        self, api_key: KafkaApiKey, version: int, correlation_id: int, body: bytes
    ) -> bytes:
        size = _HEADER.size - _SIZE.size + len(self._client_id) + len(body)
        header = _HEADER.pack(size, api_key, version, correlation_id, len(self._client_id))
        return header + self._client_id + body

    def _begin_wait(self, sock: AnyStream) -> None:
        with self._hurry_lock:
            self._awaiting = sock
            if self._is_in_a_hurry:
                self._tell_hurry()

    def _end_wait(self) -> int | None:
        """Return the correlation id of the request that told the peer to hurry, if there is one."""
        with self._hurry_lock:
            self._awaiting = None
            self._is_in_a_hurry = False
            hurry_id, self._hurry_id = self._hurry_id, None
            return hurry_id

    def _tell_hurry(self) -> None:
        """Tell a peer once for each request. The caller's thread must not wait for the peer."""
        sock = self._awaiting
        if sock is None or self._hurry_id is not None:
            return
        correlation_id = next(self._correlation_ids) & INT_MAX
        frame = self._framed(KafkaApiKey.API_VERSIONS, 0, correlation_id, b"")
        with suppress(OSError):  # the peer reads nothing: the present request waits or fails too
            sent = sock.send(frame, socket.MSG_DONTWAIT)
            self._hurry_id = correlation_id
            if sent < len(frame):
                sock.shutdown(socket.SHUT_RDWR)

    def _connected(self, closing: Closing | None, timeout_s: float) -> AnyStream:
        """Return a connection, logged in if need be, whose waits end after ``timeout_s``."""
        self._forget_peer_that_left()
        is_new = self._socket is None
        sock = self._connect(closing) if self._socket is None else self._socket
        self._socket = sock
        self._limit(sock, timeout_s)
        if self._sasl is not None and (is_new or time.monotonic() >= self._login_ends_at):
            self._log_in(sock, self._sasl, time.monotonic() + timeout_s)
        return sock

    def _log_in(self, sock: AnyStream, sasl: ClientSasl, deadline: float) -> None:
        """Log in, or again on a connection whose login is about to end."""

        def ask(api_key: KafkaApiKey, version: int, body: bytes) -> memoryview:
            correlation_id = next(self._correlation_ids) & INT_MAX
            sock.sendall(self._framed(api_key, version, correlation_id, body))
            response = self._receive(sock, correlation_id, deadline)
            if self._rest:
                raise MalformedRequestError(f"{len(self._rest)} bytes follow the response")
            return response

        try:
            lifetime_ms = sasl.log_in(ask)
        except RequestError:
            raise
        except RegentError as error:  # the login is refused, or the secret cannot be read
            reason = str(error)
            failed = Errors.SASL_AUTHENTICATION_FAILED
            raise RequestFailedError(self.endpoint, failed, reason) from None
        lifetime_s = lifetime_ms / 1000 if lifetime_ms > 0 else math.inf
        self._login_ends_at = time.monotonic() + lifetime_s * _USED_LIFETIME

    def _forget_peer_that_left(self) -> None:
        """Close a connection that the peer has closed: another process may listen there now."""
        if self._socket is not None and not self._is_usable(self._socket):
            self.close()

    def _is_usable(self, sock: AnyStream) -> bool:
        """Whether the peer neither closed the connection nor sent unexpected bytes."""
        if time.monotonic() < self._used_at + _IDLE_S:
            return True
        try:
            sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _connect(self, closing: Closing | None) -> AnyStream:
        try:
            address = resolve(host_of(self.endpoint))
            family = socket.AF_INET6 if address.is_ipv6 else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._socket = sock
            for option in _SOCKET_OPTIONS:
                sock.setsockopt(*option)
            sock.settimeout(self._connect_timeout_s)
            sock.connect((address.number, port_of(self.endpoint)))
            sock.settimeout(None)
            stream = self._encrypted(sock, host_of(self.endpoint))
        except (OSError, ValueError) as error:
            raise PeerUnreachableError(
                self.endpoint, f"no connection; is the process there running? ({error})"
            ) from error
        self._timeout_s = 0.0
        self._check_open(closing)  # from here on it can be interrupted
        return stream

    def _encrypted(self, sock: socket.socket, host: str) -> AnyStream:
        """Return what to use instead of a connected socket. Raises ``PeerUnreachableError``."""
        if self._tls is None:
            return sock
        self._socket = stream = TlsStream(self._tls.wrap(sock, host))
        try:
            stream.handshake(CLIENT_HANDSHAKE_S)
        except OSError as error:
            raise PeerUnreachableError(self.endpoint, str(error)) from None
        return stream

    def _limit(self, sock: AnyStream, timeout_s: float) -> None:
        """Let the kernel end a wait: this takes one system call less than to poll."""
        if isinstance(sock, TlsStream):
            sock.timeout_s = timeout_s
        elif timeout_s != self._timeout_s:
            seconds, rest = divmod(max(timeout_s, 0.001), 1)
            timeval = _TIMEVAL.pack(int(seconds), int(rest * 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            self._timeout_s = timeout_s

    def _receive(self, sock: AnyStream, correlation_id: int, deadline: float) -> memoryview:
        """Receive a response; return what follows its correlation id, and keep the rest."""
        memory, received, end = memoryview(self._buffer), 0, _ANSWER_HEADER.size
        is_known = False  # its size
        while received < end:
            count = sock.recv_into(memory[received:])
            if count == 0:
                raise PeerDisconnectedError(self.endpoint, "the connection broke")
            received += count
            if not is_known and received >= _ANSWER_HEADER.size:
                is_known, end = True, self._end_of_response(memory, correlation_id)
                if end > len(memory):
                    larger = bytearray(end)
                    larger[:received] = memory[:received]
                    self._buffer, memory = larger, memoryview(larger)
            if received < end and time.monotonic() >= deadline:
                raise RequestTimeoutError(self.endpoint, "the answer came too slowly")
        self._rest = bytes(memory[end:received])
        return memory[_ANSWER_HEADER.size : end]

    def _receive_rest(self, sock: AnyStream, correlation_id: int) -> None:
        """Receive the response that follows; nothing of it is used."""
        self._receive_to(sock, _ANSWER_HEADER.size)
        end = self._end_of_response(memoryview(self._rest), correlation_id)
        self._receive_to(sock, end)
        if len(self._rest) > end:
            raise MalformedRequestError(f"{len(self._rest) - end} bytes follow the response")

    def _receive_to(self, sock: AnyStream, size: int) -> None:
        """Receive until the rest has ``size`` bytes, if it has fewer."""
        while len(self._rest) < size:
            piece = sock.recv(size - len(self._rest))
            if not piece:
                raise PeerDisconnectedError(self.endpoint, "the connection broke")
            self._rest += piece

    def _end_of_response(self, memory: memoryview, correlation_id: int) -> int:
        size, found = _ANSWER_HEADER.unpack_from(memory)
        if not _ANSWER_HEADER.size - _SIZE.size <= size <= MAX_RESPONSE_BYTES:
            raise MalformedRequestError(f"a response of {size} bytes")
        if found != correlation_id:
            raise MalformedRequestError(
                f"a response with correlation id {found} to request {correlation_id}"
            )
        return _SIZE.size + int(size)
