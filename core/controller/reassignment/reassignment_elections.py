"""The leaders and leader epochs of partitions that are being reassigned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from regent.core.controller.election.decisions import Failures
from regent.core.controller.election.election import ReassignElection, partition_replicas
from regent.core.controller.election.partition_change import (
    LeaderLeavesAssignment,
    ReassignmentEpoch,
    RemoveUnassignedReplicas,
    is_reassignment_complete,
)
from regent.core.controller.election.partition_change_writer import Changes, change_partitions
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState
from regent.core.errors import StateChangeFailedError, UnreadableError
from regent.core.model import (
    NO_LEADER,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)


class ReassignmentElections:
    """Changes leaderships for reassignments, and sends them to the replicas."""

    def __init__(self, services: ControllerServices, partitions: PartitionStateMachine) -> None:
        self._services = services
        self._context = services.context
        self._partitions = partitions

    def complete(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose target replicas are in sync in ZooKeeper now."""
        states = self._services.store.read_partition_states(partitions)
        for topic_partition, state in states.items():
            if isinstance(state, UnreadableError):
                self._context.read_state_again(topic_partition)
        return [p for p in partitions if self._is_complete(p, states.get(p))]

    def begin_epoch(self, partitions: Iterable[TopicPartition]) -> Failures:
        """Begin a leader epoch in which all replicas know the new assignment.

        A partition that was never led needs none. One whose state cannot be read fails: its
        leader and its ISR are unknown.
        """
        hidden = self._context.unreadable_partitions.intersection(partitions)
        led = [p for p in partitions if self._context.partition_leadership_info(p) is not None]
        accepted, failures = change_partitions(self._services, led, ReassignmentEpoch())
        batch = self._services.new_batch()
        for topic_partition, change in accepted.items():
            assignment = self._context.partition_full_replica_assignment(topic_partition)
            isr = change.leader_and_isr.isr
            # A new replica may use any log directory that still works (KAFKA-10314).
            new = [r for r in assignment.adding_replicas if r not in isr]
            hosts = (*assignment.origin_replicas, *assignment.adding_replicas)
            # An earlier attempt to complete may have deleted some of them already.
            for replica in self._context.kept_replicas(hosts, topic_partition):
                is_new = replica in new
                batch.add_leader_and_isr((replica,), [topic_partition], is_new=is_new)
        self._services.announce(batch)
        unread = {p: StateChangeFailedError(f"{p}: its state cannot be read") for p in hidden}
        return {**failures, **unread}

    def lead_from_assignment(self, partitions: Iterable[TopicPartition]) -> Failures:
        """Let an assigned replica lead, in a leader epoch that no removed replica knows.

        So no leader can let a removed replica into the ISR again (KAFKA-1097).
        """
        lost: list[TopicPartition] = []
        led: list[TopicPartition] = []
        for topic_partition in partitions:
            leadership = self._context.partition_leadership_info(topic_partition)
            if leadership is not None:
                leader = leadership.leader_and_isr.leader
                target = self._context.partition_replica_assignment(topic_partition)
                stays = leader in target and self._context.is_replica_online(
                    leader, topic_partition
                )
                (led if stays else lost).append(topic_partition)
        failures = self._partitions.handle_state_changes(
            lost, PartitionState.ONLINE, ReassignElection()
        )
        accepted, unchanged = change_partitions(self._services, led, ReassignmentEpoch())
        self._announce(accepted)
        return {**failures, **unchanged}

    def elect_remaining(self, requested: Mapping[TopicPartition, ReplicaAssignment]) -> Failures:
        """Elect a replica of the new assignment where the leader is not in it."""
        leaving = [p for p, assignment in requested.items() if self._loses_leader(p, assignment)]
        accepted, failures = change_partitions(
            self._services, leaving, lambda p: LeaderLeavesAssignment(requested[p].replicas)
        )
        self._announce(accepted)
        return failures

    def remove_unassigned_replicas(self) -> Failures:
        """Remove unassigned brokers from ISRs: a former controller died before it removed them.

        An unassigned leader stays, as does the last member of an ISR (KAFKA-9672).
        """
        partitions = self._partitions_with_unassigned_replicas()
        accepted, failures = change_partitions(
            self._services, partitions, RemoveUnassignedReplicas()
        )
        self._announce(accepted)
        return failures

    # --- inside ---

    def _is_complete(
        self, topic_partition: TopicPartition, state: LeaderIsrAndControllerEpoch | object
    ) -> bool:
        assignment = self._context.partition_full_replica_assignment(topic_partition)
        if not assignment.is_being_reassigned:
            # A superseded reassignment may have deleted some: they are created again first.
            exists = self._context.replica_exists
            return all(exists(r, topic_partition) for r in assignment.replicas)
        if self._context.partition_leadership_info(topic_partition) is None:
            return False  # the state could not be read before: the ISR could not be changed
        return isinstance(state, LeaderIsrAndControllerEpoch) and is_reassignment_complete(
            state.leader_and_isr, partition_replicas(self._context, topic_partition)
        )

    def _loses_leader(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        leadership = self._context.partition_leadership_info(topic_partition)
        if leadership is None:
            return False
        now = leadership.leader_and_isr
        may_lead = now.isr if now.leader == NO_LEADER else (now.leader,)
        return not any(r in assignment.replicas for r in may_lead)

    def _partitions_with_unassigned_replicas(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        leadership_of = self._context.partition_leadership_info
        for topic in self._context.all_topics:
            for topic_partition, assignment in self._context.partition_assignments(topic).items():
                leadership = leadership_of(topic_partition)
                if leadership is not None:
                    isr, replicas = leadership.leader_and_isr.isr, assignment.replicas
                    if isr != replicas and not set(isr).issubset(replicas):
                        found.append(topic_partition)
        return found

    def _announce(self, changed: Changes) -> None:
        batch = self._services.new_batch()
        batch.add_changes(changed)
        self._services.announce(batch)
