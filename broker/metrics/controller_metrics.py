"""The metrics of a broker's controller, active or inactive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from regent.actors.controller_channel_manager import BrokerChannel, ControllerChannelManager
from regent.actors.controller_event_manager import ControllerView
from regent.actors.event_manager_stats import EventManagerStats
from regent.actors.inbox import inbox_of
from regent.broker.metrics.metric_table import (
    Family,
    Metric,
    MetricTable,
    counter,
    gauge,
    rate,
    summary,
)
from regent.broker.metrics.recent import Recent
from regent.core.controller.gauges import ControllerGauges, ControllerState
from regent.core.timers import Timer

GAUGES: Final = MetricTable[ControllerGauges](
    "kafka.controller:type=KafkaController,name=",
    gauge("ActiveControllerCount", "1 on the active controller", "active_controller_count"),
    gauge("CurrentControllerId", "the active controller, -1 when unknown", "current_controller_id"),
    gauge("OfflinePartitionsCount", "partitions without a leader", "offline_partitions_count"),
    gauge(
        "PreferredReplicaImbalanceCount",
        "partitions not led by their first replica",
        "preferred_replica_imbalance_count",
    ),
    gauge("GlobalTopicCount", "topics", "global_topic_count"),
    gauge("GlobalPartitionCount", "partitions that have or had a leader", "global_partition_count"),
    gauge("TopicsToDeleteCount", "topics queued for deletion", "topics_to_delete_count"),
    gauge(
        "ReplicasToDeleteCount",
        "replicas of these topics, not deleted yet",
        "replicas_to_delete_count",
    ),
    gauge(
        "TopicsIneligibleToDeleteCount",
        "topics queued for deletion that cannot be deleted yet",
        "topics_ineligible_to_delete_count",
    ),
    gauge(
        "ReplicasIneligibleToDeleteCount",
        "replicas that could not be deleted",
        "replicas_ineligible_to_delete_count",
    ),
    gauge("ActiveBrokerCount", "registered brokers", "active_broker_count"),
    gauge("FencedBrokerCount", "registered brokers that do not answer", "fenced_broker_count"),
    gauge(
        "UnusableTopicCount",
        "topics whose znode cannot be used",
        "unusable_topic_count",
        details="not Kafka's",
    ),
    gauge(
        "QuarantinedCount",
        "topics and events quarantined because they ended controllers",
        "quarantined_count",
        details="not Kafka's",
    ),
)
STATE: Final = MetricTable[EventManagerStats](
    "kafka.controller:type=KafkaController,name=",
    gauge("ControllerState", "the activity, by Kafka's numbers", lambda s: int(s.state)),
)


def _timer(name: str, state: str) -> Metric[Mapping[str, Timer]]:
    meaning, details = "handling of events, in milliseconds", f"in the state {state}"
    return summary(name, meaning, lambda timers: timers[name], details)


TIMERS: Final = MetricTable[Mapping[str, Timer]](
    "kafka.controller:type=ControllerStats,name=",
    *(_timer(state.timer, state.label) for state in ControllerState if state.timer is not None),
)
ELECTIONS: Final = MetricTable[EventManagerStats](
    "kafka.controller:type=ControllerStats,name=",
    counter(
        "UncleanLeaderElectionsPerSec",
        "leaders elected from outside the ISR",
        "unclean_leader_elections",
    ),
)
EVENTS: Final = MetricTable[ControllerView](
    "kafka.controller:type=ControllerEventManager,name=",
    summary("EventQueueTimeMs", "time events waited, in milliseconds", "stats.event_queue_time"),
    gauge("EventQueueSize", "events that wait", lambda view: inbox_of(view.ref).size),
)
ALL_QUEUES: Final = MetricTable[int](
    "kafka.controller:type=ControllerChannelManager,name=",
    gauge("TotalQueueSize", "requests that wait for brokers"),
)
QUEUES: Final = MetricTable[BrokerChannel](
    "kafka.controller:type=ControllerChannelManager,name=",
    gauge("QueueSize", "requests that wait for a broker", "queue_size"),
    summary(
        "RequestRateAndQueueTimeMs", "time requests waited, in milliseconds", "stats.queue_time"
    ),
    labels=("broker_id",),
)
CHANNELS: Final = MetricTable[BrokerChannel](
    "kafka.server:type=controller-channel-metrics",
    gauge("connection-count", "open connections to a broker", "stats.is_connected"),
    counter("request-total", "control requests sent, and sent again", "stats.requests"),
    rate("request-rate", "the same in a second, in the last minute", "stats.requests"),
    labels=("broker_id",),
)
SENDERS: Final = MetricTable[BrokerChannel](
    "",
    gauge(
        "regent_control_requests_in_flight",
        "control requests being sent, or not answered yet",
        "in_flight",
        details="0 or 1",
    ),
    counter(
        "regent_failed_control_requests_total",
        "attempts to send a control request that had no answer, or an error for an answer",
        "stats.failures",
    ),
    summary(
        "regent_control_request_latency_ms",
        "from the first attempt to send a control request to its answer, in milliseconds",
        "stats.latency",
    ),
    labels=("broker_id",),
)
SOFTWARE: Final = MetricTable[int](
    "",
    gauge(
        "regent_broker_software",
        "what a broker is: regent or kafka, with its release",
        details="always 1",
    ),
    labels=("broker_id", "software"),
)
UNANSWERED: Final = MetricTable[float](
    "",
    gauge(
        "regent_unanswered_request_ms",
        "age of a control request that a broker has not answered within 5 s",
    ),
    labels=("broker_id", "request"),
)


def controller_metrics(controller: ControllerView, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of a broker's controller, active or inactive."""
    stats = controller.stats
    yield from GAUGES.of(stats.gauges, recent)
    yield from STATE.of(stats, recent)
    yield from TIMERS.of(stats.timers, recent)
    yield from ELECTIONS.of(stats, recent)
    yield from EVENTS.of(controller, recent)
    yield from channel_metrics(controller.channels, recent)


def channel_metrics(channels: ControllerChannelManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of the channels to brokers; a removed channel has none."""
    by_broker = [((str(number),), channel) for number, channel in sorted(channels.channels.items())]
    yield from ALL_QUEUES.of(sum(channel.queue_size for _, channel in by_broker), recent)
    yield from QUEUES.families(by_broker, recent)
    yield from CHANNELS.families(by_broker, recent)
    yield from SENDERS.families(by_broker, recent)
    software = [((str(row.broker_id), row.software), 1) for row in channels.software()]
    yield from SOFTWARE.families(software, recent)
    unanswered = [((str(r.broker_id), r.request), r.unanswered_ms) for r in channels.unanswered()]
    yield from UNANSWERED.families(unanswered, recent)
