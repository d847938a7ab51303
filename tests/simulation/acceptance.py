"""Check which AlterPartition proposals a controller accepts, with a second set of the rules.

The rules follow KIP-497, KIP-704, KIP-841 and KIP-903. This module decides from what the
controller knows before it handles a proposal; the controller's decision must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.context import ControllerContext
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import LeaderAndIsr, PartitionAndReplica, TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.zk.znodes import TopicPartitionStateZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory
from tests.simulation.situations import Situation, Situations

AnswerEvent: TypeAlias = (
    events.LeaderAndIsrResponseReceived
    | events.TopicDeletionStopReplicaResponseReceived
    | events.UpdateMetadataResponseReceived
)
ANSWERS = (
    events.LeaderAndIsrResponseReceived,
    events.TopicDeletionStopReplicaResponseReceived,
    events.UpdateMetadataResponseReceived,
)
RECOVERED, RECOVERING = 0, 1
UNKNOWN_EPOCH = -1


class Acceptance:
    """Checks every proposal that a controller handles; raises ``AssertionError``."""

    def __init__(
        self, cluster: Cluster, history: LeadershipHistory, situations: Situations
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._situations = situations

    def handle(self, broker: SimulatedBroker, event: events.ControllerEvent) -> list[fx.Effect]:
        """Let a controller handle an event and compare its decision."""
        if broker.is_of_kafka:
            return broker.handle(event)
        if isinstance(event, ANSWERS):
            return self._handle_answer(broker, event)
        if not isinstance(event, events.AlterPartitionReceived) or not broker.controller.is_active:
            return broker.handle(event)
        zookeeper, context = self._cluster.zookeeper, broker.controller.context
        epoch, zxid, request = context.epoch, zookeeper.zxid, event.request
        # A broker of Kafka may name a topic by its id only; the answer has the name.
        rows = {
            row.topic_partition: row for row in (_named(context, r) for r in request.partitions)
        }
        objections = {
            topic_partition: self._objection(context, request, row)
            for topic_partition, row in rows.items()
        }
        before = {topic_partition: _now(context, row) for topic_partition, row in rows.items()}
        self._history.check()
        current = {
            topic_partition: self._history.current.get(topic_partition) for topic_partition in rows
        }
        denied_before, denials = self._denied(rows), zookeeper.denials
        effects = broker.handle(event)
        # A controller may stall while it handles the proposal; denials begin and end meanwhile.
        denied = denied_before | self._denied(rows) if zookeeper.denials == denials else set(rows)
        written = zookeeper.transactions[zxid - zookeeper.zxid :] if zookeeper.zxid > zxid else []
        is_alone = all(t.session_id == broker.session.session_id for t in written)
        is_same_term = context.epoch == epoch  # the context is empty after the term
        response = _answer(effects, event.request_id)
        if response is None or not is_same_term:
            return effects
        answered = {row.topic_partition: row.error_code for row in response.partitions}
        for topic_partition, row in rows.items():
            error = answered.get(topic_partition, response.error_code)
            where = f"broker {broker.broker_id}: {error.name} for {row} of {request.broker_id}"
            where = f"{where}, {before[topic_partition]} → {_now(context, row)}"
            if objections[topic_partition]:
                is_refused = error is not Errors.NONE
                assert is_refused, (
                    f"ProposalAccepted although {objections[topic_partition]}: {where}"
                )
                is_written = _is_changed_to(row, before[topic_partition], _now(context, row))
                assert not is_written or not is_alone, f"ProposalRefusedAndWritten: {where}"
            elif topic_partition in denied:
                pass  # the write may have been refused, or have succeeded before
            elif is_alone and current[topic_partition] == before[topic_partition]:
                assert error is Errors.NONE, f"ProposalRefused without a reason: {where}"
        return effects

    def _denied(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose state the controller may not read or write now."""
        is_denied, path = self._cluster.zookeeper.is_denied, TopicPartitionStateZNode.path
        return {partition for partition in partitions if is_denied(path(partition))}

    def _handle_answer(self, broker: SimulatedBroker, event: AnswerEvent) -> list[fx.Effect]:
        """An answer to another broker epoch or controller epoch must change nothing.

        After any event the controller sends the FULL requests that it withheld: the event that read
        the last hidden znode may have met another hidden one afterwards, and ended.
        """
        context = broker.controller.context
        is_of_broker_epoch = (
            context.live_broker_epochs.get(event.broker_id) == event.header.broker_epoch
        )
        is_of_term = context.epoch == event.header.controller_epoch
        self._situations.meet_if(
            not is_of_broker_epoch and is_of_term, Situation.ANSWER_OF_FORMER_BROKER_EPOCH
        )
        waiting = context.full_withheld_from & context.registrations.keys()
        sends_full = bool(waiting) and context.knows_everything
        zxid = self._cluster.zookeeper.zxid
        effects = broker.handle(event)
        if not (is_of_broker_epoch and is_of_term) and not sends_full:
            is_nothing = not effects and self._cluster.zookeeper.zxid == zxid
            assert is_nothing, f"a stale answer has an effect: {event}: {effects}"
        return effects

    def _objection(
        self, context: ControllerContext, request: AlterPartitionRequest, row: AlterPartitionRow
    ) -> str:
        """Return why a proposal must be refused; an empty string: it must be accepted."""
        meet_if, epochs = self._situations.meet_if, context.live_broker_epochs
        if epochs.get(request.broker_id) != request.broker_epoch:
            meet_if(True, Situation.PROPOSAL_OF_FORMER_BROKER_EPOCH)
            return "the broker epoch of its sender is stale"
        topic_partition, now = row.topic_partition, _now(context, row)
        if now is None or row.topic_id not in (None, context.topic_id(row.topic)):
            return "the partition is unknown"
        is_moved = topic_partition in context.partitions_being_reassigned
        if context.is_topic_queued_for_deletion(row.topic) and not is_moved:
            return "the topic is queued for deletion"
        if row.leader_epoch != now.leader_epoch:
            is_stale = row.leader_epoch < now.leader_epoch
            meet_if(is_stale, Situation.PROPOSAL_WITH_STALE_LEADER_EPOCH)
            meet_if(not is_stale, Situation.PROPOSAL_WITH_UNKNOWN_EPOCHS)
            return "its leader epoch differs"
        if now.leader != request.broker_id:
            meet_if(True, Situation.PROPOSAL_OF_NON_LEADER)
            return "another leads"
        is_done = set(row.new_isr) == set(now.isr)
        is_done = is_done and row.leader_recovery_state == now.leader_recovery_state
        if is_done and row.partition_epoch <= now.partition_epoch:
            meet_if(True, Situation.PROPOSAL_REPEATED)
            return ""
        if row.partition_epoch != now.partition_epoch:
            is_stale = row.partition_epoch < now.partition_epoch
            meet_if(is_stale, Situation.PROPOSAL_WITH_STALE_PARTITION_EPOCH)
            return "its partition epoch differs"
        return self._objection_to_members(context, request, row, now)

    def _objection_to_members(
        self,
        context: ControllerContext,
        request: AlterPartitionRequest,
        row: AlterPartitionRow,
        now: LeaderAndIsr,
    ) -> str:
        meet_if, members = self._situations.meet_if, row.new_isr
        is_recovering = now.leader_recovery_state == RECOVERING
        meet_if(is_recovering, Situation.PROPOSAL_BY_RECOVERING_LEADER)
        if row.leader_recovery_state == RECOVERING:
            if not is_recovering or members != (now.leader,):
                return "it is recovering, and the leader is not the only member"
        elif row.leader_recovery_state != RECOVERED:
            return "there is no such recovery state"
        assigned = context.partition_replica_assignment(row.topic_partition)
        if len(set(members)) != len(members) or len(members) != len(row.isr_broker_epochs):
            return "a member is listed twice, or has no broker epoch"
        if now.leader not in members or not set(members) <= {*assigned, *now.isr}:
            return "the leader is missing, or a member is not a replica"
        for member, epoch in zip(members, row.isr_broker_epochs, strict=True):
            broker_epoch = context.live_broker_epochs.get(member)
            is_leaving = member in context.shutting_down_broker_ids and member != now.leader
            meet_if(broker_epoch is None, Situation.PROPOSED_MEMBER_IS_DEAD)
            meet_if(is_leaving, Situation.PROPOSED_MEMBER_IS_LEAVING)
            is_another = broker_epoch is not None and epoch not in (UNKNOWN_EPOCH, broker_epoch)
            meet_if(is_another, Situation.PROPOSED_MEMBER_BOUNCED)
            offline = context.replicas_on_offline_dirs.get(member, ())
            if broker_epoch is None or is_leaving or is_another or row.topic_partition in offline:
                return f"member {member} is dead, shutting down, restarted or offline"
            replica = PartitionAndReplica(row.topic_partition, member)
            is_unknown = context.replica_state(replica) is ReplicaState.NON_EXISTENT
            if is_unknown and member not in now.isr:
                return f"member {member} has never been sent a LeaderAndIsr request"
        return ""


def _is_changed_to(
    row: AlterPartitionRow, before: LeaderAndIsr | None, now: LeaderAndIsr | None
) -> bool:
    """Whether the ISR became the proposed one; a new leader epoch means another cause."""
    if before is None or now is None or before.leader_epoch != now.leader_epoch:
        return False
    return set(before.isr) != set(now.isr) == set(row.new_isr)


def _named(context: ControllerContext, row: AlterPartitionRow) -> AlterPartitionRow:
    name = None if row.topic_id is None else context.topic_name(row.topic_id)
    return row if name is None else row._replace(topic=name)


def _now(context: ControllerContext, row: AlterPartitionRow) -> LeaderAndIsr | None:
    known = context.partition_leadership_info(row.topic_partition)
    return None if known is None else known.leader_and_isr


def _answer(effects: list[fx.Effect], request_id: int) -> AlterPartitionResponse | None:
    for effect in effects:
        if isinstance(effect, fx.SendResponse) and effect.request_id == request_id:
            assert isinstance(effect.response, AlterPartitionResponse)
            if effect.response.error_code in (Errors.NONE, Errors.STALE_BROKER_EPOCH):
                return effect.response
    return None
