"""The gauges of ``kafka.controller:type=KafkaController``, taken after every event.

A broker that is not the active controller shows zeros. Only the partitions of topics that are to
be deleted are counted one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from regent.core.controller.context import ControllerContext
from regent.core.controller.states import ReplicaState
from regent.core.model import NO_CONTROLLER, BrokerId


@dataclass(frozen=True, slots=True)
class ControllerGauges:
    """The gauges of one broker's controller; the names are Kafka's in Python case."""

    active_controller_count: int = 0
    current_controller_id: BrokerId = NO_CONTROLLER
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    active_broker_count: int = 0
    fenced_broker_count: int = 0  # registered, but they do not answer
    unusable_topic_count: int = 0
    quarantined_count: int = 0


def take_gauges(
    context: ControllerContext, current_controller_id: BrokerId, *, is_active: bool
) -> ControllerGauges:
    """Return the current gauges."""
    if not is_active:
        return ControllerGauges(current_controller_id=current_controller_id)
    to_delete = ineligible = 0
    for topic in context.topics_to_be_deleted:
        for replica in context.each_replica_of(context.partitions_of(topic)):
            state = context.replica_state(replica)
            to_delete += state is not ReplicaState.DELETION_SUCCESSFUL
            ineligible += state is ReplicaState.DELETION_INELIGIBLE
    return ControllerGauges(
        active_controller_count=1,
        current_controller_id=current_controller_id,
        # Partitions that never had a leader count too: clients wait for them as well.
        offline_partitions_count=context.leaderless_partition_count,
        preferred_replica_imbalance_count=context.preferred_replica_imbalance_count,
        global_topic_count=len(context.all_topics),
        global_partition_count=context.partition_count,
        topics_to_delete_count=len(context.topics_to_be_deleted),
        replicas_to_delete_count=to_delete,
        topics_ineligible_to_delete_count=len(context.topics_ineligible_for_deletion),
        replicas_ineligible_to_delete_count=ineligible,
        active_broker_count=len(context.registrations) - len(context.unresponsive_broker_ids),
        fenced_broker_count=len(context.unresponsive_broker_ids),
        unusable_topic_count=len(context.bad_topics),
        quarantined_count=len(context.quarantined),
    )
