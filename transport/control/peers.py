"""The connected peers of a listening address, and their messages.

It is a ZeroMQ ROUTER that speaks CURVE. ZeroMQ asks here about each key (ZAP,
https://rfc.zeromq.org/spec/27/), and only messages of known keys arrive. If nobody answers, nobody
is let in. A key that is not known is first asked for again, because a broker that has just
registered may be faster than the news of it.

A peer that has not proved its key costs little: a frame has at most ``FRAME_BYTES``, ZeroMQ waits
five seconds for the proof, and few may wait when descriptors are short. ZeroMQ reports each
connection after it has accepted it. On loopback those of other users are closed then.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import zmq

from regent.core.errors import RegentError
from regent.core.records import RecordBytes
from regent.core.security.roles import KeyOwner
from regent.transport.control.codec import Frames
from regent.transport.control.key_files import KeyPair
from regent.transport.control.sockets import (
    ReceivedFrames,
    listen_at,
    new_context,
    open_monitor,
    open_socket,
    pieces,
    receive_message,
)
from regent.transport.descriptors import OF_THIS_PROCESS, Descriptors
from regent.transport.local_users import EVERYBODY, LocalUsers

T = TypeVar("T")

_PORT_NAME: Final = "control port"
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_WELCOME, _NOT_NOW = b"200", b"300"  # after any other answer a peer would never come back
_DOMAIN: Final = b"regent"
_OTHER_FRAMES_BYTES: Final = 8 * 1024  # of a message beside its body
_UNBIND_TIMEOUT_S: Final = 1.0
_RESERVED_DESCRIPTORS: Final = 64  # for files; clients of the Kafka port leave some to brokers
# ZeroMQ accepts without asking us, so more peers may connect before the next one is refused. They,
# and everything else, use the other descriptors.
_SHARE_OF_DESCRIPTORS: Final = 0.25
_FAILED_HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _FAILED_HANDSHAKES


class PeerError(RegentError):
    """A peer was refused or cut off."""


class HandshakeError(PeerError):
    """A connection without a proof of a key."""


class UnknownKeyError(PeerError):
    """A peer with a key that nobody has allowed."""


class OtherUserError(PeerError):
    """The peer is a process of a user of this machine that may not connect."""


class TooManyPeersError(PeerError):
    """There is no file descriptor for one more connection."""


class MessageTooLargeError(PeerError):
    """A message of more bytes than allowed."""


class KnownKeys(Protocol):
    """The keys that may connect. Thread-safe."""

    def peer(self, key: str) -> KeyOwner | None:
        """Return the owner of a public key, None if nobody has allowed it; never blocks."""
        ...

    def read_again(self, then: Callable[[], None]) -> None:
        """Read all keys again, on any thread, and call ``then``; returns at once."""
        ...


class Message(NamedTuple):
    """The frames of a message; ``route`` is where answers go."""

    route: bytes
    peer: KeyOwner
    frames: list[RecordBytes]


class _Question(NamedTuple):
    """ZeroMQ's question whether a peer may connect; ``route`` leads back to who asks."""

    route: bytes
    request_id: bytes
    address: str
    key: str


class _OurEnd:
    """The socket of a connection, which belongs to ZeroMQ. Raises ``OSError`` if it is closed."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.peer_name = self._ask(socket.socket.getpeername)

    def break_off(self) -> None:
        """End the connection, unless another one has the descriptor now."""
        with suppress(OSError):
            if self._ask(socket.socket.getpeername) == self.peer_name:
                self._ask(lambda connection: connection.shutdown(socket.SHUT_RDWR))

    def is_admitted(self, users: LocalUsers) -> bool:
        """Whether the process at the other end may connect."""
        return self._ask(lambda connection: users.admits(connection, _PORT_NAME))

    def _ask(self, question: Callable[[socket.socket], T]) -> T:
        connection = socket.socket(fileno=self.descriptor)
        try:
            return question(connection)
        finally:
            connection.detach()


class _Connection(NamedTuple):
    """A connection that has sent a message."""

    key: str
    end: _OurEnd | None


class Peers:
    """Listens at ``endpoint`` with a ZeroMQ of its own; a body may have ``max_body_bytes``.

    ``wake`` is called on any thread when ``take_events`` has something to do. Belongs to one thread
    at a time. Raises zmq.ZMQError, or OSError for an unknown name.
    """

    def __init__(
        self,
        keys: KeyPair,
        known: KnownKeys,
        endpoint: str,
        max_body_bytes: int,
        wake: Callable[[], None] = lambda: None,
        descriptors: Descriptors = OF_THIS_PROCESS,
        users: LocalUsers = EVERYBODY,
    ) -> None:
        self._known = known
        self._max_bytes = max_body_bytes + _OTHER_FRAMES_BYTES
        self._wake = wake
        self._descriptors = descriptors
        self._users = users
        self._read_again: deque[_Question] = deque()  # questions whose keys were read again
        self._strangers: dict[int, _OurEnd] = {}  # by descriptor; they have sent no message yet
        self._connections: dict[bytes, _Connection] = {}  # by route
        self._routes: dict[int, bytes] = {}  # by descriptor
        self._context = new_context(keys)
        try:
            self._questions = self._context.socket(zmq.ROUTER)
            self._questions.bind(_ZAP_ENDPOINT)
            self._socket = open_socket(self._context, zmq.ROUTER)
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self._monitor = open_monitor(self._context, self._socket, _EVENTS)
            listen_at(self._socket, endpoint)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address listened on, with the real port."""

    def register(self, poller: zmq.Poller) -> None:
        """Let ``poller`` wake up when there is something to do."""
        for pollable in (self._questions, self._monitor, self._socket):
            poller.register(pollable, zmq.POLLIN)

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.closed

    def take_events(self) -> list[PeerError]:
        """Answer ZeroMQ's questions about keys, and note connections; never blocks.

        Returns why connections were refused.
        """
        errors: list[PeerError] = []
        while self._read_again:
            question = self._read_again.popleft()
            if not self._let_in(question):
                self._answer(question, _NOT_NOW)
                errors.append(UnknownKeyError(f"{question.address}: {question.key}"))
        while (question_or_none := self._next_question()) is not None:
            if not self._let_in(question_or_none):
                self._known.read_again(partial(self._on_read_again, question_or_none))
        while self._monitor.poll(0):
            event, _ = self._monitor.recv_multipart()
            error = self._on_event(
                int.from_bytes(event[:2], "little"), int.from_bytes(event[2:6], "little")
            )
            if error is not None:
                errors.append(error)
        return errors

    def receive(self) -> Message | None:
        """Return the next message, None if there is none; never blocks.

        Raises PeerError after it has cut off a peer.
        """
        received = receive_message(self._socket, self._max_bytes)
        if received is None:
            return None
        route, *frames = received.frames
        connection = self._connections.get(bytes(route)) or self._connect(bytes(route), received)
        peer = self._known.peer(connection.key)
        if peer is not None and received.is_complete:
            return Message(bytes(route), peer, frames)
        if connection.end is not None:
            connection.end.break_off()
        if peer is None:
            raise UnknownKeyError(f"{connection.key} is not allowed any more")
        raise MessageTooLargeError(f"{peer.name}: a message exceeds {self._max_bytes} bytes")

    def send(self, route: bytes, frames: Frames) -> None:
        """Send a message to a peer.

        Raises zmq.ZMQError if the peer has left or does not read.
        """
        self._socket.send_multipart((route, *pieces(frames)), zmq.NOBLOCK, copy=False)

    def cut_off_revoked(self) -> None:
        """End the connections whose keys are not allowed any more."""
        for connection in self._connections.values():
            if connection.end is not None and self._known.peer(connection.key) is None:
                connection.end.break_off()

    def stop_listening(self) -> bool:
        """Close every connection and the port; return whether the port is free already."""
        self._socket.unbind(self.endpoint)
        deadline = time.monotonic() + _UNBIND_TIMEOUT_S
        while self._monitor.poll(max(0, round((deadline - time.monotonic()) * 1000))):
            event, _ = self._monitor.recv_multipart()
            if int.from_bytes(event[:2], "little") == zmq.EVENT_CLOSED:
                return True
        return False

    def close(self) -> None:
        """Close the socket; without ``stop_listening`` the port stays in use for some time."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _next_question(self) -> _Question | None:
        """Return ZeroMQ's next question; one without a key is answered here."""
        while True:
            try:
                frames = self._questions.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            route, _, _, request_id, _, address, _, mechanism, *credentials = frames
            key = credentials[0].hex() if mechanism == b"CURVE" and credentials else ""
            question = _Question(route, request_id, address.decode(errors="replace"), key)
            if key:
                return question
            self._answer(question, _NOT_NOW)

    def _let_in(self, question: _Question) -> bool:
        is_known = self._known.peer(question.key) is not None
        if is_known:
            self._answer(question, _WELCOME)
        return is_known

    def _answer(self, question: _Question, status: bytes) -> None:
        user_id = question.key.encode() if status == _WELCOME else b""
        frames = (_ZAP_VERSION, question.request_id, status, b"", user_id, b"")
        self._questions.send_multipart((question.route, b"", *frames))

    def _on_read_again(self, question: _Question) -> None:
        self._read_again.append(question)
        self._wake()

    def _on_event(self, event: int, descriptor: int) -> PeerError | None:
        if event == zmq.EVENT_ACCEPTED:
            return self._on_accepted(descriptor)
        if event == zmq.EVENT_DISCONNECTED:
            self._strangers.pop(descriptor, None)
            self._connections.pop(self._routes.pop(descriptor, b""), None)
            return None
        if event & _FAILED_HANDSHAKES:
            return HandshakeError("it did not prove a key in time, or speaks another protocol")
        return None

    def _on_accepted(self, descriptor: int) -> PeerError | None:
        """Note a new connection; close it, or the oldest stranger, if there may be none more."""
        try:
            end = _OurEnd(descriptor)
            is_admitted = not self._users.are_limited or end.is_admitted(self._users)
        except OSError:
            return None  # it has left
        if not is_admitted:
            end.break_off()
            return OtherUserError(f"{end.peer_name} is not a process of an admitted user")
        connected = len(self._strangers) + len(self._routes)
        shortage = self._descriptors.shortage(
            self, connected, _RESERVED_DESCRIPTORS, _SHARE_OF_DESCRIPTORS
        )
        self._strangers[descriptor] = end
        if shortage is not None:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).break_off()
            return TooManyPeersError(shortage)
        return None

    def _connect(self, route: bytes, received: ReceivedFrames) -> _Connection:
        """Note the key of a connection at its first message."""
        key = str(received.last.get("User-Id"))
        end = None
        with suppress(zmq.ZMQError):
            descriptor = int(received.last.get(zmq.SRCFD))
            end = self._strangers.pop(descriptor, None)  # None also if the connection has ended
            if end is not None:
                self._routes[descriptor] = route
                self._connections[route] = _Connection(key, end)
        return _Connection(key, end)
