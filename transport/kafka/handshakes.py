"""The TLS handshakes of a listener, beside its event loop.

A handshake takes milliseconds of a processor, and as long as its client likes. So the loop waits
for clients, which costs a socket each, and few threads calculate. Who connects and says nothing
keeps nobody out: when there are too many, one of those who have most has to go.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from regent.config.threads import named_executor
from regent.core.security.session import KafkaPrincipal, network_of
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.tls_socket import TlsSocket
from regent.transport.kafka.tls_stream import close_refused, has_left

if TYPE_CHECKING:  # it reads certificates with a library that listeners without TLS do not load
    from regent.transport.kafka.tls import ServerTls

logger = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 64
TIMEOUT_S: Final = 10.0
_THREADS: Final = 2

OnDone = Callable[[TlsSocket, str, KafkaPrincipal], object]
"""Called with the socket of a client that is let in, its address, and who it is."""
OnFailed = Callable[[str, Closed | None, str], object]
"""Called with the address of a client that is not let in, and why. Its socket is closed.

``None``: nobody refused the client: it left, or the broker stops.
"""

_FAILED: Final = Closed.FAILED_AUTHENTICATION


class Handshake:
    """One client. ``sock`` is replaced when its first bytes have come."""

    __slots__ = ("client_host", "given_up", "sock", "step", "timeout")

    def __init__(self, sock: socket.socket, client_host: str) -> None:
        self.sock = sock
        self.client_host = client_host
        self.timeout: asyncio.TimerHandle | None = None
        self.step: Future[KafkaPrincipal] | None = None  # a thread has the socket meanwhile
        self.given_up: tuple[Closed | None, str] | None = None


class HasClient(Protocol):
    """A connection of a client that has not logged in yet."""

    @property
    def client_host(self) -> str:
        """Its address."""
        ...


C = TypeVar("C", bound=HasClient)


def first_to_go(waiting: Collection[C]) -> C:
    """Return the oldest of the address with the most of them, in the network with the most.

    With IPv6 one machine has as many addresses as it likes, and a network has many machines.
    ``waiting`` has the oldest first.
    """
    networks = [network_of(one.client_host) for one in waiting]
    network = Counter(networks).most_common(1)[0][0]
    there = [one for one, its in zip(waiting, networks, strict=True) if its == network]
    address = Counter(one.client_host for one in there).most_common(1)[0][0]
    return next(one for one in there if one.client_host == address)


class Handshakes:
    """Used on the event loop's thread only."""

    def __init__(
        self,
        tls: ServerTls,
        loop: asyncio.AbstractEventLoop,
        on_done: OnDone,
        on_failed: OnFailed,
    ) -> None:
        self._tls = tls
        self._loop = loop
        self._on_done = on_done
        self._on_failed = on_failed
        self.under_way: dict[Handshake, None] = {}  # the oldest first
        self._threads = named_executor(_THREADS, "tls-handshakes")

    def __len__(self) -> int:
        return len(self.under_way)

    def begin(self, sock: socket.socket, client_host: str) -> None:
        """Begin with an accepted socket, which does not block."""
        if len(self.under_way) >= MAX_HANDSHAKES:
            why = f"{MAX_HANDSHAKES} others wait for their handshakes"
            self.give_up(first_to_go(self.under_way), _FAILED, why)
        handshake = Handshake(sock, client_host)
        self.under_way[handshake] = None
        handshake.timeout = self._loop.call_later(
            TIMEOUT_S, self.give_up, handshake, _FAILED, f"no handshake within {TIMEOUT_S:g} s"
        )
        self._loop.add_reader(sock.fileno(), self._advance, handshake)

    def read_keys_again(self) -> None:
        """Take changed files into use, on another thread."""
        try:
            self._threads.submit(self._tls.reload_if_changed)
        except RuntimeError as error:
            logger.warning("nobody looks whether the keys of TLS have changed: %s", error)

    def close(self) -> None:
        """Give all up."""
        for handshake in list(self.under_way):
            self.give_up(handshake, None, "the broker stops")
        self._threads.shutdown(cancel_futures=True)  # a step does not wait for a client

    def _advance(self, handshake: Handshake) -> None:
        """Calculate with what has come."""
        self._unwatch(handshake)
        # Not that of ``submit``, which may fail when it has queued the step already.
        step = handshake.step = Future()
        step.add_done_callback(lambda done: self._report(handshake, done))
        try:
            self._threads.submit(self._take_step, handshake, step)
        except RuntimeError as error:  # no thread can be started
            self.give_up(handshake, Closed.FAILED, str(error))

    def _take_step(self, handshake: Handshake, step: Future[KafkaPrincipal]) -> None:
        """Take one step, on a thread of the pool."""
        if not step.set_running_or_notify_cancel():
            return
        try:
            step.set_result(self._step(handshake))
        except Exception as error:  # noqa: BLE001  ``_on_step`` handles it
            step.set_exception(error.with_traceback(None))

    def _step(self, handshake: Handshake) -> KafkaPrincipal:
        if not isinstance(handshake.sock, ssl.SSLSocket):
            handshake.sock = self._tls.wrap(handshake.sock)
        handshake.sock.do_handshake()
        return self._tls.principal_of(handshake.sock)

    def _report(self, handshake: Handshake, done: Future[KafkaPrincipal]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_step, handshake, done)

    def _on_step(self, handshake: Handshake, done: Future[KafkaPrincipal]) -> None:
        handshake.step = None
        if handshake.given_up is not None:
            self._end(handshake, *handshake.given_up)
            return
        error = done.exception()
        if isinstance(error, ssl.SSLWantReadError):
            self._loop.add_reader(handshake.sock.fileno(), self._advance, handshake)
        elif isinstance(error, ssl.SSLWantWriteError):
            self._loop.add_writer(handshake.sock.fileno(), self._advance, handshake)
        elif error is not None:
            reason = None if has_left(error) else _FAILED
            self._end(handshake, reason, self._tls.reason_of(error))
        else:
            assert isinstance(handshake.sock, ssl.SSLSocket)
            self._forget(handshake)
            self._on_done(TlsSocket(handshake.sock), handshake.client_host, done.result())

    def give_up(self, handshake: Handshake, reason: Closed | None, why: str) -> None:
        """Close a socket; if a thread has it, as soon as that is done with it.

        Threads do not calculate for who was given up before his turn: then so many could come that
        nobody else has a turn.
        """
        if handshake.step is not None:
            if handshake.given_up is None:
                handshake.given_up = reason, why
            self._forget(handshake)
            handshake.step.cancel()
            return
        self._unwatch(handshake)
        self._end(handshake, reason, why)

    def _end(self, handshake: Handshake, reason: Closed | None, why: str) -> None:
        self._forget(handshake)
        close_refused(handshake.sock)
        self._on_failed(handshake.client_host, reason, why)

    def _forget(self, handshake: Handshake) -> None:
        self.under_way.pop(handshake, None)
        if handshake.timeout is not None:
            handshake.timeout.cancel()

    def _unwatch(self, handshake: Handshake) -> None:
        number = handshake.sock.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
