"""How partitions move, a step at a time and many at once.

Mirrors ``KafkaController.onPartitionReassignment`` and what it calls:

1. *Start*: the topic znode gets the union of old and new replicas. Replicas that a former target
   was adding and the new one does not want are stopped, in a leader epoch that they do not know.
2. *Wait* (Kafka's phase A): in a new leader epoch old and new replicas are told, and the new ones
   copy. It is repeated whenever a new replica returns.
3. *Finish* (phase B), when all of the target is in sync and some of it alive: one of the target
   leads, the removed ones leave the ISR and are deleted, and the topic znode gets the target. That
   comes last, being all the next controller knows of the move.

ZooKeeper is always written before the context (KAFKA-9089), and every step can be repeated: a
controller that dies between any two writes leaves what the next one goes on with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from regent.core.controller.assignments import write_assignments
from regent.core.controller.election import OfflineElection
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.reassignment.reassignment_elections import ReassignmentElections
from regent.core.controller.reassignment.reassignment_requests import Refusal, Refusals
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topic_deletion import TopicDeletions
from regent.core.errors import Errors
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


class ReassignmentPhases:
    """Carries partitions through the steps of their reassignments."""

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
        # What could not be finished, and the leadership our attempt left behind.
        self._unfinished: dict[TopicPartition, LeaderIsrAndControllerEpoch | None] = {}
        self._left_over: set[PartitionAndReplica] = set()  # of superseded moves, not stopped yet

    def start(self, requested: Mapping[TopicPartition, ReplicaAssignment]) -> Refusals:
        """Begin moves, or replace those under way; return which were refused, unchanged.

        A move is refused if it would stop the leader and no remaining replica can lead
        (KAFKA-14808), with the code of KRaft's ``ReplicationControlManager``.
        """
        changed = {
            topic_partition: assignment
            for topic_partition, assignment in requested.items()
            if assignment != self._context.partition_full_replica_assignment(topic_partition)
        }
        refusals = {
            topic_partition: Refusal(Errors.INVALID_REPLICA_ASSIGNMENT, str(failure))
            for topic_partition, failure in self._elections.elect_remaining(changed).items()
        }
        led = {p: assignment for p, assignment in changed.items() if p not in refusals}
        for topic_partition, failure in write_assignments(self._services, led).items():
            refusals[topic_partition] = Refusal(Errors.UNKNOWN_SERVER_ERROR, str(failure))
        self._apply({p: assignment for p, assignment in led.items() if p not in refusals})
        moving = self._context.partitions_being_reassigned
        self.go_on([p for p in requested if p in moving and p not in refusals])
        return refusals

    def clean_up(self) -> None:
        """Finish what a former controller began when it stopped unneeded replicas.

        Moves that were quarantined are resumed within a term: what it left over stays known.
        """
        self._unfinished.clear()
        self._left_over = self._unneeded(self._left_over)
        failures = self._elections.remove_unassigned_replicas()
        self._log.failures("%d partitions keep unassigned brokers in the ISR", failures)

    def go_on(self, partitions: Collection[TopicPartition]) -> None:
        """Finish those whose target is in sync; have the new replicas of the others copy."""
        if not partitions:
            return
        topics = dict.fromkeys(topic_partition.topic for topic_partition in partitions)
        self._deletions.mark_ineligible(list(topics), "a partition of it is being moved")
        self._bring_online_never_led(partitions)
        caught_up = set(self.finish_caught_up(partitions))
        waiting = [p for p in partitions if p not in caught_up]
        failures = self._elections.begin_epoch(waiting)
        self._log.failures("%d partitions do not begin to move", failures)
        refused = self._context.refused_states.intersection(failures)  # ``try_again`` begins them
        self._make_new([p for p in waiting if p not in refused])

    def finish_caught_up(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Finish those whose target is in sync and return them."""
        if self._services.settings.isr_changes_through_zookeeper:
            self._services.store.watch_partition_states(partitions)
        caught_up = self._elections.complete(partitions)
        if caught_up:
            self._finish(caught_up)
        return caught_up

    def on_isr_change(self, partitions: Collection[TopicPartition]) -> None:
        """Finish those whose target is in sync; others may be able to replace a damaged log now."""
        caught_up = self.finish_caught_up(partitions)
        self._deletions.ask_damaged([p for p in partitions if p not in caught_up])

    def on_state_written(self, topic_partition: TopicPartition) -> None:
        """Finish a move whose target is in sync now, unless all that was written is our attempt to.

        Else one that cannot be finished would trigger itself for ever (KAFKA-6146).
        """
        self._services.store.watch_partition_states([topic_partition])
        state = self._services.store.read_partition_states([topic_partition]).get(topic_partition)
        if topic_partition not in self._unfinished or state != self._unfinished[topic_partition]:
            self.finish_caught_up([topic_partition])

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Go on after a topic's znode was written, by us or by others.

        A tool that knows of no moves drops them from the znode; another one may have mended it.
        """
        assignments = {p: self._context.partition_full_replica_assignment(p) for p in partitions}
        failures = write_assignments(self._services, assignments)
        self._log.failures("%d partitions cannot be kept moving", failures)
        self.finish_caught_up(partitions)

    def try_again(self, partitions: Collection[TopicPartition]) -> None:
        """Go on after an ACL was changed, maybe that of the states of these partitions."""
        moving = sorted(self._context.partitions_being_reassigned)
        self._stop_left_over(self._left_over)
        self.go_on(sorted(self._context.partitions_being_reassigned.intersection(partitions)))
        if moving:
            self.keep(moving)

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
            self._services.outbox.record(
                "%s: moving %s → %s",
                topic_partition,
                list(before.target_replicas),
                list(assignment.target_replicas),
            )
        self._stop_left_over(unneeded)

    def _stop_left_over(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Stop those that no move needs any more; what is refused is tried again.

        First a leader epoch begins that none of them knows. Else their leader could let them in by
        what they had, when another move wants them again and they are empty.
        """
        unneeded = self._unneeded(replicas)
        failures = self._elections.begin_epoch(sorted({r.topic_partition for r in unneeded}))
        self._log.failures("%d partitions keep replicas that are not needed any more", failures)
        self._stop(sorted(r for r in unneeded if r.topic_partition not in failures))
        self._left_over = self._unneeded(self._left_over | unneeded)

    def _unneeded(self, replicas: Iterable[PartitionAndReplica]) -> set[PartitionAndReplica]:
        """Return those that are there still although no move needs them."""
        return {
            r
            for r in replicas
            if r.replica not in self._context.partition_replica_assignment(r.topic_partition)
            and self._context.replica_state(r) is not ReplicaState.NON_EXISTENT
        }

    # --- wait ---

    def _bring_online_never_led(self, partitions: Collection[TopicPartition]) -> None:
        """Create what could not be created where it was assigned: there is nothing to copy."""
        never_led = [
            p for p in partitions if self._context.partition_state(p) is PartitionState.NEW
        ]
        self._make_new(never_led)
        self._partitions.handle_state_changes(never_led, PartitionState.ONLINE, OfflineElection())

    def _make_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Let replicas to be added come to be, and tell them to copy."""
        adding = self._adding(partitions)
        unknown = self._in_state(ReplicaState.NON_EXISTENT, adding)
        self._replicas.handle_state_changes(unknown, ReplicaState.NEW)

    # --- finish ---

    def _finish(self, partitions: Collection[TopicPartition]) -> None:
        """Leave the target replicas only; what does not succeed is tried again later."""
        new = self._in_state(ReplicaState.NEW, self._adding(partitions))
        self._replicas.handle_state_changes(new, ReplicaState.ONLINE)
        before = {p: self._context.partition_full_replica_assignment(p) for p in partitions}
        for topic_partition, assignment in before.items():
            target = ReplicaAssignment(assignment.target_replicas)
            self._context.update_partition_full_replica_assignment(topic_partition, target)
        failures = self._elections.lead_from_assignment(partitions)
        self._log.failures("%d partitions are not led from where they move to", failures)
        not_left = self._stop(
            [
                PartitionAndReplica(topic_partition, r)
                for topic_partition, assignment in before.items()
                if topic_partition not in failures
                for r in assignment.removing_replicas
            ]
        )
        settled: dict[TopicPartition, ReplicaAssignment] = {}
        for topic_partition, assignment in before.items():
            if assignment.removing_replicas and (
                topic_partition in failures or topic_partition in not_left
            ):
                self._context.update_partition_full_replica_assignment(topic_partition, assignment)
            else:
                settled[topic_partition] = ReplicaAssignment(assignment.target_replicas)
        failures = write_assignments(self._services, settled)
        self._log.failures("%d partitions have moved, which cannot be written", failures)
        self._settle({p: target for p, target in settled.items() if p not in failures})
        for topic_partition in self._context.partitions_being_reassigned.intersection(partitions):
            self._unfinished[topic_partition] = self._context.partition_leadership_info(
                topic_partition
            )

    def _stop(self, replicas: list[PartitionAndReplica]) -> set[TopicPartition]:
        """Stop and delete replicas, without waiting; return partitions where one stays."""
        stopping = [
            r for r in replicas if self._context.replica_state(r) is not ReplicaState.NON_EXISTENT
        ]
        for state in _STOPPING:
            self._replicas.handle_state_changes(stopping, state)
            stopping = self._in_state(state, stopping)
        gone = set(self._in_state(ReplicaState.NON_EXISTENT, replicas))
        return {replica.topic_partition for replica in replicas if replica not in gone}

    def _settle(self, targets: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Note that these are where they shall be."""
        if not targets:
            return
        if self._services.settings.isr_changes_through_zookeeper:
            self._services.store.unwatch_partition_states(list(targets))
        self._services.store.remove_reassignments(
            {topic_partition: target.replicas for topic_partition, target in targets.items()},
            self._context.epoch_zk_version,
        )
        moving = self._context.partitions_being_reassigned
        for topic_partition, target in targets.items():
            moving.discard(topic_partition)
            self._unfinished.pop(topic_partition, None)
            self._services.outbox.record("%s: moved to %s", topic_partition, list(target.replicas))
        batch = self._services.new_batch()
        batch.add_update_metadata(targets)
        self._services.announce(batch)
        self._deletions.resume(
            list(dict.fromkeys(topic_partition.topic for topic_partition in targets))
        )

    # --- inside ---

    def _adding(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        return [
            PartitionAndReplica(topic_partition, replica)
            for topic_partition in partitions
            for replica in self._context.partition_full_replica_assignment(
                topic_partition
            ).adding_replicas
        ]

    def _in_state(
        self, state: ReplicaState, replicas: Iterable[PartitionAndReplica]
    ) -> list[PartitionAndReplica]:
        return [r for r in replicas if self._context.replica_state(r) is state]
