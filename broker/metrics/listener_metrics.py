"""The metrics of the port that Kafka clients connect to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

from regent.broker.metrics.exposition import Family, counter, gauge, summary
from regent.broker.metrics.recent import Recent
from regent.core.replication.broker_topic_stats import ResponseErrors
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.timers import Durations
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.metrics import NO_ERROR, Closed, ListenerMetrics, RequestMetrics

_REQUESTS = "kafka_network_requestmetrics_"
_SOCKETS = "kafka_server_socketservermetrics_"
_PROCESSOR = "0"  # a listener has one thread
_HANDLERS = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate"

_TIMES: Mapping[str, tuple[str, Callable[[RequestMetrics], Durations]]] = {
    "totaltimems": (
        "from the arrival of a request until its response is sent",
        attrgetter("total_time"),
    ),
    "requestqueuetimems": ("until a request is handled", attrgetter("request_queue_time")),
    "localtimems": ("handling, until the response or a wait", attrgetter("local_time")),
    "remotetimems": (
        "wait for other brokers, for records, or for other threads",
        attrgetter("remote_time"),
    ),
    "responsequeuetimems": (
        "wait for the responses to earlier requests",
        attrgetter("response_queue_time"),
    ),
    "responsesendtimems": (
        "until the socket has taken the response",
        attrgetter("response_send_time"),
    ),
}


class KafkaClientMetrics:
    """Requests, times, errors, connections and bytes of clients; also the requests of followers.

    ``follower_fetches`` has the fetches of followers, which come to another port.
    """

    def __init__(
        self,
        listener: str,
        listener_metrics: Callable[[], ListenerMetrics | None],
        replicas: ReplicaManager,
        follower_fetches: RequestMetrics,
    ) -> None:
        self._listener = listener
        self._listener_metrics = listener_metrics
        self._replicas = replicas
        self._follower_fetches = follower_fetches
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        metrics = self._listener_metrics()
        if metrics is None:
            return
        yield from self._requests(metrics)
        yield from self._threads(metrics)
        yield from self._connections(metrics)
        for name, meaning, count in (
            ("client_throttles", "pauses in reading from a client", metrics.throttled),
            ("accept_pauses", "pauses because of max_connections", metrics.accept_pauses),
            ("client_errors", "errors outside of a connection", metrics.errors),
        ):
            yield counter(f"regent_{name}_total", meaning, count)
        yield gauge(
            "kafka_network_socketserver_expiredconnectionskilledcount",
            "connections closed because they were idle",
            metrics.closed[Closed.IDLE],
        )
        closed = counter(
            "regent_closed_client_connections_total", "connections that the broker closed"
        )
        for reason, count in metrics.closed.items():
            closed.add(count, {"reason": reason.value})
        yield closed

    def _used(self, metrics: ListenerMetrics) -> Iterator[tuple[str, RequestMetrics]]:
        """Yield the APIs that were used, by Kafka's names."""
        for api_key in KafkaApiKey:
            if metrics.requests[api_key].count:
                yield _kafka_name(api_key.name), metrics.requests[api_key]
        if (fetches := metrics.requests[KafkaApiKey.FETCH]).count:
            yield "FetchConsumer", fetches
        if self._follower_fetches.count:
            yield "FetchFollower", self._follower_fetches

    def _requests(self, metrics: ListenerMetrics) -> Iterable[Family]:
        used = list(self._used(metrics))
        requests = counter(_REQUESTS + "requestspersec", "requests")
        for name, api in used:
            for version, count in enumerate(api.versions):
                if count:
                    requests.add(count, {"request": name, "version": str(version)})
        yield requests
        yield self._errors(metrics)
        for part, (meaning, durations_of) in _TIMES.items():
            times = summary(_REQUESTS + part, f"{meaning}, in milliseconds")
            for name, api in used:
                self._recent.add_summary(times, durations_of(api), {"request": name})
            yield times

    def _errors(self, metrics: ListenerMetrics) -> Family:
        """Return how many responses, or partitions in them, had an error."""
        family = counter(_REQUESTS + "errorspersec", "errors in responses; NONE: no error")
        for api_key in KafkaApiKey:
            for error, count in metrics.requests[api_key].errors.copy().items():
                family.add(count, {"request": _kafka_name(api_key.name), "error": error})
        stats = self._replicas.topic_stats
        _add_errors(family, "Produce", stats.produce_errors)
        _add_errors(family, "Fetch", stats.fetch_errors)
        _add_errors(family, "FetchConsumer", stats.fetch_errors)
        return family

    def _threads(self, metrics: ListenerMetrics) -> Iterable[Family]:
        """Yield what the one thread of the listener is, which is processor and handler."""
        idle = min(1.0, self._recent.rate("idle", metrics.idle_s()))
        meaning = "share of the last minute in which the listener's thread had nothing to do"
        yield gauge("kafka_network_socketserver_networkprocessoravgidlepercent", meaning, idle)
        yield gauge("kafka_network_processor_idlepercent", meaning).add(
            idle, {"networkprocessor": _PROCESSOR}
        )
        yield gauge(_HANDLERS, meaning, idle)
        yield gauge(
            "kafka_network_acceptor_acceptorblockedpercent",
            "share of the last minute in which max_connections kept clients waiting",
        ).add(
            min(1.0, self._recent.rate("accept paused", metrics.accept_paused_s)),
            {"listener": self._listener},
        )
        yield gauge(
            "kafka_network_requestchannel_requestqueuesize",
            "connections whose requests wait to be handled",
            metrics.queue_size(),
        )
        yield gauge(
            "kafka_network_requestchannel_responsequeuesize",
            "connections whose clients do not read their responses",
        ).add(metrics.unread, {"processor": _PROCESSOR})

    def _connections(self, metrics: ListenerMetrics) -> Iterable[Family]:
        labels = {"listener": self._listener, "network_processor": _PROCESSOR}
        yield gauge(_SOCKETS + "connection_count", "open connections").add(
            metrics.connections, labels
        )
        for name, meaning, count in (
            ("connection_creation", "connections accepted", metrics.accepted),
            ("connection_close", "connections closed, by either side", metrics.disconnected),
            ("incoming_byte", "bytes received from clients", metrics.bytes_in),
            ("outgoing_byte", "bytes sent to clients", metrics.bytes_out),
            ("request", "requests", sum(api.count for api in metrics.requests)),
        ):
            rate = self._recent.rate(name, count)
            yield counter(f"{_SOCKETS}{name}_total", meaning).add(count, labels)
            yield gauge(
                f"{_SOCKETS}{name}_rate", f"{meaning}, in a second, in the last minute"
            ).add(rate, labels)
        by_software = gauge(_SOCKETS + "connections", "open connections by the client's software")
        for (software, version), count in metrics.software.copy().items():
            told = {"client_software_name": software, "client_software_version": version}
            by_software.add(count, {**told, **labels})
        yield by_software


def _add_errors(family: Family, request: str, errors: ResponseErrors) -> None:
    if errors.without_error:
        family.add(errors.without_error, {"request": request, "error": NO_ERROR})
    for error, count in errors.by_code.copy().items():
        family.add(count, {"request": request, "error": error.name})


def _kafka_name(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))
