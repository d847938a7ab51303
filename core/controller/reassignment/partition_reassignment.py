"""Begins, resumes, cancels and completes reassignments (KIP-455).

Mirrors ``KafkaController.processZkPartitionReassignment``,
``processApiPartitionReassignment``, ``maybeResumeReassignments`` and
``maybeCompleteReassignment``; ``reassignment_phases`` has the phases. ``validateReplicas`` and
``maybeBuildReassignment`` are one function here, for the RPC and for the znode.

The topic znode is the only record of a reassignment in progress. ``/admin/reassign_partitions`` is
an inbox: its entries are begun, and removed when they are complete or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from regent.core.controller.context import ControllerContext
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.reassignment.reassignment_phases import (
    ReassignmentPhases,
    Refusals,
)
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.topic_validation import takes_no_replicas


class Reassignments:
    """The reassignments in progress: they advance as new replicas catch up."""

    def __init__(
        self,
        services: ControllerServices,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletions: TopicDeletions,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._phases = ReassignmentPhases(services, partitions, replicas, deletions)

    def resume(self) -> None:
        """Resume the reassignments in ZooKeeper, at the start of a controller's term.

        The requests of tools in ``/admin/reassign_partitions`` supersede the topic znodes.
        """
        self._phases.clean_up()
        started = self._start_from_znode()
        self._phases.advance(sorted(self._context.partitions_being_reassigned - started))

    def on_zk_reassignment(self) -> None:
        """Begin the reassignments in ``/admin/reassign_partitions``."""
        self._start_from_znode()

    def submit(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Begin, replace or cancel reassignments.

        NONE means that a partition's new assignment is stored; the reassignment may be in progress.
        Of several rows for a partition the last one counts.
        """
        targets = request.targets
        moves: dict[TopicPartition, ReplicaAssignment] = {}
        refused: Refusals = {}
        for topic_partition, target in targets.items():
            requested = requested_assignment(self._context, topic_partition, target)
            if isinstance(requested, ApiError):
                refused[topic_partition] = requested
            else:
                moves[topic_partition] = requested
        self._withdraw_from_znode(moves)
        refused.update(self._phases.start(moves))
        return AlterPartitionReassignmentsResponse.of(
            {topic_partition: refused.get(topic_partition, NO_ERROR) for topic_partition in targets}
        )

    def ongoing(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Return the reassignments in progress, sorted; all if none are named."""
        moving = self._context.partitions_being_reassigned
        named = request.partitions
        asked = moving if named is None else moving.intersection(named)
        found = {p: self._context.partition_full_replica_assignment(p) for p in sorted(asked)}
        return ListPartitionReassignmentsResponse.of(
            {p: assignment for p, assignment in found.items() if assignment.is_being_reassigned}
        )

    def on_isr_change(self, partitions: Collection[TopicPartition]) -> None:
        """Complete the reassignments of these partitions whose target replicas are in sync now."""
        moving = [p for p in partitions if p in self._context.partitions_being_reassigned]
        if moving:
            self._phases.on_isr_change(moving)

    def on_state_written(self, topic_partition: TopicPartition) -> None:
        """Complete a reassignment whose target is in sync now: the partition state was written."""
        if topic_partition in self._context.partitions_being_reassigned:
            self._phases.on_state_written(topic_partition)

    def on_partition_modifications(self, topic: str) -> None:
        """Advance the reassignments of a topic: its znode was written."""
        moving = self._context.partitions_being_reassigned
        of_topic = [p for p in self._context.partitions_of(topic) if p in moving]
        if of_topic:
            self._phases.on_topic_znode_written(of_topic)

    def try_again(self, partitions: Collection[TopicPartition]) -> None:
        """Retry what an ACL prevented: ZooKeeper may allow these partition states now."""
        self._phases.try_again(partitions)

    def on_broker_startup(self, broker_ids: Collection[BrokerId]) -> None:
        """Advance the reassignments that add replicas on these brokers."""
        self._phases.advance(self._moving_to(set(broker_ids)))

    def on_suspects_change(self, broker_id: BrokerId) -> None:
        """Complete reassignments that waited until a target replica on this broker can lead.

        Do nothing else, above all begin no leader epoch: the list of suspect replicas changes often
        after a broker starts.
        """
        self.on_isr_change(self._moving_to({broker_id}))

    def _moving_to(self, broker_ids: Set[BrokerId]) -> list[TopicPartition]:
        return sorted(
            topic_partition
            for topic_partition in self._context.partitions_being_reassigned
            if not broker_ids.isdisjoint(
                self._context.partition_full_replica_assignment(topic_partition).target_replicas
            )
        )

    # --- the znode ---

    def _start_from_znode(self) -> set[TopicPartition]:
        """Begin the entries of the znode that are not in progress; return them.

        Runs after each change of the znode, also by this controller. Target brokers may be dead:
        the entry waits for them, because the tool does not write it again.
        """
        wanted = self._services.store.read_reassignments()
        if wanted is None:
            return set()
        if isinstance(wanted, BadDataError):
            self._log.error("a request to reassign partitions is deleted: %s", wanted)
            self._services.outbox.note("a request to reassign partitions is deleted: %s", wanted)
            wanted = {}
        moves: dict[TopicPartition, ReplicaAssignment] = {}
        refused: Refusals = {}
        done: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for topic_partition, target in wanted.items():
            if (
                target
                == self._context.partition_full_replica_assignment(topic_partition).target_replicas
            ):
                if topic_partition not in self._context.partitions_being_reassigned:
                    done[topic_partition] = target
                continue
            requested = requested_assignment(
                self._context, topic_partition, target, dead_targets_may_wait=True
            )
            if isinstance(requested, ApiError):
                refused[topic_partition] = requested
            else:
                moves[topic_partition] = requested
        refused.update(self._phases.start(moves))
        self._report(refused)
        settled = {
            **done,
            **{topic_partition: wanted[topic_partition] for topic_partition in refused},
        }
        if settled or not wanted:
            self._services.store.remove_reassignments(settled, self._context.epoch_zk_version)
        return set(moves) - set(refused)

    def _withdraw_from_znode(self, partitions: Collection[TopicPartition]) -> None:
        """Remove these partitions from the znode: a later RPC supersedes them (KAFKA-9089)."""
        if not partitions:
            return
        wanted = self._services.store.read_reassignments()
        if isinstance(wanted, Mapping):
            overtaken = {p: target for p, target in wanted.items() if p in partitions}
            if overtaken:
                self._services.store.remove_reassignments(overtaken, self._context.epoch_zk_version)

    def _report(self, refused: Refusals) -> None:
        if refused:
            for refusal in refused.values():
                self._services.outbox.note("refused: %s", refusal.message)
            self._log.warning(
                "%d partitions are not reassigned, the first: %s",
                len(refused),
                next(iter(refused.values())).message,
            )


def requested_assignment(
    context: ControllerContext,
    topic_partition: TopicPartition,
    target: tuple[BrokerId, ...] | None,
    *,
    dead_targets_may_wait: bool = False,
) -> ReplicaAssignment | ApiError:
    """Return the assignment that begins a reassignment to ``target``; None cancels one.

    A reassignment in progress is superseded: the new one starts from its original replicas.
    ``dead_targets_may_wait``: the broker of a replica to add may be dead; the reassignment waits
    for it.
    """
    current = context.partition_full_replica_assignment(topic_partition)
    if target is None:
        if not current.is_being_reassigned:
            return ApiError(
                Errors.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being reassigned"
            )
        target = current.origin_replicas
    if not target or len(set(target)) < len(target) or min(target) < 0:
        return ApiError(
            Errors.INVALID_REPLICA_ASSIGNMENT,
            f"{topic_partition}: {list(target)} is not a list of distinct broker ids",
        )
    if not current.replicas or context.is_topic_queued_for_deletion(topic_partition.topic):
        return ApiError(
            Errors.UNKNOWN_TOPIC_OR_PARTITION,
            f"{topic_partition} does not exist, or is being deleted",
        )
    requested = current.reassign_to(target)
    for broker_id in context.brokers_without_replicas.intersection(requested.adding_replicas):
        reason = f"{topic_partition}: {takes_no_replicas(broker_id)}"
        return ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, reason)
    live = context.live_broker_ids
    dead = [r for r in requested.adding_replicas if r not in live]
    if dead and not dead_targets_may_wait:
        return ApiError(
            Errors.INVALID_REPLICA_ASSIGNMENT, f"{topic_partition}: brokers {dead} are not alive"
        )
    return requested
