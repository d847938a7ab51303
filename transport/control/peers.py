"""The connected peers of a listening address, and their messages.

It is a ZeroMQ ROUTER that speaks CURVE. ZeroMQ asks here about each key (ZAP,
https://rfc.zeromq.org/spec/27/), and only messages of known keys arrive. If nobody answers, nobody
is let in. A key that is not known is first asked for again, because a broker that has just
registered may be faster than the news of it.

A peer that has not proved its key costs little: a frame has at most ``FRAME_BYTES``, ZeroMQ waits
five seconds for the proof, and few may wait when descriptors are short. ZeroMQ reports each
connection after it has accepted it. On loopback those of other users are closed then.

A peer with a key can send a message that never ends, or more messages than we read, and ZeroMQ
keeps them without a word to us. So ``sweep`` asks the kernel how much each connection has received,
and compares that with the messages that were read. It can also send commands of ZeroMQ (PING),
which ZeroMQ answers itself. Then its thread works, and what was received is no message: see
``unseen_work``.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import zmq

from regent.core.errors import RegentError
from regent.core.records import RecordBytes
from regent.core.security.roles import KeyOwner
from regent.transport.control.codec import Frames
from regent.transport.control.key_files import KeyPair
from regent.transport.control.sockets import (
    FRAME_OVERHEAD,
    IoThread,
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
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_LEFT: Final = zmq.EVENT_DISCONNECTED
_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | _LEFT
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | _FAILED_HANDSHAKES
)
_MAX_OF_KEY: Final = 256  # connections that have sent a message; commands of operators share one
_MAX_WAITING: Final = 1000  # questions, while all keys are read again
_UNREAD_MESSAGES: Final = 2  # of the largest size: what the owner of a key may have sent us
_HANDSHAKE_BYTES: Final = 567
_S_PER_HANDSHAKE: Final = 0.001
_S_PER_UNREAD_BYTE: Final = 50e-9  # at most: a PING has 42 bytes, and takes ZeroMQ 2 microseconds
_UNNOTICED_SHARE: Final = 0.05  # of the time of ZeroMQ's thread
_WEIGHT_OF_UNSEEN: Final = 4  # nobody needs such work, so a broker is given little of it
_EVENT: Final = struct.Struct("=Hi")  # what has happened, and the descriptor
_BYTES_RECEIVED: Final = struct.Struct("=128xQ")  # in Linux's struct tcp_info


class PeerError(RegentError):
    """A peer was refused or cut off; who it was, if it is known, and what was read of it."""

    def __init__(self, reason: str, peer: KeyOwner | None = None, sent_bytes: int = 0) -> None:
        super().__init__(reason)
        self.peer = peer
        self.sent_bytes = sent_bytes


class HandshakeError(PeerError):
    """A connection without a proof of a key."""


class UnknownKeyError(PeerError):
    """A peer with a key that nobody has allowed."""


class OtherUserError(PeerError):
    """The peer is a process of a user of this machine that may not connect."""


class TooManyPeersError(PeerError):
    """There is no file descriptor for one more connection, or its key has too many."""


class MessageTooLargeError(PeerError):
    """A message of more bytes than allowed, or more messages than are read."""


class KnownKeys(Protocol):
    """The keys that may connect. Thread-safe."""

    def peer(self, key: str) -> KeyOwner | None:
        """Return the owner of a public key, None if nobody has allowed it; never blocks."""
        ...

    def read_again(self, then: Callable[[], None]) -> None:
        """Read all keys again, on any thread, and call ``then``; returns at once."""
        ...


class Message(NamedTuple):
    """The frames of a message; ``route`` is where answers go.

    Of a connection that was cut off there is only the size.
    """

    route: bytes
    peer: KeyOwner
    frames: list[RecordBytes] | None
    sent_bytes: int


class _Question(NamedTuple):
    """ZeroMQ's question whether a peer may connect; ``route`` leads back to who asks."""

    route: bytes
    request_id: bytes
    address: str
    key: str


class _OurEnd:
    """The socket of a connection, which belongs to ZeroMQ. Raises ``OSError`` if it is closed.

    ``peer_name`` is None if the peer had left already. ``number`` is that of the last answer to a
    question before it was noted: its own has a greater one, and that of a connection which had its
    descriptor before has not.
    """

    def __init__(self, descriptor: int, number: int, *, has_left: bool = False) -> None:
        self.descriptor = descriptor
        self.number = number
        self.peer_name: object = None
        self.looked_at_bytes = 0  # that were not read when ``growth`` was last called
        if not has_left:
            with suppress(OSError):
                self.peer_name = self._ask(socket.socket.getpeername)

    def break_off(self) -> None:
        """End the connection, unless another one has the descriptor now."""
        with suppress(OSError):
            if self._ask(socket.socket.getpeername) == self.peer_name:
                self._ask(lambda connection: connection.shutdown(socket.SHUT_RDWR))

    def is_admitted(self, users: LocalUsers) -> bool:
        """Whether the process at the other end may connect."""
        return self._ask(lambda connection: users.admits(connection, _PORT_NAME))

    def received_bytes(self) -> int:
        """How many bytes have come over the connection; 0 if the system does not tell."""
        if sys.platform != "linux":
            return 0
        size = _BYTES_RECEIVED.size
        try:
            info = self._ask(lambda end: end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size))
        except OSError:
            return 0  # it has left
        return int(*_BYTES_RECEIVED.unpack(info)) if len(info) == size else 0

    def growth(self, read_bytes: int) -> int:
        """Return how many bytes more than before have come that were not read."""
        size = max(0, self.received_bytes() - read_bytes)
        before, self.looked_at_bytes = self.looked_at_bytes, size
        return max(0, size - before)

    def _ask(self, question: Callable[[socket.socket], T]) -> T:
        # Told what it is, Python does not ask the kernel; IPv6 is no different for our questions.
        connection = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, self.descriptor
        )
        try:
            return question(connection)
        finally:
            connection.detach()


class _Unread(NamedTuple):
    """What a connection has received that was not read; ``route`` is empty before a message."""

    size: int
    end: _OurEnd
    route: bytes = b""


def _those_beyond(limit: int, unread: list[_Unread]) -> Iterator[_Unread]:
    """Yield those with the most, if all together exceed a limit in bytes."""
    too_many = sum(some.size for some in unread) - limit
    for some in sorted(unread, key=lambda some: some.size, reverse=True):
        if too_many <= 0:
            break
        too_many -= some.size
        yield some


@dataclass(slots=True)
class _Connection:
    """A connection that has sent a message."""

    key: str
    end: _OurEnd | None
    read_bytes: int = _HANDSHAKE_BYTES  # of whole messages
    is_surplus: bool = False  # its key has too many


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
        may_connect: Callable[[KeyOwner], bool] = lambda _: True,
    ) -> None:
        self._known = known
        self._may_connect = may_connect
        self._max_bytes = max_body_bytes + _OTHER_FRAMES_BYTES
        self._wake = wake
        self._descriptors = descriptors
        self._users = users
        self._unknown: list[_Question] = []  # about keys that must be read again
        self._asked: list[_Question] = []  # those whose keys are being read now
        self._is_read = threading.Event()
        self._answers = 0  # to questions
        self._admitted: set[str] = set()  # keys
        self._strangers: dict[int, _OurEnd] = {}  # by descriptor; they have sent no message yet
        self._silent = 0  # how many strangers have proved a key
        self._let_in_keys: Counter[str] = Counter()  # of strangers, since there were none
        self._handshakes: Counter[str] = Counter()  # let in since ``unseen_work`` was called
        self._is_refused: bool | None = None  # the next to leave: by a reason that is counted?
        self._connections: dict[bytes, _Connection] = {}  # by route
        self._routes: dict[int, bytes] = {}  # by descriptor
        self._of_key: Counter[str] = Counter()  # how many of the connections
        # Keys by route; not all messages of these connections may have been read and dropped yet.
        self._cut_off: dict[bytes, str] = {}
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
        self._io_thread = IoThread(self._context)
        self._looked_at = time.monotonic(), self._io_thread.worked_s()
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address listened on, with the real port."""

    def register(self, poller: zmq.Poller) -> None:
        """Let ``poller`` wake up when there is something to do."""
        for pollable in (self._questions, self._monitor, self._socket):
            poller.register(pollable, zmq.POLLIN)

    def heed(self, poller: zmq.Poller, *, messages: bool, connections: bool) -> None:
        """Let messages, and new connections, wake up ``poller``, or not."""
        poller.register(self._socket, zmq.POLLIN if messages else 0)
        for pollable in (self._questions, self._monitor):
            poller.register(pollable, zmq.POLLIN if connections else 0)

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.closed

    def take_events(self) -> list[PeerError]:
        """Answer ZeroMQ's questions about keys, and note connections; never blocks.

        Returns why connections were refused.
        """
        errors: list[PeerError] = []
        # Taken before the events: so a connection is noted before its key is let in.
        questions = list(self._next_questions())
        events = list(enumerate(self._next_events()))
        ends = {descriptor: at for at, (event, descriptor) in events if event == _LEFT}
        for at, (event, descriptor) in events:
            # Nothing is asked about who has left: another one may have the descriptor by now.
            error = self._on_event(event, descriptor, has_left=ends.get(descriptor, -1) > at)
            if error is not None:
                errors.append(error)
        if self._is_read.is_set():
            self._is_read.clear()
            asked, self._asked = self._asked, []
            errors += [self._refuse(question) for question in asked if not self._let_in(question)]
        unknown = [question for question in questions if not self._let_in(question)]
        room = _MAX_WAITING - len(self._unknown) - len(self._asked)
        errors += [self._refuse(question) for question in unknown[room:]]
        self._unknown += unknown[:room]
        if self._unknown and not self._asked:
            self._asked, self._unknown = self._unknown, []
            self._known.read_again(self._on_read)
        return errors

    def receive(self) -> Message | None:
        """Return the next message, None if there is none; never blocks.

        Raises PeerError after it has cut off a peer.
        """
        received = receive_message(self._socket, self._max_bytes)
        if received is None:
            self._cut_off.clear()
            return None
        route, frames = bytes(received.frames[0]), received.frames[1:]
        connection = self._connections.get(route) or self._connect(route, received)
        sent_bytes = received.sent_bytes - len(route) - FRAME_OVERHEAD
        connection.read_bytes += sent_bytes
        peer = self._known.peer(connection.key)
        if peer is None:
            self.cut_off(route)
            raise UnknownKeyError(f"{connection.key} is not allowed any more")
        if connection.is_surplus and route not in self._cut_off:
            self.cut_off(route)
            raise TooManyPeersError(f"{peer.name} has {_MAX_OF_KEY} connections", peer, sent_bytes)
        if route in self._cut_off:
            return Message(route, peer, None, sent_bytes)
        if not received.is_complete:
            self.cut_off(route)
            raise MessageTooLargeError(
                f"{peer.name}: a message exceeds {self._max_bytes} bytes", peer, sent_bytes
            )
        return Message(route, peer, frames, sent_bytes)

    def send(self, route: bytes, frames: Frames) -> None:
        """Send a message to a peer.

        Raises zmq.ZMQError if the peer has left or does not read.
        """
        self._socket.send_multipart((route, *pieces(frames)), zmq.NOBLOCK, copy=False)

    def cut_off(self, route: bytes) -> None:
        """End a connection; those of its messages that have arrived are not returned any more."""
        connection = self._connections.get(route)
        if connection is not None and connection.end is not None:
            self._cut_off[route] = connection.key
            connection.end.break_off()

    def sweep(self) -> list[PeerError]:
        """End connections whose keys are not allowed any more, and those with too much unread.

        Call it every two seconds or so, and more often while messages wait. Returns why connections
        were ended.
        """
        self._cut_off_revoked()
        unread: defaultdict[str, list[_Unread]] = defaultdict(list)
        for end in self._strangers.values():  # they share the limit of one key
            unread[""].append(_Unread(end.received_bytes(), end))
        for route, connection in self._connections.items():
            if connection.end is not None and route not in self._cut_off:
                size = max(0, connection.end.received_bytes() - connection.read_bytes)
                unread[connection.key].append(_Unread(size, connection.end, route))
        errors: list[PeerError] = []
        for key, of_one_key in unread.items():
            for size, end, route in _those_beyond(_UNREAD_MESSAGES * self._max_bytes, of_one_key):
                end.break_off()
                if route:
                    self._cut_off[route] = key
                peer = self._known.peer(key) if key else None
                who = end.peer_name if peer is None else f"{peer.name} at {end.peer_name}"
                errors.append(MessageTooLargeError(f"{who}: {size} bytes are not read", peer))
        return errors

    def unseen_work(self) -> Mapping[KeyOwner, float]:
        """Return for whom ZeroMQ has worked since the last call without a message, in seconds.

        Work for commands is shared by the bytes that came and were not read, and counted more than
        once. A long message that has arrived in part costs little for its bytes.
        """
        then, worked_s = self._looked_at
        self._looked_at = now, now_s = time.monotonic(), self._io_thread.worked_s()
        unseen_s = {key: count * _S_PER_HANDSHAKE for key, count in self._handshakes.items()}
        self._handshakes.clear()
        if now_s - worked_s >= (now - then) * _UNNOTICED_SHARE:
            grown = self._unread_growth()
            s_per_byte = min(_S_PER_UNREAD_BYTE, (now_s - worked_s) / max(1, grown.total()))
            for key, size in grown.items():
                unseen_s[key] = unseen_s.get(key, 0.0) + _WEIGHT_OF_UNSEEN * size * s_per_byte
        owners = {self._known.peer(key): spent_s for key, spent_s in unseen_s.items() if spent_s}
        return {owner: spent_s for owner, spent_s in owners.items() if owner is not None}

    def end_connections(self, owner: KeyOwner) -> None:
        """End the connections of a peer, and the strangers that may be its own."""
        for route, connection in self._connections.items():
            if self._known.peer(connection.key) == owner:
                self.cut_off(route)
        for end in self._strangers.values():
            if end.looked_at_bytes:
                end.break_off()

    def _unread_growth(self) -> Counter[str]:
        """Return how many bytes more than before are not read, by the keys that sent them."""
        grown: Counter[str] = Counter()
        for connection in self._connections.values():
            if connection.end is not None:
                grown[connection.key] += connection.end.growth(connection.read_bytes)
        for end in self._strangers.values():
            size = end.growth(_HANDSHAKE_BYTES)
            for key in self._let_in_keys:
                grown[key] += size // len(self._let_in_keys)
        return grown

    def _cut_off_revoked(self) -> None:
        revoked = {key for key in self._admitted if self._known.peer(key) is None}
        if not revoked:
            return
        self._admitted -= revoked
        for connection in self._connections.values():
            if connection.end is not None and connection.key in revoked:
                connection.end.break_off()
        # One that has sent nothing yet may have such a key. The others connect again.
        for end in self._strangers.values():
            end.break_off()

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

    def _next_questions(self) -> Iterator[_Question]:
        """Yield ZeroMQ's questions; one without a key is answered here."""
        while True:
            try:
                frames = self._questions.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            route, _, _, request_id, _, address, _, mechanism, *credentials = frames
            key = credentials[0].hex() if mechanism == b"CURVE" and credentials else ""
            question = _Question(route, request_id, address.decode(errors="replace"), key)
            if key:
                yield question
            else:
                self._refuse(question)

    def _next_events(self) -> Iterator[tuple[int, int]]:
        """Yield what has happened, and the descriptor of the connection."""
        with suppress(zmq.Again):
            while True:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
                yield _EVENT.unpack(event)

    def _let_in(self, question: _Question) -> bool:
        """Answer a question about a known key; return whether it is known."""
        peer = self._known.peer(question.key)
        if peer is None:
            return False
        is_full = self._of_key[question.key] >= _MAX_OF_KEY
        if self._may_connect(peer) and not is_full and question.key not in self._cut_off.values():
            self._admitted.add(question.key)
            self._let_in_keys[question.key] += 1
            self._handshakes[question.key] += 1
            self._answer(question, _WELCOME)
        else:
            self._answer(question, _NOT_NOW)
        return True

    def _refuse(self, question: _Question) -> PeerError:
        self._answer(question, _NOT_NOW)
        return UnknownKeyError(f"{question.address}: {question.key}")

    def _answer(self, question: _Question, status: bytes) -> None:
        self._answers += 1
        user_id = f"{question.key} {self._answers}".encode() if status == _WELCOME else b""
        frames = (_ZAP_VERSION, question.request_id, status, b"", user_id, b"")
        self._questions.send_multipart((question.route, b"", *frames))

    def _on_read(self) -> None:
        self._is_read.set()
        self._wake()

    def _on_event(self, event: int, descriptor: int, *, has_left: bool) -> PeerError | None:
        if event == zmq.EVENT_ACCEPTED:
            return self._on_accepted(_OurEnd(descriptor, self._answers, has_left=has_left))
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._silent += 1
        elif event & _FAILED_HANDSHAKES:
            # The next event is that this connection has left.
            self._is_refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        elif event == _LEFT:
            return self._on_disconnected(descriptor)
        return None

    def _on_disconnected(self, descriptor: int) -> PeerError | None:
        """Forget a connection; tell of one that has not proved a key, unless we have ended it.

        ZeroMQ does not report a failed handshake with bytes that are not of its protocol.
        """
        is_refused, self._is_refused = self._is_refused, None
        route = self._routes.pop(descriptor, None)
        if route is not None:
            left = self._connections.pop(route, None)
            if left is not None:
                self._of_key[left.key] -= 1
                self._of_key += Counter()  # forgets keys without connections
            return None
        end = self._strangers.pop(descriptor, None)
        if end is None or is_refused:
            return None
        self._silent = min(self._silent, len(self._strangers) + 1)
        if not self._strangers:
            self._let_in_keys.clear()
        if is_refused is None and self._silent:
            self._silent -= 1
        else:
            return HandshakeError(
                f"{end.peer_name or 'it has left'}: a peer did not prove a key in time, or speaks"
                " another protocol"
            )
        return None

    def _on_accepted(self, end: _OurEnd) -> PeerError | None:
        """Note a new connection; close it, or the oldest stranger, if there may be none more."""
        if self._users.are_limited and end.peer_name is not None:
            try:
                is_admitted = end.is_admitted(self._users)
            except OSError:
                is_admitted = True  # it has left
            if not is_admitted:
                end.break_off()
                return OtherUserError(f"{end.peer_name} is not a process of an admitted user")
        connected = len(self._strangers) + len(self._routes)
        shortage = self._descriptors.shortage(
            self, connected, _RESERVED_DESCRIPTORS, _SHARE_OF_DESCRIPTORS
        )
        self._strangers[end.descriptor] = end
        if shortage is not None:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).break_off()
            return TooManyPeersError(shortage)
        return None

    def _connect(self, route: bytes, received: ReceivedFrames) -> _Connection:
        """Note the key of a connection at its first message."""
        key, number = str(received.last.get("User-Id")).split()
        with suppress(zmq.ZMQError):
            descriptor = int(received.last.get(zmq.SRCFD))
            end = self._strangers.get(descriptor)
            # Else the connection has ended, and perhaps another one has the descriptor.
            if end is not None and end.number < int(number):
                del self._strangers[descriptor]
                self._silent = max(0, self._silent - 1)
                self._let_in_keys[key] -= 1
                self._let_in_keys += Counter()
                self._routes[descriptor] = route
                self._of_key[key] += 1
                is_surplus = self._of_key[key] > _MAX_OF_KEY
                self._connections[route] = _Connection(key, end, is_surplus=is_surplus)
                return self._connections[route]
        return _Connection(key, None)
