"""Gauges of the controller."""

from __future__ import annotations

from regent.core.controller.gauges import ControllerGauges, take_gauges
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import TopicPartition
from tests.support.controller_parts import ControllerParts
from tests.support.world import T0, T1


def test_an_inactive_controller_has_zero_gauges() -> None:
    parts = ControllerParts(brokers=(0, 1))
    parts.lead(T0, (0, 1), leader=0, isr=(0, 1))
    gauges = take_gauges(parts.context, 7, is_active=False)
    assert gauges == ControllerGauges(current_controller_id=7)


def test_a_partition_without_a_first_leader_counts_as_offline() -> None:
    parts = ControllerParts(brokers=(0, 1))
    parts.lead(T0, (0, 1), leader=0, isr=(0, 1), state=PartitionState.OFFLINE)
    parts.assign(T1, (9,))
    gauges = take_gauges(parts.context, 0, is_active=True)
    assert gauges.offline_partitions_count == 2
    assert gauges.global_partition_count == 1
    assert (gauges.global_topic_count, gauges.active_broker_count) == (1, 2)
    assert gauges.active_controller_count == 1


def test_topics_and_replicas_to_delete_are_counted() -> None:
    parts = ControllerParts(brokers=(0, 1, 2))
    queued = TopicPartition("queued", 0)
    parts.lead(queued, (0, 1, 2), leader=0, isr=(0, 1, 2))
    parts.context.queue_topic_deletion(["queued"])
    parts.context.topics_ineligible_for_deletion.add("queued")
    parts.put_replica_state(queued, 0, ReplicaState.DELETION_SUCCESSFUL)
    parts.put_replica_state(queued, 1, ReplicaState.DELETION_INELIGIBLE)
    gauges = take_gauges(parts.context, 0, is_active=True)
    assert gauges.topics_to_delete_count == 1
    assert gauges.replicas_to_delete_count == 2
    assert gauges.topics_ineligible_to_delete_count == 1
    assert gauges.replicas_ineligible_to_delete_count == 1
