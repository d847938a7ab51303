"""Replication of records: what a leader returns and what a follower does with it."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from regent.core.protocol.control import UpdateMetadataRequest
from regent.core.records import MemoryRecords
from regent.core.replication.partition import Role
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.record_stage import (
    TWO_IN_SYNC,
    Pending,
    RecordBroker,
    fetched_values,
    rows,
)
from tests.core.replication.stage import HEADER, LAG_MS, T0, T1, T2, errors, live, stop_replica
from tests.support.record_batches import batch
from tests.support.replicas import hosted_as

SIZE = len(batch(b"x" * 100))


@pytest.fixture
def leader() -> RecordBroker:
    """Leads three partitions with brokers 1 and 2 in sync."""
    leader = RecordBroker(1)
    leader.apply(1, 1, T0, T1, T2)
    return leader


@pytest.fixture
def follower() -> RecordBroker:
    """Follows ``leader``."""
    follower = RecordBroker(2)
    follower.apply(1, 1, T0, T1, T2)
    return follower


def limited(max_bytes: int, partition_max_bytes: int = 2**20, min_bytes: int = 1) -> RecordBroker:
    """Return a follower with these fetch limits."""
    settings = ReplicationSettings(
        replica_fetch_min_bytes=min_bytes,
        replica_fetch_max_bytes=partition_max_bytes,
        replica_fetch_response_max_bytes=max_bytes,
    )
    follower = RecordBroker(2, settings=settings)
    follower.apply(1, 1, T0, T1, T2)
    return follower


def fill(leader: RecordBroker, count: int, *partitions: TopicPartition) -> None:
    for topic_partition in partitions:
        for _ in range(count):
            leader.produce(b"x" * 100, acks=1, topic_partition=topic_partition)


# --- answers of the leader ------------------------------------------------------------------------


def test_a_follower_reads_uncommitted_records(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.produce(b"a", b"b", acks=1)
    leader.produce(b"c", acks=1, topic_partition=T2)
    response = follower.follow(leader)
    assert fetched_values(response) == {T0: [b"a", b"b"], T2: [b"c"]}
    assert follower.log().batches == leader.log().batches
    assert follower.log().epochs == leader.log().epochs


def test_records_are_returned_once(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.produce(b"a", acks=1)
    follower.follow(leader)
    request, asked = follower.fetch_from(leader)
    assert [topic_partition for topic_partition, _ in request.partitions()] == [T0], (
        "only a changed position is listed"
    )
    assert fetched_values(asked.expire()) == {}


def test_a_followers_high_watermark_is_at_most_its_log_end(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    follower.follow(leader)
    assert follower.hosted().high_watermark == 0
    follower.follow(leader)
    assert (leader.hosted().high_watermark, follower.hosted().high_watermark) == (1, 1)


# --- size limits ----------------------------------------------------------------------------------


def test_an_answer_respects_the_limits_of_the_follower(leader: RecordBroker) -> None:
    follower = limited(4 * SIZE, partition_max_bytes=3 * SIZE)
    fill(leader, 5, T0, T1)
    assert {
        topic_partition: len(v)
        for topic_partition, v in fetched_values(follower.follow(leader)).items()
    } == {T0: 3, T1: 1}


def test_an_answer_respects_the_limit_of_the_leader(follower: RecordBroker) -> None:
    settings = ReplicationSettings(replica_fetch_response_max_bytes=2 * SIZE)
    leader = RecordBroker(1, settings=settings)
    leader.apply(1, 1, T0, T1, T2)
    fill(leader, 5, T0)
    assert [len(v) for v in fetched_values(follower.follow(leader)).values()] == [2]


@pytest.mark.parametrize("isr", [(1, 2), (1,)], ids=["just appended", "committed"])
def test_an_answer_has_no_more_than_a_segment(
    follower: RecordBroker, isr: tuple[BrokerId, ...]
) -> None:
    leader = RecordBroker(config=LogConfig(segment_bytes=3 * SIZE - 1))
    leader.apply(1, 1, T0, isr=isr)
    fill(leader, 5, T0)
    counts = [len(v) for _ in range(3) for v in fetched_values(follower.follow(leader)).values()]
    assert counts == [2, 2, 1], "a follower of Kafka refuses more, and gives up"


def test_a_batch_larger_than_the_limit_is_returned(leader: RecordBroker) -> None:
    follower = limited(1, partition_max_bytes=1)
    fill(leader, 1, T0, T1)
    assert list(fetched_values(follower.follow(leader))) == [T0]
    assert list(fetched_values(follower.follow(leader))) == [T1], "the other partition is first"


def test_a_busy_partition_does_not_delay_others(leader: RecordBroker) -> None:
    follower = limited(2 * SIZE, partition_max_bytes=2 * SIZE)
    follower.follow(leader, times=2)
    fill(leader, 2, T1, T2)
    for _ in range(5):
        fill(leader, 2, T0)
        follower.follow(leader)
    assert [follower.log(topic_partition).log_end_offset for topic_partition in (T0, T1, T2)] == [
        6,
        2,
        2,
    ]


def test_partitions_out_of_sync_are_served_equally(leader: RecordBroker) -> None:
    leader.apply(1, 2, T0, T1, T2, isr=(1,))
    follower = limited(SIZE, partition_max_bytes=SIZE)
    follower.apply(1, 2, T0, T1, T2)
    fill(leader, 4, T0, T1, T2)
    follower.follow(leader, times=6)
    assert [follower.log(topic_partition).log_end_offset for topic_partition in (T0, T1, T2)] == [
        2,
        2,
        2,
    ]


def test_a_fetch_counts_for_partitions_without_room_in_the_answer(leader: RecordBroker) -> None:
    follower = limited(1)
    follower.follow(leader)
    fill(leader, 3, T0, T1)
    leader.now_ms = follower.now_ms = 7
    follower.follow(leader)
    assert leader.hosted(T1).followers[2].last_fetch_ms == 7


# --- waiting --------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records(leader: RecordBroker, follower: RecordBroker) -> None:
    follower.follow(leader)
    request, asked = follower.fetch_from(leader)
    assert asked.is_waiting
    leader.produce(b"a", acks=1, topic_partition=T1)
    assert fetched_values(asked.answer) == {T1: [b"a"]}
    follower.take(leader, request, asked.answer)
    assert follower.values(T1) == [b"a"]


def test_records_appended_by_one_request_are_returned_together(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    follower.follow(leader)
    _, asked = follower.fetch_from(leader)
    leader.produce_to({T0: batch(b"a"), T2: batch(b"b")})
    assert fetched_values(asked.answer) == {T0: [b"a"], T2: [b"b"]}


def test_a_new_high_watermark_alone_does_not_complete_a_fetch() -> None:
    leader, second, third = (RecordBroker(number) for number in (1, 2, 3))
    for broker in (leader, second, third):
        broker.apply(1, 1, isr=(1, 2, 3), replicas=(1, 2, 3))
    leader.produce(b"a", acks=1)
    second.follow(leader)
    third.follow(leader)
    request, asked = second.fetch_from(leader)
    assert asked.is_waiting
    third.follow(leader)
    assert leader.hosted().high_watermark == 1
    assert asked.is_waiting
    assert rows(asked.expire())[T0].high_watermark == 1
    second.take(leader, request, asked.answer)
    assert second.hosted().high_watermark == 1


def test_a_fetch_with_min_bytes_waits_for_more_records(leader: RecordBroker) -> None:
    follower = limited(2**20, min_bytes=2 * SIZE)
    follower.follow(leader)
    _, asked = follower.fetch_from(leader)
    fill(leader, 1, T0)
    assert asked.is_waiting
    fill(leader, 1, T0)
    assert {
        topic_partition: len(v) for topic_partition, v in fetched_values(asked.answer).items()
    } == {T0: 2}


@pytest.mark.parametrize("new_leader", [1, 2])
def test_after_a_new_leader_epoch_a_fetch_of_the_former_one_fails_at_the_end_of_its_wait(
    leader: RecordBroker, follower: RecordBroker, new_leader: int
) -> None:
    follower.follow(leader)
    _, asked = follower.fetch_from(leader)
    leader.apply(new_leader, 2, T1)
    assert asked.is_waiting, "the follower soon lists the partition in the new epoch, or elsewhere"
    assert errors(asked.expire()) == {T1: Errors.FENCED_LEADER_EPOCH}


def fetch_of_a_later_epoch(
    leader: RecordBroker, follower: RecordBroker
) -> tuple[FetchRequest, Pending[FetchResponse]]:
    """Fetch when only the follower knows the next leader epoch of T1."""
    follower.follow(leader)
    follower.apply(1, 2, T1)
    return follower.fetch_from(leader)


def test_a_fetch_of_a_later_leader_epoch_is_answered_when_the_leader_has_it(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    request, asked = fetch_of_a_later_epoch(leader, follower)
    assert asked.is_waiting
    leader.apply(1, 2, T1)
    leader.produce(b"a", topic_partition=T1, acks=1)
    assert errors(asked.answer) == {T1: Errors.NONE}
    follower.take(leader, request, asked.answer)
    assert follower.hosted(T1).local_log.log_end_offset == 1


def test_the_position_of_a_waiting_fetch_counts_as_soon_as_the_leader_has_its_epoch(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", topic_partition=T1, acks=1)
    _, asked = fetch_of_a_later_epoch(leader, follower)
    assert leader.hosted(T1).high_watermark == 0
    leader.apply(1, 2, T1)
    assert leader.hosted(T1).high_watermark == 1
    assert asked.is_waiting


def test_the_position_of_a_waiting_fetch_does_not_count_after_the_follower_has_started_again(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", topic_partition=T1, acks=1)
    fetch_of_a_later_epoch(leader, follower)
    started_again = UpdateMetadataRequest((), (live(1, 100), live(2, 101)))
    leader.manager.handle(HEADER, started_again, leader.now_ms)
    leader.apply(1, 2, T1)
    assert leader.hosted(T1).high_watermark == 0


def test_a_wait_that_ends_early_has_no_error_of_a_later_leader_epoch(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    request, asked = fetch_of_a_later_epoch(leader, follower)
    follower.take(leader, request, asked.expire(is_early=True))
    assert errors(asked.answer) == {}
    leader.apply(1, 2, T1)
    leader.produce(b"a", topic_partition=T1, acks=1)
    request, asked = follower.fetch_from(leader)
    assert list(request.partitions()) == [], "the leader remembers what was listed"
    assert errors(asked.answer) == {T1: Errors.NONE}


def test_a_fetch_of_a_later_leader_epoch_fails_at_the_end_of_its_wait(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    _, asked = fetch_of_a_later_epoch(leader, follower)
    assert errors(asked.expire()) == {T1: Errors.UNKNOWN_LEADER_EPOCH}


def test_a_new_fetch_of_the_same_follower_completes_the_waiting_one(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    follower.follow(leader)
    _, lost = follower.fetch_from(leader)
    _, asked = follower.fetch_from(leader)
    assert (lost.is_waiting, asked.is_waiting) == (False, True)
    assert lost.answer.error_code is Errors.NONE
    assert sum(leader.manager.delayed_counts.values()) == 1


def test_a_fetch_of_an_unknown_follower_waits_too(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.meet(1)
    follower.follow(leader)
    request, asked = follower.fetch_from(leader)
    assert (len(list(request.partitions())), asked.is_waiting) == (3, True)
    leader.produce(b"a", acks=1)
    assert fetched_values(asked.answer) == {T0: [b"a"]}
    assert asked.answer.session_id == 0


def test_a_fetch_without_wait_time_is_answered_at_once(leader: RecordBroker) -> None:
    assert leader.serve(FetchRequest(2)).answer.error_code is Errors.NONE
    follower = RecordBroker(2, settings=ReplicationSettings(replica_fetch_wait_max_ms=0))
    follower.apply(1, 1)
    assert not follower.fetch_from(leader)[1].is_waiting


def test_a_late_answer_does_not_count_as_a_fetch(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    follower.follow(leader)
    _, asked = follower.fetch_from(leader)
    leader.now_ms = LAG_MS + 1
    leader.produce(b"a", acks=1)
    assert not asked.is_waiting
    assert leader.hosted().followers[2].caught_up_ms() == 0  # KAFKA-15221


# --- what a follower does -------------------------------------------------------------------------


def test_corrupt_records_are_fetched_again_after_a_pause(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    row = rows(asked.answer)[T0]
    damaged = MemoryRecords(bytes(row.records.read())[:-1] + b"?")
    bad = row._replace(records=damaged, high_watermark=1)
    follower.take(leader, request, answer_with(asked.answer, bad))
    assert (follower.values(), follower.hosted().high_watermark) == ([], 0)
    assert follower.hosted().role is Role.FOLLOWER
    assert T0 not in [
        topic_partition for topic_partition, _ in follower.fetch_from(leader)[0].partitions()
    ]
    follower.now_ms += 1_000
    follower.follow(leader)
    assert follower.values() == [b"a"]


def test_records_of_a_late_answer_are_not_appended(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    follower.apply(1, 2)
    follower.take(leader, request, asked.answer)
    assert follower.values() == []
    request, asked = follower.fetch_from(leader)
    leader.apply(1, 2)
    follower.follow(leader, times=2)
    follower.take(leader, request, asked.answer)
    assert follower.values() == [b"a"]


def test_a_duplicate_answer_is_appended_once(leader: RecordBroker, follower: RecordBroker) -> None:
    leader.produce(b"a", acks=1)
    request, asked = follower.fetch_from(leader)
    follower.take(leader, request, asked.answer)
    follower.take(leader, request, asked.answer)
    assert follower.values() == [b"a"]


def test_a_follower_with_a_failed_disk_goes_offline_and_other_partitions_continue(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce_to({T0: batch(b"a"), T1: batch(b"b")}, acks=1)
    follower.log().is_unwritable = True
    follower.follow(leader)
    assert (follower.hosted().role, follower.values(T1)) == (Role.OFFLINE, [b"b"])


def test_a_leader_without_a_file_descriptor_for_a_new_epoch_leads_in_the_previous_one(
    follower: RecordBroker,
) -> None:
    leader = RecordBroker(1)
    leader.apply(1, 1, isr=(1,))
    leader.log().is_short = True
    leader.apply(1, 2, isr=(1,))
    leader.log().is_short = False
    follower.follow(leader)
    leader.commit_isr()
    assert (leader.hosted().leader_epoch, leader.hosted().isr) == (1, (1, 2))


def test_a_follower_without_a_file_descriptor_fetches_again_after_a_pause(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce_to({T0: batch(b"a"), T1: batch(b"b")}, acks=1)
    follower.log().is_short = True
    follower.follow(leader)
    assert (follower.hosted().role, follower.values(T1)) == (Role.FOLLOWER, [b"b"])
    request, _ = follower.fetch_from(leader)
    assert T0 not in dict(request.partitions())
    follower.log().is_short = False
    follower.now_ms += LAG_MS
    follower.follow(leader, times=2)
    assert follower.values() == [b"a"]


def test_a_follower_whose_disk_failed_unnoticed_fetches_the_other_partitions(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    follower.log(T1).is_offline = True
    request, _ = follower.fetch_from(leader)
    assert [topic_partition for topic_partition, _ in request.partitions()] == [T0, T2]
    assert follower.hosted(T1).role is Role.OFFLINE


def test_a_follower_knows_its_lag(leader: RecordBroker) -> None:
    follower = limited(SIZE, partition_max_bytes=SIZE)
    leader.apply(1, 2, isr=(1,))
    follower.apply(1, 2)
    fill(leader, 5, T0)
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    assert leader.hosted().high_watermark == 5
    for lag in (4, 3, 2, 1, 0):
        follower.follow(leader)
        assert follower.manager.max_lag == lag


# --- diverging logs -------------------------------------------------------------------------------


def test_records_only_on_a_former_leader_are_truncated(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    follower.follow(leader, times=2)
    leader.produce(b"lost", acks=1)
    for broker in (leader, follower):
        broker.apply(2, 2)
    follower.produce(b"b", acks=1)
    leader.follow(follower, times=3)
    assert leader.values() == follower.values() == [b"a", b"b"]
    assert leader.log().epochs == follower.log().epochs == [(1, 0), (2, 1)]
    assert leader.hosted().high_watermark == 2


def test_alternating_elections_leave_equal_logs(
    leader: RecordBroker, follower: RecordBroker
) -> None:  # KIP-279
    leader.produce(b"a", acks=1)
    follower.follow(leader, times=2)
    for leader_epoch, broker in ((2, follower), (3, leader), (4, follower), (5, leader)):
        broker.apply(broker.broker_id, leader_epoch, isr=(broker.broker_id,))
        broker.produce(b"of %d" % leader_epoch, acks=1)
    for broker in (leader, follower):
        broker.apply(1, 6)
    leader.produce(b"of 6", acks=1)
    follower.follow(leader, times=6)
    assert leader.log().batches == follower.log().batches
    assert leader.log().epochs == follower.log().epochs


def test_a_follower_before_the_leaders_log_start_starts_again_there(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    follower.follow(leader)
    leader.apply(1, 2, isr=(1,), replicas=(1,))
    for value in (b"b", b"c", b"d"):
        leader.produce(value)
    leader.delete_records({T0: 3})
    for broker in (leader, follower):
        broker.apply(1, 3, isr=(1,))
    follower.follow(leader)
    log = follower.log()
    assert (log.log_start_offset, log.log_end_offset, follower.hosted().high_watermark) == (3, 3, 3)
    follower.follow(leader, times=2)
    assert follower.values() == leader.values() == [b"d"]


def test_a_leader_that_starts_inside_a_batch_can_be_followed_from_another_epoch() -> None:
    leader, follower = RecordBroker(1), RecordBroker(2)
    leader.apply(1, 0, isr=(1,))
    follower.apply(2, 0, isr=(2,))
    for broker in (leader, follower):
        broker.produce(b"0", acks=1)
    follower.produce(b"lost", acks=1)
    leader.apply(1, 2, isr=(1,))
    leader.produce(b"1", b"2", acks=1)
    leader.delete_records({T0: 2})
    follower.apply(1, 2, isr=(1,))
    follower.follow(leader)
    assert follower.log().log_end_offset == leader.log().log_end_offset == 3
    assert follower.values() == leader.values() == [b"2"]


def test_a_follower_beyond_the_leaders_log_end_truncates_to_it() -> None:
    follower = RecordBroker(2)
    follower.apply(2, 1, isr=(2,), replicas=(2,))
    for value in (b"a", b"b", b"c"):
        follower.produce(value)
    follower.apply(1, 2)
    request = follower.manager.fetch_request(1, 0)
    assert request is not None
    far = FetchedPartition(0, Errors.OFFSET_OUT_OF_RANGE, -1, 0, log_end_offset=2)
    follower.take(
        RecordBroker(1), request, FetchResponse(Errors.NONE, (FetchedTopic("t", (far,)),))
    )
    assert (follower.log().log_end_offset, follower.hosted().high_watermark) == (2, 2)
    request = follower.manager.fetch_request(1, 0)
    assert request is not None
    assert [row.fetch_offset for _, row in request.partitions()] == [2], "without a wait"


@pytest.mark.parametrize("has_records", [False, True])
def test_a_follower_that_starts_beyond_the_leaders_log_end_copies_the_whole_log(
    leader: RecordBroker, follower: RecordBroker, has_records: bool
) -> None:
    for value in (b"a", b"b", b"c"):
        leader.produce(value, acks=1)
    follower.log().truncate_fully_and_start_at(1_000_000_000)
    if has_records:
        follower.log().append_as_follower(batch(b"lost", base_offset=1_000_000_000, leader_epoch=0))
    follower.follow(leader, times=3)
    assert follower.values() == leader.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("lost", [2, 1, 0])
def test_records_of_epochs_newer_than_the_leaders_are_truncated(
    leader: RecordBroker, follower: RecordBroker, lost: int
) -> None:
    """ZooKeeper was restored from a backup. An epoch may have no records."""
    for value in (b"a", b"b"):
        leader.produce(value, acks=1)
    follower.follow(leader)
    follower.log().assign_epoch(7)
    follower.log().fence(follower.hosted().leader_epoch)
    for offset in range(2, 2 + lost):
        follower.log().append_as_follower(batch(b"lost", base_offset=offset, leader_epoch=7))
    leader.produce(b"c", acks=1)
    follower.follow(leader, times=3)
    assert follower.values() == leader.values() == [b"a", b"b", b"c"]


def test_a_log_of_a_restored_topic_is_not_truncated_below_the_high_watermark(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    for value in (b"a", b"b"):
        leader.produce(value, acks=1)
    for offset in range(3):
        follower.log().append_as_follower(batch(b"kept", base_offset=offset, leader_epoch=0))
    follower.log().stray_high_watermark = 3
    for broker in (leader, follower):
        broker.apply(1, 4, isr=(1, 2))
    follower.follow(leader, times=2)
    assert follower.hosted().role is Role.OFFLINE
    assert follower.logs.is_damaged(T0), "the log is set aside and replaced"
    assert len(follower.logs.log(T0).batches) == 3


def test_an_out_of_range_answer_has_the_leaders_log_start_and_end(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.apply(1, 2, isr=(1,), replicas=(1,))
    for value in (b"b", b"c", b"d"):
        leader.produce(value)
    leader.delete_records({T0: 2})
    for broker in (leader, follower):
        broker.apply(1, 3, isr=(1,))
    row = rows(follower.fetch_from(leader)[1].answer)[T0]
    assert row.error_code is Errors.OFFSET_OUT_OF_RANGE
    assert (row.log_start_offset, row.log_end_offset) == (2, 3)


def test_a_follower_deletes_up_to_the_leaders_log_start_if_committed(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    for value in (b"a", b"b", b"c"):
        leader.produce(value, acks=1)
    follower.follow(leader, times=2)
    leader.log().advance_log_start_offset(2)  # retention notifies no follower
    leader.produce(b"d", acks=1)
    follower.follow(leader)
    assert follower.log().log_start_offset == 2


# --- high watermarks and restarts -----------------------------------------------------------------


def restarted(broker: RecordBroker) -> RecordBroker:
    """Return the broker after a restart with its logs."""
    again = RecordBroker(broker.broker_id, TWO_IN_SYNC)
    again.logs._logs = broker.logs._logs
    return again


def test_a_checkpointed_high_watermark_survives_a_restart(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    for value in (b"a", b"b"):
        leader.produce(value, acks=1)
    follower.follow(leader, times=2)
    follower.manager.checkpoint_high_watermarks()
    assert [follower.logs.checkpointed_high_watermark(p) for p in (T0, T1)] == [2, 0]
    again = restarted(follower)
    again.apply(1, 2)
    assert again.hosted().high_watermark == 2
    again.manager.checkpoint_high_watermarks()
    assert again.logs.checkpointed_high_watermark(T0) == 2


def test_a_checkpoint_keeps_the_high_watermarks_of_logs_that_no_leader_and_isr_named_yet(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    """The first checkpoint after a start may come before the first LeaderAndIsr (KAFKA-1647)."""
    leader.produce(b"a", acks=1)
    leader.produce(b"a", acks=1, topic_partition=T1)
    leader.produce(b"b", acks=1, topic_partition=T1)
    follower.follow(leader, times=2)
    follower.manager.checkpoint_high_watermarks()
    again = restarted(follower)
    again.manager.checkpoint_high_watermarks()
    assert [again.logs.checkpointed_high_watermark(p) for p in (T0, T1)] == [1, 2]
    again.apply(1, 2)
    again.manager.checkpoint_high_watermarks()
    assert [again.logs.checkpointed_high_watermark(p) for p in (T0, T1)] == [1, 2]


@pytest.mark.parametrize(("stored", "expected"), [(9, 2), (0, 1), (2, 2)])
def test_a_high_watermark_is_between_log_start_and_log_end(
    leader: RecordBroker, stored: int, expected: int
) -> None:
    for value in (b"a", b"b"):
        leader.produce(value, acks=1)
    leader.log().advance_log_start_offset(1)
    leader.log().checkpointed_high_watermark = stored
    again = restarted(leader)
    again.apply(2, 2)
    assert again.hosted().high_watermark == expected


def test_the_high_watermark_of_a_follower_is_not_below_the_start_of_its_log(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    for value in (b"a", b"b", b"c"):
        leader.produce(value, acks=1)
    follower.follow(leader)
    follower.log().advance_log_start_offset(2)
    for leaders, expected in ((0, 2), (2, 2), (3, 3), (9, 3)):
        follower.hosted().follow_high_watermark(leaders)
        assert follower.hosted().high_watermark == expected


def test_a_restarted_leader_commits_records_of_all_members(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    follower.follow(leader)
    again = restarted(leader)
    again.apply(1, 2)
    follower.apply(1, 2)
    assert again.hosted().high_watermark == 0
    follower.follow(again, times=2)  # the first fetch finds no session
    assert again.hosted().high_watermark == 1


def test_records_of_a_deleted_topic_are_not_appended_to_its_successor(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a")
    request, asked = follower.fetch_from(leader)
    follower.manager.handle(HEADER, stop_replica(T0, 1, delete=True), 0)
    follower.apply(1, 1)  # the same leader epoch, and a log that also ends at 0
    follower.take(leader, request, asked.answer)
    assert follower.values() == []


# --- log directories ------------------------------------------------------------------------------


def test_replicas_in_a_failed_directory_go_offline_once(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    produced = leader.produce(b"a")
    leader.logs.fail([T0, T1])
    assert leader.manager.on_log_directory_failed() == [T0, T1]
    assert leader.manager.on_log_directory_failed() == []
    assert produced.answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR
    assert hosted_as(Role.LEADER, leader.manager) == 1
    assert hosted_as(Role.OFFLINE, leader.manager) == 2
    leader.manager.checkpoint_high_watermarks()
    assert leader.logs.checkpointed_high_watermark(T0) == 0
    follower.logs.fail([T2])
    assert follower.manager.on_log_directory_failed() == [T2]
    assert [
        topic_partition for topic_partition, _ in follower.fetch_from(leader)[0].partitions()
    ] == [T0, T1]


def test_an_unnoticed_disk_failure_does_not_stop_the_timers(leader: RecordBroker) -> None:
    leader.produce(b"a", acks=1, topic_partition=T1)
    leader.log(T1).is_offline = True
    leader.now_ms = LAG_MS + 1
    leader.manager.shrink_isrs(leader.now_ms)
    assert leader.hosted(T1).role is Role.OFFLINE
    assert leader.hosted(T0).role is Role.LEADER


def test_partitions_under_and_at_min_isr_are_counted() -> None:
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 1, T0, isr=(1,))
    leader.apply(1, 1, T1, isr=(1, 2))
    leader.apply(1, 1, T2, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert (leader.manager.under_min_isr_count, leader.manager.at_min_isr_count) == (1, 1)


def answer_with(response: FetchResponse, row: FetchedPartition) -> FetchResponse:
    """Return an answer with one row replaced."""
    (topic,) = response.topics
    others = tuple(r for r in topic.partitions if r.partition_index != row.partition_index)
    return FetchResponse(
        Errors.NONE, (FetchedTopic(topic.topic_name, (row, *others)),), response.session_id
    )
