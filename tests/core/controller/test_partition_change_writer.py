"""The loop of read, decide and conditional write, with concurrent writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import RecordChanges
from regent.core.controller.election.partition_change import (
    Cause,
    LeaderLeavesAssignment,
    RemoveReplica,
)
from regent.core.controller.election.partition_change_writer import MAX_ROUNDS, change_partitions
from regent.core.controller.states import ReplicaState
from regent.core.errors import ControllerMovedError, SessionExpiredError, StateChangeFailedError
from regent.core.model import (
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from tests.support.controller_parts import ControllerParts, of_type
from tests.support.fake_zookeeper import Call, Moment, lose_connection
from tests.support.world import T0, T1

STATE = "/brokers/topics/t/partitions/%d/state"


@pytest.fixture
def parts() -> ControllerParts:
    parts = ControllerParts(brokers=(1, 2, 3))
    for partition in (T0, T1):
        parts.lead(partition, (1, 2, 3), leader=1, isr=(1, 2, 3))
    return parts


MOVE_TO_2 = LeaderLeavesAssignment((2, 3))


def on_writes(
    parts: ControllerParts, moment: Moment, act: Callable[[], None], *, times: int
) -> None:
    """Call ``act`` when partition states are written, ``times`` times."""
    left = times

    def hook(call: Call) -> None:
        nonlocal left
        if call.method == "multi_many" and call.moment is moment and left:
            left -= 1
            act()

    parts.session.hook = hook


def test_an_accepted_change_is_in_zookeeper_in_memory_and_in_the_result(
    parts: ControllerParts,
) -> None:
    accepted, failures = change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert failures == {}
    for partition in (T0, T1):
        stored = parts.state(partition)
        assert stored is not None
        assert stored.leader_and_isr == accepted[partition].leader_and_isr
        assert stored == parts.context.partition_leadership_info(partition)
        assert parts.leads(partition) == (2, (1, 2, 3), 1)


def test_a_change_is_recorded_for_the_journal(parts: ControllerParts) -> None:
    change_partitions(parts.services, [T0], MOVE_TO_2)
    (said,) = of_type(parts.effects(), RecordChanges)
    assert [*map(str, said.changes)] == ["t-0: leader 1 → 2, isr [1, 2, 3], leader epoch 1"]


def test_after_a_conflict_the_new_state_decides(parts: ControllerParts) -> None:
    on_writes(parts, Moment.BEFORE, lambda: parts.put_state(T0, 1, (1, 2)), times=1)
    accepted, failures = change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert failures == {}
    assert accepted[T0].leader_and_isr.isr == (1, 2), (
        "the leader shrank the ISR between the read and the write"
    )
    assert parts.leads(T0) == (2, (1, 2), 1)
    assert parts.leads(T1) == (2, (1, 2, 3), 1)


def test_a_partition_without_a_conflict_is_not_tried_again(parts: ControllerParts) -> None:
    seen: list[TopicPartition] = []

    def cause_of(partition: TopicPartition) -> Cause:
        seen.append(partition)
        return MOVE_TO_2

    on_writes(parts, Moment.BEFORE, lambda: parts.put_state(T0, 1, (1, 2)), times=1)
    change_partitions(parts.services, [T0, T1], cause_of)
    assert seen == [T0, T1, T0]
    assert parts.leads(T1) == (2, (1, 2, 3), 1)


def test_a_partition_that_changes_in_every_round_fails(parts: ControllerParts) -> None:
    before = len(parts.zookeeper.transactions)
    on_writes(parts, Moment.BEFORE, lambda: parts.put_state(T0, 1, (1, 2)), times=1000)
    accepted, failures = change_partitions(parts.services, [T0], MOVE_TO_2)
    assert accepted == {}
    assert f"while {MAX_ROUNDS} attempts were made" in str(failures[T0])
    assert len(parts.zookeeper.transactions) - before == MAX_ROUNDS, "only the writes of the other"
    assert parts.known(T0) == (1, (1, 2, 3), 0)


def test_known_states_are_changed_without_a_read(parts: ControllerParts) -> None:
    calls: list[str] = []
    parts.session.hook = lambda call: calls.append(call.method)
    change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert set(calls) == {"multi_many"}


def test_a_state_that_another_program_wrote_is_read_before_a_change_counts_as_none(
    parts: ControllerParts,
) -> None:
    known = parts.context.partition_leadership_info(T0)
    assert known is not None
    shrunk = known.leader_and_isr._replace(isr=(1, 2))
    parts.context.put_partition_leadership_info(T0, known._replace(leader_and_isr=shrunk))
    parts.put_state(T0, 1, (1, 2, 3))
    accepted, failures = change_partitions(parts.services, [T0], RemoveReplica(3))
    assert failures == {}
    assert accepted[T0].leader_and_isr.isr == (1, 2)
    assert parts.leads(T0) == (1, (1, 2), 1)


def test_a_write_whose_response_is_lost_is_repeated_in_the_next_epoch(
    parts: ControllerParts,
) -> None:
    on_writes(parts, Moment.AFTER, lose_connection, times=1)
    accepted, failures = change_partitions(parts.services, [T0], MOVE_TO_2)
    assert failures == {}
    assert accepted[T0].leader_and_isr.leader_epoch == 2, "the first attempt looks like a conflict"
    assert parts.leads(T0) == (2, (1, 2, 3), 2)
    assert parts.known(T0) == (2, (1, 2, 3), 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not JSON", "not JSON"),
        (b'{"version":1,"leader":"one","isr":[1]}', "leader"),
        (b'{"version":1,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":2}', "epoch 2"),
    ],
)
def test_an_unusable_state_fails_only_its_partition(
    parts: ControllerParts, data: bytes, reason: str
) -> None:
    parts.zookeeper.put(STATE % 0, data)
    accepted, failures = change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert list(accepted) == [T1]
    assert isinstance(failures[T0], StateChangeFailedError)
    assert str(failures[T0]).startswith("t-0: ")
    assert reason in str(failures[T0])
    assert parts.zookeeper.snapshot()[STATE % 0].data == data


def test_a_state_deleted_before_the_write_fails(parts: ControllerParts) -> None:
    on_writes(parts, Moment.BEFORE, lambda: parts.delete_topic("t"), times=1)
    accepted, failures = change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert accepted == {}
    assert str(failures[T0]) == "t-0: its state znode does not exist"


def test_a_refused_or_empty_change_is_not_written(parts: ControllerParts) -> None:
    before = len(parts.zookeeper.transactions)
    accepted, failures = change_partitions(parts.services, [T0], RemoveReplica(9))
    assert (accepted, failures) == ({}, {})
    accepted, failures = change_partitions(parts.services, [T1], LeaderLeavesAssignment((9,)))
    assert accepted == {}
    assert str(failures[T1]).startswith("t-1: leader 1 would be stopped")
    assert len(parts.zookeeper.transactions) == before


def test_an_unknown_state_that_needs_no_write_is_remembered(parts: ControllerParts) -> None:
    parts.put_state(T0, 2, (2, 3), leader_epoch=1)
    accepted, _ = change_partitions(parts.services, [T0], RemoveReplica(1))
    assert list(accepted) == [T0]
    assert parts.known(T0) == (2, (2, 3), 1)


def test_a_deposed_controller_writes_nothing_after_its_read(
    parts: ControllerParts,
) -> None:
    on_writes(parts, Moment.BEFORE, parts.elect_another_controller, times=1)
    with pytest.raises(ControllerMovedError):
        change_partitions(parts.services, [T0, T1], MOVE_TO_2)
    assert parts.leads(T0) == parts.leads(T1) == (1, (1, 2, 3), 0)
    assert parts.known(T0) == (1, (1, 2, 3), 0)


def test_an_expired_session_writes_nothing(parts: ControllerParts) -> None:
    on_writes(parts, Moment.BEFORE, parts.session.expire, times=1)
    with pytest.raises(SessionExpiredError):
        change_partitions(parts.services, [T0], MOVE_TO_2)
    assert parts.leads(T0) == (1, (1, 2, 3), 0)


def test_an_empty_change_reads_nothing(parts: ControllerParts) -> None:
    calls: list[Call] = []
    parts.session.hook = calls.append
    assert change_partitions(parts.services, [], MOVE_TO_2) == ({}, {})
    assert calls == []


# --- partitions in the same condition -------------------------------------------------------------


def share_assignment(context: ControllerContext) -> None:
    """Give both partitions the same object, as the decoder of topics does."""
    same = ReplicaAssignment((1, 2, 3))
    for partition in (T0, T1):
        context.update_partition_full_replica_assignment(partition, same)


def test_partitions_in_the_same_condition_share_their_decision(parts: ControllerParts) -> None:
    share_assignment(parts.context)
    accepted, _ = change_partitions(parts.services, [T0, T1], RemoveReplica(3))
    assert accepted[T0] is accepted[T1]
    assert accepted[T0].leader_and_isr.isr == (1, 2)


def test_each_partition_gets_the_version_of_its_own_znode(parts: ControllerParts) -> None:
    parts.put_state(T1, 1, (1, 2, 3))  # the same data once more: a higher version
    accepted, _ = change_partitions(parts.services, [T0, T1], RemoveReplica(3))
    epochs = {p: change.leader_and_isr.partition_epoch for p, change in accepted.items()}
    assert epochs[T1] == epochs[T0] + 1
    for partition in (T0, T1):
        assert parts.context.partition_leadership_info(partition) == parts.state(partition)


def fails_on_broker_2(context: ControllerContext) -> None:
    context.replicas_on_offline_dirs[2] = {T1}


def is_suspect_on_broker_2(context: ControllerContext) -> None:
    registration = context.registrations[2]
    suspects = SuspectReplicas({T1: LogEnd(0, 5)})
    context.add_live_broker(replace(registration, suspects=suspects))


def has_restarted_on_broker_2(context: ControllerContext) -> None:
    context.restarted_replicas[T1] = frozenset({2})


def may_have_lost_records(context: ControllerContext) -> None:
    is_suspect_on_broker_2(context)
    context.note_leaders_with_losses([T1])


def is_to_be_deleted(context: ControllerContext) -> None:
    context.queue_topic_deletion([T1.topic])


def has_a_replica_that_is_not_assigned(context: ControllerContext) -> None:
    context.put_replica_state(PartitionAndReplica(T1, 7), ReplicaState.ONLINE)


def has_an_offline_replica(context: ControllerContext) -> None:
    context.put_replica_state(PartitionAndReplica(T1, 2), ReplicaState.OFFLINE)


def is_assigned_to_others(context: ControllerContext) -> None:
    context.update_partition_full_replica_assignment(T1, ReplicaAssignment((1, 2, 4)))


@pytest.mark.parametrize(
    "happens",
    [
        fails_on_broker_2,
        is_suspect_on_broker_2,
        has_restarted_on_broker_2,
        may_have_lost_records,
        is_to_be_deleted,
        has_a_replica_that_is_not_assigned,
        has_an_offline_replica,
        is_assigned_to_others,
    ],
)
def test_a_partition_about_which_something_else_is_known_is_in_another_condition(
    parts: ControllerParts, happens: Callable[[ControllerContext], None]
) -> None:
    share_assignment(parts.context)
    assert in_one_condition(parts.context)

    happens(parts.context)

    assert not in_one_condition(parts.context)


def in_one_condition(context: ControllerContext) -> bool:
    """Whether T0 and T1 are decided together."""
    (group, *others) = context.conditions(context.known_leaderships([T0, T1])).values()
    return not others and group == [T0, T1]


def test_unknown_partitions_have_no_leadership(parts: ControllerParts) -> None:
    assert parts.context.known_leaderships([TopicPartition("unknown", 0)]) == {}
