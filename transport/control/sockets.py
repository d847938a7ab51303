"""ZeroMQ contexts, sockets and messages, with safe options instead of harmful defaults.

By default a ZeroMQ socket never notices a host that has gone, queues for an absent peer, accepts
frames of any size and hangs on close. ``MAXMSGSIZE`` limits one frame only, also of a peer that has
not proved its key yet. So frames are small, a long one is sent in pieces, and ``receive_message``
limits the whole message.

ZeroMQ stops reading a connection when too many of its messages wait (``RCVHWM``). When the peer
resets it then, and ZeroMQ has to send it something later, ZeroMQ ends our process (``Assertion
failed: !_io_error``, https://github.com/zeromq/libzmq/issues/4364). A PING that has arrived behind
the messages is answered, so any peer with a key could end us. Hence no number of messages is too
many for ZeroMQ, and ``Peers.sweep`` limits their bytes.

There are no heartbeats of ZeroMQ. The kernel asks for the host, and a client that waits for an
answer asks for the process (``client``).
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import zmq

from regent.config.addresses import (
    host_of,
    key_of,
    port_of,
    resolve,
    tcp_endpoint,
    without_key,
)
from regent.core.records import RecordBytes
from regent.transport.control.key_files import KeyPair

Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]
Socket: TypeAlias = zmq.Socket[bytes]

FRAME_BYTES: Final = 16 * 1024
"""A longer frame is sent as several: before the proof of a key, a peer can use as much memory."""
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024 + 8 * 1024  # of a body and a header
_FREE_FRAMES: Final = 16  # of a message, beside the full ones
_ENCRYPTION_BYTES: Final = 256  # at most, of a frame
_COPIED_BYTES: Final = 1024
FRAME_OVERHEAD: Final = 35
"""Bytes that CURVE and ZMTP add to a frame (https://rfc.zeromq.org/spec/26/), if it is short."""
_LONG_SIZE: Final = 7  # more, for a frame that is not
_SHORT: Final = 255 - 33
QUEUED_MESSAGES: Final = 100
"""Maximum number of messages that wait to be sent, for each peer."""
FLUSH_MS: Final = 200
"""Time for sent messages to leave after the close of a client, in milliseconds."""

_MAX_SOCKETS: Final = 32_768  # three for a client, and a client for each of thousands of brokers

_monitor_ids: Final = itertools.count()
_context_ids: Final = itertools.count()

_OPTIONS: Final = {
    zmq.LINGER: 0,
    zmq.SNDHWM: QUEUED_MESSAGES,
    zmq.RCVHWM: 0,
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
    zmq.MAXMSGSIZE: FRAME_BYTES + _ENCRYPTION_BYTES,
}
_OPTIONS_OF_KIND: Final = {
    # Messages are sent to connected peers only. But when a connection closes, messages that have
    # arrived and were not read are lost.
    zmq.DEALER: {zmq.IMMEDIATE: 1},
    # MANDATORY: an answer that cannot be sent is an error. BACKLOG: ZeroMQ accepts all connections
    # that wait before it reports the first, and each of them takes a descriptor.
    zmq.ROUTER: {
        zmq.ROUTER_MANDATORY: 1,
        zmq.BACKLOG: 128,
    },
}


class ReceivedFrames(NamedTuple):
    """The frames of a message; large ones are not copied. ``last`` tells of the connection.

    If the message exceeds the limits, ``frames`` has the first ones only. ``sent_bytes`` counts all
    of them as they were sent, encrypted.
    """

    frames: list[RecordBytes]
    is_complete: bool
    last: zmq.Frame
    sent_bytes: int


def new_context(keys: KeyPair) -> Context:
    """Return a context whose sockets have these keys; end it with ``context.destroy(linger=0)``.

    Every client must have been closed before. Contexts do not survive fork.
    """
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    context.set(zmq.THREAD_NAME_PREFIX, next(_context_ids))
    # pyzmq sets these options of each new socket.
    context.curve_publickey = bytes.fromhex(keys.public)
    context.curve_secretkey = bytes.fromhex(keys.secret)
    return context


def open_socket(context: Context, kind: zmq.SocketType) -> Socket:
    """Return a new DEALER or ROUTER socket; it belongs to one thread. Raises zmq.ZMQError."""
    socket = context.socket(kind)
    for option, value in (_OPTIONS | _OPTIONS_OF_KIND[kind]).items():
        socket.setsockopt(option, value)
    return socket


class IoThread:
    """The thread of a context that encrypts, decrypts and answers what ZeroMQ itself answers."""

    def __init__(self, context: Context) -> None:
        """Find the thread; the context must have a socket."""
        name = f"{context.get(zmq.THREAD_NAME_PREFIX)}/ZMQbg/IO"
        self._clock: int | None = None
        tasks = Path("/proc/self/task").iterdir() if sys.platform == "linux" else ()
        for task in tasks:
            with suppress(OSError):
                if (task / "comm").read_text().startswith(name):
                    # Linux's name of the clock of another thread: CPUCLOCK_PERTHREAD_MASK and
                    # CPUCLOCK_SCHED in its <linux/posix-timers.h>.
                    self._clock = (~int(task.name) << 3) | 4 | 2

    def worked_s(self) -> float:
        """Return the processor time that it has used, in seconds; 0 if the system does not tell."""
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def listen_at(socket: Socket, endpoint: str) -> None:
    """Bind to ``tcp://host:port``; the host may be a name or an IPv6 address.

    It is resolved here, because ZeroMQ binds to numbers only. Raises zmq.ZMQError, or OSError for
    an unknown name.
    """
    address = resolve(host_of(endpoint))
    socket.setsockopt(zmq.IPV6, address.is_ipv6)
    socket.bind(tcp_endpoint(address.number, port_of(endpoint)))


def connect_to(socket: Socket, endpoint: str) -> None:
    """Connect to ``tcp://host:port#key``; ZeroMQ resolves a name anew at each attempt.

    Only the owner of the key can answer. IPv6 is enabled only if it is needed, because ZeroMQ would
    prefer it. Raises zmq.ZMQError for an invalid endpoint, ValueError for one without a key.
    """
    key = bytes.fromhex(key_of(endpoint))
    if not key:
        raise ValueError("the key of the process there is not known")
    socket.setsockopt(zmq.CURVE_SERVERKEY, key)
    with suppress(OSError):  # the name may be known by the next attempt
        socket.setsockopt(zmq.IPV6, resolve(host_of(endpoint)).is_ipv6)
    socket.connect(without_key(endpoint))


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


def pieces(frames: Iterable[RecordBytes]) -> Iterator[RecordBytes]:
    """Yield frames, of which long ones are divided."""
    for frame in frames:
        if len(frame) <= FRAME_BYTES:
            yield frame
        else:
            view = memoryview(frame)
            for start in range(0, len(frame), FRAME_BYTES):
                yield view[start : start + FRAME_BYTES]


def joined(body: list[RecordBytes]) -> RecordBytes:
    """Return a body that arrived in pieces."""
    return body[0] if len(body) == 1 else b"".join(body)


def receive_message(socket: Socket, max_bytes: int = MAX_MESSAGE_BYTES) -> ReceivedFrames | None:
    """Return the next message that has arrived, ``None`` if there is none; never blocks."""
    frames: list[RecordBytes] = []
    size = sent_bytes = 0
    max_frames = _FREE_FRAMES + max_bytes // FRAME_BYTES
    is_complete = True
    try:
        while True:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            size += len(frame)
            sent_bytes += len(frame) + FRAME_OVERHEAD + (_LONG_SIZE if len(frame) > _SHORT else 0)
            is_complete = is_complete and len(frames) < max_frames and size <= max_bytes
            if is_complete:
                frames.append(frame.bytes if len(frame) <= _COPIED_BYTES else frame.buffer)
            if not frame.more:
                return ReceivedFrames(frames, is_complete, frame, sent_bytes)
    except zmq.Again:
        return None
