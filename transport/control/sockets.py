"""ZeroMQ contexts, sockets and messages, with safe options instead of harmful defaults.

By default a ZeroMQ socket never notices a host that has gone, queues for an absent peer, accepts
frames of any size and hangs on close. ``MAXMSGSIZE`` limits one frame only, and a message is
delivered when its last frame has arrived. So ``receive_message`` limits the whole message.

ZeroMQ's own heartbeats are off: they wake several threads of both processes for each connection
and second, also when nothing is to be sent. The kernel asks for the host, a client that waits for
an answer asks for the process (``client``), and a server asks for silent clients (``peers``).
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import zmq

from regent.config.addresses import host_of, port_of, resolve, tcp_endpoint
from regent.core.records import RecordBytes
from regent.transport.control.zmtp import LARGE_BYTES

Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]
Socket: TypeAlias = zmq.Socket[bytes]

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = MAX_FRAME_BYTES + 8 * 1024  # of a body and a header
# Many more than a message has, of which some may wait.
MAX_FRAMES: Final = 4 + 2 * MAX_FRAME_BYTES // LARGE_BYTES
QUEUED_MESSAGES: Final = 100
"""Maximum number of waiting messages, for each peer and direction."""
FLUSH_MS: Final = 200
"""Time for sent messages to leave after the close of a client, in milliseconds."""

_MAX_SOCKETS: Final = 32_768  # three for a client, and a client for each of thousands of brokers

_monitor_ids: Final = itertools.count()

_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.SNDHWM: QUEUED_MESSAGES,
    zmq.RCVHWM: QUEUED_MESSAGES,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 2000,
    # A host that has gone is noticed after some five seconds.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 2,
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: 5000,  # a peer that does not read is cut off too
    zmq.BACKLOG: 1024,
    # A peer that sends a larger frame is cut off, before memory is taken for it.
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
}
_OPTIONS_OF_KIND: Final = {
    # Messages are sent to connected peers only. But when a connection closes, messages that have
    # arrived and were not read are lost.
    zmq.DEALER: {zmq.IMMEDIATE: 1},
    # RCVHWM: bytes arrive in chunks of 8 KiB. Few chunks wait here, the others at the peer.
    # SNDHWM: the frames of the largest answer.
    # BACKLOG: ZeroMQ accepts all connections that wait before it reports the first, and each of
    # them takes a descriptor.
    zmq.STREAM: {
        zmq.RCVHWM: 32,
        zmq.SNDHWM: MAX_FRAMES,
        zmq.BACKLOG: 128,
    },
}


class ReceivedFrames(NamedTuple):
    """The frames of a message; large ones are not copied.

    If the message exceeds the limits, ``frames`` has the first ones only.
    """

    frames: list[RecordBytes]
    is_complete: bool


def new_context() -> Context:
    """Return the context of a process; end it with ``context.destroy(linger=0)``.

    Every server and client must have been stopped or closed before. Contexts do not survive fork.
    """
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


def open_socket(context: Context, kind: zmq.SocketType) -> Socket:
    """Return a new DEALER or STREAM socket; it belongs to one thread. Raises zmq.ZMQError."""
    socket = context.socket(kind)
    for option, value in (_OPTIONS | _OPTIONS_OF_KIND[kind]).items():
        socket.setsockopt(option, value)
    return socket


def listen_at(socket: Socket, endpoint: str) -> None:
    """Bind to ``tcp://host:port``; the host may be a name or an IPv6 address.

    It is resolved here, because ZeroMQ binds to numbers only. Raises zmq.ZMQError, or OSError for
    an unknown name.
    """
    address = resolve(host_of(endpoint))
    socket.setsockopt(zmq.IPV6, address.is_ipv6)
    socket.bind(tcp_endpoint(address.number, port_of(endpoint)))


def connect_to(socket: Socket, endpoint: str) -> None:
    """Connect to ``tcp://host:port``; ZeroMQ resolves a name anew at each attempt.

    IPv6 is enabled only if it is needed, because ZeroMQ would prefer it. Raises zmq.ZMQError for an
    invalid endpoint.
    """
    with suppress(OSError):  # the name may be known by the next attempt
        socket.setsockopt(zmq.IPV6, resolve(host_of(endpoint)).is_ipv6)
    socket.connect(endpoint)


def open_monitor(context: Context, socket: Socket, events: int) -> Socket:
    """Return a socket that receives the ``events`` (zmq.EVENT_…) of ``socket``.

    Both belong to one thread; call ``socket.disable_monitor()`` before closing them.
    """
    # pyzmq would name it after a file descriptor, which another socket may get too early.
    address = f"inproc://monitor-{next(_monitor_ids)}"
    monitor = context.socket(zmq.PAIR)
    try:
        # The I/O thread of ZeroMQ blocks when a monitor is full, and an idle one is not read.
        monitor.setsockopt(zmq.RCVHWM, 0)
        socket.monitor(address, events)
        monitor.connect(address)
    except BaseException:
        monitor.close()
        raise
    return monitor


def receive_message(socket: Socket) -> ReceivedFrames | None:
    """Return the next message that has arrived, ``None`` if there is none; never blocks."""
    frames: list[RecordBytes] = []
    size = 0
    is_complete = True
    try:
        while True:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            size += len(frame)
            is_complete = is_complete and len(frames) < MAX_FRAMES and size <= MAX_MESSAGE_BYTES
            if is_complete:
                frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer)
            if not frame.more:
                return ReceivedFrames(frames, is_complete)
    except zmq.Again:
        return None
