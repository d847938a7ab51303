"""Speaks the Kafka protocol on a broker's advertised port.

One thread runs an event loop; handlers run on it and must not block it. A malformed, too large or
failed request closes its connection only, and is counted. Mirrors ``kafka.network.SocketServer``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from regent.config.addresses import bracketed, listening_socket
from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_managers import QuotaManagers
from regent.transport.descriptors import OF_THIS_PROCESS, Descriptors
from regent.transport.kafka.acceptor import Acceptor
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.api_versions import api_versions_api
from regent.transport.kafka.connection import KafkaLimits
from regent.transport.kafka.connection_quotas import AddressQuotas, limits_of_addresses
from regent.transport.kafka.idle_time import IdleTimeSelector
from regent.transport.kafka.metrics import ListenerMetrics
from regent.transport.server import PortInUseError

logger = logging.getLogger(__name__)

DEFAULT_LIMITS: Final = KafkaLimits()
_BACKLOG: Final = 512
_LAST_ANSWERS_S: Final = 2.0
_STOP_TIMEOUT_S: Final = 5.0


class KafkaListener:
    """Listens on ``host:port`` (port 0: a free one) with a thread of its own, once started.

    ``apis`` are advertised, and ApiVersions beside them.
    """

    def __init__(
        self,
        host: str,
        port: int,
        apis: Sequence[KafkaApi],
        limits: KafkaLimits = DEFAULT_LIMITS,
        name: str = "kafka-listener",
        descriptors: Descriptors | None = None,
        quotas: QuotaManagers | None = None,
    ) -> None:
        """Raise ``RegentError`` when a host in the limits has no address."""
        self.port = port
        """The port listened on; the real one once started."""
        self.metrics = ListenerMetrics()
        self._host = host
        self._apis = (*apis, api_versions_api(apis))
        self._limits = limits
        self._name = name
        self._addresses = AddressQuotas(
            limits.max_connections_per_ip,
            limits_of_addresses(limits.max_connections_per_ip_overrides),
        )
        self._descriptors = descriptors or OF_THIS_PROCESS
        self._quotas = quotas or QuotaManagers(QuotaConfig())
        self._running: tuple[asyncio.AbstractEventLoop, Acceptor, threading.Thread] | None = None

    def start(self, listening: socket.socket | None = None) -> None:
        """Listen, on ``listening`` if it is given, then return; call it once.

        Raises what ``listen`` raises.
        """
        if listening is None:
            listening = listen(self._host, self.port)
        self.port = listening.getsockname()[1]
        selector = IdleTimeSelector()
        self.metrics.idle_s = selector.idle_s
        loop = asyncio.SelectorEventLoop(selector)
        loop.set_exception_handler(self._on_loop_error)
        acceptor = Acceptor(
            listening,
            loop,
            self._apis,
            self._limits,
            self.metrics,
            self._name,
            self._addresses,
            self._quotas,
            self._descriptors,
        )
        thread = NamedThread(_run, self._name, (loop, acceptor))
        self._running = loop, acceptor, thread
        thread.start()

    def limit_connections(self, limits: KafkaLimits) -> None:
        """Change the numbers of connections that clients may have; present ones stay. Thread-safe.

        Raises ``RegentError``, and changes nothing, when a host in the limits has no address.
        """
        of_addresses = limits_of_addresses(limits.max_connections_per_ip_overrides)
        if self._running is not None:
            loop, acceptor, _ = self._running
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(acceptor.limit_connections, limits, of_addresses)

    def end_waits(self) -> None:
        """Let no client wait any longer because of its quota. Thread-safe."""
        if self._running is not None:
            loop, acceptor, _ = self._running
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(acceptor.end_waits)

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.metrics.count_error(self._name, context["message"], context.get("exception"))

    def close(self, last_answers_s: float = _LAST_ANSWERS_S) -> None:
        """Stop listening at once; requests under way have some time to be answered. Idempotent."""
        if self._running is None:
            return
        loop, acceptor, thread = self._running
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(acceptor.end, last_answers_s)
        thread.join(last_answers_s + _STOP_TIMEOUT_S)
        if thread.is_alive():
            logger.error("%s does not stop: a handler blocks", self._name)


def _run(loop: asyncio.AbstractEventLoop, acceptor: Acceptor) -> None:
    asyncio.set_event_loop(loop)
    acceptor.begin()
    try:
        loop.run_forever()
        given_up = asyncio.all_tasks(loop)
        if given_up:
            loop.run_until_complete(asyncio.wait(given_up, timeout=_STOP_TIMEOUT_S))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


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
