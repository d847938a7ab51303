"""The two ways in which a leader changes an ISR: it proposes, or it writes itself.

``AlterPartitions`` answers proposals (KIP-497), as ``KafkaController.processAlterPartition``. A
proposal replaces one version of a partition's state: the version that the leader knows. The
leader epoch stays, because no leadership changes. The response tells the leader, UpdateMetadata
tells every broker, and followers get no LeaderAndIsr.

``WrittenIsrs`` is what the controller must do in addition when leaders write ISRs to ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from regent.core.controller.effects import PartitionChanged
from regent.core.controller.election.decisions import (
    DecidedGroup,
    keep_eligible_replicas,
    without_outdated_eligible_replicas,
)
from regent.core.controller.election.election import (
    ChangeRefused,
    PartitionChange,
    partition_replicas,
)
from regent.core.controller.election.partition_change import AlterIsr, change_partition
from regent.core.controller.election.partition_change_writer import Changes
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, Errors, UnreadableError
from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.ports import WriteError
from regent.core.protocol.controller import (
    UNNUMBERED,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)

_NEVER: Final = (UNNUMBERED, UNNUMBERED)


class AlterPartitions:
    """Answers leaders that propose ISRs."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        # The last broker epoch and attempt of each broker, over all our terms.
        self._attempts: dict[BrokerId, tuple[int, int]] = {}

    def alter(
        self, request: AlterPartitionRequest
    ) -> tuple[AlterPartitionResponse, list[TopicPartition]]:
        """Validate, write and announce; return the answer and the partitions that changed.

        The answer has the present state of every partition, so that a leader whose proposal was
        refused can continue without a LeaderAndIsr. Raises ``ControllerMovedError``.
        """
        refused = self._refused(request)
        if refused is not Errors.NONE:
            return AlterPartitionResponse(refused), []
        named = map(self._named, request.partitions)
        rows = {row.topic_partition: row for row in named}
        outcomes: dict[TopicPartition, Errors] = {}
        changes: Changes = {}
        for topic_partition, row in rows.items():
            decided = self._decide(row, request.broker_id)
            if isinstance(decided, ChangeRefused):
                outcomes[topic_partition] = decided.error_code
            elif decided.leader_and_isr == self._current(topic_partition):
                outcomes[topic_partition] = Errors.NONE
            else:
                changes[topic_partition] = decided
        before = {topic_partition: self._known(topic_partition) for topic_partition in rows}
        joining = {
            topic_partition: self._joining(rows[topic_partition]) for topic_partition in changes
        }
        if changes:
            outcomes |= self._write(self._keep_eligible_replicas(changes))
        for topic_partition, members in joining.items():
            if outcomes[topic_partition] is Errors.NONE:
                for member in members:
                    self._context.note_rejoined(member, topic_partition)
        changed = [
            topic_partition
            for topic_partition in rows
            if self._known(topic_partition) != before[topic_partition]
        ]
        self._announce(changed)
        self._log_refusals(request.broker_id, outcomes)
        answers = tuple(
            self._answer(topic_partition, outcomes[topic_partition]) for topic_partition in rows
        )
        known = ((p, self._known(p)) for p in rows)
        with_eligible = tuple(
            p for p, now in known if now and now.leader_and_isr.eligible_leader_replicas
        )
        return AlterPartitionResponse(Errors.NONE, answers, with_eligible), changed

    def _refused(self, request: AlterPartitionRequest) -> Errors:
        """Return why nothing of a request is attempted; NONE: it is the next of this broker."""
        sender = self._context.registrations.get(request.broker_id)
        if sender is None or sender.broker_epoch != request.broker_epoch:
            return Errors.STALE_BROKER_EPOCH
        return Errors.OPERATION_NOT_ATTEMPTED if self._is_late(request) else Errors.NONE

    def _is_late(self, request: AlterPartitionRequest) -> bool:
        """Whether this or a later attempt of the broker was handled; a broker of Kafka has none.

        The leader may know that the later one was refused, and no longer waits for the replica that
        it wanted to add.
        """
        if request.attempt == UNNUMBERED:
            return False
        attempt = request.broker_epoch, request.attempt
        is_late = self._attempts.get(request.broker_id, _NEVER) >= attempt
        if not is_late:
            self._attempts[request.broker_id] = attempt
        return is_late

    def _named(self, row: AlterPartitionRow) -> AlterPartitionRow:
        """Return a proposal with the name of its topic: a broker of Kafka may know the id only."""
        name = None if row.topic_id is None else self._context.topic_name(row.topic_id)
        return row if name in (None, row.topic) else row._replace(topic=name)

    def _joining(self, row: AlterPartitionRow) -> list[BrokerId]:
        """Return the replicas that join the ISR with the broker epoch they are registered with."""
        known = self._known(row.topic_partition)
        before = () if known is None else known.leader_and_isr.isr
        epochs = self._context.live_broker_epochs
        return [
            member
            for member, epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True)
            if member not in before and epoch == epochs.get(member)
        ]

    def _known(self, topic_partition: TopicPartition) -> LeaderIsrAndControllerEpoch | None:
        return self._context.partition_leadership_info(topic_partition)

    def _current(self, topic_partition: TopicPartition) -> LeaderAndIsr:
        known = self._known(topic_partition)
        assert known is not None, "only partitions with a leadership are changed"
        return known.leader_and_isr

    def _decide(self, row: AlterPartitionRow, sender: BrokerId) -> PartitionChange | ChangeRefused:
        """Return the change to be written, or why the proposal is refused."""
        known, topic_id = self._known(row.topic_partition), self._context.topic_id(row.topic)
        if row.topic_id is not None and row.topic_id != topic_id:
            is_known = topic_id is not None
            error = Errors.INCONSISTENT_TOPIC_ID if is_known else Errors.UNKNOWN_TOPIC_ID
            return ChangeRefused("it is of another topic of this name", error)
        if known is None and self._cannot_be_read(row.topic_partition):
            # The leader must ask again: when they can be read, it may get the same epochs, and
            # then it would not propose anew.
            return ChangeRefused("its znodes cannot be read", Errors.UNKNOWN_SERVER_ERROR)
        # The deletion of a topic waits for its reassignments, and these change ISRs.
        if known is None or not self._context.is_to_be_led(row.topic_partition):
            return ChangeRefused("there is no such partition", Errors.UNKNOWN_TOPIC_OR_PARTITION)
        if self._context.is_of_newer_controller(known):
            return ChangeRefused("a newer controller wrote its state", Errors.NOT_CONTROLLER)
        proposed = AlterIsr(
            sender,
            row.leader_epoch,
            row.partition_epoch,
            row.new_isr,
            row.isr_broker_epochs,
            row.leader_recovery_state,
        )
        replicas = partition_replicas(self._context, row.topic_partition)
        return change_partition(known.leader_and_isr, replicas, proposed)

    def _cannot_be_read(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition may exist: its topic or its state could not be used."""
        return (
            topic_partition.topic in self._context.bad_topics
            or topic_partition in self._context.unreadable_partitions
        )

    # --- writing ---

    def _keep_eligible_replicas(self, changes: Changes) -> Changes:
        before = {p: self._current(p) for p in changes}
        outdated = without_outdated_eligible_replicas(self._services, before)
        for p in outdated:
            after = changes[p].leader_and_isr._replace(eligible_leader_replicas=())
            changes[p] = changes[p]._replace(leader_and_isr=after)
        before |= outdated
        decisions = [DecidedGroup([p], before[p], change) for p, change in changes.items()]
        kept = keep_eligible_replicas(self._services, decisions)
        return {decision.partitions[0]: decision.change for decision in kept}

    def _write(self, changes: Changes) -> dict[TopicPartition, Errors]:
        """Write changes and put what ZooKeeper holds then into the context."""
        epoch = self._context.epoch
        states = {
            topic_partition: LeaderIsrAndControllerEpoch(change.leader_and_isr, epoch)
            for topic_partition, change in changes.items()
        }
        store = self._services.store
        written = store.update_partition_states(states, self._context.epoch_zk_version)
        conflicts = [p for p in changes if written[p] is WriteError.BAD_VERSION]
        found = store.read_partition_states(conflicts) if conflicts else {}
        outcomes: dict[TopicPartition, Errors] = {}
        for topic_partition, state in states.items():
            outcome = written[topic_partition]
            if outcome is WriteError.BAD_VERSION:
                outcomes[topic_partition] = self._reconcile(
                    topic_partition, state, found.get(topic_partition)
                )
            elif outcome is WriteError.NO_NODE:
                outcomes[topic_partition] = Errors.UNKNOWN_TOPIC_OR_PARTITION
            elif isinstance(outcome, WriteError):  # no LeaderAndIsr follows, so it must ask again
                self._log_unchangeable(topic_partition, outcome.value)
                outcomes[topic_partition] = Errors.UNKNOWN_SERVER_ERROR
            else:
                self._apply(topic_partition, _stored(state, outcome))
                outcomes[topic_partition] = Errors.NONE
        self._services.log("state.change").each(
            "Partition %s state changed to %s, as its leader proposed",
            ((p, self._current(p)) for p, error in outcomes.items() if error is Errors.NONE),
        )
        return outcomes

    def _reconcile(
        self,
        topic_partition: TopicPartition,
        attempted: LeaderIsrAndControllerEpoch,
        found: LeaderIsrAndControllerEpoch | BadDataError | None,
    ) -> Errors:
        """Handle a version conflict. ``found`` may be our own write, whose answer was lost."""
        if found is None:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        if isinstance(found, BadDataError):
            self._log_unchangeable(topic_partition, str(found))
            return Errors.UNKNOWN_SERVER_ERROR
        if self._context.is_of_newer_controller(found):
            return Errors.NOT_CONTROLLER
        self._apply(topic_partition, found)
        is_ours = found == _stored(attempted, attempted.leader_and_isr.partition_epoch + 1)
        return Errors.NONE if is_ours else Errors.INVALID_UPDATE_VERSION

    def _apply(
        self, topic_partition: TopicPartition, leadership: LeaderIsrAndControllerEpoch
    ) -> None:
        before = self._context.put_partition_leadership_info(topic_partition, leadership)
        self._services.outbox.record(
            PartitionChanged, topic_partition, before, leadership.leader_and_isr
        )

    # --- answering ---

    def _announce(self, changed: Collection[TopicPartition]) -> None:
        """Tell all brokers what changed, and no refusals: a leader may repeat those for hours."""
        if changed:
            self._services.announce_metadata(changed)

    def _answer(self, topic_partition: TopicPartition, error: Errors) -> AlteredPartition:
        known = self._known(topic_partition)
        if known is None:
            return AlteredPartition(*topic_partition, error)
        now = known.leader_and_isr
        return AlteredPartition(
            *topic_partition,
            error,
            now.leader,
            now.leader_epoch,
            now.isr,
            int(now.leader_recovery_state),
            now.partition_epoch,
        )

    def _log_unchangeable(self, topic_partition: TopicPartition, reason: str) -> None:
        """Log why no ISR can be written; the leader asks again several times a second."""
        if self._services.is_line_due((topic_partition, reason)):
            self._log.error("%s: its ISR cannot change: %s", topic_partition, reason)

    def _log_refusals(self, sender: BrokerId, outcomes: Mapping[TopicPartition, Errors]) -> None:
        refused = [p for p, error in outcomes.items() if error is not Errors.NONE]
        if refused and self._services.is_line_due((sender, refused[0], outcomes[refused[0]])):
            self._log.info(
                "%d ISRs proposed by broker %d were refused, the first: %s with %s",
                len(refused),
                sender,
                refused[0],
                outcomes[refused[0]].name,
            )


class WrittenIsrs:
    """ISRs that leaders write to ZooKeeper themselves, with ``isr_change_protocol = "zookeeper"``.

    Leaders announce them later (see ``Notifications``), so the controller reads the states again
    where an outdated ISR would do harm. There is nothing to do while leaders propose ISRs.
    """

    def __init__(self, services: ControllerServices, replicas: ReplicaStateMachine) -> None:
        self._services = services
        self._context = services.context
        self._replicas = replicas

    @property
    def _are_possible(self) -> bool:
        return self._services.settings.isr_changes_through_zookeeper

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        """Watch the states of partitions whose ISRs decide when a reassignment is complete."""
        if self._are_possible:
            self._services.store.watch_partition_states(partitions)

    def unwatch(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop watching the states of partitions."""
        if self._are_possible:
            self._services.store.unwatch_partition_states(list(partitions))

    def read_on(self, broker_ids: Iterable[BrokerId]) -> None:
        """Read the states of what these brokers host, because they start.

        The known ISR may lack members that a leader added and has not announced yet. A leader that
        starts with it would commit records without them, and a suspect replica would be told that
        it is outside the ISR. A state that an ACL hides is forgotten: no broker is told of it until
        it can be read.
        """
        if not self._are_possible:
            return
        hosted = {p for b in broker_ids for p in self._context.partitions_on_broker(b)}
        known = sorted(p for p in hosted if self._context.partition_leadership_info(p))
        for topic_partition, state in self._services.store.read_partition_states(known).items():
            if isinstance(state, UnreadableError):
                self._context.forget_hidden_leadership(topic_partition)
                self._replicas.withhold_full()
            elif isinstance(state, BadDataError) or self._context.is_of_newer_controller(state):
                continue  # the known state stays
            else:
                self._context.put_partition_leadership_info(topic_partition, state)


def _stored(
    state: LeaderIsrAndControllerEpoch, partition_epoch: int
) -> LeaderIsrAndControllerEpoch:
    """Return a state as ZooKeeper holds it at this version."""
    stored = state.leader_and_isr.with_partition_epoch(partition_epoch)
    return LeaderIsrAndControllerEpoch(stored, state.controller_epoch)
