"""The controller's metrics.

``kafka.controller:type=KafkaController,name=OfflinePartitionsCount`` is
``kafka_controller_kafkacontroller_offlinepartitionscount`` here; a timer is a summary of
milliseconds of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from regent.actors.controller_channel_manager import BrokerChannel, ControllerChannelManager
from regent.actors.controller_event_manager import ControllerView
from regent.actors.event_manager_stats import EventManagerStats
from regent.actors.inbox import inbox_of
from regent.broker.metrics.exposition import Family, counter, gauge, summary
from regent.broker.metrics.recent import Recent
from regent.core.model import BrokerId

_CONTROLLER = "kafka_controller_kafkacontroller_"
_STATS = "kafka_controller_controllerstats_"
_EVENTS = "kafka_controller_controllereventmanager_"
_CHANNELS = "kafka_controller_controllerchannelmanager_"
_CHANNEL = "kafka_server_controller_channel_metrics_"

_GAUGES = {
    "activecontrollercount": (
        "active_controller_count",
        "1 on the active controller",
    ),
    "currentcontrollerid": ("current_controller_id", "the active controller, -1 when unknown"),
    "offlinepartitionscount": ("offline_partitions_count", "partitions without a leader"),
    "preferredreplicaimbalancecount": (
        "preferred_replica_imbalance_count",
        "partitions not led by their first replica",
    ),
    "globaltopiccount": ("global_topic_count", "topics"),
    "globalpartitioncount": ("global_partition_count", "partitions that have or had a leader"),
    "topicstodeletecount": ("topics_to_delete_count", "topics queued for deletion"),
    "replicastodeletecount": (
        "replicas_to_delete_count",
        "replicas of these topics, not deleted yet",
    ),
    "topicsineligibletodeletecount": (
        "topics_ineligible_to_delete_count",
        "topics queued for deletion that cannot be deleted yet",
    ),
    "replicasineligibletodeletecount": (
        "replicas_ineligible_to_delete_count",
        "replicas that could not be deleted",
    ),
    "activebrokercount": ("active_broker_count", "registered brokers"),
    "fencedbrokercount": ("fenced_broker_count", "registered brokers that do not answer"),
    "unusabletopiccount": ("unusable_topic_count", "topics whose znode cannot be used"),
    "quarantinedcount": (
        "quarantined_count",
        "topics and events quarantined because they ended controllers",
    ),
}


def controller_metrics(controller: ControllerView, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of a broker's controller, active or inactive."""
    yield from _gauges(controller.stats)
    yield from _stats(controller.stats, recent)
    yield gauge(_EVENTS + "eventqueuesize", "events that wait", inbox_of(controller.ref).size)
    yield from channel_metrics(controller.channels, recent)


def _gauges(stats: EventManagerStats) -> Iterable[Family]:
    gauges = stats.gauges
    for name, (attribute, meaning) in _GAUGES.items():
        yield gauge(_CONTROLLER + name, meaning, getattr(gauges, attribute))
    yield gauge(
        _CONTROLLER + "controllerstate", "the activity, by Kafka's numbers", int(stats.state)
    )


def _stats(stats: EventManagerStats, recent: Recent) -> Iterable[Family]:
    for name, timer in stats.timers.items():
        times = summary(_STATS + name.lower(), "handling of events, in milliseconds")
        recent.add_summary(times, timer)
        yield times
    yield counter(
        _STATS + "uncleanleaderelectionspersec",
        "leaders elected from outside the ISR",
        stats.unclean_leader_elections,
    )
    queue_time = summary(_EVENTS + "eventqueuetimems", "time events waited, in milliseconds")
    recent.add_summary(queue_time, stats.event_queue_time)
    yield queue_time


def channel_metrics(channels: ControllerChannelManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of the channels to brokers; a removed channel has none."""
    by_broker = channels.channels
    sizes = {broker_id: channel.queue_size for broker_id, channel in by_broker.items()}
    yield gauge(_CHANNELS + "totalqueuesize", "requests that wait for brokers", sum(sizes.values()))
    size = gauge(_CHANNELS + "queuesize", "requests that wait for a broker")
    queue_time = summary(
        _CHANNELS + "requestrateandqueuetimems", "time requests waited, in milliseconds"
    )
    for broker_id, channel in sorted(by_broker.items()):
        labels = {"broker_id": str(broker_id)}
        size.add(sizes[broker_id], labels)
        recent.add_summary(queue_time, channel.stats.queue_time, labels)
    yield size
    yield queue_time
    yield from _send_threads(by_broker, recent)
    unanswered = gauge(
        "regent_unanswered_request_ms",
        "age of a control request that a broker has not answered within 5 s",
    )
    for request in channels.unanswered():
        labels = {"broker_id": str(request.broker_id), "request": request.request}
        unanswered.add(request.unanswered_ms, labels)
    yield unanswered


def _send_threads(channels: Mapping[BrokerId, BrokerChannel], recent: Recent) -> Iterable[Family]:
    connections = gauge(_CHANNEL + "connection_count", "open connections to a broker")
    total = counter(_CHANNEL + "request_total", "control requests sent, and sent again")
    rate = gauge(_CHANNEL + "request_rate", "the same in a second, in the last minute")
    in_flight = gauge(
        "regent_control_requests_in_flight", "control requests being sent, or not answered yet"
    )
    failed = counter(
        "regent_failed_control_requests_total",
        "attempts to send a control request that had no answer, or an error for an answer",
    )
    latency = summary(
        "regent_control_request_latency_ms",
        "from the first attempt to send a control request to its answer, in milliseconds",
    )
    for broker_id, channel in sorted(channels.items()):
        stats, labels = channel.stats, {"broker_id": str(broker_id)}
        connections.add(int(stats.is_connected), labels)
        total.add(stats.requests, labels)
        rate.add(recent.rate(f"requests to broker {broker_id}", stats.requests), labels)
        in_flight.add(int(channel.in_flight), labels)
        failed.add(stats.failures, labels)
        recent.add_summary(latency, stats.latency, labels)
    yield from (connections, total, rate, in_flight, failed, latency)
