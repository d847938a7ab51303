"""Defects in one branch of a decision: they test the simulation.

Each is a function that breaks one branch while the returned context lasts. Three are left out
because another protection covers them here: conflicts that are not retried (the next event for the
partition retries), moves that end with a dead target (nothing leads from it, and the move goes on),
and older rows in the metadata cache (late requests are recognized by their sequence). Unit tests
have them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import ANY, patch

from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.context import ControllerContext
from regent.core.controller.election import partition_change
from regent.core.controller.election.alter_partition import AlterPartitions
from regent.core.controller.election.election import (
    ChangeRefused,
    PartitionChange,
)
from regent.core.controller.election.partition_change import AlterIsr
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.reassignment.reassignment_elections import ReassignmentElections
from regent.core.controller.reassignment.reassignment_phases import ReassignmentPhases
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import Errors, StateChangeFailedError
from regent.core.model import NO_LEADER, LeaderAndIsr
from regent.core.protocol.control import StopReplicaRequest
from regent.core.replication.control_request_fence import ControlRequestFence
from regent.core.replication.control_request_handler import ControlRequestHandler
from regent.core.replication.partition import Partition
from regent.core.replication.replica_fetcher import ReplicaFetcher
from regent.zk.client.operations import ANY_VERSION, SetData
from regent.zk.stores import controller_store
from regent.zk.stores.fenced_writes import version_or_error
from regent.zk.stores.znode_store import WatchingStore
from regent.zk.znodes import TopicZNode
from tests.simulation.committed_records import CommittedRecords

# --- proposals of leaders -------------------------------------------------------------------------


def proposals_of_stale_leader_epochs() -> Any:
    """The controller accepts a proposal with a stale leader epoch."""
    decide = AlterPartitions._decide

    def in_present_epoch(self: AlterPartitions, row: Any, sender: int) -> Any:
        known = self._known(row.topic_partition)
        if known is not None and row.leader_epoch < known.leader_and_isr.leader_epoch:
            row = row._replace(leader_epoch=known.leader_and_isr.leader_epoch)
        return decide(self, row, sender)

    return patch.object(AlterPartitions, "_decide", in_present_epoch)


def refused_proposals_written() -> Any:
    """The controller refuses a proposal and writes it."""
    decide = AlterPartitions._decide

    def and_write(self: AlterPartitions, row: Any, sender: int) -> Any:
        decided, known = decide(self, row, sender), self._known(row.topic_partition)
        members = tuple(dict.fromkeys(row.new_isr))
        is_ineligible = decided == ChangeRefused(ANY, Errors.INELIGIBLE_REPLICA)
        if is_ineligible and known is not None:
            after = known.leader_and_isr._replace(isr=members)
            self._write({row.topic_partition: PartitionChange(after)})
        return decided

    return patch.object(AlterPartitions, "_decide", and_write)


def late_proposals_carried_out() -> Any:
    """The controller carries an attempt out after a later one, which it refused."""
    return patch.object(AlterPartitions, "_is_late", lambda self, request: False)


def proposals_of_former_broker_epochs() -> Any:
    """The controller does not check the broker epoch of a proposal's sender (KIP-380)."""
    alter = AlterPartitions.alter

    def of_any_broker_epoch(self: AlterPartitions, request: Any) -> Any:
        known = self._context.registrations.get(request.broker_id)
        epoch = request.broker_epoch if known is None else known.broker_epoch
        return alter(self, replace(request, broker_epoch=epoch))

    return patch.object(AlterPartitions, "alter", of_any_broker_epoch)


def members_of_any_broker_epoch() -> Any:
    """A follower that restarted since its last fetch joins the ISR (KIP-903)."""
    are_eligible = partition_change._are_eligible

    def of_any_broker_epoch(now: Any, replicas: Any, proposed: AlterIsr) -> bool:
        unknown = replace(proposed, broker_epochs=(-1,) * len(proposed.isr))
        return are_eligible(now, replicas, unknown)

    return patch.object(partition_change, "_are_eligible", of_any_broker_epoch)


def proposals_of_any_broker() -> Any:
    """The controller takes the sender of a proposal for the leader."""
    decide = AlterPartitions._decide

    def as_leader(self: AlterPartitions, row: Any, sender: int) -> Any:
        known = self._known(row.topic_partition)
        return decide(self, row, sender if known is None else known.leader_and_isr.leader)

    return patch.object(AlterPartitions, "_decide", as_leader)


def acceptable_proposals_refused() -> Any:
    """The controller refuses a proposal that adds two members at once."""
    is_valid = partition_change._is_valid_isr

    def one_at_a_time(now: LeaderAndIsr, replicas: Any, proposed: AlterIsr) -> bool:
        return is_valid(now, replicas, proposed) and len(proposed.isr) >= len(now.isr)

    return patch.object(partition_change, "_is_valid_isr", one_at_a_time)


# --- elections and moves --------------------------------------------------------------------------


def state_that_exists_is_a_failure() -> Any:
    """A controller stops at a state znode that exists when it tries to create it."""
    initialise = PartitionStateMachine._initialise

    def and_give_up(self: PartitionStateMachine, partitions: Any, batch: Any) -> Any:
        failures, found = initialise(self, partitions, batch)
        failures.update({p: StateChangeFailedError(f"{p}: it exists") for p in found})
        return failures, []

    return patch.object(PartitionStateMachine, "_initialise", and_give_up)


def no_new_epoch_before_replicas_are_removed() -> Any:
    """A replica is removed in a leader epoch that it knows (KAFKA-1097)."""

    def in_the_same(now: LeaderAndIsr, replicas: Any) -> PartitionChange:
        del replicas
        return PartitionChange(now)

    lead = ReassignmentElections.lead_from_assignment

    def without_epoch(self: ReassignmentElections, partitions: Any) -> Any:
        with patch.object(partition_change, "_without_deleted", in_the_same):
            return lead(self, partitions)

    return patch.object(ReassignmentElections, "lead_from_assignment", without_epoch)


def moves_forgotten_at_failover() -> Any:
    """A new controller does not continue reassignments."""
    return patch.object(Reassignments, "resume", lambda self: None)


def removed_replicas_left_alone() -> Any:
    """Replicas that a reassignment removes are not stopped."""
    stop = ReassignmentPhases._stop

    def no_replicas(self: ReassignmentPhases, replicas: Any) -> Any:
        return stop(self, [])

    return patch.object(ReassignmentPhases, "_stop", no_replicas)


def topics_written_without_version() -> Any:
    """A topic is written without a version condition, over a tool's concurrent write."""

    def write(self: Any, topics: Any, epoch_zk_version: int) -> Any:
        encode, path = TopicZNode.encode, TopicZNode.path
        writes = [
            [SetData(path(topic), encode(a.topic_id, a.partitions), ANY_VERSION)]
            for topic, a in topics.items()
        ]
        outcomes = self._write_fenced(writes, epoch_zk_version)
        return dict(zip(topics, map(version_or_error, outcomes), strict=True))

    return patch.object(controller_store.ZkControllerStore, "write_topics", write)


# --- what a controller reads and sends ------------------------------------------------------------


def deletion_watch_set_once() -> Any:
    """The watch on topics queued for deletion is set only once in a term."""
    children = WatchingStore._watch_children

    def unless_watched(self: WatchingStore, path: str) -> list[str]:
        if path == "/admin/delete_topics" and path in self._watched:
            return self._zookeeper.children(path) or []
        return children(self, path)

    return patch.object(WatchingStore, "_watch_children", unless_watched)


def answers_of_former_broker_epochs_count() -> Any:
    """An answer of a broker before its restart counts for its next broker epoch."""

    def is_of_another_term(self: ControllerContext, broker_id: int, header: Any) -> bool:
        return broker_id not in self.registrations or header.controller_epoch != self.epoch

    return patch.object(ControllerContext, "is_stale", is_of_another_term)


def answers_of_restarted_new_leaders_count() -> Any:
    """A shutting-down broker may stop after an answer of a new leader's former broker epoch."""
    hear = ControlledShutdowns.on_leader_and_isr_response

    def of_any_broker_epoch(self: ControlledShutdowns, event: Any) -> None:
        known = self._context.registrations.get(event.broker_id)
        if known is not None:
            header = event.header._replace(broker_epoch=known.broker_epoch)
            event = replace(event, header=header)
        hear(self, event)

    return patch.object(ControlledShutdowns, "on_leader_and_isr_response", of_any_broker_epoch)


def leaving_brokers_get_no_requests() -> Any:
    """A broker that is shutting down gets no more requests."""
    effects = ControlRequestBatch.effects

    def but_for_them(self: ControlRequestBatch) -> Any:
        leaving = self._context.shutting_down_broker_ids
        return [effect for effect in effects(self) if effect.broker_id not in leaving]

    return patch.object(ControlRequestBatch, "effects", but_for_them)


def new_isrs_not_announced() -> Any:
    """Brokers do not hear of an ISR that a leader proposed."""
    return patch.object(AlterPartitions, "_announce", lambda self, partitions: None)


def deletions_forgotten_at_failover() -> Any:
    """A new controller does not continue the deletion of topics."""
    resume = TopicDeletions.resume

    def but_not_all(self: TopicDeletions, topics: Any = None) -> None:
        if topics is not None:
            resume(self, topics)

    return patch.object(TopicDeletions, "resume", but_not_all)


def failed_replicas_may_lead() -> Any:
    """A replica in a failed log directory counts as alive."""

    def is_registered(self: Any, broker_id: int, partition: Any, **options: Any) -> bool:
        return broker_id in self.live_broker_ids

    return patch.object(ControllerContext, "is_replica_online", is_registered)


# --- how brokers handle control requests ----------------------------------------------------------


def deposed_controllers_stop_replicas() -> Any:
    """A StopReplica of any controller is applied."""
    handle = ControlRequestHandler.handle

    def of_any_controller(
        self: ControlRequestHandler, header: Any, request: Any, now_ms: int
    ) -> Any:
        if isinstance(request, StopReplicaRequest) and (
            header.controller_epoch < self.fence.controller_epoch
        ):
            header = header._replace(controller_epoch=self.fence.controller_epoch, sequence=0)
        return handle(self, header, request, now_ms)

    return patch.object(ControlRequestHandler, "handle", of_any_controller)


def leaders_stay_without_a_successor() -> Any:
    """A leader that learns that its partition has no leader goes on to lead."""
    take_role = ControlRequestHandler._take_role

    def unless_leaderless(
        self: ControlRequestHandler, partition: Any, topic: Any, state: Any, now_ms: int
    ) -> None:
        if state.leader == NO_LEADER:
            partition.leader_epoch = state.leader_epoch
        else:
            take_role(self, partition, topic, state, now_ms)

    return patch.object(ControlRequestHandler, "_take_role", unless_leaderless)


def stopped_replicas_fetch() -> Any:
    """A follower that is stopped goes on to fetch."""
    stop = ControlRequestHandler._stop

    def without_unfollowing(self: ControlRequestHandler, *order: Any) -> Any:
        with patch.object(ReplicaFetcher, "unfollow", lambda self, name: None):
            return stop(self, *order)

    return patch.object(ControlRequestHandler, "_stop", without_unfollowing)


def stops_of_the_same_epoch_refused() -> Any:
    """A StopReplica with the present leader epoch counts as stale (KAFKA-13972)."""
    stop = ControlRequestHandler._stop

    def strictly_newer(self: ControlRequestHandler, name: Any, topic_id: Any, order: Any) -> Any:
        partition = self._partitions.get(name)
        if partition is not None and 0 <= order.leader_epoch == partition.leader_epoch:
            return Errors.FENCED_LEADER_EPOCH
        return stop(self, name, topic_id, order)

    return patch.object(ControlRequestHandler, "_stop", strictly_newer)


def late_copies_applied() -> Any:
    """A repeated control request is applied after later requests."""
    refuse = ControlRequestFence.refuse

    def without_sequence(self: ControlRequestFence, header: Any, **kind: Any) -> Errors:
        return refuse(self, header._replace(sequence=0), **kind)

    return patch.object(ControlRequestFence, "refuse", without_sequence)


def eligible_replicas_unknown_to_leaders() -> Any:
    """A deposed leader commits alone when it learns of a lower ``min.insync.replicas`` first."""
    unknown = property(lambda self: False, lambda self, is_told: None)
    return patch.object(Partition, "has_eligible_replicas", unknown)


@contextmanager
def eligible_replicas_outlive_settings() -> Any:
    """An eligible replica stays so when ``min.insync.replicas`` was lowered and raised again.

    The leader does not know of it, like one of Kafka, and commits while others may lead.
    """
    no_changes = patch.object(
        controller_store.ZkControllerStore,
        "read_config_zxids",
        lambda self, topics: dict.fromkeys(topics, 0),
    )
    may_commit = patch.object(CommittedRecords, "check_nobody_else_may_lead")
    with eligible_replicas_unknown_to_leaders(), no_changes, may_commit:
        yield


SEARCH_FROM: dict[Callable[[], Any], int] = {
    proposals_of_stale_leader_epochs: 16,
    eligible_replicas_outlive_settings: 180,
    eligible_replicas_unknown_to_leaders: 20_002_606,
    refused_proposals_written: 85,
    late_proposals_carried_out: 50_008_938,
    proposals_of_former_broker_epochs: 88,
    members_of_any_broker_epoch: 112,
    proposals_of_any_broker: 106,
    acceptable_proposals_refused: 48,
    state_that_exists_is_a_failure: 338,
    no_new_epoch_before_replicas_are_removed: 48,
    moves_forgotten_at_failover: 4,
    removed_replicas_left_alone: 1,
    deletion_watch_set_once: 51,
    answers_of_former_broker_epochs_count: 293,
    leaving_brokers_get_no_requests: 126,
    deletions_forgotten_at_failover: 64,
    failed_replicas_may_lead: 126,
    deposed_controllers_stop_replicas: 478,
    leaders_stay_without_a_successor: 15,
    stopped_replicas_fetch: 1,
    stops_of_the_same_epoch_refused: 20,
}
