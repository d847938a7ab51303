"""ISR changes that leaders propose (KIP-497).

Mirrors ``KafkaController.processAlterPartition``.

A proposal replaces one version of a partition's state, the one the leader knows; the leader epoch
stays, because nobody else's leadership changes, and followers hear nothing of it. Who is told is
the leader, by the answer, and every broker, by UpdateMetadata.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from regent.core.controller.leadership import with_eligible_replicas
from regent.core.controller.states import ReplicaState
from regent.core.controller.term import Term
from regent.core.errors import BadDataError, Errors
from regent.core.model import (
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    PartitionAndReplica,
    TopicPartition,
)
from regent.core.ports import WriteError
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)

log = logging.getLogger(__name__)

RECOVERED, RECOVERING = LeaderRecoveryState


class AlterPartitions:
    """Answers leaders that propose ISRs."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    def alter(
        self, request: AlterPartitionRequest
    ) -> tuple[AlterPartitionResponse, list[TopicPartition]]:
        """Validate, write and announce; return the answer and the partitions that changed.

        The answer says of every partition what the controller holds now, so that a leader that is
        refused can go on without a LeaderAndIsr. Raises ``ControllerMovedError``.
        """
        sender = self._context.registrations.get(request.broker_id)
        if sender is None or sender.broker_epoch != request.broker_epoch:
            return AlterPartitionResponse(Errors.STALE_BROKER_EPOCH), []
        rows = {row.topic_partition: row for row in request.partitions}
        outcomes: dict[TopicPartition, Errors] = {}
        proposals: dict[TopicPartition, LeaderAndIsr] = {}
        for partition, row in rows.items():
            decided = self._decide(row, request.broker_id)
            if isinstance(decided, LeaderAndIsr):
                proposals[partition] = decided
            else:
                outcomes[partition] = decided
        before = {partition: self._known(partition) for partition in rows}
        joining = {partition: self._joining(rows[partition]) for partition in proposals}
        if proposals:
            replaced = self._replaced(proposals)
            outcomes |= self._write(with_eligible_replicas(self._term, replaced, proposals))
        for partition, members in joining.items():
            if outcomes[partition] is Errors.NONE:
                for member in members:
                    self._context.note_rejoined(member, partition)
        self._announce(rows)
        self._log_refusals(request.broker_id, outcomes)
        answers = tuple(self._answer(partition, outcomes[partition]) for partition in rows)
        changed = [partition for partition in rows if self._known(partition) != before[partition]]
        return AlterPartitionResponse(Errors.NONE, answers), changed

    def _joining(self, row: AlterPartitionRow) -> list[BrokerId]:
        """Return the replicas that join the ISR by fetches of their brokers' present lives."""
        known = self._known(row.topic_partition)
        before = () if known is None else known.leader_and_isr.isr
        epochs = self._context.live_broker_epochs
        return [
            member
            for member, epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True)
            if member not in before and epoch == epochs.get(member)
        ]

    def _known(self, partition: TopicPartition) -> LeaderIsrAndControllerEpoch | None:
        return self._context.partition_leadership_info(partition)

    # --- validating ---

    def _decide(self, row: AlterPartitionRow, sender: BrokerId) -> LeaderAndIsr | Errors:
        """Return what is to be written, or the answer to what is not."""
        known, topic_id = self._known(row.topic_partition), self._context.topic_id(row.topic)
        if row.topic_id is not None and row.topic_id != topic_id:
            return Errors.UNKNOWN_TOPIC_ID if topic_id is None else Errors.INCONSISTENT_TOPIC_ID
        is_kept = (  # a topic is deleted when its partitions have moved, which takes their ISRs
            not self._context.is_topic_queued_for_deletion(row.topic)
            or row.topic_partition in self._context.partitions_being_reassigned
        )
        if known is None or not is_kept:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        now = known.leader_and_isr
        if (
            self._context.is_of_newer_controller(known)
            or row.leader_epoch > now.leader_epoch
            or row.partition_epoch > now.partition_epoch
        ):
            return Errors.NOT_CONTROLLER  # the leader heard of a later one (KAFKA-14154)
        if row.leader_epoch < now.leader_epoch or sender != now.leader:
            return Errors.FENCED_LEADER_EPOCH
        if set(row.new_isr) == set(now.isr) and (
            row.leader_recovery_state == now.leader_recovery_state
        ):
            return Errors.NONE  # asked again, its answer was lost: not a conflict (KAFKA-14144)
        if row.partition_epoch < now.partition_epoch:
            return Errors.INVALID_UPDATE_VERSION
        if not self._is_valid(row, now):
            return Errors.INVALID_REQUEST
        if not self._are_eligible(row, now):
            return Errors.INELIGIBLE_REPLICA
        return now._replace(
            isr=row.new_isr, leader_recovery_state=LeaderRecoveryState(row.leader_recovery_state)
        )

    def _is_valid(self, row: AlterPartitionRow, now: LeaderAndIsr) -> bool:
        """Whether any replicas of any health could be in sync like this.

        A leader that has to recover trusts nobody: until it has, it is in sync alone, and nothing
        but an unclean election makes it so (KIP-704). Who joins is assigned; who is in sync without
        being so, after a broken move, may stay until the leader takes it out (KAFKA-9672).
        """
        members = set(row.new_isr)
        if row.leader_recovery_state == RECOVERING:
            recovers_rightly = now.leader_recovery_state == RECOVERING and members == {now.leader}
        else:
            recovers_rightly = row.leader_recovery_state == RECOVERED
        return (
            recovers_rightly
            and now.leader in members
            and len(members) == len(row.new_isr) == len(row.isr_broker_epochs)
            and members.issubset(
                (*self._context.partition_replica_assignment(row.topic_partition), *now.isr)
            )
        )

    def _are_eligible(self, row: AlterPartitionRow, now: LeaderAndIsr) -> bool:
        """Whether all members can be relied on, each in the life the leader saw it in.

        Who joins has been told that it is a replica: a move that could not begin a leader epoch
        has told nobody, and what the leader knows of a replica it adds may have been deleted.
        A broker that is shutting down must not come back (KIP-841). The leader alone may be: nobody
        could replace it yet, and whom it lets in can. A follower that lost its data since it
        fetched has another broker epoch (KIP-903).
        """
        registrations = self._context.registrations
        return all(
            self._context.is_replica_online(
                replica, row.topic_partition, include_shutting_down=replica == now.leader
            )
            and broker_epoch in (UNKNOWN_BROKER_EPOCH, registrations[replica].broker_epoch)
            and (replica in now.isr or self._exists(replica, row.topic_partition))
            for replica, broker_epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True)
        )

    def _exists(self, replica: BrokerId, partition: TopicPartition) -> bool:
        state = self._context.replica_state(PartitionAndReplica(partition, replica))
        return state is not ReplicaState.NON_EXISTENT

    # --- writing ---

    def _replaced(self, proposals: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        known = ((partition, self._known(partition)) for partition in proposals)
        return {partition: now.leader_and_isr for partition, now in known if now is not None}

    def _write(
        self, proposals: Mapping[TopicPartition, LeaderAndIsr]
    ) -> dict[TopicPartition, Errors]:
        """Write proposals and put what ZooKeeper holds then into the context."""
        epoch = self._context.epoch
        states = {p: LeaderIsrAndControllerEpoch(new, epoch) for p, new in proposals.items()}
        store = self._term.store
        written = store.update_partition_states(states, self._context.epoch_zk_version)
        conflicts = [p for p in proposals if written[p] is WriteError.BAD_VERSION]
        found = store.read_partition_states(conflicts) if conflicts else {}
        outcomes: dict[TopicPartition, Errors] = {}
        for partition, state in states.items():
            outcome = written[partition]
            if outcome is WriteError.BAD_VERSION:
                outcomes[partition] = self._reconcile(partition, state, found.get(partition))
            elif outcome is WriteError.NO_NODE:
                outcomes[partition] = Errors.UNKNOWN_TOPIC_OR_PARTITION
            elif isinstance(outcome, WriteError):  # no LeaderAndIsr follows: it is to ask again
                log.error("%s: its ISR cannot change: %s", partition, outcome.value)
                outcomes[partition] = Errors.UNKNOWN_SERVER_ERROR
            else:
                self._apply(partition, _stored(state, outcome))
                outcomes[partition] = Errors.NONE
        return outcomes

    def _reconcile(
        self,
        partition: TopicPartition,
        attempted: LeaderIsrAndControllerEpoch,
        found: LeaderIsrAndControllerEpoch | BadDataError | None,
    ) -> Errors:
        """Decide by what is there instead; it may be our own attempt, whose answer was lost."""
        if found is None:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(found, BadDataError):
            log.error("%s: its ISR cannot change: %s", partition, found)
            return Errors.UNKNOWN_SERVER_ERROR
        if self._context.is_of_newer_controller(found):
            return Errors.NOT_CONTROLLER
        self._apply(partition, found)
        is_ours = found == _stored(attempted, attempted.leader_and_isr.partition_epoch + 1)
        return Errors.NONE if is_ours else Errors.INVALID_UPDATE_VERSION

    def _apply(self, partition: TopicPartition, leadership: LeaderIsrAndControllerEpoch) -> None:
        before, now = self._known(partition), leadership.leader_and_isr
        self._context.put_partition_leadership_info(partition, leadership)
        self._term.outbox.record(
            "%s: leader %d, isr %s → %s%s",
            partition,
            now.leader,
            "?" if before is None else list(before.leader_and_isr.isr),
            list(now.isr),
            "" if now.leader_recovery_state is RECOVERED else ", recovering",
        )

    # --- telling ---

    def _announce(self, partitions: Iterable[TopicPartition]) -> None:
        known = [partition for partition in partitions if self._known(partition) is not None]
        if known:
            batch = self._term.new_batch()
            batch.add_update_metadata(known)
            self._term.announce(batch)

    def _answer(self, partition: TopicPartition, error: Errors) -> AlteredPartition:
        known = self._known(partition)
        if known is None:
            return AlteredPartition(*partition, error)
        now = known.leader_and_isr
        return AlteredPartition(
            *partition,
            error,
            now.leader,
            now.leader_epoch,
            now.isr,
            int(now.leader_recovery_state),
            now.partition_epoch,
        )

    def _log_refusals(self, sender: BrokerId, outcomes: Mapping[TopicPartition, Errors]) -> None:
        refused = [p for p, error in outcomes.items() if error is not Errors.NONE]
        if refused:
            log.info(
                "[Controller id=%d epoch=%d] %d ISRs proposed by broker %d were refused, the first:"
                " %s with %s",
                self._term.broker_id,
                self._context.epoch,
                len(refused),
                sender,
                refused[0],
                outcomes[refused[0]].name,
            )


def _stored(
    state: LeaderIsrAndControllerEpoch, partition_epoch: int
) -> LeaderIsrAndControllerEpoch:
    """Return a state as ZooKeeper holds it at this version."""
    stored = state.leader_and_isr.with_partition_epoch(partition_epoch)
    return LeaderIsrAndControllerEpoch(stored, state.controller_epoch)
