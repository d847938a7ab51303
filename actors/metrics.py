"""What a broker tells Prometheus; names are Kafka's MBeans joined by underscores.

Read when somebody asks, from plain counters that their owners keep: nothing is measured twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from actors.broker import Broker, BrokerStatus
from actors.controller_event_manager import ControllerEventManager
from actors.placeholder_listener import ListenError
from actors.watchdog import Watchdog

if TYPE_CHECKING:
    from transport.server import ControlServer

_CONTROLLER = "kafka_controller_KafkaController_"
_MEANINGS = {
    "ActiveControllerCount": "1 on the broker that rules",
    "OfflinePartitionsCount": "partitions without a leader",
    "PreferredReplicaImbalanceCount": "partitions not led by their first replica",
    "GlobalTopicCount": "topics",
    "ActiveBrokerCount": "registered brokers",
    "UnusableTopicCount": "topics whose znode cannot be used",
}


class BrokerMetrics(Collector):
    """Collects one broker's metrics from its parts."""

    def __init__(
        self,
        broker: Broker,
        controller: ControllerEventManager,
        server: ControlServer,
        status: BrokerStatus,
        watchdog: Watchdog,
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._server = server
        self._status = status
        self._watchdog = watchdog

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, as of now."""
        yield from self._of_the_controller()
        yield from self._of_the_broker()

    def _of_the_controller(self) -> Iterable[Metric]:
        controller = self._controller.controller
        context = controller.context
        gauges = {
            "ActiveControllerCount": controller.is_active,
            "OfflinePartitionsCount": context.offline_partition_count,
            "PreferredReplicaImbalanceCount": context.preferred_replica_imbalance_count,
            "GlobalTopicCount": len(context.all_topics),
            "ActiveBrokerCount": len(context.registrations),
            "UnusableTopicCount": len(context.bad_topics),
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(_CONTROLLER + name, _MEANINGS[name], value=value)
        yield CounterMetricFamily(
            "kafka_controller_ControllerStats_UncleanLeaderElections",
            "leaders elected from outside the ISR",
            value=context.stats.unclean_leader_elections,
        )
        yield GaugeMetricFamily(
            "kafka_controller_ControllerEventManager_EventQueueSize",
            "events waiting for the controller",
            value=self._controller.actor_inbox.size,
        )

    def _of_the_broker(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "kafka_server_ReplicaManager_PartitionCount",
            "replicas hosted",
            value=len(self._broker.replica_manager.partitions),
        )
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
            value=self._controller.failures + self._broker.failures,
        )
        yield CounterMetricFamily(
            "regent_stuck_actors", "actors found stuck", value=self._watchdog.incidents
        )


class MetricsServer:
    """Serves ``/metrics`` on ``host:port``, 0 for any free port."""

    def __init__(self, host: str, port: int) -> None:
        self._registry = CollectorRegistry()
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or choose"
                " another port"
            ) from None
        self.port: int = self._server.server_port

    def publish(self, metrics: Collector) -> None:
        """Add metrics to what is served."""
        self._registry.register(metrics)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
