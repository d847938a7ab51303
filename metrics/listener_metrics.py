"""The metrics of the port that Kafka clients connect to, by Kafka's names where it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.kafka.metrics import ListenerMetrics

_TOPICS = "kafka_server_BrokerTopicMetrics_"


class KafkaClientMetrics(Collector):
    """Requests, bytes and connections of clients."""

    def __init__(
        self, listener_metrics: Callable[[], ListenerMetrics | None], replicas: ReplicaManager
    ) -> None:
        self._listener_metrics = listener_metrics
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present value."""
        yield GaugeMetricFamily(
            "kafka_server_DelayedOperationPurgatory_PurgatorySize",
            "requests for records, of clients and followers, that wait",
            value=self._replicas.delayed_count,
        )
        yield CounterMetricFamily(
            _TOPICS + "MessagesInPerSec",
            "records that producers have appended",
            value=self._replicas.records_in,
        )
        metrics = self._listener_metrics()
        if metrics is None:
            return
        yield GaugeMetricFamily(
            "kafka_server_socket_server_metrics_connection_count",
            "connections of clients",
            value=metrics.connections,
        )
        for name, meaning, count in (
            (_TOPICS + "BytesInPerSec", "bytes received from clients", metrics.bytes_in),
            (_TOPICS + "BytesOutPerSec", "bytes sent to clients", metrics.bytes_out),
            ("regent_client_throttles", "pauses in reading from a client", metrics.throttled),
            ("regent_accept_pauses", "pauses because of max_connections", metrics.accept_pauses),
            ("regent_client_errors", "errors outside of a connection", metrics.errors),
        ):
            yield CounterMetricFamily(name, meaning, value=count)
        requests = CounterMetricFamily(
            "kafka_network_RequestMetrics_RequestsPerSec", "requests", labels=["request"]
        )
        for api_key, count in metrics.requests.items():
            requests.add_metric([_kafka_name(api_key.name)], count)
        yield requests
        closed = CounterMetricFamily(
            "regent_closed_client_connections",
            "connections that the broker closed",
            labels=["reason"],
        )
        for reason, count in metrics.closed.items():
            closed.add_metric([reason.value], count)
        yield closed


def _kafka_name(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))
