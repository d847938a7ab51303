"""Serves the metrics of a broker to Prometheus over HTTP."""

from __future__ import annotations

import errno
import hmac
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    generate_latest,
)

from regent.broker.metrics.metric_table import CONTENT_TYPE, MetricSource, text
from regent.config.addresses import is_loopback, resolve
from regent.config.private_files import read_private
from regent.config.settings import Settings
from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.transport.control.wakeup import Wakeup
from regent.transport.kafka.handshakes import first_to_go
from regent.transport.local_users import EVERYBODY, LocalUsers, rest_after_strangers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    # It reads certificates with a library that is not loaded without TLS.
    from regent.transport.kafka.tls import ServerTls

_REQUEST_TIMEOUT_S: Final = 10.0
_MAX_REQUESTS: Final = 16
_ROOM_TIMEOUT_S: Final = 1.0
_PORT_NAME: Final = "metrics port"
_ACCEPTS_PER_TURN: Final = 32
_ACCEPT_RETRY_S: Final = 1.0
_LOG_INTERVAL_S: Final = 10.0
_MIN_TOKEN: Final = 16
_METRICS_PATHS: Final = ("/metrics", "/metrics/")
_PATHS: Final = "there are /metrics, /health, /ready and /controller"
_CERTIFICATE: Final = "regent.client_certificate"
_BEARER: Final = (("WWW-Authenticate", "Bearer"),)

logger = logging.getLogger(__name__)


class Probes(Protocol):
    """What load balancers and supervisors ask of a broker, or of a node; on any thread."""

    def why_not_ready(self) -> str:
        """Return why clients should use other brokers; empty: this one serves them fully."""
        ...

    def is_controller(self) -> bool:
        """Whether this is the active controller."""
        ...


class _Starting:
    """A broker that does not serve yet, or does not serve any more."""

    def why_not_ready(self) -> str:
        """See ``Probes``."""
        return "the broker starts or stops"

    def is_controller(self) -> bool:
        """See ``Probes``."""
        return False


class _Waiting:
    """A request that waits for its client: to send it, later to read the answer."""

    def __init__(self, sock: socket.socket, client_host: str, timeout_s: float) -> None:
        """Raise ``OSError`` if there is no descriptor."""
        self._twin = sock.dup()  # TLS replaces the other one
        self.client_host = client_host
        self.ends_at = time.monotonic() + timeout_s
        """When the whole request must have come."""

    def break_off(self) -> None:
        """Wake the thread that waits for the client: its connection has ended."""
        with suppress(OSError):
            self._twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the descriptor."""
        self._twin.close()


class _Handled(threading.local):
    """What the present thread handles."""

    request: _Waiting


class _FromClient(RawIOBase):
    """Reads a request, which must come within its time: a client may send a byte a second."""

    def __init__(self, connection: socket.socket, ends_at: float) -> None:
        self._connection = connection
        self._ends_at = ends_at

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what has come. Raises ``TimeoutError``."""
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request did not come in time")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _ToClient(BufferedIOBase):
    """Sends an answer. A client that has left, or does not read, is no fault for ``wsgiref``.

    It takes an error for that only if it is a ``ConnectionError``; those of TLS are not.
    """

    def __init__(self, connection: socket.socket, on_begun: Callable[[], object]) -> None:
        self._connection = connection
        self._on_begun = on_begun

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Send all. Raises ``ConnectionAbortedError``."""
        self._on_begun()
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise ConnectionAbortedError(*error.args) from None
        return memoryview(data).nbytes


class _RequestHandler(WSGIRequestHandler):
    """Has a thread of its own and a timeout: a client may connect and send nothing."""

    server: _Server

    def setup(self) -> None:
        """Prepare to read a request."""
        super().setup()
        self.rfile.close()
        waiting = self.server.handled.request
        self.rfile = BufferedReader(_FromClient(self.connection, waiting.ends_at))
        self.wfile = _ToClient(self.connection, lambda: self.server.await_client(waiting))

    def get_environ(self) -> dict[str, Any]:
        """Return what the request has; also whether the client has shown a certificate."""
        connection = self.connection
        self.server.on_read(self.server.handled.request)
        connection.settimeout(self.timeout)
        is_shown = (
            isinstance(connection, ssl.SSLSocket) and connection.getpeercert(True) is not None
        )
        return {**super().get_environ(), _CERTIFICATE: is_shown}

    def handle(self) -> None:
        """Handle a request; end it at the timeout."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    request_queue_size = 128  # beyond that, who connects is let in a second later
    users = EVERYBODY
    tls: ServerTls | None = None
    timeout_s = _REQUEST_TIMEOUT_S
    log_at = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.socket.setblocking(False)  # a client may leave before it is accepted
        self._free = threading.Semaphore(_MAX_REQUESTS)
        self.handled = _Handled()
        self._waiting: dict[_Waiting, None] = {}  # those that wait for them, the longest first
        self._lock = threading.Lock()

    def accept_some(self) -> float:
        """Accept connections that wait; return for how many seconds none is to be accepted."""
        began, were_refused = time.monotonic(), False
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                request, client_address = self.get_request()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError:  # no descriptor, or no memory, is left
                return _ACCEPT_RETRY_S
            is_admitted = self.users.admits(request, _PORT_NAME)
            were_refused = were_refused or not is_admitted
            if not is_admitted or not self._take_place():
                request.close()
                continue
            if not self._begin(request, client_address):
                self._free.release()
                request.close()
        return rest_after_strangers(time.monotonic() - began) if were_refused else 0.0

    def _take_place(self) -> bool:
        """Take a place for a request; if there is none, that of one that waits for its client."""
        if self._free.acquire(blocking=False):
            return True
        with self._lock:
            if not self._waiting:
                return False
            first = first_to_go(self._waiting)
            del self._waiting[first]
            first.break_off()
        return self._free.acquire(timeout=_ROOM_TIMEOUT_S)

    def _begin(self, request: socket.socket, client_address: Any) -> bool:
        """Handle a request on a thread of its own; False: no descriptor or no thread is left."""
        with suppress(OSError, RuntimeError):
            waiting = _Waiting(request, client_address[0], self.timeout_s)
            arguments = (request, client_address, waiting)
            self.await_client(waiting)
            try:
                NamedThread(self._handle, "metrics-request", arguments).start()
            except RuntimeError:
                self._end(waiting)
                raise
            return True
        return False

    def _handle(self, request: Any, client_address: Any, waiting: _Waiting) -> None:
        """Handle a request, then let another one in."""
        self.handled.request = waiting
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._end(waiting)
            self._free.release()

    def await_client(self, waiting: _Waiting) -> None:
        """From now on a request waits for its client."""
        with self._lock:
            self._waiting.setdefault(waiting)

    def on_read(self, waiting: _Waiting) -> None:
        """A request has come: it does not wait. Raises ``ConnectionAbortedError``."""
        with self._lock:
            if waiting not in self._waiting:
                raise ConnectionAbortedError("another request has the place")
            del self._waiting[waiting]

    def _end(self, waiting: _Waiting) -> None:
        with self._lock:
            self._waiting.pop(waiting, None)
            waiting.close()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a request, encrypted if there are keys; who cannot do that gets no answer."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        from regent.transport.kafka.tls import TlsHandshakeError

        self.tls.reload_if_changed()
        try:
            encrypted, _ = self.tls.handshake(request, self.timeout_s)
        except TlsHandshakeError as error:
            self._log_refusal(client_address[0], error)
            return
        with encrypted:
            super().finish_request(encrypted, client_address)

    def _log_refusal(self, host: str, why: object) -> None:
        now = time.monotonic()
        if now >= self.log_at:
            self.log_at = now + _LOG_INTERVAL_S
            logger.warning("%s closed the connection of %s: %s", _PORT_NAME, host, why)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Serves ``/metrics`` and the state of the broker on ``host:port``, 0 for any free port.

    ``/health`` is 200 as long as the process answers, ``/ready`` if clients should use this broker,
    ``/controller`` if it is the active controller; else they are 503. They need no token and
    no certificate, and then do not say why: only the status is told. Other paths are 404.

    If the port is in use, log a warning and use a free one, because a broker can serve without
    metrics. A client whose request has not come within ``timeout_s``, or that reads nothing for as
    long, is disconnected. Raises ``RegentError`` for an unusable address. On loopback ``users`` may
    connect; 16 requests are answered at a time. A further one takes the place of one that waits for
    its client, the longest of the network with the most of them; else it is closed. With ``tls``
    they are encrypted. With a ``token`` they must have it (``Authorization: Bearer``), and a
    certificate if they ``must_prove`` who they are.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = _REQUEST_TIMEOUT_S,
        users: LocalUsers = EVERYBODY,
        tls: ServerTls | None = None,
        token: str | None = None,
        must_prove: bool = False,
    ) -> None:
        self._must_prove = must_prove
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._sources: list[MetricSource] = []
        self.probes: Probes = _Starting()
        """What answers ``/ready`` and ``/controller``; may be replaced at any time."""
        self.why_not_healthy: Callable[[], str] = lambda: ""
        """What answers ``/health``: a broker that answers is healthy."""
        self._process = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
            self._process.register(collector)
        handler = type("RequestHandler", (_RequestHandler,), {"timeout": timeout_s})
        try:
            self._server = self._listen(host, port, handler)
        except OSError as error:
            raise RegentError(f"cannot listen on {host}:{port}: {error}") from None
        self._server.users = users.at(host)
        self._server.tls = tls
        self._server.timeout_s = timeout_s
        self.port: int = self._server.server_port
        self._closing = Wakeup()
        self._thread = NamedThread(self._serve, "metrics-server")
        self._thread.start()

    def _listen(self, host: str, port: int, handler: type[_RequestHandler]) -> _Server:
        address = resolve(host)
        kind = _Ipv6Server if address.is_ipv6 else _Server
        try:
            return make_server(address.number, port, self._answer, kind, handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        server = make_server(address.number, 0, self._answer, kind, handler)
        logger.warning(
            "%s:%d is in use: metrics are served on port %d instead", host, port, server.server_port
        )
        return server

    def _answer(
        self, environ: dict[str, Any], start_response: Callable[..., object]
    ) -> Iterator[bytes]:
        path, is_known = environ.get("PATH_INFO", ""), self._is_known(environ)
        probed = self._probe(path)
        if probed is not None:
            yield from _say(start_response, *(probed if is_known else (probed[0], "")))
            return
        if not is_known:
            yield from _say(start_response, HTTPStatus.UNAUTHORIZED, "", _BEARER)
            return
        if path not in _METRICS_PATHS:
            yield from _say(start_response, HTTPStatus.NOT_FOUND, _PATHS)
            return
        families = [family for source in list(self._sources) for family in source.collect()]
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        yield generate_latest(self._process)
        for name in text(families):
            yield name.encode()

    def _is_known(self, environ: Mapping[str, Any]) -> bool:
        if self._must_prove and not environ[_CERTIFICATE]:
            return False
        if self._authorization is None:
            return True
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, self._authorization)

    def _probe(self, path: str) -> tuple[HTTPStatus, str] | None:
        """Return the answer to a path about the broker's state; None for any other path."""
        match path:
            case "/health":
                why_not = self.why_not_healthy()
            case "/ready":
                why_not = self.probes.why_not_ready()
            case "/controller":
                is_active = self.probes.is_controller()
                why_not = "" if is_active else "another broker is the active controller"
            case _:
                return None
        if why_not:
            return HTTPStatus.SERVICE_UNAVAILABLE, why_not
        return HTTPStatus.OK, "yes"

    def publish(self, source: MetricSource) -> None:
        """Serve these metrics too."""
        self._sources.append(source)

    def withdraw(self, source: MetricSource) -> None:
        """Stop serving these metrics (KAFKA-14866: they must not outlive their object)."""
        self._sources.remove(source)

    def close(self) -> None:
        """Stop serving."""
        self._closing.set()
        self._thread.join(5)
        self._server.server_close()
        self._closing.close()

    def _serve(self) -> None:
        """Handle requests until ``close``; ``serve_forever`` would wake twice a second."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._closing, selectors.EVENT_READ)
            rest_s = 0.0
            while not (rest_s and selector.select(rest_s)):
                selector.register(self._server, selectors.EVENT_READ)
                if any(key.fileobj is self._closing for key, _ in selector.select()):
                    break
                selector.unregister(self._server)
                rest_s = self._server.accept_some()


def _say(
    start_response: Callable[..., object],
    status: HTTPStatus,
    line: str,
    more: Sequence[tuple[str, str]] = (),
) -> Iterator[bytes]:
    headers = [("Content-Type", "text/plain; charset=utf-8"), *more]
    start_response(f"{status.value} {status.phrase}", headers)
    if line:
        yield f"{line}\n".encode()


def open_metrics_server(settings: Settings, users: LocalUsers) -> MetricsServer:
    """Open the port of the metrics, with the protection that the settings name.

    Raises ``RegentError`` for settings or files that cannot serve, and for an unusable address.
    """
    config = settings.broker
    tls: ServerTls | None = None
    must_prove = config.metrics_tls and settings.tls.ssl_client_auth == "required"
    if config.metrics_tls:
        from regent.transport.kafka.tls import ServerTls

        # Not required: a probe of Kubernetes has no certificate.
        auth = "requested" if must_prove else settings.tls.ssl_client_auth
        tls = ServerTls.of(replace(settings.tls, ssl_client_auth=auth))
    token = _token_in(Path(config.metrics_token_file)) if config.metrics_token_file else None
    if token is None and not must_prove and not is_loopback(config.host):
        line = (
            f"all who reach port {config.metrics_port} of {config.host} can read the metrics:"
            " set broker.metrics_token_file, or broker.metrics_tls with ssl_client_auth = required"
        )
        if not config.allow_unauthenticated:
            raise RegentError(f"{line}, or broker.allow_unauthenticated = true")
        logger.warning("%s", line)
    protection: dict[str, Any] = {"tls": tls, "token": token, "must_prove": must_prove}
    return MetricsServer(config.host, config.metrics_port, users=users, **protection)


def _token_in(path: Path) -> str:
    """Return the token in a private file. Raises ``RegentError``."""
    text = read_private(path, "the token of the metrics port").decode("ascii", "replace").strip()
    if len(text) < _MIN_TOKEN or not all("!" <= character <= "~" for character in text):
        raise RegentError(
            f"metrics_token_file: {path} must have one line of at least {_MIN_TOKEN} characters"
            " without blanks: make it with `openssl rand -hex 32`"
        )
    return text
