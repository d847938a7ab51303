"""Partitions: NonExistent → New → Online ⇄ Offline → NonExistent.

Mirrors ``kafka.controller.ZkPartitionStateMachine``. Transitions and what they do:

* → New: memory only.
* New → Online: create the ``state`` znode and tell the ISR: it is all replicas that are online, and
  the first of them leads.
* Online, Offline → Online: elect a leader by a strategy, write it, tell the recipients.
* → Offline, → NonExistent: memory only.

A transition that is not in the table is logged and skipped, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from regent.core.controller.effects import PartitionCreated
from regent.core.controller.election.decisions import Failures
from regent.core.controller.election.election import (
    ChangeRefused,
    ElectionStrategy,
    OfflineElection,
    partition_replicas,
)
from regent.core.controller.election.partition_change import (
    ReplicasRestarted,
    first_leadership,
)
from regent.core.controller.election.partition_change_writer import Changes, change_partitions
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    PartitionState,
    ReplicaState,
)
from regent.core.errors import StateChangeFailedError
from regent.core.model import (
    NO_LEADER,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    TopicPartition,
)
from regent.core.ports import WriteError


class PartitionStateMachine:
    """Owns the state of every partition."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._log = services.log("state.change")
        self._context = services.context

    def settle_restarted_replicas(self) -> None:
        """Settle all partitions at the start of a term; see ``settle``."""
        context = self._context
        suspected = {b for b, r in context.registrations.items() if r.suspects}
        restarted = context.restarted_replicas
        self.settle(dict.fromkeys((*restarted, *context.partitions_with_isr_on(suspected))))

    def settle_late(self, partitions: Iterable[TopicPartition]) -> None:
        """Settle partitions whose replicas were told a leadership that could not change then."""
        batch = self._services.new_batch()
        changes = self.settle(partitions)
        led = [p for p, change in changes.items() if change.leader_and_isr.leader != NO_LEADER]
        self._put(led, PartitionState.ONLINE)
        unled = [p for p, change in changes.items() if change.leader_and_isr.leader == NO_LEADER]
        self._put(unled, PartitionState.OFFLINE)
        for topic_partition in changes:
            for broker_id in self._context.partition_replica_assignment(topic_partition):
                replica_state = self._context.replica_state(
                    PartitionAndReplica(topic_partition, broker_id)
                )
                if replica_state in (ReplicaState.NEW, ReplicaState.ONLINE):
                    is_new = replica_state is ReplicaState.NEW
                    batch.add_leader_and_isr((broker_id,), [topic_partition], is_new=is_new)
        self._services.announce(batch)

    def settle(self, partitions: Iterable[TopicPartition]) -> Changes:
        """Treat replicas that restarted since the last decision, or are suspect, as failed.

        When they restarted, no controller was active, or the active one died before it learnt of
        the restart, or it could not read the partition. Nothing is announced: brokers have not been
        told anything yet. Returns what was written. Where nothing could be written, a suspect
        leader must not lead (``must_not_lead``) and waits for an election like an offline one.
        """
        changed = [p for p in partitions if self._has_restarted_replicas(p)]
        accepted, failures = change_partitions(self._services, changed, ReplicasRestarted())
        self._context.note_elected(accepted)
        not_led = PartitionState.NON_EXISTENT, PartitionState.NEW
        self._context.note_leaders_with_losses(
            p for p in failures if self._context.partition_state(p) in not_led
        )
        self._log.failures(
            "%d partitions keep replicas in sync that restarted, or may have lost records", failures
        )
        return accepted

    def _has_restarted_replicas(self, topic_partition: TopicPartition) -> bool:
        """Whether the leader is online, and an in-sync replica has restarted or is suspect."""
        leadership = self._context.partition_leadership_info(topic_partition)
        if leadership is None or self._context.is_topic_queued_for_deletion(topic_partition.topic):
            return False
        leader, isr = leadership.leader_and_isr.leader, leadership.leader_and_isr.isr
        if not self._context.is_replica_online(leader, topic_partition, include_shutting_down=True):
            return False  # an election follows anyway
        return any(
            self._context.has_restarted(replica, topic_partition)
            or self._context.suspect_end(replica, topic_partition) is not None
            for replica in isr
        )

    def startup(self) -> None:
        """Give every partition its first state of this term, then replace leaders that died."""
        self._context.begin_partition_states()
        waiting = self._to_be_led(PartitionState.OFFLINE)
        election = OfflineElection(counts_removals=True)
        self.handle_state_changes(waiting, PartitionState.ONLINE, election)

    def create_leaderships(self) -> None:
        """Bring every New partition online."""
        waiting = self._to_be_led(PartitionState.NEW)
        self.handle_state_changes(waiting, PartitionState.ONLINE, OfflineElection())

    def trigger_online_partition_state_change(self, topic: str | None = None) -> Failures:
        """Try to bring every New and Offline partition (of ``topic``) online."""
        waiting = self._to_be_led(PartitionState.NEW, PartitionState.OFFLINE)
        if topic is not None:
            waiting = [p for p in waiting if p.topic == topic]
        return self.handle_state_changes(waiting, PartitionState.ONLINE, OfflineElection())

    def _to_be_led(self, *states: PartitionState) -> list[TopicPartition]:
        return list(filter(self._context.is_to_be_led, self._context.partitions_in_state(*states)))

    def handle_state_changes(
        self,
        partitions: Iterable[TopicPartition],
        target: PartitionState,
        strategy: ElectionStrategy | None = None,
    ) -> Failures:
        """Move partitions to ``target`` and announce what changed; return the failures.

        ``strategy`` is required for ONLINE. Raises ``ControllerMovedError``.
        """
        valid, failures = self._split_by_validity(partitions, target)
        if target is PartitionState.ONLINE:
            assert strategy is not None, "a partition goes online by an election strategy"
            failures.update(self._bring_online(valid, strategy))
        else:
            self._put(valid, target)
        self._log.failures("%d partitions did not become %s", failures, target.value)
        return failures

    def _put(self, partitions: Collection[TopicPartition], state: PartitionState) -> None:
        """Remember the state of partitions whose leadership, if any, is known already."""
        before, known = self._context.partition_state, self._context.partition_leadership_info
        if state is PartitionState.ONLINE:
            self._log.each(
                "Changed partition %s from %s to %s with state %s",
                ((p, before(p).value, state.value, known(p)) for p in partitions),
            )
        else:
            self._log.each(
                "Changed partition %s state from %s to %s",
                ((p, before(p).value, state.value) for p in partitions),
            )
        for topic_partition in partitions:
            self._context.put_partition_state(topic_partition, state)

    # --- validity ---

    def _split_by_validity(
        self, partitions: Iterable[TopicPartition], target: PartitionState
    ) -> tuple[list[TopicPartition], Failures]:
        valid: list[TopicPartition] = []
        failures: Failures = {}
        allowed = VALID_PREVIOUS_PARTITION_STATES[target]
        for topic_partition in partitions:
            state = self._context.partition_state(topic_partition)
            if state in allowed:
                valid.append(topic_partition)
            else:
                failures[topic_partition] = StateChangeFailedError(
                    f"{topic_partition}: cannot go from {state.value} to {target.value}"
                )
        return valid, failures

    # --- going online ---

    def _bring_online(
        self, partitions: Sequence[TopicPartition], strategy: ElectionStrategy
    ) -> Failures:
        """Elect leaders, some thousands at a time: brokers are told of them at once.

        They become leaders, or create logs, while the next elections are decided and written.
        """
        failures: Failures = {}
        size = self._services.settings.changes_at_once
        for start in range(0, len(partitions), size):
            if start:
                self._services.outbox.flush()
            failures.update(self._bring_some_online(partitions[start : start + size], strategy))
        return failures

    def _bring_some_online(
        self, partitions: Iterable[TopicPartition], strategy: ElectionStrategy
    ) -> Failures:
        new: list[TopicPartition] = []
        existing: list[TopicPartition] = []
        for topic_partition in partitions:
            is_new = self._context.partition_state(topic_partition) is PartitionState.NEW
            (new if is_new else existing).append(topic_partition)
        batch = self._services.new_batch()
        failures, found = self._initialise(new, batch)
        failures.update(self._elect([*existing, *found], strategy, batch))
        self._services.announce(batch)
        return failures

    def _initialise(
        self, partitions: Iterable[TopicPartition], batch: ControlRequestBatch
    ) -> tuple[Failures, list[TopicPartition]]:
        """Write first leaderships; return failures, and partitions that had one already."""
        failures: Failures = {}
        proposals: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        for topic_partition in partitions:
            first = first_leadership(partition_replicas(self._context, topic_partition))
            if isinstance(first, ChangeRefused):
                failures[topic_partition] = StateChangeFailedError(
                    f"{topic_partition}: {first.reason}"
                )
            else:
                proposals[topic_partition] = LeaderIsrAndControllerEpoch(
                    first.leader_and_isr, self._context.epoch
                )
        if not proposals:
            return failures, []
        outcomes = self._services.store.create_partition_states(
            proposals,
            self._context.epoch_zk_version,
            {topic: self._context.topic_id(topic) for topic in {p.topic for p in proposals}},
            self._context.coordinated_partitions,
        )
        exist = [p for p in proposals if outcomes[p] is WriteError.NODE_EXISTS]
        stored = self._services.store.read_partition_states(exist) if exist else {}
        created: list[TopicPartition] = []
        found: list[TopicPartition] = []
        for topic_partition, proposal in proposals.items():
            outcome = outcomes[topic_partition]
            if isinstance(outcome, int) or stored.get(topic_partition) == proposal:
                # created, now or by an attempt whose answer was lost
                self._lead_first(topic_partition, proposal, batch)
                created.append(topic_partition)
            elif outcome is WriteError.NODE_EXISTS:
                found.append(topic_partition)
            else:
                self._context.must_read_again |= outcome is WriteError.NOT_ALLOWED
                reason = "its topic is gone" if outcome is WriteError.NO_NODE else outcome.value
                failures[topic_partition] = StateChangeFailedError(f"{topic_partition}: {reason}")
        self._put(created, PartitionState.ONLINE)
        return failures, found

    def _lead_first(
        self,
        topic_partition: TopicPartition,
        leadership: LeaderIsrAndControllerEpoch,
        batch: ControlRequestBatch,
    ) -> None:
        first = leadership.leader_and_isr
        self._context.put_partition_leadership_info(topic_partition, leadership)
        for member in first.isr:
            # A broker with a new log directory may list this new replica as suspect.
            self._context.note_rejoined(member, topic_partition)
        self._services.outbox.record(PartitionCreated, topic_partition, first)
        batch.add_leader_and_isr(first.isr, [topic_partition], is_new=True)

    def _elect(
        self,
        partitions: list[TopicPartition],
        strategy: ElectionStrategy,
        batch: ControlRequestBatch,
    ) -> Failures:
        accepted, failures = change_partitions(self._services, partitions, strategy)
        self._context.note_elected(accepted)
        self._put(accepted, PartitionState.ONLINE)
        batch.add_changes(accepted)
        return failures
