"""The phases of reassignments, for many partitions at once.

Mirrors ``KafkaController.onPartitionReassignment`` and its parts:

1. *Start*: the topic znode gets the union of old and new replicas. Replicas that a superseded
reassignment was adding are stopped, in a leader epoch that they do not know. 2. *Phase A*: a new
leader epoch is sent to old and new replicas, and the new ones fetch. It is repeated when the broker
of a new replica starts. 3. *Phase B*, when all target replicas are in sync and one can lead: a
target replica leads, removed replicas leave the ISR and are deleted, and the topic znode gets the
target. This write is last, because it is the only record for the next controller.

ZooKeeper is always written before the context (KAFKA-9089), and every step can be repeated: when a
controller dies between two writes, the next one continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from regent.core.controller.assignments import write_assignments
from regent.core.controller.election.alter_partition import WrittenIsrs
from regent.core.controller.election.election import OfflineElection
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.reassignment.reassignment_elections import ReassignmentElections
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import ApiError, Errors
from regent.core.model import (
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)

_STOPPING = (
    ReplicaState.OFFLINE,
    ReplicaState.DELETION_STARTED,
    ReplicaState.DELETION_SUCCESSFUL,
    ReplicaState.NON_EXISTENT,
)


Refusals: TypeAlias = dict[TopicPartition, ApiError]
"""Why partitions are not reassigned; they are unchanged."""


class ReassignmentPhases:
    """Takes partitions through the phases of their reassignments."""

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
        self._partitions = partitions
        self._replicas = replicas
        self._deletions = deletions
        self._elections = ReassignmentElections(services, partitions)
        self._written_isrs = WrittenIsrs(services, replicas)
        # Partitions that could not be completed, with the leadership after the attempt.
        self._incomplete: dict[TopicPartition, LeaderIsrAndControllerEpoch | None] = {}
        # Replicas of superseded reassignments that are not stopped yet.
        self._superseded: set[PartitionAndReplica] = set()

    def start(self, requested: Mapping[TopicPartition, ReplicaAssignment]) -> Refusals:
        """Begin reassignments, or supersede those in progress; return the refused ones.

        A refused one changes nothing. It is refused if it would stop the leader and no remaining
        replica can lead (KAFKA-14808), with the code of KRaft's ``ReplicationControlManager``.
        """
        changed = {
            topic_partition: assignment
            for topic_partition, assignment in requested.items()
            if assignment != self._context.partition_full_replica_assignment(topic_partition)
        }
        refusals = {
            topic_partition: ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, str(failure))
            for topic_partition, failure in self._elections.elect_remaining(changed).items()
        }
        led = {p: assignment for p, assignment in changed.items() if p not in refusals}
        for topic_partition, failure in write_assignments(self._services, led).items():
            refusals[topic_partition] = ApiError(Errors.UNKNOWN_SERVER_ERROR, str(failure))
        self._apply({p: assignment for p, assignment in led.items() if p not in refusals})
        moving = self._context.partitions_being_reassigned
        self.advance([p for p in requested if p in moving and p not in refusals])
        return refusals

    def clean_up(self) -> None:
        """Forget earlier attempts, and remove unassigned brokers from ISRs.

        A former controller may have died before it removed them. This also runs within a term, when
        quarantined reassignments are resumed: replicas that must still be stopped stay known.
        """
        self._incomplete.clear()
        self._superseded = self._unneeded(self._superseded)
        failures = self._elections.remove_unassigned_replicas()
        self._log.failures("%d partitions keep unassigned brokers in the ISR", failures)

    def advance(self, partitions: Collection[TopicPartition]) -> None:
        """Complete those whose target is in sync; let the new replicas of the others fetch."""
        if not partitions:
            return
        topics = dict.fromkeys(topic_partition.topic for topic_partition in partitions)
        self._deletions.mark_ineligible(list(topics), "a partition of it is being reassigned")
        self._bring_online_never_led(partitions)
        caught_up = set(self.complete_caught_up(partitions))
        waiting = [p for p in partitions if p not in caught_up]
        failures = self._elections.begin_epoch(waiting)
        self._log.failures("%d reassignments cannot begin", failures)
        refused = self._context.refused_states.intersection(failures)  # ``try_again`` begins them
        self._make_new([p for p in waiting if p not in refused])

    def complete_caught_up(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Complete those whose target is in sync, and return them."""
        self._written_isrs.watch(partitions)
        caught_up = self._elections.complete(partitions)
        if caught_up:
            self._complete(caught_up)
        return caught_up

    def on_isr_change(self, partitions: Collection[TopicPartition]) -> None:
        """Complete those whose target is in sync; others may replace a damaged log now."""
        caught_up = self.complete_caught_up(partitions)
        self._deletions.retry_damaged_replicas([p for p in partitions if p not in caught_up])

    def on_state_written(self, topic_partition: TopicPartition) -> None:
        """Complete a reassignment whose target is in sync, unless our last attempt wrote the state.

        Otherwise an attempt that fails would trigger the next one, for ever (KAFKA-6146).
        """
        self._services.store.watch_partition_states([topic_partition])
        state = self._services.store.read_partition_states([topic_partition]).get(topic_partition)
        if topic_partition not in self._incomplete or state != self._incomplete[topic_partition]:
            self.complete_caught_up([topic_partition])

    def on_topic_znode_written(self, partitions: Collection[TopicPartition]) -> None:
        """Continue after a topic znode was written, by this controller or by others.

        A tool without KIP-455 drops reassignments from the znode: they are written again. Another
        tool may have repaired a znode that could not be written.
        """
        assignments = {p: self._context.partition_full_replica_assignment(p) for p in partitions}
        failures = write_assignments(self._services, assignments)
        self._log.failures("%d reassignments cannot be written to their topics again", failures)
        self.complete_caught_up(partitions)

    def try_again(self, partitions: Collection[TopicPartition]) -> None:
        """Continue after an ACL was changed, perhaps that of these partition states."""
        moving = sorted(self._context.partitions_being_reassigned)
        self._stop_unneeded(self._superseded)
        self.advance(sorted(self._context.partitions_being_reassigned.intersection(partitions)))
        if moving:
            self.on_topic_znode_written(moving)

    # --- start ---

    def _apply(self, accepted: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        unneeded: list[PartitionAndReplica] = []
        for topic_partition, assignment in accepted.items():
            before = self._context.partition_full_replica_assignment(topic_partition)
            self._context.update_partition_full_replica_assignment(topic_partition, assignment)
            self._context.partitions_being_reassigned.add(topic_partition)
            unneeded += [
                PartitionAndReplica(topic_partition, r)
                for r in before.replicas
                if r not in assignment.replicas
            ]
            self._services.outbox.note(
                "%s: reassigning %s → %s",
                topic_partition,
                list(before.target_replicas),
                list(assignment.target_replicas),
            )
        self._stop_unneeded(unneeded)

    def _stop_unneeded(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Stop replicas that no reassignment needs any more; refused ones are retried.

        First a leader epoch begins that they do not know. Otherwise a later reassignment could add
        them again, with empty logs, and the leader could take them into the ISR because of their
        former offsets.
        """
        unneeded = self._unneeded(replicas)
        failures = self._elections.begin_epoch(sorted({r.topic_partition for r in unneeded}))
        self._log.failures("%d partitions keep replicas that are not needed any more", failures)
        self._stop(sorted(r for r in unneeded if r.topic_partition not in failures))
        self._superseded = self._unneeded(self._superseded | unneeded)

    def _unneeded(self, replicas: Iterable[PartitionAndReplica]) -> set[PartitionAndReplica]:
        """Return the existing replicas that no reassignment needs."""
        return {
            r
            for r in replicas
            if r.replica not in self._context.partition_replica_assignment(r.topic_partition)
            and self._context.replica_state(r) is not ReplicaState.NON_EXISTENT
        }

    # --- phase A ---

    def _bring_online_never_led(self, partitions: Collection[TopicPartition]) -> None:
        """Create partitions that could not be created on their assigned replicas."""
        never_led = [
            p for p in partitions if self._context.partition_state(p) is PartitionState.NEW
        ]
        self._make_new(never_led)
        self._partitions.handle_state_changes(never_led, PartitionState.ONLINE, OfflineElection())

    def _make_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Create the target replicas that do not exist, and let them fetch.

        These are the replicas to add, and those that a superseded reassignment has deleted.
        """
        unknown = self._in_state(ReplicaState.NON_EXISTENT, self._target(partitions))
        self._replicas.handle_state_changes(unknown, ReplicaState.NEW)

    # --- phase B ---

    def _complete(self, partitions: Collection[TopicPartition]) -> None:
        """Keep only the target replicas; failures are retried later."""
        new = self._in_state(ReplicaState.NEW, self._target(partitions))
        self._replicas.handle_state_changes(new, ReplicaState.ONLINE)
        before = {p: self._context.partition_full_replica_assignment(p) for p in partitions}
        for topic_partition, assignment in before.items():
            target = ReplicaAssignment(assignment.target_replicas)
            self._context.update_partition_full_replica_assignment(topic_partition, target)
        failures = self._elections.lead_from_assignment(partitions)
        self._log.failures("%d partitions are not led by a target replica", failures)
        remaining = self._stop(
            [
                PartitionAndReplica(topic_partition, r)
                for topic_partition, assignment in before.items()
                if topic_partition not in failures
                for r in assignment.removing_replicas
            ]
        )
        complete: dict[TopicPartition, ReplicaAssignment] = {}
        for topic_partition, assignment in before.items():
            if assignment.removing_replicas and (
                topic_partition in failures or topic_partition in remaining
            ):
                self._context.update_partition_full_replica_assignment(topic_partition, assignment)
            else:
                complete[topic_partition] = ReplicaAssignment(assignment.target_replicas)
        failures = write_assignments(self._services, complete)
        self._log.failures("%d complete reassignments cannot be written", failures)
        self._record_complete({p: target for p, target in complete.items() if p not in failures})
        for topic_partition in self._context.partitions_being_reassigned.intersection(partitions):
            self._incomplete[topic_partition] = self._context.partition_leadership_info(
                topic_partition
            )

    def _stop(self, replicas: list[PartitionAndReplica]) -> set[TopicPartition]:
        """Stop and delete replicas, without waiting; return the partitions of those that stay."""
        stopping = [
            r for r in replicas if self._context.replica_state(r) is not ReplicaState.NON_EXISTENT
        ]
        for state in _STOPPING:
            self._replicas.handle_state_changes(stopping, state)
            stopping = self._in_state(state, stopping)
        gone = set(self._in_state(ReplicaState.NON_EXISTENT, replicas))
        return {replica.topic_partition for replica in replicas if replica not in gone}

    def _record_complete(self, targets: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Record that these reassignments are complete."""
        if not targets:
            return
        self._written_isrs.unwatch(targets)
        self._services.store.remove_reassignments(
            {topic_partition: target.replicas for topic_partition, target in targets.items()},
            self._context.epoch_zk_version,
        )
        moving = self._context.partitions_being_reassigned
        for topic_partition, target in targets.items():
            moving.discard(topic_partition)
            self._incomplete.pop(topic_partition, None)
            self._services.outbox.note(
                "%s: reassigned to %s", topic_partition, list(target.replicas)
            )
        self._services.announce_metadata(targets)
        self._deletions.resume(
            list(dict.fromkeys(topic_partition.topic for topic_partition in targets))
        )

    # --- inside ---

    def _target(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        return [
            PartitionAndReplica(topic_partition, replica)
            for topic_partition in partitions
            for replica in self._context.partition_full_replica_assignment(
                topic_partition
            ).target_replicas
        ]

    def _in_state(
        self, state: ReplicaState, replicas: Iterable[PartitionAndReplica]
    ) -> list[PartitionAndReplica]:
        return [r for r in replicas if self._context.replica_state(r) is state]
