"""Validation of reassignments.

Mirrors ``KafkaController.validateReplicas`` and ``maybeBuildReassignment``, for the RPC and for
``/admin/reassign_partitions``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from regent.core.controller.context import ControllerContext
from regent.core.errors import Errors
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition


class Refusal(NamedTuple):
    """Why a partition is not reassigned; it is unchanged."""

    error_code: Errors
    message: str


Refusals: TypeAlias = dict[TopicPartition, Refusal]


def requested_assignment(
    context: ControllerContext,
    topic_partition: TopicPartition,
    target: tuple[BrokerId, ...] | None,
    *,
    dead_targets_may_wait: bool = False,
) -> ReplicaAssignment | Refusal:
    """Return the assignment that begins a reassignment to ``target``; None cancels one.

    A reassignment in progress is superseded: the new one starts from its original replicas.
    ``dead_targets_may_wait``: the broker of a replica to add may be dead; the reassignment waits
    for it.
    """
    current = context.partition_full_replica_assignment(topic_partition)
    if target is None:
        if not current.is_being_reassigned:
            return Refusal(
                Errors.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being reassigned"
            )
        target = current.origin_replicas
    if not target or len(set(target)) < len(target) or min(target) < 0:
        return Refusal(
            Errors.INVALID_REPLICA_ASSIGNMENT,
            f"{topic_partition}: {list(target)} is not a list of distinct broker ids",
        )
    if not current.replicas or context.is_topic_queued_for_deletion(topic_partition.topic):
        return Refusal(
            Errors.UNKNOWN_TOPIC_OR_PARTITION,
            f"{topic_partition} does not exist, or is being deleted",
        )
    requested = current.reassign_to(target)
    live = context.live_broker_ids
    dead = [r for r in requested.adding_replicas if r not in live]
    if dead and not dead_targets_may_wait:
        return Refusal(
            Errors.INVALID_REPLICA_ASSIGNMENT, f"{topic_partition}: brokers {dead} are not alive"
        )
    return requested
