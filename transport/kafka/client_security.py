"""How a broker or a command connects to a Kafka port: with TLS, with a login, or with neither.

Certificates of servers are verified, and their names unless a setting says otherwise.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from dataclasses import dataclass

from regent.config.tables.tls import TlsConfig
from regent.transport.kafka.key_material import TlsError, files_of
from regent.transport.kafka.sasl_client import ClientSasl
from regent.transport.kafka.tls import client_context, state_of
from regent.transport.kafka.tls_stream import complete_handshake, failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """What a client of a Kafka port proves, and demands.

    ``tls``: None if nothing is encrypted. ``sasl``: how to log in; None: not at all.
    """

    tls: ClientTls | None = None
    sasl: ClientSasl | None = None


class ClientTls:
    """The certificates that a client trusts, and its own if it has one. Thread-safe.

    Changed files are used by the next connection.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Read the files. Raises ``TlsError``."""
        self._config = config
        self._files = files_of(config)
        self._lock = threading.Lock()
        self._seen: list[object] | None = self._state_of_files()
        self._context = client_context(config)

    @classmethod
    def of(cls, config: TlsConfig) -> ClientTls:
        """Return what a table names. Raises ``TlsError``."""
        return cls(config)

    def reconfigure(self, config: TlsConfig) -> None:
        """Let the next connection use what another table names, if it can serve."""
        with self._lock:
            if config != self._config:
                self._config, self._files, self._seen = config, files_of(config), None

    def wrap(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Return what takes the place of a connected socket; its handshake has not begun."""
        return self._current().wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )

    def connect(self, sock: socket.socket, host: str, timeout_s: float) -> ssl.SSLSocket:
        """Wait for the whole handshake; return what takes the place of a connected socket.

        It has the timeout of ``sock``. Raises ``OSError``, which says why; then it is closed.
        """
        timeout = sock.gettimeout()
        wrapped = self.wrap(sock, host)
        try:
            complete_handshake(wrapped, time.monotonic() + timeout_s)
        except OSError as error:
            wrapped.close()
            raise OSError(failure(error)) from None
        wrapped.settimeout(timeout)
        return wrapped

    def _current(self) -> ssl.SSLContext:
        with self._lock:
            state = self._state_of_files()
            if state != self._seen:
                self._seen = state
                try:
                    self._context = client_context(self._config)
                except TlsError as error:
                    logger.error("The keys of TLS stay as they are: %s", error)
            return self._context

    def _state_of_files(self) -> list[object]:
        return [state_of(path) for path in self._files]
