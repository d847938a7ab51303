"""What the controller shows of itself."""

from __future__ import annotations

from regent.core.controller.gauges import ControllerGauges, take_gauges
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import TopicPartition
from tests.support.term import T0, T1, Office


def test_who_does_not_rule_shows_zeros_and_who_does() -> None:
    office = Office(brokers=(0, 1))
    office.lead(T0, (0, 1), leader=0, isr=(0, 1))
    shown = take_gauges(office.context, 7, is_active=False)
    assert shown == ControllerGauges(current_controller_id=7)


def test_partitions_without_a_leader_count_also_when_they_never_had_one() -> None:
    office = Office(brokers=(0, 1))
    office.lead(T0, (0, 1), leader=0, isr=(0, 1), state=PartitionState.OFFLINE)
    office.assign(T1, (9,))
    shown = take_gauges(office.context, 0, is_active=True)
    assert shown.offline_partitions_count == 2
    assert shown.global_partition_count == 1
    assert (shown.global_topic_count, shown.active_broker_count) == (1, 2)
    assert shown.active_controller_count == 1


def test_what_is_left_to_delete_is_counted() -> None:
    office = Office(brokers=(0, 1, 2))
    doomed = TopicPartition("doomed", 0)
    office.lead(doomed, (0, 1, 2), leader=0, isr=(0, 1, 2))
    office.context.queue_topic_deletion(["doomed"])
    office.context.topics_ineligible_for_deletion.add("doomed")
    office.put_replica_state(doomed, 0, ReplicaState.DELETION_SUCCESSFUL)
    office.put_replica_state(doomed, 1, ReplicaState.DELETION_INELIGIBLE)
    shown = take_gauges(office.context, 0, is_active=True)
    assert shown.topics_to_delete_count == 1
    assert shown.replicas_to_delete_count == 2
    assert shown.topics_ineligible_to_delete_count == 1
    assert shown.replicas_ineligible_to_delete_count == 1
