"""DeleteRecords: the leader deletes at once and answers when all live followers have deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from tests.core.replication.record_stage import RecordBroker, rows
from tests.core.replication.stage import T0, T1


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 with records 0 to 4; 0 to 3 are committed."""
    leader = RecordBroker()
    leader.apply(1, 1)
    for value in (b"a", b"b", b"c", b"d"):
        leader.produce(value, acks=1)
    return leader


@pytest.fixture
def follower(leader: RecordBroker) -> RecordBroker:
    """Has all records but the last."""
    follower = RecordBroker(2)
    follower.apply(1, 1)
    follower.follow(leader, times=2)
    leader.produce(b"e", acks=1)
    return follower


def test_the_answer_waits_until_every_live_replica_has_deleted_the_records(
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


def test_every_replica_counts_as_live_until_the_live_brokers_are_known(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.cache.snapshot = replace(leader.cache.snapshot, brokers={})
    assert leader.delete_records({T0: 3}).is_waiting


def test_a_waiting_fetch_of_a_follower_gets_the_new_log_start_at_once(
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


def test_offset_minus_1_deletes_all_committed_records(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: -1})
    follower.follow(leader, times=2)
    assert asked.answer == {T0: DeletedRecords(Errors.NONE, 4)}
    assert leader.values() == [b"e"]


@pytest.mark.parametrize("offset", [-2, 5, 6])
def test_uncommitted_records_are_not_deleted(
    leader: RecordBroker, follower: RecordBroker, offset: int
) -> None:
    answer = leader.delete_records({T0: offset}).answer
    assert answer == {T0: DeletedRecords(Errors.OFFSET_OUT_OF_RANGE)}
    assert leader.log().log_start_offset == 0
    assert follower.log().log_start_offset == 0


def test_an_offline_follower_is_not_waited_for(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: 2})
    leader.meet(1, 3)
    assert leader.delete_records({T0: 2}).answer == {T0: DeletedRecords(Errors.NONE, 2)}
    assert asked.expire() == {T0: DeletedRecords(Errors.NONE, 2)}
    assert follower.log().log_start_offset == 0, "it deletes them at its next fetch"


def test_a_slow_follower_lets_the_request_time_out(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    asked = leader.delete_records({T0: 2})
    assert asked.expire() == {T0: DeletedRecords(Errors.REQUEST_TIMED_OUT, 0)}
    follower.follow(leader, times=2)
    assert asked.answer[T0].error_code is Errors.REQUEST_TIMED_OUT, "there is one answer"


def test_deleted_records_may_be_deleted_again(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.delete_records({T0: 3})
    follower.follow(leader, times=2)
    assert leader.delete_records({T0: 1}).answer == {T0: DeletedRecords(Errors.NONE, 3)}


@pytest.mark.parametrize("next_leader", [2, -1])
def test_a_lost_leadership_answers_waiting_requests(
    leader: RecordBroker, follower: RecordBroker, next_leader: int
) -> None:
    asked = leader.delete_records({T0: 2})
    leader.apply(next_leader, 2)
    assert asked.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_each_partition_has_its_own_error(leader: RecordBroker) -> None:
    leader.apply(2, 1, T1)
    leader.logs.configure({"u": LogConfig(cleanup_policy="compact")})
    compacted = TopicPartition("u", 0)
    leader.apply(1, 1, compacted)
    unknown = TopicPartition("v", 0)
    answer = leader.delete_records({T1: 0, compacted: 0, unknown: 0}).answer
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T1: Errors.NOT_LEADER_OR_FOLLOWER,
        compacted: Errors.POLICY_VIOLATION,
        unknown: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_failed_disk_is_a_storage_error(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.log().is_unwritable = True
    answer = leader.delete_records({T0: 2}).answer
    assert answer == {T0: DeletedRecords(Errors.KAFKA_STORAGE_ERROR)}
