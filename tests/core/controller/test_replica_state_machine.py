"""Replica state changes: what they write, remember and send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.states import (
    VALID_PREVIOUS_REPLICA_STATES,
    PartitionState,
    ReplicaState,
)
from regent.core.errors import ControllerMovedError
from regent.core.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    NO_LEADER,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrType, StopReplicaPartition
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.controller_parts import (
    ControllerParts,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    stop_replica_rows,
)
from tests.support.world import T0, T1

R = ReplicaState
REPLICA = PartitionAndReplica(T0, 5)
U0 = TopicPartition("u", 0)


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(5, 6, 7))


def move(parts: ControllerParts, target: ReplicaState, *replicas: int) -> None:
    """Change the state of these replicas of t-0."""
    parts.replicas.handle_state_changes(
        [PartitionAndReplica(T0, replica) for replica in replicas or (5,)], target
    )


# --- valid and invalid transitions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (source, target)
        for target, allowed in VALID_PREVIOUS_REPLICA_STATES.items()
        for source in ReplicaState
        if source not in allowed
    ],
)
def test_an_invalid_transition_changes_nothing_and_does_not_stop_the_others(
    parts: ControllerParts, source: ReplicaState, target: ReplicaState
) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    parts.put_replica_state(T0, 5, source)
    valid = next(state for state in R if state in VALID_PREVIOUS_REPLICA_STATES[target])
    parts.put_replica_state(T0, 6, valid)
    before = parts.state(T0)
    move(parts, target, 5)
    assert parts.replica_state(T0, 5) is source
    assert parts.state(T0) == before
    assert parts.sent() == []
    move(parts, target, 5, 6)
    assert parts.replica_state(T0, 5) is source
    assert parts.replica_state(T0, 6) is target


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (R.NON_EXISTENT, R.NEW),
        (R.OFFLINE, R.DELETION_INELIGIBLE),
        (R.DELETION_STARTED, R.DELETION_SUCCESSFUL),
        (R.DELETION_STARTED, R.DELETION_INELIGIBLE),
    ],
)
def test_transitions_that_only_change_memory(
    parts: ControllerParts, source: ReplicaState, target: ReplicaState
) -> None:
    parts.assign(T0, (5,))
    parts.put_replica_state(T0, 5, source)
    move(parts, target)
    assert parts.replica_state(T0, 5) is target
    assert parts.effects() == []


# --- to online ------------------------------------------------------------------------------------


def test_a_new_replica_of_a_partition_with_a_leader_gets_is_new(parts: ControllerParts) -> None:
    parts.lead(T0, (6, 5), leader=6, isr=(6,))
    parts.put_replica_state(T0, 5, R.NON_EXISTENT)
    move(parts, R.NEW)
    effects = parts.effects()
    assert parts.replica_state(T0, 5) is R.NEW
    rows = leader_and_isr_rows(effects)
    assert list(rows) == [5]
    assert (rows[5][T0].leader, rows[5][T0].is_new) == (6, True)
    assert sorted(metadata_rows(effects)) == [5, 6, 7]


def test_a_leader_cannot_be_a_new_replica(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5,))
    parts.put_replica_state(T0, 5, R.NON_EXISTENT)
    move(parts, R.NEW)
    assert parts.replica_state(T0, 5) is R.NON_EXISTENT
    assert parts.sent() == []


def test_a_new_replica_goes_online_without_a_request(parts: ControllerParts) -> None:
    parts.lead(T0, (6, 5), leader=6, isr=(6,))
    parts.put_replica_state(T0, 5, R.NEW)
    move(parts, R.ONLINE)
    assert parts.replica_state(T0, 5) is R.ONLINE
    assert parts.effects() == []


def test_a_new_replica_outside_the_assignment_is_added_to_it(parts: ControllerParts) -> None:
    parts.assign(T0, ReplicaAssignment((6, 7), adding_replicas=(7,)))
    parts.put_replica_state(T0, 5, R.NEW)
    move(parts, R.ONLINE)
    assert parts.context.partition_full_replica_assignment(T0) == ReplicaAssignment(
        (6, 7, 5), adding_replicas=(7,)
    )


@pytest.mark.parametrize("source", [R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE])
def test_a_known_replica_that_goes_online_gets_its_unchanged_leadership(
    parts: ControllerParts, source: ReplicaState
) -> None:
    parts.lead(T0, (5,), leader=5, isr=(5,))
    parts.put_replica_state(T0, 5, source)
    before = len(parts.zookeeper.transactions)
    move(parts, R.ONLINE)
    assert parts.replica_state(T0, 5) is R.ONLINE
    row = leader_and_isr_rows(parts.effects())[5][T0]
    assert (row.leader, row.isr, row.leader_epoch, row.is_new) == (5, (5,), 0, False)
    assert len(parts.zookeeper.transactions) == before


def test_a_replica_without_a_leader_goes_online_without_a_request(parts: ControllerParts) -> None:
    parts.assign(T0, (5,))
    parts.put_replica_state(T0, 5, R.OFFLINE)
    move(parts, R.ONLINE)
    assert parts.replica_state(T0, 5) is R.ONLINE
    assert parts.effects() == []


# --- offline --------------------------------------------------------------------------------------


def test_an_offline_follower_leaves_the_isr_and_the_other_replicas_are_notified(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (5, 6, 7), leader=6, isr=(5, 6))
    move(parts, R.OFFLINE)
    effects = parts.effects()
    assert parts.leads(T0) == (6, (6,), 1)
    assert parts.known(T0) == (6, (6,), 1)
    assert parts.replica_state(T0, 5) is R.OFFLINE
    rows = leader_and_isr_rows(effects)
    assert list(rows) == [6, 7]
    assert (rows[7][T0].isr, rows[7][T0].leader_epoch, rows[7][T0].is_new) == ((6,), 1, False)
    stops = stop_replica_rows(effects)
    assert stops == {5: {T0: StopReplicaPartition(0, leader_epoch=0, delete_partition=False)}}


def test_an_offline_leader_leaves_the_partition_without_a_leader(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    move(parts, R.OFFLINE)
    assert parts.leads(T0) == (NO_LEADER, (6,), 1)


def test_a_leader_that_is_shutting_down_leads_on_while_all_others_are_suspect(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (5, 6, 7), leader=6, isr=(5, 6, 7))
    lost, known = SuspectReplicas({T0: LogEnd(0, 3)}), parts.context.registrations[7]
    ZkControllerStore(parts.sessions[7]).publish_suspects(known.info, lost)
    parts.context.add_live_broker(replace(known, suspects=lost))
    parts.context.shutting_down_broker_ids.add(6)
    move(parts, R.OFFLINE)
    assert parts.leads(T0) == (6, (6, 7), 1)
    parts.unregister(6)
    parts.brokers.on_broker_change()
    assert parts.leads(T0) == (NO_LEADER, (6, 7), 2), "6 may return with all records"


def test_the_last_isr_member_stays_in_the_isr(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5,))
    move(parts, R.OFFLINE)
    assert parts.leads(T0) == (NO_LEADER, (5,), 1)
    move(parts, R.OFFLINE)
    assert parts.leads(T0) == (NO_LEADER, (5,), 2)


def test_a_replica_outside_the_isr_needs_no_write_and_the_memory_is_refreshed(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (5, 6), leader=6, isr=(5, 6))
    parts.put_state(T0, 6, (6,), leader_epoch=3, controller_epoch=0)
    before = parts.state(T0)
    move(parts, R.OFFLINE)
    assert parts.state(T0) == before
    assert parts.known(T0) == (6, (6,), 3)
    known = parts.context.partition_leadership_info(T0)
    assert known is not None
    assert known.controller_epoch == 1, "this controller has confirmed the state"
    assert leader_and_isr_rows(parts.effects())[6][T0].leader_epoch == 3


def test_an_offline_replica_without_a_leader_is_stopped_and_all_brokers_are_notified(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (5, 6))
    parts.put_replica_state(T0, 5, R.ONLINE)
    move(parts, R.OFFLINE)
    effects = parts.effects()
    assert parts.replica_state(T0, 5) is R.OFFLINE
    assert metadata_rows(effects) == {5: {}, 6: {}, 7: {}}
    assert stop_replica_rows(effects)[5][T0].leader_epoch == NO_EPOCH


@pytest.mark.parametrize("damage", ["missing", "unreadable", "newer controller"])
def test_a_replica_whose_state_cannot_be_written_stays_online(
    parts: ControllerParts, damage: str
) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    parts.lead(T1, (5, 6), leader=5, isr=(5, 6))
    if damage == "missing":
        parts.delete_topic("t")
        parts.put_state(T1, 5, (5, 6))
    elif damage == "unreadable":
        parts.zookeeper.put("/brokers/topics/t/partitions/0/state", b"")
    else:
        parts.put_state(T0, 5, (5, 6), controller_epoch=2)
    parts.replicas.handle_state_changes([REPLICA, PartitionAndReplica(T1, 5)], R.OFFLINE)
    assert parts.replica_state(T0, 5) is R.ONLINE
    assert parts.replica_state(T1, 5) is R.OFFLINE
    effects = parts.effects()
    assert list(leader_and_isr_rows(effects)[6]) == [T1]
    assert sorted(stop_replica_rows(effects)[5]) == [T0, T1]


def test_replicas_of_a_topic_queued_for_deletion_stop_in_any_epoch(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=6, isr=(5, 6))
    parts.lead(U0, (5, 6), leader=6, isr=(5, 6))
    parts.context.queue_topic_deletion(["t", "u"])
    parts.delete_topic("u")
    parts.replicas.handle_state_changes([REPLICA, PartitionAndReplica(U0, 5)], R.OFFLINE)
    effects = parts.effects()
    assert parts.leads(T0) == (6, (6,), 1)
    assert leader_and_isr_rows(effects) == {}, "a queued topic gets no LeaderAndIsr"
    stop = StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=False)
    assert stop_replica_rows(effects) == {5: {T0: stop, U0: stop}}
    assert parts.replica_state(T0, 5) is R.OFFLINE
    assert parts.replica_state(U0, 5) is R.OFFLINE, "a missing znode is not a failure"


def test_two_failed_brokers_leave_the_isr_in_one_request(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6, 7), leader=7, isr=(5, 6, 7))
    move(parts, R.OFFLINE, 6, 5)
    effects = parts.effects()
    assert parts.leads(T0) == (7, (7,), 2)
    assert [kind for kind in kinds(effects) if kind[0] == 7] == [
        (7, "LeaderAndIsr"),
        (7, "UpdateMetadata"),
    ]
    assert leader_and_isr_rows(effects)[7][T0].isr == (7,)


def test_a_deposed_controller_does_not_change_the_isr(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    parts.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        move(parts, R.OFFLINE)
    assert parts.leads(T0) == (5, (5, 6), 0)
    assert parts.sent() == []


# --- deletion -------------------------------------------------------------------------------------


def test_deletion_starts_with_a_stop_replica_that_deletes(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=6, isr=(6,))
    parts.put_replica_state(T0, 5, R.OFFLINE)
    move(parts, R.DELETION_STARTED)
    assert parts.replica_state(T0, 5) is R.DELETION_STARTED
    assert stop_replica_rows(parts.effects()) == {5: {T0: StopReplicaPartition(0, 0, True)}}


def test_a_deleted_replica_leaves_the_assignment(parts: ControllerParts) -> None:
    moving = ReplicaAssignment((6, 5), adding_replicas=(6,), removing_replicas=(5,))
    parts.assign(T0, moving, PartitionState.ONLINE)
    parts.put_replica_state(T0, 5, R.DELETION_SUCCESSFUL)
    move(parts, R.NON_EXISTENT)
    assert parts.replica_state(T0, 5) is R.NON_EXISTENT
    assert parts.context.partition_full_replica_assignment(T0) == ReplicaAssignment((6,), (6,))
    assert parts.context.partitions_on_broker(5) == []
    assert parts.effects() == []


# --- startup --------------------------------------------------------------------------------------


def test_at_startup_every_broker_gets_the_full_state_and_offline_replicas_leave_the_isr(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (5, 8), leader=8, isr=(5, 8))
    parts.lead(T1, (6, 5), leader=6, isr=(6, 5))
    parts.replicas.startup(parts.context.begin_replica_states())
    effects = parts.sent()
    assert parts.replica_state(T0, 8) is R.OFFLINE
    assert parts.replica_state(T0, 5) is parts.replica_state(T1, 6) is R.ONLINE
    assert parts.leads(T0) == (NO_LEADER, (5,), 1)
    full = {
        sent.broker_id: [partition for partition, _ in sent.request.partitions()]
        for sent in effects
        if isinstance(sent.request, LeaderAndIsrRequest)
        and sent.request.type is LeaderAndIsrType.FULL
    }
    assert full == {5: [T0, T1], 6: [T1], 7: []}
    rows = leader_and_isr_rows(effects)
    assert (rows[5][T0].leader, rows[5][T0].leader_epoch) == (NO_LEADER, 1)
    assert kinds(effects)[0] == (5, "LeaderAndIsr"), "FULL is the first request"


def test_at_startup_a_replica_of_an_unknown_broker_is_offline(parts: ControllerParts) -> None:
    parts.assign(T0, (100,))
    parts.replicas.startup(parts.context.begin_replica_states())
    assert parts.replica_state(T0, 100) is R.OFFLINE


# --- FULL requests --------------------------------------------------------------------------------


def full_for(parts: ControllerParts) -> set[int]:
    """Return the brokers that were sent a FULL LeaderAndIsr since the last call."""
    return {
        sent.broker_id
        for sent in parts.sent()
        if isinstance(sent.request, LeaderAndIsrRequest)
        and sent.request.type is LeaderAndIsrType.FULL
    }


def topic_is_unreadable(context: ControllerContext) -> None:
    context.bad_topics["baz"] = "not JSON"


def state_is_unreadable(context: ControllerContext) -> None:
    context.unreadable_partitions.add(U0)


@pytest.mark.parametrize("happens", [topic_is_unreadable, state_is_unreadable])
def test_a_full_request_is_withheld_until_everything_can_be_read(
    parts: ControllerParts, happens: Callable[[ControllerContext], None]
) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    happens(parts.context)
    parts.replicas.send_everything([5, 7])
    assert set(leader_and_isr_rows(parts.effects())) == {5}, "an incremental request"

    parts.replicas.send_withheld_full()
    assert full_for(parts) == set()

    parts.context.bad_topics.clear()
    parts.context.unreadable_partitions.clear()
    parts.replicas.send_withheld_full()
    assert full_for(parts) == {5, 7}
    parts.replicas.send_withheld_full()
    assert full_for(parts) == set(), "once"
