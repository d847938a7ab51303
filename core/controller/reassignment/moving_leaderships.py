"""The leaderships of partitions that are being moved: who leads meanwhile, and in which epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from regent.core.controller.election import ReassignElection, offline_leader
from regent.core.controller.leadership import Failures, Leaderships, change_leaderships
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.term import Term
from regent.core.errors import BadDataError, StateChangeFailedError
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)


class MovingLeaderships:
    """Changes leaderships as reassignments need it, and tells the replicas."""

    def __init__(self, term: Term, partitions: PartitionStateMachine) -> None:
        self._term = term
        self._context = term.context
        self._partitions = partitions

    def caught_up(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those whose target is in sync, as ZooKeeper has it now.

        Where replicas will be removed, somebody of the target must be alive and sound: the
        partition must not be left to the dead, nor those be deleted who have what others lost.
        """
        states = self._term.store.read_partition_states(partitions)
        return [p for p in partitions if self._has_caught_up(p, states.get(p))]

    def begin_epoch(self, partitions: Iterable[TopicPartition]) -> Failures:
        """Tell the replicas, in a new leader epoch, who copies; those to come learn it as new."""
        led = [p for p in partitions if self._context.partition_leadership_info(p) is not None]
        accepted, failures = change_leaderships(self._term, led, self._next_epochs)
        batch = self._term.new_batch()
        for partition, written in accepted.items():
            assignment = self._context.partition_full_replica_assignment(partition)
            leadership = LeaderIsrAndControllerEpoch(written, self._context.epoch)
            # Who is not in sync may live in whatever directory still works (KAFKA-10314).
            new = [r for r in assignment.adding_replicas if r not in written.isr]
            for replica in (*assignment.origin_replicas, *assignment.adding_replicas):
                # A former attempt to finish may have deleted some of them already.
                if self._exists(partition, replica):
                    batch.add_leader_and_isr(
                        (replica,), partition, leadership, assignment, is_new=replica in new
                    )
        self._term.announce(batch)
        return failures

    def lead_from_assignment(self, partitions: Iterable[TopicPartition]) -> Failures:
        """Have an assigned replica lead, in an epoch that none of the removed ones knows.

        So no leader can let a removed replica in again (KAFKA-1097).
        """
        lost: list[TopicPartition] = []
        led: list[TopicPartition] = []
        for partition in partitions:
            leadership = self._context.partition_leadership_info(partition)
            if leadership is not None:
                leader = leadership.leader_and_isr.leader
                target = self._context.partition_replica_assignment(partition)
                stays = leader in target and self._online(partition)(leader)
                (led if stays else lost).append(partition)
        failures = self._partitions.handle_state_changes(
            lost, PartitionState.ONLINE, ReassignElection()
        )
        accepted, unchanged = change_leaderships(self._term, led, self._next_epochs)
        self._tell_replicas(accepted)
        return {**failures, **unchanged}

    def elect_those_that_stay(
        self, requested: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Failures:
        """Where the leader is not in the new assignment elect one that is; fail where none can."""
        leaving = [p for p, assignment in requested.items() if self._loses_leader(p, assignment)]

        def propose(
            current: Leaderships, failures: Failures
        ) -> Mapping[TopicPartition, LeaderAndIsr]:
            proposals: dict[TopicPartition, LeaderAndIsr] = {}
            for partition, now in current.items():
                replicas = requested[partition].replicas
                leader = offline_leader(replicas, now.isr, self._sound(partition))
                if leader is None:
                    failures[partition] = StateChangeFailedError(
                        f"{partition}: leader {now.leader} would be stopped, and of isr"
                        f" {list(now.isr)} nobody among {list(replicas)} can lead"
                    )
                else:
                    proposals[partition] = _next_epoch(now, leader, now.isr)
            return proposals

        accepted, failures = change_leaderships(self._term, leaving, propose)
        self._tell_replicas(accepted)
        return failures

    def evict_strangers(self) -> Failures:
        """Take out of ISRs whoever is no replica: a controller died before it could (KAFKA-9672).

        A leader that is a stranger itself stays, as does the last one in sync.
        """

        def propose(
            current: Leaderships, failures: Failures
        ) -> Mapping[TopicPartition, LeaderAndIsr]:
            del failures
            proposals: dict[TopicPartition, LeaderAndIsr] = {}
            for partition, now in current.items():
                replicas = self._context.partition_replica_assignment(partition)
                isr = tuple(r for r in now.isr if r in replicas)
                if isr and now.leader in (NO_LEADER, *isr):
                    proposals[partition] = _next_epoch(now, now.leader, isr)
            return proposals

        strange = self._partitions_with_strangers()
        accepted, failures = change_leaderships(self._term, strange, propose)
        self._tell_replicas(accepted)
        return failures

    # --- inside ---

    def _next_epochs(
        self, current: Leaderships, failures: Failures
    ) -> Mapping[TopicPartition, LeaderAndIsr]:
        """Propose new epochs, without the in-sync replicas that were deleted.

        A move is replaced, and who is not to be added any more is deleted. A leader that writes
        ISRs itself may have let it in meanwhile; it would lead the next move, with an empty log.
        """
        del failures
        proposals: dict[TopicPartition, LeaderAndIsr] = {}
        for partition, now in current.items():
            isr = tuple(r for r in now.isr if r == now.leader or self._exists(partition, r))
            proposals[partition] = _next_epoch(now, now.leader, isr or now.isr)
        return proposals

    def _has_caught_up(
        self, partition: TopicPartition, state: LeaderIsrAndControllerEpoch | BadDataError | None
    ) -> bool:
        assignment = self._context.partition_full_replica_assignment(partition)
        if not assignment.is_being_reassigned:
            return True
        if state is None or isinstance(state, BadDataError):
            return False
        target = assignment.target_replicas
        if assignment.removing_replicas and not any(map(self._sound(partition), target)):
            return False
        isr = state.leader_and_isr.isr
        return all(replica in isr and self._exists(partition, replica) for replica in target)

    def _online(self, partition: TopicPartition) -> Callable[[BrokerId], bool]:
        return lambda replica: self._context.is_replica_online(replica, partition)

    def _sound(self, partition: TopicPartition) -> Callable[[BrokerId], bool]:
        context = self._context
        return lambda replica: (
            context.is_replica_online(replica, partition)
            and (
                context.suspect_end(replica, partition) is None
                # Brokers no longer hear which replicas are in sync, so they keep suspecting theirs.
                or context.is_topic_queued_for_deletion(partition.topic)
            )
        )

    def _exists(self, partition: TopicPartition, replica: BrokerId) -> bool:
        state = self._context.replica_state(PartitionAndReplica(partition, replica))
        return state is not ReplicaState.NON_EXISTENT

    def _loses_leader(self, partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        leadership = self._context.partition_leadership_info(partition)
        if leadership is None:
            return False
        now = leadership.leader_and_isr
        may_lead = now.isr if now.leader == NO_LEADER else (now.leader,)
        return not any(r in assignment.replicas for r in may_lead)

    def _partitions_with_strangers(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        leadership_of = self._context.partition_leadership_info
        for topic in self._context.all_topics:
            for partition, assignment in self._context.partition_assignments(topic).items():
                leadership = leadership_of(partition)
                if leadership is not None:
                    isr, replicas = leadership.leader_and_isr.isr, assignment.replicas
                    if isr != replicas and not set(isr).issubset(replicas):
                        found.append(partition)
        return found

    def _tell_replicas(self, changed: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        batch = self._term.new_batch()
        for partition, written in changed.items():
            assignment = self._context.partition_full_replica_assignment(partition)
            leadership = LeaderIsrAndControllerEpoch(written, self._context.epoch)
            batch.add_leader_and_isr(
                assignment.replicas, partition, leadership, assignment, is_new=False
            )
        self._term.announce(batch)


def _next_epoch(now: LeaderAndIsr, leader: BrokerId, isr: tuple[BrokerId, ...]) -> LeaderAndIsr:
    """Return the next leadership; logs of those out of sync may be deleted: none is eligible."""
    return now.new_leader_and_isr(leader, isr)._replace(eligible_leader_replicas=())
