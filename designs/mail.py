"""The mail between brokers: fetches and their answers; and requests between the processes.

One thread for each other broker sends everything that waits for it in one request. So the fetches
of ten thousand replicas are a few requests. A request is msgpack over TCP; a connection answers in
the sequence of its requests. A broker of Regent does not know these requests.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.transport.control.schema import decoder

logger = logging.getLogger(__name__)

MAX_MESSAGES: Final = 5_000
"""The messages of one request; the rest goes with the next."""

_TIMEOUT_S: Final = 5.0
_KNOCK_S: Final = 5.0
"""Without mail, how often another broker is asked whether it is still the same process."""
_READ_BYTES: Final = 64 * 1024


class FetchRecords(NamedTuple):
    """A follower has everything before ``offset``, and knows this high watermark.

    The answer waits at the leader until there are records, or the high watermark has moved.
    ``turn`` comes back with it: a follower ignores answers to its former leaderships.
    """

    topic_partition: TopicPartition
    follower: BrokerId
    turn: int
    offset: int
    high_watermark: int


class RecordsFetched(NamedTuple):
    """``records`` begin at the offset that was asked for; ``is_leader`` False: ask another broker.

    Records are text.
    """

    topic_partition: TopicPartition
    turn: int
    is_leader: bool
    high_watermark: int = 0
    records: tuple[str, ...] = ()


ReplicaMail: TypeAlias = FetchRecords | RecordsFetched


def refusal_of(fetch: FetchRecords) -> RecordsFetched:
    """Return the answer of a broker that does not lead the partition."""
    return RecordsFetched(fetch.topic_partition, fetch.turn, is_leader=False)


class DeliverMail(NamedTuple):
    """Messages of the replicas of one broker to those of another.

    The answer is the incarnation of the receiver. When it is another one than before, the broker
    has started again and forgotten fetches.
    """

    fetches: tuple[FetchRecords, ...] = ()
    fetched: tuple[RecordsFetched, ...] = ()


class DescribeReplicas(NamedTuple):
    """Asks a broker what its replicas believe; ``dead``: brokers that cannot lead."""

    dead: tuple[BrokerId, ...] = ()


class Description(NamedTuple):
    """What the replicas of a broker believe, and what the broker counted since it started."""

    replicas: int
    without_leader: int
    """Replicas that know no live leader."""
    leads: tuple[int, ...]
    """The partitions that it leads, as it believes, of the only topic."""
    led_ms: int
    """When the last of its leaders began to lead, in monotonic milliseconds."""
    changed_ms: int
    """When the last replica began to lead or to follow."""
    writes: int
    """Requests to write to ZooKeeper."""
    listeners_called: int


class AppendRecords(NamedTuple):
    """Records for the leader of a partition; the answer is whether they are committed."""

    topic_partition: TopicPartition
    records: tuple[str, ...]


Request: TypeAlias = DeliverMail | DescribeReplicas | AppendRecords

_DECODERS: Final[dict[str, Callable[[object], Request]]] = {
    cls.__name__: decoder(cls) for cls in (DeliverMail, DescribeReplicas, AppendRecords)
}


class SilentPeerError(RegentError):
    """The other process did not answer. It may have carried out the request nevertheless."""


class RequestServer:
    """Listens on a free port of this machine, as ``endpoint``, a ``host:port``.

    ``answer`` is called on a thread of the connection, and may block; other connections go on.
    """

    def __init__(self, answer: Callable[[Request], object]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()
        self.endpoint = "{}:{}".format(*self._socket.getsockname())

    def start(self) -> None:
        """Begin to accept connections."""
        NamedThread(self._accept, "requests").start()

    def stop(self) -> None:
        """Answer nothing more."""
        for open_socket in (self._socket, *self._connections):
            with suppress(OSError):  # it has ended
                open_socket.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._socket, suppress(OSError):  # it is shut down
            while True:
                connected, _ = self._socket.accept()
                self._connections.add(connected)
                NamedThread(self._serve, "peer", (connected,)).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, suppress(OSError):
            for name, values in _messages(connected):
                connected.sendall(msgpack.packb(self._answer(_DECODERS[name](values))))
        self._connections.discard(connected)


class Peer:
    """Another process, at ``host:port``; connects at the first use. For one thread."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._socket: socket.socket | None = None
        self._answers: Iterator[Any] = iter(())

    def ask(self, request: Request, timeout_s: float) -> Any:
        """Return the answer as plain values; raises ``SilentPeerError``."""
        self.send(request, timeout_s)
        return self.receive()

    def send(self, request: Request, timeout_s: float) -> None:
        """Send a request. ``receive`` has the same timeout then. Raises ``SilentPeerError``."""
        try:
            if self._socket is None:
                host, _, port = self.endpoint.partition(":")
                self._socket = socket.create_connection((host, int(port)), timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._answers = _messages(self._socket)
            self._socket.settimeout(timeout_s)
            self._socket.sendall(msgpack.packb((type(request).__name__, request)))
        except OSError as error:
            self.close()
            raise SilentPeerError(f"{self.endpoint} cannot be reached: {error}") from None

    def receive(self) -> Any:
        """Return the answer to the next request; raises ``SilentPeerError``."""
        try:
            return next(self._answers)
        except (OSError, StopIteration) as error:
            self.close()
            raise SilentPeerError(f"{self.endpoint} does not answer: {error!r}") from None

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _messages(connected: socket.socket) -> Iterator[Any]:
    """Yield what arrives, until the other side disconnects. Raises ``OSError``."""
    unpacker = msgpack.Unpacker(use_list=False)
    while data := connected.recv(_READ_BYTES):
        unpacker.feed(data)
        yield from unpacker


class PostOffice:
    """The ``OtherBrokers`` of a broker process.

    ``address_of`` finds where a broker listens now, None when it is not registered.
    ``deliver`` gets the fetches that could not be delivered back, as refused ones. ``on_restarted``
    gets a broker that has forgotten what it was sent.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        address_of: Callable[[BrokerId], str | None],
        deliver: Callable[[ReplicaMail], None],
        on_restarted: Callable[[BrokerId], None],
    ) -> None:
        self.broker_id = broker_id
        self.address_of = address_of
        self.deliver = deliver
        self.on_restarted = on_restarted
        self._lock = threading.Lock()
        self._postmen: dict[BrokerId, _Postman] = {}

    def send(self, broker_id: BrokerId, message: ReplicaMail, /) -> None:
        with self._lock:
            postman = self._postmen.get(broker_id)
            if postman is None:
                postman = self._postmen[broker_id] = _Postman(self, broker_id)
        postman.take(message)

    def close(self) -> None:
        """Send nothing more."""
        for postman in list(self._postmen.values()):
            postman.close()


class _Postman:
    """The thread that carries the mail to one broker."""

    def __init__(self, office: PostOffice, receiver: BrokerId) -> None:
        self._office = office
        self._receiver = receiver
        self._waiting: deque[ReplicaMail] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._peer: Peer | None = None
        self._incarnation: int | None = None
        self._thread = NamedThread(self._run, f"mail-{office.broker_id}-to-{receiver}")
        self._thread.start()

    def take(self, message: ReplicaMail) -> None:
        with self._changed:
            self._waiting.append(message)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, _KNOCK_S)
                if self._is_closed:
                    break
                count = min(len(self._waiting), MAX_MESSAGES)
                messages = [self._waiting.popleft() for _ in range(count)]
            if messages or self._incarnation is not None:  # None: it is known to be gone
                self._carry(messages)
        self._disconnect()

    def _carry(self, messages: list[ReplicaMail]) -> None:
        fetches = tuple(message for message in messages if isinstance(message, FetchRecords))
        fetched = tuple(message for message in messages if isinstance(message, RecordsFetched))
        former = self._incarnation
        try:
            self._incarnation = self._connected().ask(DeliverMail(fetches, fetched), _TIMEOUT_S)
        except SilentPeerError as error:
            logger.info("%s: %s", self._thread.name, error)
            self._disconnect()
            self._incarnation = None
        if former not in (None, self._incarnation):
            self._office.on_restarted(self._receiver)
        if self._incarnation is None:
            for fetch in fetches:
                self._office.deliver(refusal_of(fetch))

    def _connected(self) -> Peer:
        if self._peer is None:
            address = self._office.address_of(self._receiver)
            if address is None:
                raise SilentPeerError("the broker is not registered")
            self._peer = Peer(address)
        return self._peer

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
