"""Records that are deleted: on the leader at once, and on everybody who lives before it is told."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from tests.core.replication.record_stage import RecordBroker, rows
from tests.core.replication.stage import T0, T1


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 with records 0 to 4, of which 0 to 3 are committed."""
    leader = RecordBroker()
    leader.order(1, 1)
    for value in (b"a", b"b", b"c", b"d"):
        leader.produce(value, acks=1)
    return leader


@pytest.fixture
def follower(leader: RecordBroker) -> RecordBroker:
    """Has everything but the last record."""
    follower = RecordBroker(2)
    follower.order(1, 1)
    follower.follow(leader, times=2)
    leader.produce(b"e", acks=1)
    return follower


def test_records_are_gone_when_every_living_replica_dropped_them(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: 3})
    assert leader.log().log_start_offset == 3
    assert asked.is_waiting
    follower.follow(leader)
    assert follower.log().log_start_offset == 3
    assert asked.is_waiting, "the leader learns of it by the next fetch"
    follower.follow(leader)
    assert asked.answer == {T0: DeletedRecords(Errors.NONE, 3)}


def test_a_follower_whose_fetch_waits_is_told_at_once(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    follower.follow(leader, times=3)
    request, fetch = follower.fetch_from(leader)
    assert fetch.is_waiting
    asked = leader.delete_records({T0: -1})
    assert rows(fetch.answer)[T0].log_start_offset == 5
    follower.take(leader, request, fetch.answer)
    follower.follow(leader)
    assert asked.answer == {T0: DeletedRecords(Errors.NONE, 5)}


def test_everything_is_everything_that_is_committed(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: -1})
    follower.follow(leader, times=2)
    assert asked.answer == {T0: DeletedRecords(Errors.NONE, 4)}
    assert leader.values() == [b"e"]


@pytest.mark.parametrize("offset", [-2, 5, 6])
def test_what_is_not_committed_is_not_deleted(
    leader: RecordBroker, follower: RecordBroker, offset: int
) -> None:
    answer = leader.delete_records({T0: offset}).answer
    assert answer == {T0: DeletedRecords(Errors.OFFSET_OUT_OF_RANGE)}
    assert leader.log().log_start_offset == 0
    assert follower.log().log_start_offset == 0


def test_who_is_dead_is_not_waited_for(leader: RecordBroker, follower: RecordBroker) -> None:
    asked = leader.delete_records({T0: 2})
    leader.meet(1, 3)
    assert leader.delete_records({T0: 2}).answer == {T0: DeletedRecords(Errors.NONE, 2)}
    assert asked.expire() == {T0: DeletedRecords(Errors.NONE, 2)}
    assert follower.log().log_start_offset == 0, "it will hear of it"


def test_who_does_not_hear_of_it_in_time_keeps_people_waiting_no_longer(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: 2})
    assert asked.expire() == {T0: DeletedRecords(Errors.REQUEST_TIMED_OUT, 0)}
    follower.follow(leader, times=2)
    assert asked.answer[T0].error_code is Errors.REQUEST_TIMED_OUT, "answered once"


def test_what_is_gone_already_may_be_deleted_again(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.delete_records({T0: 3})
    follower.follow(leader, times=2)
    assert leader.delete_records({T0: 1}).answer == {T0: DeletedRecords(Errors.NONE, 3)}


@pytest.mark.parametrize("next_leader", [2, -1])
def test_a_leadership_that_ends_tells_those_who_wait(
    leader: RecordBroker, follower: RecordBroker, next_leader: int
) -> None:
    asked = leader.delete_records({T0: 2})
    leader.order(next_leader, 2)
    assert asked.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_each_partition_is_answered_for_itself(leader: RecordBroker) -> None:
    leader.order(2, 1, T1)
    leader.logs.configure({"u": LogConfig(cleanup_policy="compact")})
    compacted = TopicPartition("u", 0)
    leader.order(1, 1, compacted)
    unknown = TopicPartition("v", 0)
    answer = leader.delete_records({T1: 0, compacted: 0, unknown: 0}).answer
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T1: Errors.NOT_LEADER_OR_FOLLOWER,
        compacted: Errors.POLICY_VIOLATION,
        unknown: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_disk_that_fails_is_a_storage_error(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.log().is_unwritable = True
    answer = leader.delete_records({T0: 2}).answer
    assert answer == {T0: DeletedRecords(Errors.KAFKA_STORAGE_ERROR)}
