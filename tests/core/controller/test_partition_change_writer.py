"""The loop of read, decide and conditional write, with concurrent writers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.core.controller.partition_change import Cause, LeaderLeavesAssignment, RemoveReplica
from regent.core.controller.partition_change_writer import MAX_ROUNDS, change_partitions
from regent.core.errors import ControllerMovedError, SessionExpiredError, StateChangeFailedError
from regent.core.model import TopicPartition
from tests.support.fake_zookeeper import Call, Moment, lose_connection
from tests.support.term import T0, T1, Office

STATE = "/brokers/topics/t/partitions/%d/state"


@pytest.fixture
def office() -> Office:
    office = Office(brokers=(1, 2, 3))
    for partition in (T0, T1):
        office.lead(partition, (1, 2, 3), leader=1, isr=(1, 2, 3))
    return office


MOVE_TO_2 = LeaderLeavesAssignment((2, 3))


def on_writes(office: Office, moment: Moment, act: Callable[[], None], *, times: int) -> None:
    """Call ``act`` when partition states are written, ``times`` times."""
    left = times

    def hook(call: Call) -> None:
        nonlocal left
        if call.method == "multi_many" and call.moment is moment and left:
            left -= 1
            act()

    office.zookeeper.hook = hook


def test_an_accepted_change_is_in_zookeeper_in_memory_and_in_the_result(office: Office) -> None:
    accepted, failures = change_partitions(office.term, [T0, T1], MOVE_TO_2)
    assert failures == {}
    for partition in (T0, T1):
        stored = office.state(partition)
        assert stored is not None
        assert stored.leader_and_isr == accepted[partition].leader_and_isr
        assert stored == office.context.partition_leadership_info(partition)
        assert office.leads(partition) == (2, (1, 2, 3), 1)


def test_a_change_is_recorded_for_the_journal(office: Office) -> None:
    change_partitions(office.term, [T0], MOVE_TO_2)
    (changes,) = office.effects()
    assert "t-0: leader 1 → 2, isr [1, 2, 3], leader epoch 1" in repr(changes)


def test_after_a_conflict_the_new_state_decides(office: Office) -> None:
    on_writes(office, Moment.BEFORE, lambda: office.put_state(T0, 1, (1, 2)), times=1)
    accepted, failures = change_partitions(office.term, [T0, T1], MOVE_TO_2)
    assert failures == {}
    assert accepted[T0].leader_and_isr.isr == (1, 2), (
        "the leader shrank the ISR between the read and the write"
    )
    assert office.leads(T0) == (2, (1, 2), 1)
    assert office.leads(T1) == (2, (1, 2, 3), 1)


def test_a_partition_without_a_conflict_is_not_tried_again(office: Office) -> None:
    seen: list[TopicPartition] = []

    def cause_of(partition: TopicPartition) -> Cause:
        seen.append(partition)
        return MOVE_TO_2

    on_writes(office, Moment.BEFORE, lambda: office.put_state(T0, 1, (1, 2)), times=1)
    change_partitions(office.term, [T0, T1], cause_of)
    assert seen == [T0, T1, T0]
    assert office.leads(T1) == (2, (1, 2, 3), 1)


def test_a_partition_that_changes_in_every_round_fails(office: Office) -> None:
    before = len(office.server.transactions)
    on_writes(office, Moment.BEFORE, lambda: office.put_state(T0, 1, (1, 2)), times=1000)
    accepted, failures = change_partitions(office.term, [T0], MOVE_TO_2)
    assert accepted == {}
    assert f"while {MAX_ROUNDS} attempts were made" in str(failures[T0])
    assert len(office.server.transactions) - before == MAX_ROUNDS, "only the writes of the other"
    assert office.known(T0) == (1, (1, 2, 3), 0)


def test_a_write_whose_response_is_lost_is_repeated_in_the_next_epoch(office: Office) -> None:
    on_writes(office, Moment.AFTER, lose_connection, times=1)
    accepted, failures = change_partitions(office.term, [T0], MOVE_TO_2)
    assert failures == {}
    assert accepted[T0].leader_and_isr.leader_epoch == 2, "the first attempt looks like a conflict"
    assert office.leads(T0) == (2, (1, 2, 3), 2)
    assert office.known(T0) == (2, (1, 2, 3), 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not JSON", "not JSON"),
        (b'{"version":1,"leader":"one","isr":[1]}', "leader"),
        (b'{"version":1,"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":2}', "epoch 2"),
    ],
)
def test_an_unusable_state_fails_only_its_partition(
    office: Office, data: bytes, reason: str
) -> None:
    office.server.put(STATE % 0, data)
    accepted, failures = change_partitions(office.term, [T0, T1], MOVE_TO_2)
    assert list(accepted) == [T1]
    assert isinstance(failures[T0], StateChangeFailedError)
    assert str(failures[T0]).startswith("t-0: ")
    assert reason in str(failures[T0])
    assert office.server.snapshot()[STATE % 0].data == data


def test_a_state_deleted_before_the_write_fails(office: Office) -> None:
    on_writes(office, Moment.BEFORE, lambda: office.delete_topic("t"), times=1)
    accepted, failures = change_partitions(office.term, [T0, T1], MOVE_TO_2)
    assert accepted == {}
    assert str(failures[T0]) == "t-0: no node"


def test_a_refused_or_empty_change_is_not_written(office: Office) -> None:
    before = len(office.server.transactions)
    accepted, failures = change_partitions(office.term, [T0], RemoveReplica(9))
    assert (accepted, failures) == ({}, {})
    accepted, failures = change_partitions(office.term, [T1], LeaderLeavesAssignment((9,)))
    assert accepted == {}
    assert str(failures[T1]).startswith("t-1: leader 1 would be stopped")
    assert len(office.server.transactions) == before


def test_an_unknown_state_that_needs_no_write_is_remembered(office: Office) -> None:
    office.put_state(T0, 2, (2, 3), leader_epoch=1)
    accepted, _ = change_partitions(office.term, [T0], RemoveReplica(1))
    assert list(accepted) == [T0]
    assert office.known(T0) == (2, (2, 3), 1)


def test_a_deposed_controller_writes_nothing_after_its_read(
    office: Office,
) -> None:
    on_writes(office, Moment.BEFORE, office.elect_another_controller, times=1)
    with pytest.raises(ControllerMovedError):
        change_partitions(office.term, [T0, T1], MOVE_TO_2)
    assert office.leads(T0) == office.leads(T1) == (1, (1, 2, 3), 0)
    assert office.known(T0) == (1, (1, 2, 3), 0)


def test_an_expired_session_writes_nothing(office: Office) -> None:
    on_writes(office, Moment.BEFORE, office.zookeeper.expire, times=1)
    with pytest.raises(SessionExpiredError):
        change_partitions(office.term, [T0], MOVE_TO_2)
    assert office.leads(T0) == (1, (1, 2, 3), 0)


def test_an_empty_change_reads_nothing(office: Office) -> None:
    calls: list[Call] = []
    office.zookeeper.hook = calls.append
    assert change_partitions(office.term, [], MOVE_TO_2) == ({}, {})
    assert calls == []
