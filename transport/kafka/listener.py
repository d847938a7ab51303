"""Speaks the Kafka protocol on a port of a broker.

Handlers run on an event loop, which listeners may share, and must not block it. A malformed, too
large or failed request closes its connection only, and is counted. Mirrors
``kafka.network.SocketServer``.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from regent.config.addresses import bracketed, listening_socket
from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.core.security.session import SecurityProtocol
from regent.transport.control.server import PortInUseError
from regent.transport.kafka.acceptor import (
    Acceptor,
    Admission,
    SharedLimits,
    limits_of_addresses,
)
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.api_versions import api_versions_api
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener_loop import STOP_TIMEOUT_S, ListenerLoop
from regent.transport.kafka.metrics import ListenerMetrics
from regent.transport.kafka.sasl_server import SaslListener
from regent.transport.local_users import EVERYBODY, LocalUsers

if TYPE_CHECKING:
    from regent.transport.kafka.tls import ServerTls

DEFAULT_LIMITS: Final = KafkaLimits()
_DEFAULT_NAME: Final = SecurityProtocol.PLAINTEXT.value
_BACKLOG: Final = 512
_LAST_ANSWERS_S: Final = 2.0


class KafkaListener:
    """Listens on ``host:port`` (port 0: a free one), once started.

    ``apis`` are advertised, and ApiVersions beside them. Without a ``loop`` it has its own.
    The sessions of its clients have the name and the security protocol of ``endpoint``.
    ``shared``: what it shares with other listeners of the same ``loop``. With ``tls`` all bytes
    are encrypted, and a certificate may say who a client is. With ``sasl`` clients log in; it is
    closed with the listener.
    """

    def __init__(  # noqa: PLR0913
        self,
        host: str,
        port: int,
        apis: Sequence[KafkaApi],
        limits: KafkaLimits = DEFAULT_LIMITS,
        name: str = "kafka-listener",
        loop: ListenerLoop | None = None,
        users: LocalUsers = EVERYBODY,
        endpoint: EndPoint | None = None,
        shared: SharedLimits | None = None,
        tls: ServerTls | None = None,
        sasl: SaslListener | None = None,
    ) -> None:
        """Raise ``RegentError`` when a host in the limits has no address.

        Also when ``tls`` and ``sasl`` do not serve the security protocol of ``endpoint``.
        """
        self.port = port
        """The port listened on; the real one once started."""
        self.metrics = ListenerMetrics()
        self._host = host
        if sasl is not None:  # also where its APIs are not served otherwise
            of_logins = sasl.apis()
            keys = {api.key for api in of_logins}
            apis = [*(api for api in apis if api.key not in keys), *of_logins]
        self._apis = (*apis, api_versions_api(apis))
        self._sasl = sasl
        self._limits = limits
        self._name = name
        served = _protocol(tls, sasl)
        self._endpoint = endpoint or EndPoint(_DEFAULT_NAME, host, port, served)
        if self._endpoint.security_protocol != served:  # it never falls back to less
            raise RegentError(
                f"broker.listeners: {self._endpoint.listener} has the security protocol"
                f" {self._endpoint.security_protocol}, but {served} would be served"
            )
        self._shared = shared or SharedLimits(limits)
        self._shared_loop = loop
        self._users = users.at(host)
        self._tls = tls
        self.metrics.tls = tls
        self._running: tuple[ListenerLoop, Acceptor] | None = None
        self._has_ended = threading.Event()

    def start(self, listening: socket.socket | None = None) -> None:
        """Listen, on ``listening`` if it is given, then return; call it once.

        Raises what ``listen`` raises.
        """
        if listening is None:
            listening = listen(self._host, self.port)
        self.port = listening.getsockname()[1]
        loop = self._shared_loop or ListenerLoop(self._name)
        self.metrics.idle_s = loop.idle_s
        loop.on_error(self._count_error)
        acceptor = Acceptor(
            listening,
            loop,
            self._apis,
            self._limits,
            self.metrics,
            self._name,
            self._endpoint,
            Admission(self._shared, self._users, self._tls, self._sasl),
        )
        self._running = loop, acceptor
        loop.call(acceptor.begin)

    def limit_connections(self, limits: KafkaLimits) -> None:
        """Change the numbers of connections that clients may have; present ones stay. Thread-safe.

        Raises ``RegentError``, and changes nothing, when a host in the limits has no address.
        """
        of_addresses = limits_of_addresses(limits.max_connections_per_ip_overrides)
        if self._running is not None:
            loop, acceptor = self._running
            loop.call(acceptor.limit_connections, limits, of_addresses)

    def read_keys_again(self) -> None:
        """Take changed files of the keys of TLS into use, soon. Thread-safe."""
        if self._running is not None:
            loop, acceptor = self._running
            loop.call(acceptor.read_keys_again)

    def end_waits(self) -> None:
        """Let no client wait any longer because of its quota. Thread-safe."""
        if self._running is not None:
            loop, acceptor = self._running
            loop.call(acceptor.end_waits)

    def _count_error(self, message: str, error: BaseException | None) -> None:
        self.metrics.count_error(self._name, message, error)

    def close(self, last_answers_s: float = _LAST_ANSWERS_S) -> None:
        """Stop listening at once; requests under way have some time to be answered. Idempotent."""
        if self._running is None:
            return
        loop, acceptor = self._running
        if loop.call(acceptor.end, last_answers_s, self._has_ended.set):
            self._has_ended.wait(last_answers_s + STOP_TIMEOUT_S)
        if self._sasl is not None:
            self._sasl.close()
        if self._shared_loop is None:
            loop.close()


def _protocol(tls: ServerTls | None, sasl: SaslListener | None) -> str:
    encrypts, logs_in = tls is not None, sasl is not None
    protocol = next(p for p in SecurityProtocol if (p.has_tls, p.has_sasl) == (encrypts, logs_in))
    return str(protocol.value)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients wait until it is served.

    Raises PortInUseError, or RegentError for an unusable address.
    """
    try:
        listening = listening_socket(host, port, _BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{bracketed(host)}:{port} is in use: stop the process that listens there, or"
                " configure another port (0 takes a free one)"
            ) from error
        raise RegentError(f"cannot listen on {bracketed(host)}:{port}: {error}") from error
    listening.setblocking(False)
    return listening
