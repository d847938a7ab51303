"""Partitions: NonExistent → New → Online ⇄ Offline → NonExistent.

Mirrors ``kafka.controller.ZkPartitionStateMachine``. Transitions and what they do:

* → New: memory only.
* New → Online: create the ``state`` znode; leader and ISR are the replicas alive; tell the ISR.
* Online, Offline → Online: elect a leader by a strategy, write it, tell the recipients.
* → Offline, → NonExistent: memory only.

A transition that is not in the table is logged and skipped, and nothing changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from regent.core.controller.election import (
    Candidates,
    Elected,
    ElectionStrategy,
    OfflineElection,
    ReassignElection,
    depose,
    elect,
    why_nobody,
)
from regent.core.controller.leadership import (
    Failures,
    Leaderships,
    change_leaderships,
    with_eligible_replicas,
)
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    PartitionState,
    ReplicaState,
)
from regent.core.controller.term import Term
from regent.core.errors import BadDataError, StateChangeFailedError
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    TopicPartition,
)
from regent.core.ports import WriteError

log = logging.getLogger("state.change")


class PartitionStateMachine:
    """Owns the state of every partition."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    def settle_restarted_replicas(self) -> None:
        """Treat as failed, at the start of a term, replicas restarted since the last decision."""
        context = self._context
        has_suspects = any(r.suspects for r in context.registrations.values())
        self.settle(context.all_partitions() if has_suspects else context.restarted_replicas)

    def settle_late(self, partitions: Iterable[TopicPartition]) -> None:
        """Settle partitions of which replicas have been told what could not be changed in time."""
        batch = self._term.new_batch()
        for partition, written in self.settle(partitions).items():
            is_led = written.leader != NO_LEADER
            state = PartitionState.ONLINE if is_led else PartitionState.OFFLINE
            self._context.put_partition_state(partition, state)
            leadership = LeaderIsrAndControllerEpoch(written, self._context.epoch)
            assignment = self._context.partition_full_replica_assignment(partition)
            for broker_id in assignment.replicas:
                replica = PartitionAndReplica(partition, broker_id)
                replica_state = self._context.replica_state(replica)
                if replica_state in (ReplicaState.NEW, ReplicaState.ONLINE):
                    is_new = replica_state is ReplicaState.NEW
                    batch.add_leader_and_isr(
                        (broker_id,), partition, leadership, assignment, is_new=is_new
                    )
        self._term.announce(batch)

    def settle(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        """Treat as failed replicas of these that restarted since the last decision, or are suspect.

        Nobody ruled then, did not live to hear of it, or could not read the partition. A leader
        that lost the end of its log would go on in the same leader epoch. Nothing is announced:
        brokers have not been told anything yet. Returns what was written; where nothing could be,
        a suspect leader waits for an election like a dead one.
        """
        changed = [p for p in partitions if self._is_overtaken(p)]

        def propose(
            current: Leaderships, failures: Failures
        ) -> Mapping[TopicPartition, LeaderAndIsr]:
            stay = {p: now for p, now in current.items() if self._can_stay(p, now.leader)}
            others = {p: now for p, now in current.items() if p not in stay}
            elected = self._run_elections(others, OfflineElection(), failures)
            proposals = {p: outcome.leader_and_isr for p, outcome in elected.items()}
            for partition, now in others.items():
                if partition not in elected:
                    failures.pop(partition, None)
                    proposals[partition] = depose(now)
            for partition, now in stay.items():
                isr = tuple(r for r in now.isr if self._can_stay(partition, r))
                proposals[partition] = now.new_leader_and_isr(now.leader, isr)
            return with_eligible_replicas(self._term, current, proposals)

        accepted, failures = change_leaderships(self._term, changed, propose)
        self._context.note_elected(accepted)
        not_led = PartitionState.NON_EXISTENT, PartitionState.NEW
        self._context.note_undeposed(
            p for p in failures if self._context.partition_state(p) in not_led
        )
        if failures:
            log.warning(
                "[Controller id=%d epoch=%d] %d partitions keep replicas in sync that restarted, or"
                " may have lost records, the first: %s",
                self._term.broker_id,
                self._context.epoch,
                len(failures),
                next(iter(failures.values())),
            )
        return accepted

    def _is_overtaken(self, partition: TopicPartition) -> bool:
        """Whether the leader is online, and an in-sync replica has restarted or is suspect."""
        leadership = self._context.partition_leadership_info(partition)
        if leadership is None or self._context.is_topic_queued_for_deletion(partition.topic):
            return False
        leader, isr = leadership.leader_and_isr.leader, leadership.leader_and_isr.isr
        if not self._context.is_replica_online(leader, partition, include_shutting_down=True):
            return False  # it gets a leader anyway
        return not all(self._can_stay(partition, r) for r in isr)

    def _can_stay(self, partition: TopicPartition, replica: BrokerId) -> bool:
        context = self._context
        return not context.has_restarted(replica, partition) and (
            context.suspect_end(replica, partition) is None
        )

    def startup(self) -> None:
        """Give every partition its first state of this term, then seek leaders."""
        for partition in list(self._context.all_partitions()):
            self._context.put_partition_state(partition, self._initial_state(partition))
        self.trigger_online_partition_state_change()

    def trigger_online_partition_state_change(self, topic: str | None = None) -> Failures:
        """Try to bring every New and Offline partition (of ``topic``) online."""
        waiting = [
            partition
            for partition in self._context.partitions_in_state(
                PartitionState.NEW, PartitionState.OFFLINE
            )
            if topic in (None, partition.topic) and self._context.is_to_be_led(partition)
        ]
        return self.handle_state_changes(waiting, PartitionState.ONLINE, OfflineElection())

    def handle_state_changes(
        self,
        partitions: Iterable[TopicPartition],
        target: PartitionState,
        strategy: ElectionStrategy | None = None,
    ) -> Failures:
        """Move partitions to ``target`` and announce what came of it; return what failed.

        ``strategy`` is required for ONLINE. Raises ``ControllerMovedError``.
        """
        valid, failures = self._split_by_validity(partitions, target)
        if target is PartitionState.ONLINE:
            assert strategy is not None, "a partition goes online by an election strategy"
            failures.update(self._bring_online(valid, strategy))
        else:
            for partition in valid:
                self._context.put_partition_state(partition, target)
        if failures:
            first = next(iter(failures.values()))
            log.warning(
                "[Controller id=%d epoch=%d] %d partitions did not become %s, the first: %s",
                self._term.broker_id,
                self._context.epoch,
                len(failures),
                target.value,
                first,
            )
        return failures

    # --- validity ---

    def _initial_state(self, partition: TopicPartition) -> PartitionState:
        leadership = self._context.partition_leadership_info(partition)
        if leadership is None:
            return PartitionState.NEW
        leader = leadership.leader_and_isr.leader
        is_led = self._context.is_replica_online(leader, partition)
        is_led = is_led and not self._context.must_not_lead(leader, partition)
        return PartitionState.ONLINE if is_led else PartitionState.OFFLINE

    def _split_by_validity(
        self, partitions: Iterable[TopicPartition], target: PartitionState
    ) -> tuple[list[TopicPartition], Failures]:
        valid: list[TopicPartition] = []
        failures: Failures = {}
        allowed = VALID_PREVIOUS_PARTITION_STATES[target]
        for partition in partitions:
            state = self._context.partition_state(partition)
            if state in allowed:
                valid.append(partition)
            else:
                failures[partition] = StateChangeFailedError(
                    f"{partition}: cannot go from {state.value} to {target.value}"
                )
        return valid, failures

    # --- going online ---

    def _bring_online(
        self, partitions: Iterable[TopicPartition], strategy: ElectionStrategy
    ) -> Failures:
        new: list[TopicPartition] = []
        existing: list[TopicPartition] = []
        for partition in partitions:
            is_new = self._context.partition_state(partition) is PartitionState.NEW
            (new if is_new else existing).append(partition)
        batch = self._term.new_batch()
        failures, found = self._initialise(new, batch)
        failures.update(self._elect([*existing, *found], strategy, batch))
        self._term.announce(batch)
        return failures

    def _initialise(
        self, partitions: Iterable[TopicPartition], batch: ControlRequestBatch
    ) -> tuple[Failures, list[TopicPartition]]:
        """Write first leaderships; return failures, and partitions that had one already."""
        failures: Failures = {}
        proposals: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        for partition in partitions:
            replicas = self._context.partition_replica_assignment(partition)
            live = tuple(r for r in replicas if self._context.is_replica_online(r, partition))
            if live:
                first = LeaderAndIsr(leader=live[0], isr=live)
                proposals[partition] = LeaderIsrAndControllerEpoch(first, self._context.epoch)
            else:
                failures[partition] = StateChangeFailedError(
                    f"{partition}: none of its replicas {list(replicas)} is alive"
                )
        if not proposals:
            return failures, []
        outcomes = self._term.store.create_partition_states(
            proposals,
            self._context.epoch_zk_version,
            {topic: self._context.topic_id(topic) for topic in {p.topic for p in proposals}},
        )
        exist = [p for p in proposals if outcomes[p] is WriteError.NODE_EXISTS]
        stored = self._term.store.read_partition_states(exist) if exist else {}
        found: list[TopicPartition] = []
        for partition, proposal in proposals.items():
            outcome = outcomes[partition]
            if isinstance(outcome, int) or stored.get(partition) == proposal:
                # created, now or by an attempt whose answer was lost
                self._go_online_first(partition, proposal, batch)
            elif outcome is WriteError.NODE_EXISTS:
                found.append(partition)
            else:
                self._context.must_read_again |= outcome is WriteError.NOT_ALLOWED
                reason = "its topic is gone" if outcome is WriteError.NO_NODE else outcome.value
                failures[partition] = StateChangeFailedError(f"{partition}: {reason}")
        return failures, found

    def _go_online_first(
        self,
        partition: TopicPartition,
        leadership: LeaderIsrAndControllerEpoch,
        batch: ControlRequestBatch,
    ) -> None:
        first = leadership.leader_and_isr
        self._context.put_partition_leadership_info(partition, leadership)
        self._context.put_partition_state(partition, PartitionState.ONLINE)
        for member in first.isr:
            # A broker that does not know what it had in a new directory has not heard of this one.
            self._context.note_rejoined(member, partition)
        self._term.outbox.record(
            "%s: created, leader %d, isr %s", partition, first.leader, list(first.isr)
        )
        assignment = self._context.partition_full_replica_assignment(partition)
        batch.add_leader_and_isr(first.isr, partition, leadership, assignment, is_new=True)

    def _elect(
        self,
        partitions: list[TopicPartition],
        strategy: ElectionStrategy,
        batch: ControlRequestBatch,
    ) -> Failures:
        elected: dict[TopicPartition, Elected] = {}

        def propose(
            current: Leaderships, failures: Failures
        ) -> Mapping[TopicPartition, LeaderAndIsr]:
            proposals = self._run_elections(current, strategy, failures)
            elected.update(proposals)
            chosen = {partition: e.leader_and_isr for partition, e in proposals.items()}
            return with_eligible_replicas(self._term, current, chosen)

        accepted, failures = change_leaderships(self._term, partitions, propose)
        self._context.note_elected(accepted)
        for partition, written in accepted.items():
            self._context.put_partition_state(partition, PartitionState.ONLINE)
            batch.add_leader_and_isr(
                elected[partition].recipients,
                partition,
                LeaderIsrAndControllerEpoch(written, self._context.epoch),
                self._context.partition_full_replica_assignment(partition),
                is_new=False,
            )
        return failures

    def _run_elections(
        self, current: Leaderships, strategy: ElectionStrategy, failures: Failures
    ) -> dict[TopicPartition, Elected]:
        unclean_topics = self._topics_allowing_unclean(current, strategy, failures)
        elected: dict[TopicPartition, Elected] = {}
        for partition, leadership in current.items():
            if partition in failures:
                continue
            chosen = strategy
            if isinstance(strategy, OfflineElection) and partition.topic in unclean_topics:
                chosen = replace(strategy, allow_unclean=True)
            candidates = self._candidates(partition)
            if isinstance(
                strategy, ReassignElection
            ) and self._context.is_topic_queued_for_deletion(partition.topic):
                candidates = replace(candidates, suspect_end=lambda _: None)
            outcome = elect(chosen, leadership, candidates)
            if outcome is None:
                reason = why_nobody(chosen, leadership, candidates)
                failures[partition] = StateChangeFailedError(f"{partition}: {reason}")
                continue
            elected[partition] = outcome
        self._count_unclean(current, elected)
        return elected

    def _count_unclean(
        self, current: Leaderships, elected: Mapping[TopicPartition, Elected]
    ) -> None:
        unclean = [partition for partition, outcome in elected.items() if outcome.unclean]
        if not unclean:
            return
        self._context.stats.unclean_leader_elections += len(unclean)
        first = unclean[0]
        log.warning(
            "[Controller id=%d epoch=%d] %d UNCLEAN elections: records may be lost. The first: %s"
            " goes to %d, in sync were %s",
            self._term.broker_id,
            self._context.epoch,
            len(unclean),
            first,
            elected[first].leader_and_isr.leader,
            list(current[first].isr),
        )

    def _topics_allowing_unclean(
        self, current: Leaderships, strategy: ElectionStrategy, failures: Failures
    ) -> set[str]:
        """Read the topic setting, only where nobody in sync is alive (KAFKA-6526)."""
        if not isinstance(strategy, OfflineElection) or strategy.allow_unclean:
            return set()
        stuck = [
            partition
            for partition, leadership in current.items()
            if not any(
                map(
                    self._candidates(partition).is_sound,
                    (*leadership.isr, *leadership.eligible_leader_replicas),
                )
            )
        ]
        if not stuck:
            return set()
        topics = sorted({partition.topic for partition in stuck})
        settings = self._term.store.read_unclean_leader_election(topics)
        default = self._term.settings.unclean_leader_election_enable
        for partition in stuck:
            setting = settings.get(partition.topic)
            if isinstance(setting, BadDataError):
                failures[partition] = StateChangeFailedError(f"{partition}: {setting}")
        return {topic for topic in topics if settings.get(topic, default) is True}

    def _candidates(self, partition: TopicPartition) -> Candidates:
        context = self._context
        return Candidates(
            assignment=context.partition_full_replica_assignment(partition),
            is_online=lambda r: context.is_replica_online(r, partition),
            is_reachable=lambda r: context.is_replica_online(
                r, partition, include_shutting_down=True
            ),
            is_shutting_down=lambda r: r in context.shutting_down_broker_ids,
            suspect_end=lambda r: context.suspect_end(r, partition),
            has_restarted=lambda r: context.has_restarted(r, partition),
        )
