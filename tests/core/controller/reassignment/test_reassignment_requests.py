"""Which reassignment requests are refused, and the first assignment of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.reassignment.partition_reassignment import requested_assignment
from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerRegistration, ReplicaAssignment, TopicPartition
from tests.support.world import T0, T1, broker_info

IDLE = ReplicaAssignment((1, 2, 3))
ALL_ADDED = TopicPartition("u", 0)  # there is no assignment to return to
MOVING = ReplicaAssignment((4, 5, 1, 2), (4, 5), (1, 2))


@pytest.fixture
def context() -> ControllerContext:
    """Brokers 1 to 5 are live, 6 is shutting down; t-0 is idle and t-1 is being reassigned."""
    context = ControllerContext()
    for broker_id in range(1, 7):
        context.add_live_broker(BrokerRegistration(broker_info(broker_id), broker_epoch=1))
    context.shutting_down_broker_ids.add(6)
    context.update_partition_full_replica_assignment(T0, IDLE)
    context.update_partition_full_replica_assignment(T1, MOVING)
    edited_by_hand = ReplicaAssignment((1, 2), adding_replicas=(1, 2))
    context.update_partition_full_replica_assignment(ALL_ADDED, edited_by_hand)
    return context


@pytest.mark.parametrize(
    ("partition", "target", "error"),
    [
        (T0, (), Errors.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 1), Errors.INVALID_REPLICA_ASSIGNMENT),
        (T0, (-3, -2, -1), Errors.INVALID_REPLICA_ASSIGNMENT),  # RA-12
        (T0, (1, 9), Errors.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 6), Errors.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, Errors.NO_REASSIGNMENT_IN_PROGRESS),
        (TopicPartition("other", 0), None, Errors.NO_REASSIGNMENT_IN_PROGRESS),
        (TopicPartition("t", 4), (1, 2), Errors.UNKNOWN_TOPIC_OR_PARTITION),  # RA-11
        (ALL_ADDED, None, Errors.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_reassignment_requests_are_refused(
    context: ControllerContext,
    partition: TopicPartition,
    target: tuple[int, ...] | None,
    error: Errors,
) -> None:
    refusal = requested_assignment(context, partition, target)
    assert isinstance(refusal, ApiError)
    assert refusal.error_code is error
    assert str(partition) in refusal.message


@pytest.mark.parametrize("target", [(1, 2), None])
def test_a_reassignment_of_a_topic_queued_for_deletion_is_refused(  # DEL-04
    context: ControllerContext, target: tuple[int, ...] | None
) -> None:
    context.queue_topic_deletion(["t"])
    refusal = requested_assignment(context, T1, target)
    assert isinstance(refusal, ApiError)
    assert refusal.error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("partition", "target", "assignment"),
    [
        (T0, (4, 2, 5), ReplicaAssignment((4, 2, 5, 1, 3), (4, 5), (1, 3))),
        (T0, (3, 1, 2), ReplicaAssignment((3, 1, 2))),
        (T0, (1, 2, 3), IDLE),
        (T1, (4, 5), MOVING),
        (T1, (3, 4), ReplicaAssignment((3, 4, 1, 2), (3, 4), (1, 2))),
        (T1, None, ReplicaAssignment((1, 2))),
    ],
)
def test_an_accepted_request_makes_an_assignment_with_added_and_removed_replicas(
    context: ControllerContext,
    partition: TopicPartition,
    target: tuple[int, ...] | None,
    assignment: ReplicaAssignment,
) -> None:
    assert requested_assignment(context, partition, target) == assignment


def test_a_target_may_contain_a_present_replica_that_is_offline(context: ControllerContext) -> None:
    context.remove_live_broker(1)
    assert requested_assignment(context, T0, (1, 2)) == ReplicaAssignment((1, 2, 3), (), (3,))


def test_a_target_written_to_the_znode_may_contain_an_offline_broker(
    context: ControllerContext,
) -> None:
    requested = requested_assignment(context, T0, (9, 2), dead_targets_may_wait=True)
    assert requested == ReplicaAssignment((9, 2, 1, 3), (9,), (1, 3))


def test_new_replicas_are_not_moved_to_a_broker_that_takes_none(context: ControllerContext) -> None:
    info = replace(broker_info(4), no_replicas=True)
    context.add_live_broker(BrokerRegistration(info, broker_epoch=2))
    refusal = requested_assignment(context, T0, (1, 4))
    assert isinstance(refusal, ApiError)
    assert refusal.error_code is Errors.INVALID_REPLICA_ASSIGNMENT
    assert "broker 4 takes no new replicas (its setting no_replicas)" in refusal.message
    context.update_partition_full_replica_assignment(T0, ReplicaAssignment((4, 1, 2)))
    stays = requested_assignment(context, T0, (4, 5))
    assert isinstance(stays, ReplicaAssignment), "a replica that is there may stay"
