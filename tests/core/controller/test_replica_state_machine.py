"""Replica state changes: what they write, remember and send."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from tests.support.term import (
    T0,
    T1,
    Office,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    stop_replica_rows,
)

R = ReplicaState
REPLICA = PartitionAndReplica(T0, 5)
U0 = TopicPartition("u", 0)


@pytest.fixture
def office() -> Office:
    return Office(brokers=(5, 6, 7))


def move(office: Office, target: ReplicaState, *replicas: int) -> None:
    """Change the state of these replicas of t-0."""
    office.replicas.handle_state_changes(
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
    office: Office, source: ReplicaState, target: ReplicaState
) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5, 6))
    office.put_replica_state(T0, 5, source)
    valid = next(state for state in R if state in VALID_PREVIOUS_REPLICA_STATES[target])
    office.put_replica_state(T0, 6, valid)
    before = office.state(T0)
    move(office, target, 5)
    assert office.replica_state(T0, 5) is source
    assert office.state(T0) == before
    assert office.sent() == []
    move(office, target, 5, 6)
    assert office.replica_state(T0, 5) is source
    assert office.replica_state(T0, 6) is target


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
    office: Office, source: ReplicaState, target: ReplicaState
) -> None:
    office.assign(T0, (5,))
    office.put_replica_state(T0, 5, source)
    move(office, target)
    assert office.replica_state(T0, 5) is target
    assert office.effects() == []


# --- to online ------------------------------------------------------------------------------------


def test_a_new_replica_of_a_partition_with_a_leader_gets_is_new(office: Office) -> None:
    office.lead(T0, (6, 5), leader=6, isr=(6,))
    office.put_replica_state(T0, 5, R.NON_EXISTENT)
    move(office, R.NEW)
    effects = office.effects()
    assert office.replica_state(T0, 5) is R.NEW
    rows = leader_and_isr_rows(effects)
    assert list(rows) == [5]
    assert (rows[5][T0].leader, rows[5][T0].is_new) == (6, True)
    assert sorted(metadata_rows(effects)) == [5, 6, 7]


def test_a_leader_cannot_be_a_new_replica(office: Office) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5,))
    office.put_replica_state(T0, 5, R.NON_EXISTENT)
    move(office, R.NEW)
    assert office.replica_state(T0, 5) is R.NON_EXISTENT
    assert office.sent() == []


def test_a_new_replica_goes_online_without_a_request(office: Office) -> None:
    office.lead(T0, (6, 5), leader=6, isr=(6,))
    office.put_replica_state(T0, 5, R.NEW)
    move(office, R.ONLINE)
    assert office.replica_state(T0, 5) is R.ONLINE
    assert office.effects() == []


def test_a_new_replica_outside_the_assignment_is_added_to_it(office: Office) -> None:
    office.assign(T0, ReplicaAssignment((6, 7), adding_replicas=(7,)))
    office.put_replica_state(T0, 5, R.NEW)
    move(office, R.ONLINE)
    assert office.context.partition_full_replica_assignment(T0) == ReplicaAssignment(
        (6, 7, 5), adding_replicas=(7,)
    )


@pytest.mark.parametrize("source", [R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE])
def test_a_known_replica_that_goes_online_gets_its_unchanged_leadership(
    office: Office, source: ReplicaState
) -> None:
    office.lead(T0, (5,), leader=5, isr=(5,))
    office.put_replica_state(T0, 5, source)
    before = len(office.server.transactions)
    move(office, R.ONLINE)
    assert office.replica_state(T0, 5) is R.ONLINE
    row = leader_and_isr_rows(office.effects())[5][T0]
    assert (row.leader, row.isr, row.leader_epoch, row.is_new) == (5, (5,), 0, False)
    assert len(office.server.transactions) == before


def test_a_replica_without_a_leader_goes_online_without_a_request(office: Office) -> None:
    office.assign(T0, (5,))
    office.put_replica_state(T0, 5, R.OFFLINE)
    move(office, R.ONLINE)
    assert office.replica_state(T0, 5) is R.ONLINE
    assert office.effects() == []


# --- offline --------------------------------------------------------------------------------------


def test_an_offline_follower_leaves_the_isr_and_the_other_replicas_are_notified(
    office: Office,
) -> None:
    office.lead(T0, (5, 6, 7), leader=6, isr=(5, 6))
    move(office, R.OFFLINE)
    effects = office.effects()
    assert office.leads(T0) == (6, (6,), 1)
    assert office.known(T0) == (6, (6,), 1)
    assert office.replica_state(T0, 5) is R.OFFLINE
    rows = leader_and_isr_rows(effects)
    assert list(rows) == [6, 7]
    assert (rows[7][T0].isr, rows[7][T0].leader_epoch, rows[7][T0].is_new) == ((6,), 1, False)
    stops = stop_replica_rows(effects)
    assert stops == {5: {T0: StopReplicaPartition(0, leader_epoch=0, delete_partition=False)}}


def test_an_offline_leader_leaves_the_partition_without_a_leader(office: Office) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5, 6))
    move(office, R.OFFLINE)
    assert office.leads(T0) == (NO_LEADER, (6,), 1)


def test_a_leader_that_is_shutting_down_leads_on_while_all_others_are_suspect(
    office: Office,
) -> None:
    office.lead(T0, (5, 6, 7), leader=6, isr=(5, 6, 7))
    lost, known = SuspectReplicas({T0: LogEnd(0, 3)}), office.context.registrations[7]
    ZkControllerStore(office.sessions[7]).publish_suspects(known.info, lost)
    office.context.add_live_broker(replace(known, suspects=lost))
    office.context.shutting_down_broker_ids.add(6)
    move(office, R.OFFLINE)
    assert office.leads(T0) == (6, (6, 7), 1)
    office.unregister(6)
    office.brokers.on_broker_change()
    assert office.leads(T0) == (NO_LEADER, (6, 7), 2), "6 may return with all records"


def test_the_last_isr_member_stays_in_the_isr(office: Office) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5,))
    move(office, R.OFFLINE)
    assert office.leads(T0) == (NO_LEADER, (5,), 1)
    move(office, R.OFFLINE)
    assert office.leads(T0) == (NO_LEADER, (5,), 2)


def test_a_replica_outside_the_isr_needs_no_write_and_the_memory_is_refreshed(
    office: Office,
) -> None:
    office.lead(T0, (5, 6), leader=6, isr=(5, 6))
    office.put_state(T0, 6, (6,), leader_epoch=3, controller_epoch=0)
    before = office.state(T0)
    move(office, R.OFFLINE)
    assert office.state(T0) == before
    assert office.known(T0) == (6, (6,), 3)
    known = office.context.partition_leadership_info(T0)
    assert known is not None
    assert known.controller_epoch == 1, "this controller has confirmed the state"
    assert leader_and_isr_rows(office.effects())[6][T0].leader_epoch == 3


def test_an_offline_replica_without_a_leader_is_stopped_and_all_brokers_are_notified(
    office: Office,
) -> None:
    office.assign(T0, (5, 6))
    office.put_replica_state(T0, 5, R.ONLINE)
    move(office, R.OFFLINE)
    effects = office.effects()
    assert office.replica_state(T0, 5) is R.OFFLINE
    assert metadata_rows(effects) == {5: {}, 6: {}, 7: {}}
    assert stop_replica_rows(effects)[5][T0].leader_epoch == NO_EPOCH


@pytest.mark.parametrize("damage", ["missing", "unreadable", "newer controller"])
def test_a_replica_whose_state_cannot_be_written_stays_online(office: Office, damage: str) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5, 6))
    office.lead(T1, (5, 6), leader=5, isr=(5, 6))
    if damage == "missing":
        office.delete_topic("t")
        office.put_state(T1, 5, (5, 6))
    elif damage == "unreadable":
        office.server.put("/brokers/topics/t/partitions/0/state", b"")
    else:
        office.put_state(T0, 5, (5, 6), controller_epoch=2)
    office.replicas.handle_state_changes([REPLICA, PartitionAndReplica(T1, 5)], R.OFFLINE)
    assert office.replica_state(T0, 5) is R.ONLINE
    assert office.replica_state(T1, 5) is R.OFFLINE
    effects = office.effects()
    assert list(leader_and_isr_rows(effects)[6]) == [T1]
    assert sorted(stop_replica_rows(effects)[5]) == [T0, T1]


def test_replicas_of_a_topic_queued_for_deletion_stop_in_any_epoch(office: Office) -> None:
    office.lead(T0, (5, 6), leader=6, isr=(5, 6))
    office.lead(U0, (5, 6), leader=6, isr=(5, 6))
    office.context.queue_topic_deletion(["t", "u"])
    office.delete_topic("u")
    office.replicas.handle_state_changes([REPLICA, PartitionAndReplica(U0, 5)], R.OFFLINE)
    effects = office.effects()
    assert office.leads(T0) == (6, (6,), 1)
    assert leader_and_isr_rows(effects) == {}, "a queued topic gets no LeaderAndIsr"
    stop = StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=False)
    assert stop_replica_rows(effects) == {5: {T0: stop, U0: stop}}
    assert office.replica_state(T0, 5) is R.OFFLINE
    assert office.replica_state(U0, 5) is R.OFFLINE, "a missing znode is not a failure"


def test_two_failed_brokers_leave_the_isr_in_one_request(office: Office) -> None:
    office.lead(T0, (5, 6, 7), leader=7, isr=(5, 6, 7))
    move(office, R.OFFLINE, 6, 5)
    effects = office.effects()
    assert office.leads(T0) == (7, (7,), 2)
    assert [kind for kind in kinds(effects) if kind[0] == 7] == [
        (7, "LeaderAndIsr"),
        (7, "UpdateMetadata"),
    ]
    assert leader_and_isr_rows(effects)[7][T0].isr == (7,)


def test_a_deposed_controller_does_not_change_the_isr(office: Office) -> None:
    office.lead(T0, (5, 6), leader=5, isr=(5, 6))
    office.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        move(office, R.OFFLINE)
    assert office.leads(T0) == (5, (5, 6), 0)
    assert office.sent() == []


# --- deletion -------------------------------------------------------------------------------------


def test_deletion_starts_with_a_stop_replica_that_deletes(office: Office) -> None:
    office.lead(T0, (5, 6), leader=6, isr=(6,))
    office.put_replica_state(T0, 5, R.OFFLINE)
    move(office, R.DELETION_STARTED)
    assert office.replica_state(T0, 5) is R.DELETION_STARTED
    assert stop_replica_rows(office.effects()) == {5: {T0: StopReplicaPartition(0, 0, True)}}


def test_a_deleted_replica_leaves_the_assignment(office: Office) -> None:
    moving = ReplicaAssignment((6, 5), adding_replicas=(6,), removing_replicas=(5,))
    office.assign(T0, moving, PartitionState.ONLINE)
    office.put_replica_state(T0, 5, R.DELETION_SUCCESSFUL)
    move(office, R.NON_EXISTENT)
    assert office.replica_state(T0, 5) is R.NON_EXISTENT
    assert office.context.partition_full_replica_assignment(T0) == ReplicaAssignment((6,), (6,))
    assert office.context.partitions_on_broker(5) == []
    assert office.effects() == []


# --- startup --------------------------------------------------------------------------------------


def test_at_startup_every_broker_gets_the_full_state_and_offline_replicas_leave_the_isr(
    office: Office,
) -> None:
    office.lead(T0, (5, 8), leader=8, isr=(5, 8))
    office.lead(T1, (6, 5), leader=6, isr=(6, 5))
    office.replicas.startup()
    effects = office.sent()
    assert office.replica_state(T0, 8) is R.OFFLINE
    assert office.replica_state(T0, 5) is office.replica_state(T1, 6) is R.ONLINE
    assert office.leads(T0) == (NO_LEADER, (5,), 1)
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


def test_at_startup_a_replica_of_an_unknown_broker_is_offline(office: Office) -> None:
    office.assign(T0, (100,))
    office.replicas.startup()
    assert office.replica_state(T0, 100) is R.OFFLINE
