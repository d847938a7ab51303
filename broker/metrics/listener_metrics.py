"""The metrics of the port that Kafka clients connect to, and of what the clients use."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from regent.actors.scheduler import monotonic_ms
from regent.broker.metrics.metric_table import (
    Family,
    Metric,
    MetricTable,
    counter,
    gauge,
    rate,
    share,
    summary,
)
from regent.broker.metrics.recent import Recent
from regent.core.quota.client_quota_manager import ClientQuotaManager, QuotaUse
from regent.core.quota.quota_entities import entity_of
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.replication.broker_topic_stats import ResponseErrors
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.metrics import (
    NO_ERROR,
    Closed,
    ListenerMetrics,
    RequestMetrics,
    of_all_listeners,
)

MAX_CLIENTS: Final = 100
"""Those who use most of their quotas; there may be thousands."""
_PROCESSOR: Final = "0"  # a listener has one thread
_IDLE: Final = "share of the last minute in which the listener's thread had nothing to do"
_USE_DETAILS: Final = f"the {MAX_CLIENTS} that use most of their quotas"

REQUESTS: Final = MetricTable[int](
    "kafka.network:type=RequestMetrics,name=",
    counter("RequestsPerSec", "requests"),
    labels=("request", "version"),
)
ERRORS: Final = MetricTable[int](
    "kafka.network:type=RequestMetrics,name=",
    counter(
        "ErrorsPerSec",
        "errors in responses; NONE: no error",
        details="once for each partition or topic that has one. Not of Metadata, ListOffsets"
        " and OffsetForLeaderEpoch, nor of records refused before they reach the log",
    ),
    labels=("request", "error"),
)
TIMES: Final = MetricTable[RequestMetrics](
    "kafka.network:type=RequestMetrics,name=",
    summary(
        "TotalTimeMs",
        "from the arrival of a request until its response is sent, in milliseconds",
        "total_time",
    ),
    summary(
        "RequestQueueTimeMs", "until a request is handled, in milliseconds", "request_queue_time"
    ),
    summary("LocalTimeMs", "handling, until the response or a wait, in milliseconds", "local_time"),
    summary(
        "RemoteTimeMs",
        "wait for other brokers, for records, or for other threads, in milliseconds",
        "remote_time",
    ),
    summary(
        "ResponseQueueTimeMs",
        "wait for the responses to earlier requests, in milliseconds",
        "response_queue_time",
        details="those of the same connection",
    ),
    summary(
        "ResponseSendTimeMs",
        "until the socket has taken the response, in milliseconds",
        "response_send_time",
    ),
    labels=("request",),
)
SOCKET_SERVER: Final = MetricTable[ListenerMetrics](
    "kafka.network:type=SocketServer,name=",
    share("NetworkProcessorAvgIdlePercent", _IDLE, lambda m: m.idle_s()),
    gauge(
        "ExpiredConnectionsKilledCount",
        "connections closed because their login had expired",
        lambda m: m.closed[Closed.LOGIN_EXPIRED],
    ),
)
PROCESSOR: Final = MetricTable[ListenerMetrics](
    "kafka.network:type=Processor,name=",
    share("IdlePercent", _IDLE, lambda m: m.idle_s()),
    labels=("networkprocessor",),
)
HANDLERS: Final = MetricTable[ListenerMetrics](
    "kafka.server:type=KafkaRequestHandlerPool,name=",
    share("RequestHandlerAvgIdlePercent_OneMinuteRate", _IDLE, lambda m: m.idle_s()),
)
ACCEPTOR: Final = MetricTable[ListenerMetrics](
    "kafka.network:type=Acceptor,name=",
    share(
        "AcceptorBlockedPercent",
        "share of the last minute in which max_connections or max_connection_creation_rate kept"
        " clients waiting",
        "accept_paused_s",
    ),
    labels=("listener",),
)
REQUEST_QUEUE: Final = MetricTable[ListenerMetrics](
    "kafka.network:type=RequestChannel,name=",
    gauge(
        "RequestQueueSize",
        "connections whose requests wait to be handled",
        lambda m: m.queue_size(),
    ),
)
RESPONSE_QUEUE: Final = MetricTable[ListenerMetrics](
    "kafka.network:type=RequestChannel,name=",
    gauge("ResponseQueueSize", "connections whose clients do not read their responses", "unread"),
    labels=("processor",),
)


def _counted(
    name: str, meaning: str, read: str | Callable[[ListenerMetrics], float]
) -> tuple[Metric[ListenerMetrics], Metric[ListenerMetrics]]:
    return (
        counter(f"{name}-total", meaning, read),
        rate(f"{name}-rate", f"{meaning}, in a second, in the last minute", read),
    )


CONNECTIONS: Final = MetricTable[ListenerMetrics](
    "kafka.server:type=socket-server-metrics",
    gauge("connection-count", "open connections", "connections"),
    *_counted("connection-creation", "connections accepted", "accepted"),
    *_counted("connection-close", "connections closed, by either side", "disconnected"),
    *_counted("incoming-byte", "bytes received from clients", "bytes_in"),
    *_counted("outgoing-byte", "bytes sent to clients", "bytes_out"),
    *_counted(
        "successful-authentication", "first logins, or TLS handshakes", "successful_authentications"
    ),
    *_counted(
        "failed-authentication",
        "first logins or TLS handshakes that failed",
        "failed_authentications",
    ),
    *_counted("successful-reauthentication", "later logins", "successful_reauthentications"),
    *_counted("failed-reauthentication", "later logins that failed", "failed_reauthentications"),
    *_counted("request", "requests", lambda m: sum(api.count for api in m.requests)),
    labels=("listener", "network_processor"),
)
SOFTWARE: Final = MetricTable[int](
    "kafka.server:type=socket-server-metrics",
    gauge(
        "connections",
        "open connections by the client's software",
        details="as the client has named it (KIP-511)",
    ),
    labels=("client_software_name", "client_software_version", "listener", "network_processor"),
)
PAUSES: Final = MetricTable[ListenerMetrics](
    "",
    counter(
        "regent_client_throttles_total",
        "pauses in reading from a client",
        "throttled",
        details="it has too many requests in progress, or it uses too much memory or quota",
    ),
    counter(
        "regent_accept_pauses_total",
        "pauses because of max_connections or max_connection_creation_rate",
        "accept_pauses",
    ),
    counter("regent_client_errors_total", "errors outside of a connection", "errors"),
)
CLOSINGS: Final = MetricTable[int](
    "",
    counter("regent_closed_client_connections_total", "connections that the broker closed"),
    labels=("reason",),
)
TLS: Final = MetricTable[ListenerMetrics](
    "",
    gauge(
        "regent_certificate_expiry_days",
        "days until the first certificate of the listener expires",
        lambda m: 0.0 if m.tls is None else m.tls.days_until_expiry(),
        "of listeners with TLS",
    ),
    counter(
        "regent_tls_reload_failures_total",
        "changed keys that were not taken into use",
        lambda m: 0 if m.tls is None else m.tls.reload_failures,
        details="the log says why; the old ones stay",
    ),
    labels=("listener",),
)


def _quota_tables(
    request: str, attribute: str, meaning: str
) -> tuple[MetricTable[QuotaUse], MetricTable[QuotaUse]]:
    name = f"{request}_{attribute.replace('-', '_')}".lower()
    labels = ("user", "client_id")
    use = gauge(attribute, f"{meaning}, of clients with a quota", _rate_of, _USE_DETAILS)
    limit = gauge(f"regent_{name}_limit", "the quota of the same", _limit_of)
    return (
        MetricTable(
            f"kafka.server:type={request}",
            use,
            labels=labels,
        ),
        MetricTable(
            "",
            limit,
            labels=labels,
        ),
    )


def _rate_of(use: QuotaUse) -> float:
    return use.rate


def _limit_of(use: QuotaUse) -> float:
    return use.limit


PRODUCE_QUOTAS: Final = _quota_tables(
    "Produce", "byte-rate", "bytes of produce requests in a second"
)
FETCH_QUOTAS: Final = _quota_tables("Fetch", "byte-rate", "bytes of fetched records in a second")
REQUEST_QUOTAS: Final = _quota_tables(
    "Request", "request-time", "percentage of the listener's thread"
)


class KafkaClientMetrics:
    """Requests, times, errors, connections and bytes of clients; also the requests of followers.

    ``listener_metrics`` returns the metrics of the listeners for clients by their names, all with
    the same ``requests``. ``follower_fetches`` has the fetches of followers, which come to another
    port; None: they come to that of the clients.
    """

    def __init__(
        self,
        listener_metrics: Callable[[], Mapping[str, ListenerMetrics]],
        replicas: ReplicaManager,
        follower_fetches: RequestMetrics | None,
    ) -> None:
        self._listener_metrics = listener_metrics
        self._replicas = replicas
        self._follower_fetches = follower_fetches
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        of_listeners, recent = self._listener_metrics(), self._recent
        if not of_listeners:
            return
        metrics = of_all_listeners(tuple(of_listeners.values()))
        used = list(self._used(metrics))
        yield from REQUESTS.families(
            (
                ((name, str(version)), count)
                for (name,), api in used
                for version, count in enumerate(api.versions)
                if count
            ),
            recent,
        )
        yield from ERRORS.families(self._errors(metrics), recent)
        yield from TIMES.families(used, recent)
        for table in (SOCKET_SERVER, HANDLERS, REQUEST_QUEUE, PAUSES):
            yield from table.of(metrics, recent)
        yield from PROCESSOR.of(metrics, recent, _PROCESSOR)
        yield from RESPONSE_QUEUE.of(metrics, recent, _PROCESSOR)
        yield from ACCEPTOR.families(
            (((name,), listener) for name, listener in of_listeners.items()), recent
        )
        yield from CONNECTIONS.families(
            (((name, _PROCESSOR), listener) for name, listener in of_listeners.items()), recent
        )
        yield from SOFTWARE.families(
            (
                ((*words, name, _PROCESSOR), count)
                for name, listener in of_listeners.items()
                for words, count in listener.software.copy().items()
            ),
            recent,
        )
        closed = (((reason.value,), count) for reason, count in metrics.closed.items())
        yield from CLOSINGS.families(closed, recent)
        encrypting = (((name,), one) for name, one in of_listeners.items() if one.tls is not None)
        yield from TLS.families(encrypting, recent)

    def _used(self, metrics: ListenerMetrics) -> Iterator[tuple[tuple[str], RequestMetrics]]:
        """Yield the APIs that were used, by Kafka's names."""
        for api_key in KafkaApiKey:
            if metrics.requests[api_key].count:
                yield (_kafka_name(api_key.name),), metrics.requests[api_key]
        if (fetches := metrics.requests[KafkaApiKey.FETCH]).count:
            yield ("FetchConsumer",), fetches
        if self._follower_fetches is not None and self._follower_fetches.count:
            yield ("FetchFollower",), self._follower_fetches

    def _errors(self, metrics: ListenerMetrics) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield how many responses, or partitions in them, had an error."""
        for api_key in KafkaApiKey:
            for error, count in metrics.requests[api_key].errors.copy().items():
                yield (_kafka_name(api_key.name), error), count
        stats = self._replicas.topic_stats
        yield from _errors_of("Produce", stats.produce_errors)
        yield from _errors_of("Fetch", stats.fetch_errors)
        yield from _errors_of("FetchConsumer", stats.fetch_errors)


class QuotaMetrics:
    """The rates of clients that have a quota, and their quotas.

    ``now_ms`` is the clock that the rates are recorded with. Mirrors the MBeans of
    ``kafka.server.ClientQuotaManager``.
    """

    def __init__(self, quotas: QuotaManagers, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._quotas = quotas
        self._now_ms = now_ms
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        now_ms = self._now_ms()
        for manager, tables in (
            (self._quotas.produce, PRODUCE_QUOTAS),
            (self._quotas.fetch, FETCH_QUOTAS),
            (self._quotas.request, REQUEST_QUOTAS),
        ):
            uses = list(_largest_uses(manager, now_ms))
            for table in tables:
                yield from table.families(uses, self._recent)


def _largest_uses(
    manager: ClientQuotaManager, now_ms: int
) -> Iterator[tuple[tuple[str, str], QuotaUse]]:
    shares = {use: use.rate / use.limit for use in manager.uses(now_ms)}
    for use in heapq.nlargest(MAX_CLIENTS, shares, key=shares.__getitem__):
        entity = entity_of(use.path)
        assert entity is not None
        yield (entity.user or "", entity.client_id or ""), use


def _errors_of(request: str, errors: ResponseErrors) -> Iterator[tuple[tuple[str, str], int]]:
    if errors.without_error:
        yield (request, NO_ERROR), errors.without_error
    for error, count in errors.by_code.copy().items():
        yield (request, error.name), count


def _kafka_name(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))
