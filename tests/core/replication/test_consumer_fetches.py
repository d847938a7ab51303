"""Fetches of consumers: what they read and how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ConsumerPosition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from tests.core.replication.record_stage import Pending, RecordBroker, consumed
from tests.core.replication.stage import T0, T1, T2, A, B
from tests.support.disk_logs import BROKER, Machine, create, send
from tests.support.led_partitions import lead
from tests.support.record_batches import batch
from tests.support.world import live_broker

EPOCH = 5


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 with records 0 to 3, broker 2 has 0 and 1; leads t-1 and t-2 alone."""
    leader = RecordBroker()
    leader.apply(1, EPOCH)
    leader.apply(1, EPOCH, T1, T2, isr=(1,), replicas=(1,))
    leader.produce(b"a", b"b", acks=1)
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    follower.follow(leader, times=2)
    leader.produce(b"c", b"d", acks=1)
    return leader


def commit(leader: RecordBroker) -> None:
    """Let broker 2 fetch all of t-0."""
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    follower.follow(leader, times=2)


# --- committed records ----------------------------------------------------------------------------


def test_only_committed_records_are_read(leader: RecordBroker) -> None:
    answer = leader.consume({T0: 0}).answer[T0]
    assert answer == ConsumedPartition(Errors.NONE, 2, 0, answer.records, last_stable_offset=2)
    assert consumed(answer) == [b"a", b"b"]
    commit(leader)
    assert consumed(leader.consume({T0: 2}).answer[T0]) == [b"c", b"d"]


@pytest.mark.parametrize("offset", [2, 3, 4])
def test_between_the_high_watermark_and_the_log_end_a_fetch_is_empty(
    leader: RecordBroker, offset: int
) -> None:
    answer = leader.consume({T0: offset}, waits=False).answer[T0]
    assert (answer.error_code, answer.high_watermark, consumed(answer)) == (Errors.NONE, 2, [])


@pytest.mark.parametrize("offset", [-1, 0, 5])
def test_an_offset_outside_the_log_is_out_of_range(leader: RecordBroker, offset: int) -> None:
    leader.log().advance_log_start_offset(1)
    assert leader.consume({T0: offset}).answer[T0].error_code is Errors.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("step", ["read", "aborted_transactions"])
def test_a_fetch_that_retention_overtakes_is_out_of_range(
    leader: RecordBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would skip records without a word, or take those of aborted transactions for others."""
    log = leader.log()
    original = getattr(log, step)

    def overtaken(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        log.advance_log_start_offset(1)
        return found

    monkeypatch.setattr(log, step, overtaken)
    answer = leader.consume({T0: 0}, is_read_committed=True).answer[T0]
    assert (answer.error_code, consumed(answer)) == (Errors.OFFSET_OUT_OF_RANGE, [])


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, Errors.NONE),
        (4, Errors.FENCED_LEADER_EPOCH),
        (5, Errors.NONE),
        (6, Errors.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_fetch_with_another_leader_epoch_is_refused(
    leader: RecordBroker, epoch: int, error: Errors
) -> None:
    answer = leader.consume({T0: ConsumerPosition(0, 2**20, epoch)}).answer
    assert answer[T0].error_code is error


def test_a_consumer_with_a_diverging_log_gets_the_diverging_epoch(leader: RecordBroker) -> None:
    leader.produce(b"a", topic_partition=T1)
    leader.apply(1, EPOCH + 2, T1, isr=(1,), replicas=(1,))
    leader.produce(b"b", topic_partition=T1)
    position = ConsumerPosition(2, 2**20, -1, last_fetched_epoch=EPOCH + 1)
    answer = leader.consume({T1: position}).answer[T1]
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (EPOCH, 1)
    assert consumed(answer) == []


def test_a_broker_that_is_not_the_leader_refuses_fetches(leader: RecordBroker) -> None:
    leader.apply(2, 6)
    leader.apply(NO_LEADER, 6, T1)
    unknown = TopicPartition("u", 0)
    answer = leader.consume({T0: 0, T1: 0, unknown: 0}).answer
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T0: Errors.NOT_LEADER_OR_FOLLOWER,
        T1: Errors.NOT_LEADER_OR_FOLLOWER,
        unknown: Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_fetch_from_another_topic_of_the_same_name_is_refused(leader: RecordBroker) -> None:
    for topic_id, epoch, error in (
        (A, EPOCH, Errors.NONE),
        (B, EPOCH - 1, Errors.INCONSISTENT_TOPIC_ID),
    ):
        answer = leader.consume({T0: ConsumerPosition(0, 2**20, epoch, topic_id=topic_id)}).answer
        assert answer[T0].error_code is error


def test_a_debugging_consumer_reads_what_a_follower_knows_to_be_committed(
    leader: RecordBroker,
) -> None:
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    follower.follow(leader, times=2)
    leader.produce(b"e", acks=1)
    follower.follow(leader)
    assert follower.values() == [b"a", b"b", b"c", b"d", b"e"]
    answer = follower.consume({T0: 1}, from_followers=True).answer[T0]
    assert (answer.error_code, answer.high_watermark) == (Errors.NONE, 4)
    assert consumed(answer) == [b"a", b"b", b"c", b"d"]
    assert follower.consume({T0: 1}).answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    follower.apply(NO_LEADER, EPOCH + 1)
    answer = follower.consume({T0: 1}, from_followers=True).answer[T0]
    assert answer.error_code is Errors.NOT_LEADER_OR_FOLLOWER


# --- size limits ----------------------------------------------------------------------------------


def fill(leader: RecordBroker, *partitions: TopicPartition) -> int:
    """Produce three batches to each partition; return the size of one."""
    for topic_partition in partitions:
        for _ in range(3):
            leader.produce(b"x" * 100, topic_partition=topic_partition)
    return len(batch(b"x" * 100))


def test_the_first_batch_of_any_size_is_returned(leader: RecordBroker) -> None:
    fill(leader, T1, T2)
    answer = leader.consume({T0: 2, T1: ConsumerPosition(0, 1), T2: 0}, max_bytes=1).answer
    assert [len(consumed(answer[topic_partition])) for topic_partition in (T0, T1, T2)] == [0, 1, 0]


def test_the_response_limit_is_used_in_the_sequence_of_the_request(
    leader: RecordBroker,
) -> None:
    size = fill(leader, T1, T2)
    for partitions in ((T1, T2), (T2, T1)):
        answer = leader.consume(dict.fromkeys(partitions, 0), max_bytes=4 * size).answer
        assert [len(consumed(answer[topic_partition])) for topic_partition in partitions] == [3, 1]


def test_a_partition_returns_at_most_its_own_limit(leader: RecordBroker) -> None:
    size = fill(leader, T1, T2)
    answer = leader.consume({T1: ConsumerPosition(0, 2 * size), T2: 0}).answer
    assert [len(consumed(answer[topic_partition])) for topic_partition in (T1, T2)] == [2, 3]


# --- waiting --------------------------------------------------------------------------------------


def test_a_consumer_at_the_high_watermark_waits_for_the_next_record(leader: RecordBroker) -> None:
    asked = leader.consume({T0: 2, T1: 0})
    assert asked.is_waiting
    leader.produce(b"x", acks=1)
    assert asked.is_waiting, "it is not committed"
    leader.produce(b"y", topic_partition=T1)
    assert [consumed(asked.answer[topic_partition]) for topic_partition in (T0, T1)] == [[], [b"y"]]
    assert asked.answer[T1].high_watermark == 1


def test_a_new_high_watermark_completes_a_waiting_fetch(leader: RecordBroker) -> None:
    asked = leader.consume({T0: 2})
    commit(leader)
    assert consumed(asked.answer[T0]) == [b"c", b"d"]


def test_a_fetch_with_min_bytes_waits_for_more_records(leader: RecordBroker) -> None:
    size = len(batch(b"x"))
    asked = leader.consume({T1: 0, T2: 0}, min_bytes=3 * size)
    leader.produce(b"x", topic_partition=T1)
    leader.produce(b"y", topic_partition=T1)
    assert asked.is_waiting
    leader.produce(b"z", topic_partition=T2)
    assert [consumed(asked.answer[topic_partition]) for topic_partition in (T1, T2)] == [
        [b"x", b"y"],
        [b"z"],
    ]


def test_records_appended_by_one_request_are_returned_together(leader: RecordBroker) -> None:
    asked = leader.consume({T1: 0, T2: 0})
    leader.produce_to({T1: batch(b"x"), T2: batch(b"y")})
    assert [consumed(asked.answer[topic_partition]) for topic_partition in (T1, T2)] == [
        [b"x"],
        [b"y"],
    ]


def test_a_waiting_fetch_returns_the_present_records_when_it_expires(leader: RecordBroker) -> None:
    asked = leader.consume({T0: 0, T1: 0}, min_bytes=10_000)
    leader.produce(b"x", topic_partition=T1)
    answer = asked.expire()
    assert [consumed(answer[topic_partition]) for topic_partition in (T0, T1)] == [
        [b"a", b"b"],
        [b"x"],
    ]


def test_a_fetch_does_not_wait_for_more_bytes_than_its_limit(leader: RecordBroker) -> None:
    assert not leader.consume({T0: 0}, min_bytes=10_000, max_bytes=10).is_waiting


def test_a_fetch_without_partitions_or_wait_time_is_answered_at_once(leader: RecordBroker) -> None:
    assert leader.consume({}).answer == {}
    assert consumed(leader.consume({T1: 0}, waits=False).answer[T1]) == []


def test_an_error_in_one_partition_ends_the_wait(leader: RecordBroker) -> None:
    answer = leader.consume({T1: 0, T0: 99}).answer
    assert answer[T1].error_code is Errors.NONE


def test_a_partition_that_does_not_exist_ends_the_wait_only_if_there_is_no_other(
    leader: RecordBroker,
) -> None:
    absent = TopicPartition("u", 0)
    assert (
        leader.consume({absent: 0}).answer[absent].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION
    )
    asked = leader.consume({T0: 2, absent: 0})
    assert asked.is_waiting
    commit(leader)
    assert consumed(asked.answer[T0]) == [b"c", b"d"]
    assert asked.answer[absent].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("next_leader", "error"), [(2, Errors.NOT_LEADER_OR_FOLLOWER), (1, Errors.FENCED_LEADER_EPOCH)]
)
def test_a_lost_leadership_ends_the_wait(
    leader: RecordBroker, next_leader: int, error: Errors
) -> None:
    position = ConsumerPosition(2, 2**20, EPOCH if next_leader == 1 else -1)
    asked = leader.consume({T0: position})
    leader.apply(next_leader, EPOCH + 1)
    assert asked.answer[T0].error_code is error


def test_a_fetch_without_a_leader_epoch_waits_on_with_the_same_leader(leader: RecordBroker) -> None:
    asked = leader.consume({T1: 0})
    leader.apply(1, EPOCH + 1, T1, isr=(1,), replicas=(1,))
    assert asked.is_waiting
    leader.produce(b"x", topic_partition=T1)
    assert consumed(asked.answer[T1]) == [b"x"]


def test_a_fetch_of_records_deleted_while_it_waits_is_out_of_range(
    leader: RecordBroker,
) -> None:
    leader.produce(b"x", topic_partition=T1)
    leader.produce(b"y", topic_partition=T1)
    asked = leader.consume({T1: 0}, min_bytes=10_000)
    leader.delete_records({T1: 1})
    assert asked.answer[T1].error_code is Errors.OFFSET_OUT_OF_RANGE


# --- disks ----------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_read_goes_offline(leader: RecordBroker) -> None:
    waiting = leader.consume({T1: 0, T0: 2})
    leader.log().is_offline = True
    answer = leader.consume({T0: 0, T1: 0}).answer
    assert {topic_partition: a.error_code for topic_partition, a in answer.items()} == {
        T0: Errors.KAFKA_STORAGE_ERROR,
        T1: Errors.NONE,
    }
    assert leader.hosted().role is Role.OFFLINE
    assert waiting.answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR


def test_a_log_without_a_file_descriptor_gets_a_retriable_error(leader: RecordBroker) -> None:
    leader.log(T0).is_short = True
    asked = leader.consume({T0: 0}).answer
    assert asked[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    leader.log(T0).is_short = False
    assert leader.consume({T0: 0}).answer[T0].error_code is Errors.NONE


# --- logs with several segments -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fetch_offset", "waits"),
    [(2, False), (5, False), (6, True), (7, True)],
    ids=["in the first", "at its end", "in the active one", "at the high watermark"],
)
def test_a_fetch_waits_in_the_active_segment_only(
    tmp_path: Path, fetch_offset: int, waits: bool
) -> None:
    machine = Machine(tmp_path / "log")
    try:
        logs = machine.start()
        log = create(logs)
        for _ in range(7):
            send(log, b"0000")
        manager = ReplicaManager(BROKER, logs, MetadataCache())
        alive = live_broker(BROKER)
        lead(manager, alive, {"t": 1}, (BROKER,))
        fetch = ConsumerFetch({T0: ConsumerPosition(fetch_offset, 10_000)}, 10_000, 10_000)
        asked: Pending[Mapping[TopicPartition, ConsumedPartition]] = Pending(
            manager, lambda respond: manager.fetch_for_consumer(fetch, 0, respond)
        )
        assert asked.is_waiting is waits
    finally:
        machine.end()
