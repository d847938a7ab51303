"""The metrics of a broker for Prometheus.

They are read on request from the counters of their owners: nothing is measured twice. The names
are those that the usual dashboards for Kafka query; docs/metrics.md has all of them.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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

from regent.actors.broker import BrokerState, BrokerStatus, BrokerView
from regent.actors.controller_event_manager import ControllerView
from regent.actors.inbox import inbox_of
from regent.actors.watchdog import Watchdog
from regent.broker.metrics.controller_metrics import controller_metrics
from regent.broker.metrics.exposition import (
    CONTENT_TYPE,
    Family,
    MetricSource,
    counter,
    gauge,
    summary,
    text,
)
from regent.broker.metrics.log_cleaner_metrics import log_cleaner_metrics
from regent.broker.metrics.recent import Recent
from regent.broker.metrics.replication_metrics import fetcher_metrics, replication_metrics
from regent.config.addresses import resolve
from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.transport.control.wakeup import Wakeup

if TYPE_CHECKING:
    from regent.cluster.guardian import Guardian
    from regent.storage.log.open_files import OpenFiles
    from regent.storage.log_manager import LogManager
    from regent.transport.control.server import ControlServer
    from regent.zk.client.session import SessionKeeper

_REQUEST_TIMEOUT_S = 10.0
_STATES: Final = {
    BrokerState.NOT_RUNNING: 0,
    BrokerState.STARTING: 1,
    BrokerState.RUNNING_AS_BROKER: 3,
    BrokerState.RUNNING_AS_CONTROLLER: 3,  # as in Kafka since 2.8
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: 6,
    BrokerState.BROKER_SHUTTING_DOWN: 7,
}
_IO: Final = "/proc/self/io"

logger = logging.getLogger(__name__)


class BrokerMetrics:
    """Collects one broker's metrics from its parts."""

    def __init__(
        self,
        broker: BrokerView,
        logs: LogManager,
        controller: ControllerView,
        keeper: SessionKeeper,
        server: ControlServer,
        status: BrokerStatus,
        watchdog: Watchdog,
    ) -> None:
        self._broker = broker
        self._logs = logs
        self._keeper = keeper
        self._controller = controller
        self._server = server
        self._status = status
        self._watchdog = watchdog
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield from controller_metrics(self._controller, self._recent)
        yield from self._of_the_session()
        yield from self._of_the_broker()
        yield from _disk_bytes()

    def _of_the_session(self) -> Iterable[Family]:
        listener = "kafka_server_sessionexpirelistener_"
        statistics = self._keeper.statistics
        yield gauge(listener + "sessionstate", "1 for the state").add(
            1, {"state": self._keeper.state.name}
        )
        for name, meaning, count in (
            ("zookeepersyncconnectspersec", "connections made", statistics.connects),
            ("zookeeperdisconnectspersec", "connections lost", statistics.disconnects),
            ("zookeeperexpirespersec", "sessions that ended", statistics.expires),
            ("zookeeperauthfailurespersec", "none: a broker does not log in to ZooKeeper", 0),
        ):
            yield counter(listener + name, meaning, count)
        latency = summary(
            "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
            "calls to ZooKeeper, of any size, in milliseconds",
        )
        self._recent.add_summary(latency, statistics.request_latency)
        yield latency

    def _of_the_broker(self) -> Iterable[Family]:
        yield from replication_metrics(self._broker.replica_manager)
        yield from fetcher_metrics(self._broker.fetchers, self._recent)
        yield gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "log directories that have failed",
            len(self._logs.failed_directories),
        )
        yield from _open_files(self._logs.files)
        yield from log_cleaner_metrics(self._logs.cleaner, self._logs.directories)
        yield gauge(
            "kafka_server_replicamanager_straypartitionscount",
            "stray logs: they are in a log directory, but belong to no replica",
            len(self._logs.strays),
        )
        yield gauge(
            "kafka_server_kafkaserver_brokerstate",
            "the state, by Kafka's numbers: 3 is running",
            _STATES[self._status.state],
        )
        rejected = counter("regent_rejected_frames_total", "malformed or refused messages")
        for reason, count in self._server.rejected.counts.items():
            rejected.add(count, {"reason": reason.value})
        yield rejected
        requests = counter("regent_control_requests_total", "requests at the control port")
        for api_key, count in self._server.requests.copy().items():
            requests.add(count, {"request": "".join(map(str.capitalize, api_key.name.split("_")))})
        yield requests
        yield counter(
            "regent_unexpected_errors_total",
            "messages an actor failed to handle",
            sum(
                inbox_of(actor.ref).activity.failures for actor in (self._controller, self._broker)
            ),
        )
        yield counter("regent_stuck_actors_total", "actors found stuck", self._watchdog.incidents)


def _open_files(files: OpenFiles) -> Iterable[Family]:
    """Yield how many files of logs are open; log_open_files_max limits them."""
    yield gauge("regent_open_log_files", "files of logs that are open", len(files))
    yield gauge(
        "regent_open_log_files_max", "with more, files that are not used are closed", files.limit
    )
    yield counter("regent_log_files_opened_total", "files of logs opened", files.opened)
    yield counter(
        "regent_log_files_closed_early_total",
        "files of logs closed because others had to be opened",
        files.closed_early,
    )


def _disk_bytes() -> Iterable[Family]:
    """Yield what this process has read from and written to disks, if the kernel tells it."""
    try:
        with open(_IO, encoding="ascii") as file:
            counts = dict(line.split(": ") for line in file.read().splitlines())
    except (OSError, ValueError):
        return
    for name, meaning in (("read", "read from"), ("write", "written to")):
        yield counter(
            f"kafka_server_kafkaserver_linux_disk_{name}_bytes",
            f"bytes that this process has {meaning} disks",
            int(counts[f"{name}_bytes"]),
        )


class _RequestHandler(WSGIRequestHandler):
    """Has a thread of its own and a timeout: a client may connect and send nothing."""

    def handle(self) -> None:
        """Handle a request; end it at the timeout."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    timeout = 0  # a client may leave before it is accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request on a thread of its own."""
        arguments = (request, client_address)
        NamedThread(self.process_request_thread, "metrics-request", arguments).start()


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Serves ``/metrics`` on ``host:port``, 0 for any free port.

    If the port is in use, log a warning and use a free one, because a broker can serve without
    metrics. A client that sends or reads nothing for ``timeout_s`` is disconnected. Raises
    ``RegentError`` for an unusable address.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float = _REQUEST_TIMEOUT_S) -> None:
        self._sources: list[MetricSource] = []
        self._process = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
            self._process.register(collector)
        handler = type("RequestHandler", (_RequestHandler,), {"timeout": timeout_s})
        try:
            self._server = self._listen(host, port, handler)
        except OSError as error:
            raise RegentError(f"cannot listen on {host}:{port}: {error}") from None
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
        del environ
        families = [family for source in list(self._sources) for family in source.collect()]
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        yield generate_latest(self._process)
        for name in text(families):
            yield name.encode()

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
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._closing, selectors.EVENT_READ)
            while all(key.fileobj is self._server for key, _ in selector.select()):
                self._server.handle_request()


class PlacementCounts(Protocol):
    """How often new topics were placed."""

    placements: int
    fallbacks: int


class TopicRequestCounts(Protocol):
    """The counters of ``broker.topic_service.BrokerTopicService``."""

    @property
    def placement(self) -> PlacementCounts:
        """The counters of placements for clients."""
        ...

    @property
    def pending_count(self) -> int:
        """The number of requests that wait."""
        ...


class TopicMetrics:
    """Requests that wait, and placements of new topics with and without the service."""

    def __init__(self, topics: TopicRequestCounts) -> None:
        self._topics = topics

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield gauge(
            "kafka_server_delayedoperationpurgatory_purgatorysize", "requests that wait"
        ).add(self._topics.pending_count, {"delayedoperation": "topic"})
        placement = self._topics.placement
        for name, meaning, count in (
            ("placements", "placements of topics for clients", placement.placements),
            (
                "placement_fallbacks",
                "placements without the placement service",
                placement.fallbacks,
            ),
        ):
            yield counter(f"regent_topic_{name}_total", meaning, count)


class GuardianMetrics:
    """Whether this broker's guardian runs, and how often it was replaced."""

    def __init__(self, guardian: Guardian) -> None:
        self._guardian = guardian

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield gauge(
            "regent_guardian_up",
            "1: a crash of this broker is seen at once; 0: when its session times out",
            int(self._guardian.is_alive),
        )
        yield counter(
            "regent_guardian_replacements_total",
            "guardians that died and were replaced",
            self._guardian.replacements,
        )
