"""The input and the output of a decision about one partition.

``PartitionReplicas`` is what a decision reads beside the leadership that ZooKeeper holds.
``PartitionChange`` and ``ChangeRefused`` are the two outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId, LeaderAndIsr, LogEnd, ReplicaAssignment, TopicPartition

if TYPE_CHECKING:  # commands need no context
    from regent.core.controller.context import ControllerContext

Brokers: TypeAlias = tuple[BrokerId, ...]
IsOnline: TypeAlias = Callable[[BrokerId], bool]


@dataclass(slots=True)
class PartitionReplicas:
    """The assignment of one partition and the condition of each replica, by broker id.

    ``is_online`` excludes brokers that are shutting down. ``is_reachable`` includes them, because
    they still handle control requests. ``suspect_end`` is the log end of a replica that may have
    lost records, and None for others. ``has_restarted``: the broker of an in-sync replica started
    again since the last decision. ``exists``: the broker was told of the replica, and has not
    deleted it since. ``must_not_lead``: the replica leads, but may have lost records since it was
    elected.
    """

    assignment: ReplicaAssignment
    is_online: IsOnline
    is_reachable: IsOnline
    is_shutting_down: IsOnline
    suspect_end: Callable[[BrokerId], LogEnd | None] = lambda _: None
    has_restarted: Callable[[BrokerId], bool] = lambda _: False
    exists: Callable[[BrokerId], bool] = lambda _: True
    must_not_lead: Callable[[BrokerId], bool] = lambda _: False
    broker_epoch: Callable[[BrokerId], int | None] = lambda _: None
    is_topic_queued_for_deletion: bool = False
    allows_unclean_election: bool = False
    unclean_election_error: str = ""
    """Why the topic's ``unclean.leader.election.enable`` cannot be read; empty: it can."""

    def is_sound(self, replica: BrokerId) -> bool:
        """Whether a replica is online and not suspect."""
        return self.is_online(replica) and self.suspect_end(replica) is None

    def can_complete_reassignment(self, replica: BrokerId) -> bool:
        """Whether a replica may lead when a reassignment ends.

        Brokers are not told the ISRs of a topic that is queued for deletion, so they keep reporting
        its replicas as suspect. The records of such a topic do not matter.
        """
        return self.is_sound(replica) or (
            self.is_topic_queued_for_deletion and self.is_online(replica)
        )

    def can_stay(self, replica: BrokerId) -> bool:
        """Whether an in-sync replica still has the log that it had at the last decision."""
        return not self.has_restarted(replica) and self.suspect_end(replica) is None


def partition_replicas(
    context: ControllerContext, topic_partition: TopicPartition
) -> PartitionReplicas:
    """Return what the context knows of the replicas of a partition."""
    return PartitionReplicas(
        context.partition_full_replica_assignment(topic_partition),
        is_online=lambda r: context.is_replica_online(r, topic_partition),
        is_reachable=lambda r: context.is_replica_online(
            r, topic_partition, include_shutting_down=True
        ),
        is_shutting_down=lambda r: r in context.shutting_down_broker_ids,
        suspect_end=lambda r: context.suspect_end(r, topic_partition),
        has_restarted=lambda r: context.has_restarted(r, topic_partition),
        exists=lambda r: context.replica_exists(r, topic_partition),
        must_not_lead=lambda r: context.must_not_lead(r, topic_partition),
        broker_epoch=context.broker_epoch,
        is_topic_queued_for_deletion=context.is_topic_queued_for_deletion(topic_partition.topic),
    )


class PartitionChange(NamedTuple):
    """A leadership to be written, and the replicas to be told.

    ``is_unclean``: the leader was not in the ISR, or is suspect, so acknowledged records may be
    lost. ``keeps_eligible_replicas`` is False when replicas that leave the ISR may be deleted.
    """

    leader_and_isr: LeaderAndIsr
    recipients: Brokers = ()
    is_unclean: bool = False
    keeps_eligible_replicas: bool = True


class ChangeRefused(NamedTuple):
    """Why a partition does not change. ``error_code`` is set for proposals of leaders only."""

    reason: str
    error_code: Errors = Errors.NONE
