"""Replicas: NonExistent → New → Online ⇄ Offline → DeletionStarted → … → NonExistent.

Mirrors ``kafka.controller.ZkReplicaStateMachine``. Transitions and what they do:

* → New: tell the replica its leadership, as a new replica, if there is one.
* New → Online: memory only.
* Online, Offline, DeletionIneligible → Online: tell the replica its leadership.
* → Offline: stop the replica; take it out of the ISR and tell the others.
* Offline → DeletionStarted: stop the replica and delete its data.
* → DeletionIneligible, → DeletionSuccessful: memory only.
* DeletionSuccessful → NonExistent: forget the replica.

A transition that is not in the table is logged and skipped, and nothing changes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from regent.core.controller.leadership import (
    Failures,
    Leaderships,
    change_leaderships,
    with_eligible_replicas,
)
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.states import VALID_PREVIOUS_REPLICA_STATES, ReplicaState
from regent.core.controller.term import Term
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)

log = logging.getLogger("state.change")


class ReplicaStateMachine:
    """Owns the state of every replica."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    def startup(self) -> None:
        """Give every replica its first state of this term, and tell every broker what it hosts.

        Dead replicas leave the ISR here (KAFKA-3143). Runs before the partition machine.
        """
        context = self._context
        batch = self._term.new_batch()
        batch.make_full(context.live_or_shutting_down_broker_ids)
        batch.add_full_metadata()
        all_offline: list[PartitionAndReplica] = []
        for partition in list(context.all_partitions()):
            assignment = context.partition_full_replica_assignment(partition)
            online: list[BrokerId] = []
            for broker_id in assignment.replicas:
                replica = PartitionAndReplica(partition, broker_id)
                if context.is_replica_online(broker_id, partition):
                    context.put_replica_state(replica, ReplicaState.ONLINE)
                    online.append(broker_id)
                else:
                    context.put_replica_state(replica, ReplicaState.DELETION_INELIGIBLE)
                    all_offline.append(replica)
            leadership = context.partition_leadership_info(partition)
            if leadership is not None and online:
                batch.add_leader_and_isr(online, partition, leadership, assignment, is_new=False)
        self._term.announce(batch)
        self.handle_state_changes(all_offline, ReplicaState.OFFLINE)

    def handle_state_changes(
        self,
        replicas: Iterable[PartitionAndReplica],
        target: ReplicaState,
        *,
        full_for: Collection[BrokerId] = (),
        metadata_of: Collection[TopicPartition] | None = None,
    ) -> None:
        """Move replicas to ``target`` and announce what came of it.

        ``full_for``: brokers that must hear everything they host, even if that is nothing.
        ``metadata_of``: partitions that every broker hears of, with the live brokers, in any case.
        Raises ``ControllerMovedError``.
        """
        batch = self._term.new_batch()
        batch.make_full(full_for)
        if metadata_of is not None:
            batch.add_update_metadata(metadata_of)
        by_broker: dict[BrokerId, list[TopicPartition]] = {}
        for replica in self._valid(replicas, target):
            by_broker.setdefault(replica.replica, []).append(replica.topic_partition)
        for broker_id in sorted(by_broker):
            self._move(broker_id, by_broker[broker_id], target, batch)
        self._term.announce(batch)

    def ask(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Tell replicas their leadership once more, for their answer."""
        batch = self._term.new_batch()
        for partition, broker_id in replicas:
            leadership = self._context.partition_leadership_info(partition)
            if leadership is not None:
                self._add_leader_and_isr((broker_id,), partition, leadership, batch, is_new=False)
        self._term.announce(batch)

    def restart(self, replicas: Collection[PartitionAndReplica]) -> None:
        """Use replicas whose logs failed, in a leader epoch in which their former ones never were.

        In the present one they may have been told to stop, and how far they got in it may still
        count. Those wait whose partition cannot be changed now. Raises ``ControllerMovedError``.
        """
        kept = [r for r in replicas if self._is_kept(r)]
        accepted, _ = change_leaderships(
            self._term,
            sorted({r.topic_partition for r in kept if self._was_led(r.topic_partition)}),
            lambda current, _: {
                partition: now.new_epoch()
                for partition, now in current.items()
                if not self._context.must_not_lead(now.leader, partition)
            },
        )
        batch = self._term.new_batch()
        for replica in self._valid(kept, ReplicaState.ONLINE):
            partition = replica.topic_partition
            if partition in accepted:
                assigned = self._context.partition_replica_assignment(partition)
                leadership = LeaderIsrAndControllerEpoch(accepted[partition], self._context.epoch)
                self._add_leader_and_isr(assigned, partition, leadership, batch, is_new=False)
                if self._context.replica_state(replica) is not ReplicaState.NEW:
                    self._context.put_replica_state(replica, ReplicaState.ONLINE)
            else:
                self._context.waiting_to_restart.add(replica)
        self._term.announce(batch)

    def restart_waiting(self) -> None:
        """Use those that wait for it, as far as they are still there."""
        waiting = sorted(self._context.waiting_to_restart)
        self._context.waiting_to_restart.clear()
        self.restart(
            [
                r
                for r in waiting
                if r.replica in self._context.registrations
                and r.replica in self._context.partition_replica_assignment(r.topic_partition)
            ]
        )

    def _is_kept(self, replica: PartitionAndReplica) -> bool:
        return replica.topic_partition.topic not in self._context.topics_with_deletion_started

    def _was_led(self, partition: TopicPartition) -> bool:
        return self._context.partition_leadership_info(partition) is not None

    def _valid(
        self, replicas: Iterable[PartitionAndReplica], target: ReplicaState
    ) -> list[PartitionAndReplica]:
        valid: list[PartitionAndReplica] = []
        invalid: list[PartitionAndReplica] = []
        for replica in replicas:
            is_valid = self._context.replica_state(replica) in VALID_PREVIOUS_REPLICA_STATES[target]
            (valid if is_valid else invalid).append(replica)
        if invalid:
            log.warning(
                "[Controller id=%d epoch=%d] %d replicas cannot become %s, the first: %s is %s",
                self._term.broker_id,
                self._context.epoch,
                len(invalid),
                target.value,
                invalid[0],
                self._context.replica_state(invalid[0]).value,
            )
        return valid

    def _move(
        self,
        broker_id: BrokerId,
        partitions: list[TopicPartition],
        target: ReplicaState,
        batch: ControlRequestBatch,
    ) -> None:
        match target:
            case ReplicaState.NEW:
                partitions = self._tell_new_replica(broker_id, partitions, batch)
            case ReplicaState.ONLINE:
                self._tell_replica(broker_id, partitions, batch)
                partitions = self._without_failed_logs(broker_id, partitions)
            case ReplicaState.OFFLINE:
                partitions = self._take_offline(broker_id, partitions, batch)
            case ReplicaState.DELETION_STARTED:
                for partition in partitions:
                    batch.add_stop_replica(broker_id, partition, delete=True)
            case ReplicaState.NON_EXISTENT:
                self._forget(broker_id, partitions)
            case ReplicaState.DELETION_INELIGIBLE | ReplicaState.DELETION_SUCCESSFUL:
                pass
        for partition in partitions:
            self._context.put_replica_state(PartitionAndReplica(partition, broker_id), target)

    # --- the transitions ---

    def _tell_new_replica(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> list[TopicPartition]:
        told: list[TopicPartition] = []
        led: list[TopicPartition] = []
        for partition in partitions:
            leadership = self._context.partition_leadership_info(partition)
            if leadership is not None:
                if leadership.leader_and_isr.leader == broker_id:
                    led.append(partition)
                    continue
                self._add_leader_and_isr((broker_id,), partition, leadership, batch, is_new=True)
            told.append(partition)
        if led:
            log.error(
                "[Controller id=%d epoch=%d] %d replicas of broker %d cannot be new, they lead, the"
                " first: %s",
                self._term.broker_id,
                self._context.epoch,
                len(led),
                broker_id,
                led[0],
            )
        return told

    def _tell_replica(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> None:
        for partition in partitions:
            replica = PartitionAndReplica(partition, broker_id)
            is_new = self._context.replica_state(replica) is ReplicaState.NEW
            if is_new:
                self._ensure_assigned(replica)
            leadership = self._context.partition_leadership_info(partition)
            # A new one has been told, but what a FULL request does not list is stray.
            if leadership is not None and (not is_new or batch.is_full_for(broker_id)):
                self._add_leader_and_isr((broker_id,), partition, leadership, batch, is_new=is_new)

    def _without_failed_logs(
        self, broker_id: BrokerId, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Return those that being told brings back; the others are told for their answer.

        Taken for online, they would fail anew when they answer, and everybody be told of it: a
        broker whose channel overflowed would fill the channels of all others.
        """
        failed = self._context.replicas_on_offline_dirs.get(broker_id)
        return [p for p in partitions if p not in failed] if failed else partitions

    def _ensure_assigned(self, replica: PartitionAndReplica) -> None:
        partition = replica.topic_partition
        assignment = self._context.partition_full_replica_assignment(partition)
        if replica.replica not in assignment.replicas:
            log.error("%s is not assigned; assigning it", replica)
            self._context.update_partition_full_replica_assignment(
                partition,
                ReplicaAssignment(
                    (*assignment.replicas, replica.replica),
                    assignment.adding_replicas,
                    assignment.removing_replicas,
                ),
            )

    def _take_offline(
        self, broker_id: BrokerId, partitions: list[TopicPartition], batch: ControlRequestBatch
    ) -> list[TopicPartition]:
        for partition in partitions:  # with the epoch of now, before the ISR changes
            batch.add_stop_replica(broker_id, partition, delete=False)
        led = [p for p in partitions if self._context.partition_leadership_info(p) is not None]
        removed, failures = self._remove_replica_from_isr(broker_id, led)
        for partition in led:
            if partition in removed and self._context.is_to_be_led(partition):
                others = [
                    r
                    for r in self._context.partition_replica_assignment(partition)
                    if r != broker_id
                ]
                leadership = removed[partition]
                self._add_leader_and_isr(others, partition, leadership, batch, is_new=False)
        unled = [p for p in partitions if self._context.partition_leadership_info(p) is None]
        if unled:
            batch.add_update_metadata(unled)
        if failures:
            log.warning(
                "[Controller id=%d epoch=%d] %d replicas of broker %d stay as they are, the first:"
                " %s",
                self._term.broker_id,
                self._context.epoch,
                len(failures),
                broker_id,
                next(iter(failures.values())),
            )
        return [p for p in partitions if p not in failures]

    def _remove_replica_from_isr(
        self, broker_id: BrokerId, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, LeaderIsrAndControllerEpoch], Failures]:
        """Take the broker out of ISRs; the last member always stays (KAFKA-708).

        So does every member when only suspect ones would remain: it is they who may have lost
        committed records, and the others who have them.

        Returns the leaderships that others have to be told of.
        """
        epoch = self._context.epoch
        news: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}

        def propose(
            current: Leaderships, failures: Failures
        ) -> Mapping[TopicPartition, LeaderAndIsr]:
            proposals: dict[TopicPartition, LeaderAndIsr] = {}
            for partition, now in current.items():
                if broker_id not in now.isr:
                    known = self._context.partition_leadership_info(partition)
                    as_read = LeaderIsrAndControllerEpoch(now, epoch)
                    self._context.put_partition_leadership_info(partition, as_read)
                    if known is None or known.leader_and_isr != now:
                        news[partition] = as_read  # else every replica has been told already
                    continue
                isr = self._isr_without(broker_id, partition, now.isr)
                is_led = not (
                    now.leader == broker_id
                    or self._context.must_not_lead(now.leader, partition)
                    or self._is_lost(partition, now.leader, isr)
                )
                leader = now.leader if is_led else NO_LEADER
                proposals[partition] = now.new_leader_and_isr(leader, isr)
            return with_eligible_replicas(self._term, current, proposals)

        accepted, failures = change_leaderships(self._term, partitions, propose)
        # The znodes of a topic that is being deleted may be gone already.
        failures = {p: f for p, f in failures.items() if not self._is_queued_for_deletion(p)}
        changed = {p: LeaderIsrAndControllerEpoch(w, epoch) for p, w in accepted.items()}
        return {**news, **changed}, failures

    def _isr_without(
        self, broker_id: BrokerId, partition: TopicPartition, isr: tuple[BrokerId, ...]
    ) -> tuple[BrokerId, ...]:
        shrunk = tuple(r for r in isr if r != broker_id)
        suspect_end = self._context.suspect_end
        return isr if all(suspect_end(r, partition) is not None for r in shrunk) else shrunk

    def _is_lost(
        self, partition: TopicPartition, leader: BrokerId, isr: tuple[BrokerId, ...]
    ) -> bool:
        """Whether the leader is dead as well, and only suspect replicas could follow it.

        Then nothing is committed any more: a replica that leaves is eligible, and the order in
        which replicas are removed does not matter.
        """
        is_online, suspect_end = self._context.is_replica_online, self._context.suspect_end
        online = [r for r in isr if is_online(r, partition)]
        is_any_suspect = bool(online) and all(suspect_end(r, partition) is not None for r in online)
        # A leader that asked to shut down leads until another can, or until it is gone.
        return is_any_suspect and not is_online(leader, partition, include_shutting_down=True)

    def _forget(self, broker_id: BrokerId, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            assignment = self._context.partition_full_replica_assignment(partition)
            self._context.update_partition_full_replica_assignment(
                partition, assignment.without_replica(broker_id)
            )

    def _is_queued_for_deletion(self, partition: TopicPartition) -> bool:
        return self._context.is_topic_queued_for_deletion(partition.topic)

    def _add_leader_and_isr(
        self,
        broker_ids: Iterable[BrokerId],
        partition: TopicPartition,
        leadership: LeaderIsrAndControllerEpoch,
        batch: ControlRequestBatch,
        *,
        is_new: bool,
    ) -> None:
        assignment = self._context.partition_full_replica_assignment(partition)
        batch.add_leader_and_isr(broker_ids, partition, leadership, assignment, is_new=is_new)
