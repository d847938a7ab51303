"""The controller's metrics by Kafka's names.

``kafka.controller:type=KafkaController,name=OfflinePartitionsCount`` is
``kafka_controller_KafkaController_OfflinePartitionsCount`` here; a timer is a histogram of
milliseconds of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from regent.actors.controller_channel_manager import ControllerChannelManager
from regent.actors.controller_event_manager import ControllerView
from regent.actors.event_manager_stats import EventManagerStats
from regent.actors.inbox import inbox_of
from regent.core.timers import Timer

_CONTROLLER = "kafka_controller_KafkaController_"
_STATS = "kafka_controller_ControllerStats_"
_EVENTS = "kafka_controller_ControllerEventManager_"
_CHANNELS = "kafka_controller_ControllerChannelManager_"

_GAUGES = {
    "ActiveControllerCount": (
        "active_controller_count",
        "1 on the active controller",
    ),
    "CurrentControllerId": ("current_controller_id", "the active controller, -1 when unknown"),
    "OfflinePartitionsCount": ("offline_partitions_count", "partitions without a leader"),
    "PreferredReplicaImbalanceCount": (
        "preferred_replica_imbalance_count",
        "partitions not led by their first replica",
    ),
    "GlobalTopicCount": ("global_topic_count", "topics"),
    "GlobalPartitionCount": ("global_partition_count", "partitions that have or had a leader"),
    "TopicsToDeleteCount": ("topics_to_delete_count", "topics queued for deletion"),
    "ReplicasToDeleteCount": (
        "replicas_to_delete_count",
        "replicas of these topics, not deleted yet",
    ),
    "TopicsIneligibleToDeleteCount": (
        "topics_ineligible_to_delete_count",
        "topics queued for deletion that cannot be deleted yet",
    ),
    "ReplicasIneligibleToDeleteCount": (
        "replicas_ineligible_to_delete_count",
        "replicas that could not be deleted",
    ),
    "ActiveBrokerCount": ("active_broker_count", "registered brokers"),
    "FencedBrokerCount": ("fenced_broker_count", "registered brokers that do not answer"),
    "UnusableTopicCount": ("unusable_topic_count", "topics whose znode cannot be used"),
    "QuarantinedCount": (
        "quarantined_count",
        "topics and events quarantined because they ended controllers",
    ),
}


def timer_metric(name: str, meaning: str, timer: Timer) -> HistogramMetricFamily:
    """Return a timer as a histogram of milliseconds."""
    return HistogramMetricFamily(
        name, meaning, buckets=timer.cumulative(), sum_value=timer.total_ms
    )


def controller_metrics(controller: ControllerView) -> Iterable[Metric]:
    """Yield the metrics of a broker's controller, active or inactive."""
    yield from _gauges(controller.stats)
    yield from _stats(controller.stats)
    yield GaugeMetricFamily(
        _EVENTS + "EventQueueSize", "events that wait", value=inbox_of(controller.ref).size
    )
    yield from _channels(controller.channels)


def _gauges(stats: EventManagerStats) -> Iterable[Metric]:
    gauges = stats.gauges
    for name, (attribute, meaning) in _GAUGES.items():
        yield GaugeMetricFamily(_CONTROLLER + name, meaning, value=getattr(gauges, attribute))
    yield GaugeMetricFamily(
        _CONTROLLER + "ControllerState", "the activity, by Kafka's numbers", value=stats.state
    )


def _stats(stats: EventManagerStats) -> Iterable[Metric]:
    for name, timer in stats.timers.items():
        yield timer_metric(_STATS + name, "handling of events, in milliseconds", timer)
    yield CounterMetricFamily(
        _STATS + "UncleanLeaderElectionsPerSec",
        "leaders elected from outside the ISR",
        value=stats.unclean_leader_elections,
    )
    yield timer_metric(
        _EVENTS + "EventQueueTimeMs", "time events waited, in milliseconds", stats.event_queue_time
    )


def _channels(channels: ControllerChannelManager) -> Iterable[Metric]:
    by_broker = channels.channels
    sizes = {broker_id: channel.queue_size for broker_id, channel in by_broker.items()}
    yield GaugeMetricFamily(
        _CHANNELS + "TotalQueueSize", "requests that wait for brokers", value=sum(sizes.values())
    )
    size = GaugeMetricFamily(
        _CHANNELS + "QueueSize", "requests that wait for a broker", labels=["broker_id"]
    )
    queue_time = HistogramMetricFamily(
        _CHANNELS + "RequestRateAndQueueTimeMs",
        "time requests waited, in milliseconds",
        labels=["broker_id"],
    )
    for broker_id, channel in sorted(by_broker.items()):
        labels, timer = [str(broker_id)], channel.queue_time
        size.add_metric(labels, sizes[broker_id])
        queue_time.add_metric(labels, buckets=timer.cumulative(), sum_value=timer.total_ms)
    yield size
    yield queue_time
    unanswered = GaugeMetricFamily(
        "regent_unanswered_request_ms",
        "age of a control request that a broker has not answered within 5 s",
        labels=["broker_id", "request"],
    )
    for request in channels.unanswered():
        labels = [str(request.broker_id), request.request]
        unanswered.add_metric(labels, request.unanswered_ms)
    yield unanswered
