"""Accepts connections on the event loop within limits, and closes idle ones."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.core.quota.connection_rates import ConnectionRate
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.security.session import ANONYMOUS, KafkaPrincipal
from regent.core.setting import LONG_MAX
from regent.transport.descriptors import OF_THIS_PROCESS, Descriptors
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.connection import KafkaConnection, ListenerParts
from regent.transport.kafka.handshakes import Handshake, Handshakes, first_to_go
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.kafka.metrics import Closed, ListenerMetrics
from regent.transport.kafka.request_memory import RequestMemory
from regent.transport.kafka.sasl_server import SaslListener
from regent.transport.kafka.tls_socket import AnySocket
from regent.transport.local_users import LocalUsers, rest_after_strangers

if TYPE_CHECKING:
    from regent.transport.kafka.tls import ServerTls

logger = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 32
_ACCEPT_RETRY_S: Final = 1.0
_MAX_IDLE_CHECK_S: Final = 10.0
_PACE_CHECK_S: Final = 1.0
_MAX_DELAYED: Final = 1_000  # further ones are closed at once
_KEYS_CHECK_S: Final = 60.0
_CONNECTIONS_PER_LOGIN: Final = 4


class Admission(NamedTuple):
    """What decides whether a connection is accepted. ``tls``: None if nothing is encrypted."""

    shared: SharedLimits
    users: LocalUsers
    tls: ServerTls | None = None
    sasl: SaslListener | None = None
    """With whom clients log in; None: they do not."""


class SharedLimits:
    """The limits and quotas of all listeners for clients of a broker together.

    The listeners share an event loop; use it on the loop's thread only. Mirrors
    ``kafka.network.ConnectionQuotas``.
    """

    def __init__(
        self,
        limits: KafkaLimits,
        quotas: QuotaManagers | None = None,
        descriptors: Descriptors = OF_THIS_PROCESS,
    ) -> None:
        """Raise ``RegentError`` when a host in the limits has no address."""
        self.quotas = quotas or QuotaManagers(QuotaConfig())
        self.descriptors = descriptors
        self.max_connections = limits.max_connections
        window = self.quotas.connections.window
        self.rate = ConnectionRate(window, limits.max_connection_creation_rate)
        self.addresses = AddressQuotas(
            limits.max_connections_per_ip,
            limits_of_addresses(limits.max_connections_per_ip_overrides),
        )
        max_bytes = limits.queued_max_request_bytes
        self.memory = RequestMemory(LONG_MAX if max_bytes < 0 else max_bytes, self._on_short)
        self.acceptors: list[Acceptor] = []

    @property
    def connections(self) -> int:
        """How many connections the listeners have together."""
        return sum(acceptor.connections for acceptor in self.acceptors)

    def make_room(self, acceptor: Acceptor) -> None:
        """Keep those who have not logged in to a quarter of the connections, and one at least.

        So strangers leave room for users. One of those who have most is closed (``first_to_go``): a
        new one may be a user.
        """
        self._close_first([acceptor], acceptor.max_connections)
        self._close_first(self.acceptors, self.max_connections)

    def _close_first(self, acceptors: Sequence[Acceptor], max_connections: int) -> None:
        limit = max(1, max_connections // _CONNECTIONS_PER_LOGIN)
        if sum(acceptor.unauthenticated for acceptor in acceptors) >= limit:
            waiting = {one: a for a in acceptors for one in a.list_unauthenticated()}
            first = first_to_go(waiting)
            why = f"{limit} others have not logged in, a quarter of max_connections"
            waiting[first].give_up_login(first, why)

    def resume(self) -> None:
        """Let every listener accept again, as far as the limits allow."""
        for acceptor in self.acceptors:
            acceptor.resume()

    def _on_short(self) -> None:
        for acceptor in self.acceptors:
            acceptor.watch_pace()


class Acceptor:
    """Accepts on ``listening``, which it owns, until ``end``.

    Use it on the loop's thread only.
    """

    def __init__(
        self,
        listening: socket.socket,
        loop: ListenerLoop,
        apis: Sequence[KafkaApi],
        limits: KafkaLimits,
        metrics: ListenerMetrics,
        name: str,
        endpoint: EndPoint,
        admission: Admission,
    ) -> None:
        self._listening = listening
        self._loop = loop.loop
        self._on_ended: Callable[[], object] = _nothing
        self.max_connections = limits.max_connections_of_listener
        idle_ms = limits.connections_max_idle_ms
        self._max_idle_s = math.inf if idle_ms < 0 else max(idle_ms, 1) / 1000
        self._metrics = metrics
        self._name = name
        self._shared, self._users, tls, sasl = admission
        self._handshakes: Handshakes | None = None
        if tls is not None:
            self._handshakes = Handshakes(tls, loop.loop, self._let_in, self._refuse)
        self._addresses = self._shared.addresses
        self._rates = self._shared.quotas.connections
        self._rate = ConnectionRate(
            self._rates.window, limits.max_connection_creation_rate_of_listener
        )
        self._is_counted = False  # the next connection, in its rate
        self._connections: set[KafkaConnection] = set()
        self._logging_in: dict[KafkaConnection, None] = {}  # the oldest first
        self._delayed: set[socket.socket] = set()  # to be closed
        self._is_full = False
        self._full_since = 0.0
        self._watches_pace = False
        self._is_ending = False
        metrics.queue_size = loop.scheduler.size
        self._parts = ListenerParts(
            name,
            endpoint,
            self._loop,
            {api.key: api for api in apis},
            limits,
            metrics,
            self._shared.memory,
            loop.buffers,
            loop.scheduler,
            self._forget,
            self._shared.quotas,
            sasl,
            self._end_login,
        )

    def begin(self) -> None:
        """Accept connections from now on."""
        self._shared.acceptors.append(self)
        self._listen()
        self._check_idle()
        self._check_keys()

    @property
    def connections(self) -> int:
        """How many connections there are, with those whose handshake is under way."""
        return len(self._connections) + (0 if self._handshakes is None else len(self._handshakes))

    @property
    def unauthenticated(self) -> int:
        """How many of them have not logged in, or not ended their handshakes."""
        return len(self._logging_in) + (0 if self._handshakes is None else len(self._handshakes))

    def list_unauthenticated(self) -> list[KafkaConnection | Handshake]:
        """Return these, the oldest logins and then the oldest handshakes first."""
        return [*self._logging_in, *(self._handshakes.under_way if self._handshakes else ())]

    def give_up_login(self, one: KafkaConnection | Handshake, why: str) -> None:
        """Close one of these."""
        if isinstance(one, KafkaConnection):
            one.close(Closed.TOO_MANY_UNAUTHENTICATED, why)
        elif self._handshakes is not None:
            self._handshakes.give_up(one, Closed.TOO_MANY_UNAUTHENTICATED, why)

    def limit_connections(self, limits: KafkaLimits, of_addresses: Mapping[str, int]) -> None:
        """Change the limits of connections; ``of_addresses`` has those of single addresses."""
        self.max_connections = limits.max_connections_of_listener
        self._shared.max_connections = limits.max_connections
        self._shared.rate.limit = limits.max_connection_creation_rate
        self._rate.limit = limits.max_connection_creation_rate_of_listener
        self._addresses.change(limits.max_connections_per_ip, of_addresses)
        self._shared.resume()

    def end_waits(self) -> None:
        """Let no client wait any longer because of its quota."""
        for connection in list(self._connections):
            connection.end_wait()

    def end(self, last_answers_s: float, on_ended: Callable[[], object]) -> None:
        """Stop listening; requests in progress have ``last_answers_s`` to be answered.

        Call ``on_ended`` when the last connection has closed.
        """
        if self._is_ending:
            return
        self._is_ending, self._on_ended = True, on_ended
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for sock in self._delayed:
            sock.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            self._loop.call_later(last_answers_s, self._give_up)
        else:
            self._on_ended()

    def _give_up(self) -> None:
        logger.info("%s leaves requests unanswered", self._name)
        for connection in list(self._connections):
            connection.close()

    def _listen(self) -> None:
        if not self._is_ending and not self._is_full:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept some connections, and rest if strangers were among them."""
        began, refused = time.monotonic(), self._users.refused[self._name]
        if self._accept_some() and self._users.refused[self._name] > refused:
            self._loop.remove_reader(self._listening)
            rest_s = rest_after_strangers(time.monotonic() - began)
            self._loop.call_later(rest_s, self._listen)

    def _accept_some(self) -> bool:
        """Return whether more may be accepted at once."""
        for _ in range(_ACCEPTS_PER_TURN):
            if self.connections >= self.max_connections or self._shared_are_full:
                self._is_full = True
                self._full_since = self._loop.time()
                self._metrics.accept_pauses += 1
                self.watch_pace()
                self._loop.remove_reader(self._listening)
                return False
            if self._must_wait():
                return False
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return True
            except OSError as error:  # no descriptor, or no memory, is left
                self._metrics.warn_of_none_left(self._name, error)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_ACCEPT_RETRY_S, self._listen)
                return False
            self._is_counted = False
            # A socket for IPv6 names a client that uses IPv4 by a mapped address.
            self._add(sock, address[0].removeprefix("::ffff:"))
        return True

    def _must_wait(self) -> bool:
        """Count the next connection; stop accepting for some time if there are too many a second.

        Mirrors ``ConnectionQuotas.waitForConnectionSlot``.
        """
        if self._is_counted:
            return False
        self._is_counted = True
        now_ms = int(self._loop.time() * 1_000)
        wait_s = max(rate.record(now_ms) for rate in (self._rate, self._shared.rate)) / 1_000
        if wait_s:
            self._metrics.accept_pauses += 1
            self._metrics.accept_paused_s += wait_s
            self._loop.remove_reader(self._listening)
            self._loop.call_later(wait_s, self._listen)
        return wait_s > 0

    def _take_back(self, now_ms: int) -> None:
        """Do not count a connection that is refused in the rates of those that are accepted."""
        for rate in (self._rate, self._shared.rate):
            rate.take_back(now_ms)

    @property
    def _shared_are_full(self) -> bool:
        return self._shared.connections >= self._shared.max_connections

    def _add(self, sock: socket.socket, client_host: str) -> None:
        now_ms = int(self._loop.time() * 1_000)
        if not self._users.admits(sock, self._name):
            sock.close()
            self._take_back(now_ms)
            return
        shortage = self._shared.descriptors.shortage(self, self.connections)
        if shortage is not None:
            self._metrics.count_shortage(self._name, client_host, shortage)
            sock.close()
            return
        refusal = self._addresses.admit(client_host)
        if refusal is not None:
            self._metrics.count_closed(Closed.TOO_MANY_OF_ADDRESS, self._name, client_host, refusal)
            sock.close()
            return
        wait_ms = self._rates.record(client_host, now_ms)
        if wait_ms:
            self._take_back(now_ms)
            self._delay(sock, client_host, wait_ms)
            return
        if self._handshakes is not None or self._parts.sasl is not None:
            self._shared.make_room(self)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._handshakes is None:
            self._open(sock, client_host)
        else:
            self._handshakes.begin(sock, client_host)

    def _open(self, sock: AnySocket, client_host: str, user: KafkaPrincipal = ANONYMOUS) -> None:
        connection = KafkaConnection(sock, client_host, self._parts, user)
        self._connections.add(connection)
        if self._parts.sasl is not None:
            self._logging_in[connection] = None
        connection.open()

    def _end_login(self, connection: KafkaConnection) -> None:
        self._logging_in.pop(connection, None)

    def _let_in(self, sock: AnySocket, client_host: str, user: KafkaPrincipal) -> None:
        """Serve a client after its handshake; with SASL it has yet to log in."""
        if self._parts.sasl is None:
            self._metrics.successful_authentications += 1
        self._open(sock, client_host, user)

    def _refuse(self, client_host: str, reason: Closed | None, why: str) -> None:
        """Note that a client is not let in; its socket is closed."""
        self._metrics.count_without_handshake()
        if reason is not None:
            self._metrics.failed_authentications += reason is Closed.FAILED_AUTHENTICATION
            self._metrics.count_closed(reason, self._name, client_host, why)
        self._addresses.release(client_host)
        self._shared.resume()

    def _delay(self, sock: socket.socket, client_host: str, wait_ms: int) -> None:
        """Close a connection, but not at once: its client would try again at once."""
        refusal = f"connection_creation_rate allows the next one in {wait_ms} ms"
        self._metrics.count_closed(Closed.RATE_OF_ADDRESS, self._name, client_host, refusal)
        if len(self._delayed) >= _MAX_DELAYED:
            self._end_delay(sock, client_host)
        else:
            self._delayed.add(sock)
            self._loop.call_later(wait_ms / 1_000, self._end_delay, sock, client_host)

    def _end_delay(self, sock: socket.socket, client_host: str) -> None:
        self._delayed.discard(sock)
        sock.close()
        self._addresses.release(client_host)

    def _forget(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)
        self._logging_in.pop(connection, None)
        self._addresses.release(connection.client_host)
        self._shared.resume()
        if self._is_ending and not self._connections:
            self._on_ended()

    def resume(self) -> None:
        """Accept again if that was stopped at the limit; ``_accept`` stops it again if need be."""
        if self._is_full:
            self._count_pause()
            self._is_full = False
            self._listen()

    def _check_idle(self) -> None:
        if self._is_ending:
            return
        max_idle_s = self._max_idle_s
        last_active = self._loop.time() - max_idle_s
        for connection in [c for c in self._connections if c.is_idle]:
            if connection.last_active < last_active:
                connection.close(Closed.IDLE, f"for {max_idle_s:g} s")
            else:
                connection.shrink()
        self._parts.buffers.release()
        # At a multiple of the interval, so that the listeners of a loop wake it together.
        interval_s = min(max_idle_s / 2, _MAX_IDLE_CHECK_S)
        self._loop.call_at((self._loop.time() // interval_s + 1) * interval_s, self._check_idle)

    def _check_keys(self) -> None:
        """Look each minute whether the files of the keys have changed."""
        if self._handshakes is not None and not self._is_ending:
            self._loop.call_later(_KEYS_CHECK_S, self._check_keys)
            self.read_keys_again()

    def read_keys_again(self) -> None:
        """Take changed files of keys into use."""
        if self._handshakes is not None and not self._is_ending:
            self._handshakes.read_keys_again()

    def _count_pause(self) -> None:
        since, self._full_since = self._full_since, self._loop.time()
        self._metrics.accept_paused_s += self._full_since - since

    def watch_pace(self) -> None:
        """Check the pace of clients each second, as long as others wait."""
        if not self._watches_pace:
            self._watches_pace = True
            self._loop.call_later(_PACE_CHECK_S, self._check_pace)

    def _check_pace(self) -> None:
        self._watches_pace = False
        if self._is_full:
            self._count_pause()
            are_shared = self._shared_are_full
            connections = self._shared.connections if are_shared else self.connections
            self._metrics.warn_of_limit(self._name, connections)
        if self._parts.memory.is_short:
            for connection in list(self._connections):
                connection.check_pace()
        if not self._is_ending and (self._is_full or self._parts.memory.is_short):
            self.watch_pace()


def _nothing() -> None:
    """Do nothing."""


class AddressQuotas:
    """At most ``limit`` connections of each address, or as many as ``overrides`` has for it.

    Mirrors ``kafka.network.ConnectionQuotas``, with Kafka's settings.
    """

    def __init__(self, limit: int, overrides: Mapping[str, int]) -> None:
        self._open: Counter[str] = Counter()
        self.change(limit, overrides)

    def change(self, limit: int, overrides: Mapping[str, int]) -> None:
        """Set other limits; present connections stay."""
        self._limit = limit
        self._overrides = overrides

    def admit(self, address: str) -> str | None:
        """Count a connection and return None, or return why it is refused."""
        limit = self._overrides.get(address, self._limit)
        if self._open[address] >= limit:
            return f"it has the {limit} connections that max_connections_per_ip allows"
        self._open[address] += 1
        return None

    def release(self, address: str) -> None:
        """Uncount a closed connection."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def limits_of_addresses(limits: Mapping[str, int]) -> dict[str, int]:
    """Return limits of hosts by their addresses; names are looked up.

    Raises ``RegentError`` for a host without an address.
    """
    return {address: count for host, count in limits.items() for address in _addresses(host)}


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise RegentError(
            f"max_connections_per_ip_overrides: {host} has no address: {error.strerror}"
        ) from None
