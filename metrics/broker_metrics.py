"""The metrics of a broker for Prometheus; names are Kafka's MBeans joined by underscores.

They are read on request from the counters of their owners: nothing is measured twice.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regent.actors.broker import BrokerStatus, BrokerView
from regent.actors.controller_event_manager import ControllerView
from regent.actors.inbox import inbox_of
from regent.actors.watchdog import Watchdog
from regent.core.errors import RegentError
from regent.metrics.controller_metrics import controller_metrics, timer_metric
from regent.metrics.log_cleaner_metrics import log_cleaner_metrics
from regent.metrics.replication_metrics import fetcher_metrics, replication_metrics

if TYPE_CHECKING:
    from regent.cluster.guardian import Guardian
    from regent.storage.log_manager import LogManager
    from regent.transport.server import ControlServer
    from regent.zk.client.session import SessionKeeper

_REQUEST_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class BrokerMetrics(Collector):
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

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present value."""
        yield from controller_metrics(self._controller)
        yield from self._of_the_session()
        yield from self._of_the_broker()

    def _of_the_session(self) -> Iterable[Metric]:
        listener = "kafka_server_SessionExpireListener_"
        statistics = self._keeper.statistics
        state = GaugeMetricFamily(listener + "SessionState", "1 for the state", labels=["state"])
        state.add_metric([self._keeper.state.name], 1)
        yield state
        for name, meaning, count in (
            ("ZooKeeperSyncConnectsPerSec", "connections made", statistics.connects),
            ("ZooKeeperDisconnectsPerSec", "connections lost", statistics.disconnects),
            ("ZooKeeperExpiresPerSec", "sessions that ended", statistics.expires),
        ):
            yield CounterMetricFamily(listener + name, meaning, value=count)
        yield timer_metric(
            "kafka_server_ZooKeeperClientMetrics_ZooKeeperRequestLatencyMs",
            "calls to ZooKeeper, of any size, in milliseconds",
            statistics.request_latency,
        )

    def _of_the_broker(self) -> Iterable[Metric]:
        yield from replication_metrics(self._broker.replica_manager)
        yield from fetcher_metrics(self._broker.fetchers)
        yield GaugeMetricFamily(
            "kafka_log_LogManager_OfflineLogDirectoryCount",
            "log directories that have failed",
            value=len(self._logs.failed_directories),
        )
        yield from log_cleaner_metrics(self._logs.cleaner, self._logs.directories)
        state = GaugeMetricFamily("kafka_server_BrokerState", "1 for the state", labels=["state"])
        state.add_metric([self._status.state.value], 1)
        yield state
        rejected = CounterMetricFamily(
            "regent_rejected_frames", "malformed or refused messages", labels=["reason"]
        )
        for reason, count in self._server.rejected.counts.items():
            rejected.add_metric([reason.value], count)
        yield rejected
        yield CounterMetricFamily(
            "regent_unexpected_errors",
            "messages an actor failed to handle",
            value=sum(
                inbox_of(actor.ref).activity.failures for actor in (self._controller, self._broker)
            ),
        )
        yield CounterMetricFamily(
            "regent_stuck_actors", "actors found stuck", value=self._watchdog.incidents
        )


class _RequestHandler(WSGIRequestHandler):
    """Has a thread of its own and a timeout: a client may connect and send nothing."""

    def handle(self) -> None:
        """Handle a request; end it at the timeout."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class MetricsServer:
    """Serves ``/metrics`` on ``host:port``, 0 for any free port.

    If the port is in use, log a warning and use a free one, because a broker can serve without
    metrics. A client that sends or reads nothing for ``timeout_s`` is disconnected. Raises
    ``RegentError`` for an unusable address.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float = _REQUEST_TIMEOUT_S) -> None:
        self._registry = CollectorRegistry()
        try:
            self._server, self._thread = self._listen(host, port)
        except OSError as error:
            raise RegentError(f"cannot listen on {host}:{port}: {error}") from None
        handler = type("RequestHandler", (_RequestHandler,), {"timeout": timeout_s})
        self._server.RequestHandlerClass = handler
        self.port: int = self._server.server_port

    def _listen(self, host: str, port: int) -> tuple[WSGIServer, Thread]:
        try:
            return start_http_server(port, host, self._registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        server, thread = start_http_server(0, host, self._registry)
        logger.warning(
            "%s:%d is in use: metrics are served on port %d instead", host, port, server.server_port
        )
        return server, thread

    def publish(self, metrics: Collector) -> None:
        """Serve these metrics too."""
        self._registry.register(metrics)

    def withdraw(self, metrics: Collector) -> None:
        """Stop serving these metrics (KAFKA-14866: they must not outlive their object)."""
        self._registry.unregister(metrics)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


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


class TopicMetrics(Collector):
    """Requests that wait, and placements of new topics with and without the service."""

    def __init__(self, topics: TopicRequestCounts) -> None:
        self._topics = topics

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present value."""
        yield GaugeMetricFamily(
            "kafka_server_DelayedOperationPurgatory_topic_PurgatorySize",
            "requests about topics that are not answered yet",
            value=self._topics.pending_count,
        )
        placement = self._topics.placement
        for name, meaning, count in (
            ("placements", "placements of topics for clients", placement.placements),
            (
                "placement_fallbacks",
                "placements without the placement service",
                placement.fallbacks,
            ),
        ):
            yield CounterMetricFamily(f"regent_topic_{name}", meaning, value=count)


class GuardianMetrics(Collector):
    """Whether this broker's guardian runs, and how often it was replaced."""

    def __init__(self, guardian: Guardian) -> None:
        self._guardian = guardian

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present value."""
        yield GaugeMetricFamily(
            "regent_guardian_up",
            "1: a crash of this broker is seen at once; 0: when its session times out",
            value=int(self._guardian.is_alive),
        )
        yield CounterMetricFamily(
            "regent_guardian_replacements",
            "guardians that died and were replaced",
            value=self._guardian.replacements,
        )
