"""The connected peers of a listening address, and their messages.

It is a ZeroMQ ROUTER with limits for all memory that a peer can use. ZeroMQ listens, accepts, reads
and writes on its own thread. It delivers bytes (ZMQ_STREAM) in chunks of at most 8 KiB, and
``zmtp`` makes messages of them. Messages are taken from one peer after another, because one chunk
may have hundreds.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import zmq

from regent.core.records import RecordBytes
from regent.transport.control.codec import Frames
from regent.transport.control.sockets import Context, listen_at, open_monitor, open_socket
from regent.transport.control.unread import MAX_UNREAD_BYTES, OF_ALL_PORTS, Unread, UnreadLimit
from regent.transport.control.zmtp import (
    PING,
    MessageTooLargeError,
    PeerError,
    ZmtpConnection,
    message_pieces,
)
from regent.transport.descriptors import OF_THIS_PROCESS, Descriptors
from regent.transport.local_users import EVERYBODY, LocalUsers

T = TypeVar("T")

_SWEEP_S: Final = 1.0
_IDLE_SWEEP_S: Final = 10.0
MAX_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
MAX_WAITING: Final = 1000
"""Maximum number of waiting messages of a peer."""
_MAX_WAITING_OF_ALL: Final = 10_000  # while so many messages of all peers wait, none is received

_UNREAD_LOOK_BYTES: Final = 1024 * 1024  # sent between two checks of what peers have not read
_RESERVED_DESCRIPTORS: Final = 64  # for files; clients of the Kafka port leave some to brokers
# ZeroMQ accepts without asking us, so more peers may connect before the next one is refused. They,
# and everything else, use the other descriptors.
_SHARE_OF_DESCRIPTORS: Final = 0.25

_PORT_NAME: Final = "control port"
_OTHER_FRAMES_BYTES: Final = 8 * 1024  # of a message beside its largest frame
_PATIENCE: Final = 4  # sweeps that a peer may be silent, or take to introduce itself
_UNBIND_TIMEOUT_MS: Final = 1000


class TooManyMessagesError(PeerError):
    """Too many messages of a peer wait."""


class TooManyPeersError(PeerError):
    """There is no file descriptor for one more connection."""


class TooMuchUnreadError(PeerError):
    """All peers together have too many unread bytes, and this peer has the most."""


class OtherUserError(PeerError):
    """The peer is a process of a user of this machine that may not connect."""


class Message(NamedTuple):
    """The frames of a message; ``route`` is where answers go."""

    route: bytes
    frames: list[RecordBytes]


class _Peer:
    """One connection; ``end`` is our socket of it."""

    def __init__(self, zmtp: ZmtpConnection, end: _OurEnd | None) -> None:
        self.unread = Unread()
        self.zmtp = zmtp
        self.end = end
        self.waiting: deque[list[RecordBytes]] = deque()
        self.sweeps = 0  # since its last message; or since it connected, until it is ready


class _OurEnd:
    """The socket of a connection, which belongs to ZeroMQ. Raises ``OSError`` if it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._name = self._ask(socket.socket.getpeername)

    def break_off(self) -> None:
        """End the connection; unsent bytes are dropped."""
        if (
            self._ask(socket.socket.getpeername) == self._name
        ):  # else another connection has the descriptor now
            self._ask(lambda connection: connection.shutdown(socket.SHUT_RDWR))

    def is_admitted(self, users: LocalUsers) -> bool:
        """Whether the process at the other end may connect; one that has left may not."""
        return self._ask(lambda connection: users.admits(connection, _PORT_NAME))

    def _ask(self, question: Callable[[socket.socket], T]) -> T:
        connection = socket.socket(fileno=self._descriptor)
        try:
            return question(connection)
        finally:
            connection.detach()


class Peers:
    """Listens at ``endpoint``; a message may have a frame of ``max_frame_bytes``.

    ``max_unfinished_bytes`` limits the incomplete messages of all peers together. ``unread_limit``
    limits the sent bytes that the peers of all ports have not read.
    Belongs to one thread at a time. Raises zmq.ZMQError, or OSError for an unknown name.
    """

    def __init__(
        self,
        context: Context,
        endpoint: str,
        max_frame_bytes: int,
        max_unfinished_bytes: int = MAX_UNFINISHED_BYTES,
        descriptors: Descriptors = OF_THIS_PROCESS,
        unread_limit: UnreadLimit = OF_ALL_PORTS,
        users: LocalUsers = EVERYBODY,
    ) -> None:
        self._descriptors = descriptors
        self._unread_limit = unread_limit
        self._users = users
        self._sent_bytes = 0  # since the last check of what peers have not read
        self._max_message_bytes = max_frame_bytes + _OTHER_FRAMES_BYTES
        self._max_unfinished_bytes = max_unfinished_bytes
        self._peers: dict[bytes, _Peer] = {}
        self._with_messages: deque[tuple[bytes, deque[list[RecordBytes]]]] = deque()
        self._waiting = 0  # messages, of all peers
        self._closing: set[bytes] = set()  # cut off, but ZeroMQ could not take the close yet
        self._strangers: dict[bytes, None] = {}  # peers that have not introduced themselves
        self.unfinished_bytes = 0
        """The bytes that are kept of incomplete messages."""
        self._socket = open_socket(context, zmq.STREAM)
        try:
            listen_at(self._socket, endpoint)
            self._monitor = open_monitor(context, self._socket, zmq.EVENT_CLOSED)
        except BaseException:
            self._socket.close()
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address listened on, with the real port."""

    def register(self, poller: zmq.Poller) -> None:
        """Let ``poller`` wake up when bytes have arrived."""
        poller.register(self._socket, zmq.POLLIN)

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.closed

    @property
    def has_messages(self) -> bool:
        """Whether ``next_message`` would return one."""
        return self._waiting > 0

    def receive(self) -> bool:
        """Take the next chunk; return whether there was one; never blocks.

        It takes none while too many messages wait. Raises PeerError after it has cut off a peer.
        After any other error the peer is cut off too.
        """
        if self.unfinished_bytes > self._max_unfinished_bytes:
            self._cut_off(max(self._peers, key=lambda other: self._peers[other].zmtp.held_bytes))
            raise MessageTooLargeError("incomplete messages use too much memory, this one the most")
        if self._waiting >= _MAX_WAITING_OF_ALL:
            return False
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        route, data = frames[0].bytes, frames[1].bytes
        if not data:
            self._on_connected_or_left(route, frames[1])
        elif route in self._peers:
            try:
                self._read(route, self._peers[route], data)
            except Exception:
                self._cut_off(route)
                raise
        return True

    def next_message(self) -> Message | None:
        """Return a message of the next peer in turn; ``None`` if there is none.

        It may be of a peer that has left.
        """
        while self._with_messages:
            route, waiting = self._with_messages.popleft()
            if waiting:  # else the peer sent too many, and they were dropped
                message = Message(route, waiting.popleft())
                self._waiting -= 1
                if waiting:
                    self._with_messages.append((route, waiting))
                return message
        return None

    def send(self, route: bytes, frames: Frames) -> None:
        """Send a message to a peer.

        Raises zmq.ZMQError if the peer has left or does not read. It is cut off if part of the
        message was sent. Messages of a peer that has left may still be received. Raises
        TooMuchUnreadError when the message was sent, and a peer was cut off for its unread bytes.
        """
        peer = self._peers.get(route)
        if peer is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if peer.unread.size > MAX_UNREAD_BYTES:
            raise zmq.Again
        is_begun = False
        try:
            for piece in message_pieces(frames):
                self._send_piece(route, piece)
                is_begun = True
        except zmq.ZMQError:
            if is_begun:
                self._cut_off(route)
            raise
        if self._sent_bytes >= _UNREAD_LOOK_BYTES:
            self._bound_unread()

    @property
    def sweep_interval_s(self) -> float:
        """How long after ``sweep`` the next is due: longer while no peer may exceed a limit."""
        is_watched = self._strangers or self._closing or self._sent_bytes
        return _SWEEP_S if is_watched else _IDLE_SWEEP_S

    def sweep(self) -> None:
        """Ping silent peers, and disconnect those that do not answer.

        Afterwards raises TooMuchUnreadError if a peer was cut off for its unread bytes.
        """
        for route in list(self._closing):
            self._close(route)
        for route, peer in list(self._peers.items()):
            peer.sweeps += 1
            if peer.sweeps > _PATIENCE:
                self._cut_off(route)
            elif peer.sweeps > 1 and peer.zmtp.is_ready:
                self._send_own(route, PING)
        self._bound_unread()

    def stop_listening(self) -> bool:
        """Close every connection and the port; return whether the port is free already."""
        self._socket.unbind(self.endpoint)
        return bool(self._monitor.poll(_UNBIND_TIMEOUT_MS))

    def close(self) -> None:
        """Close the socket; without ``stop_listening`` the port stays in use for some time."""
        with suppress(zmq.ContextTerminated):
            self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _on_connected_or_left(self, route: bytes, frame: zmq.Frame) -> None:
        """Handle an empty chunk, by which ZeroMQ reports a new connection and the end of one."""
        if route in self._closing:
            self._closing.discard(route)
        elif route in self._peers:
            self._forget(route)
        else:
            end = _our_end(frame)
            if self._users.are_limited and not (end and end.is_admitted(self._users)):
                self._close(route)
                raise OtherUserError(f"{_address_of(frame)} is not a process of an admitted user")
            self._make_room(route)
            zmtp = ZmtpConnection(_address_of(frame), self._max_message_bytes)
            self._peers[route] = _Peer(zmtp, end)
            self._strangers[route] = None
            self._send_own(route, zmtp.take_to_send())

    def _make_room(self, route: bytes) -> None:
        """Disconnect a peer without a greeting when descriptors are short.

        Raises TooManyPeersError when all have greeted: then the new peer is refused.
        """
        shortage = self._descriptors.shortage(
            self, len(self._peers), _RESERVED_DESCRIPTORS, _SHARE_OF_DESCRIPTORS
        )
        if shortage is None:
            return
        if self._strangers:
            self._cut_off(next(iter(self._strangers)))
            return
        self._close(route)
        raise TooManyPeersError(shortage)

    def _read(self, route: bytes, peer: _Peer, data: bytes) -> None:
        self.unfinished_bytes -= peer.zmtp.held_bytes
        try:
            messages = peer.zmtp.receive(data)
        finally:
            self.unfinished_bytes += peer.zmtp.held_bytes
        if peer.zmtp.is_ready:
            peer.sweeps = 0
            self._strangers.pop(route, None)
        if len(peer.waiting) + len(messages) > MAX_WAITING:
            self._waiting -= len(peer.waiting)
            peer.waiting.clear()
            raise TooManyMessagesError(f"{peer.zmtp.peer}: more than {MAX_WAITING} messages wait")
        if messages and not peer.waiting:
            self._with_messages.append((route, peer.waiting))
        peer.waiting += messages
        self._waiting += len(messages)
        self._send_own(route, peer.zmtp.take_to_send())

    def _send_own(self, route: bytes, data: bytes) -> None:
        """Send the bytes of the protocol, unless the peer has left or does not read."""
        if data:
            with suppress(zmq.ZMQError):
                self._send_piece(route, data)

    def _send_piece(self, route: bytes, piece: RecordBytes) -> None:
        self._socket.send(route, zmq.NOBLOCK | zmq.SNDMORE)
        peer = self._peers.get(route)
        if peer is None:  # this closes the connection
            self._socket.send(piece, zmq.NOBLOCK)
        else:
            self._socket.send(peer.unread.frame(piece), zmq.NOBLOCK, copy=False)
            self._sent_bytes += len(piece)

    def _bound_unread(self) -> None:
        """Disconnect the peers with the most unread bytes, while all ports have too many."""
        self._sent_bytes = 0
        sizes = {route: peer.unread.known_size for route, peer in self._peers.items()}
        cut: list[str] = []
        while self._unread_limit.is_exceeded_by(
            self, sum(sizes.values()), max(sizes.values(), default=0)
        ):
            route = max(sizes, key=lambda other: sizes[other])
            cut.append(f"{self._peers[route].zmtp.peer}: {sizes.pop(route)} bytes")
            self._cut_off(route)
        if cut:
            raise TooMuchUnreadError(f"{cut[0]} are unread, the most of all ({len(cut)} cut off)")

    def _cut_off(self, route: bytes) -> None:
        peer = self._peers[route]
        if peer.end is not None and peer.unread.known_size:
            # ZeroMQ would first send all of it, however slowly the peer reads.
            with suppress(OSError):
                peer.end.break_off()
        self._forget(route)
        self._close(route)

    def _forget(self, route: bytes) -> None:
        self.unfinished_bytes -= self._peers.pop(route).zmtp.held_bytes
        self._strangers.pop(route, None)

    def _close(self, route: bytes) -> None:
        """Close a connection: ZeroMQ does so when an empty chunk is sent."""
        self._closing.discard(route)
        try:
            self._send_piece(route, b"")
        except zmq.Again:
            self._closing.add(route)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise


def _address_of(frame: zmq.Frame) -> str:
    """Return the address of a peer, for messages; unknown if the peer left at once."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return "an unknown address"


def _our_end(frame: zmq.Frame) -> _OurEnd | None:
    """Return the socket of a connection, or None if it is closed already."""
    try:
        return _OurEnd(int(frame.get(zmq.SRCFD)))
    except (OSError, zmq.ZMQError):
        return None
