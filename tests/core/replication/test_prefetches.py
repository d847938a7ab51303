"""Fetches of records that are only on the disk wait until another thread has read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.core.errors import Errors
from regent.core.replication import all_partitions
from tests.core.replication.record_stage import RecordBroker, consumed, fetched_values
from tests.core.replication.stage import T0, T1, T2

EPOCH = 5


class DiskThread:
    """The thread that reads the disk: it works when a test says so."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []

    def work(self) -> None:
        """Do everything that is queued."""
        queue, self.queue = self.queue, []
        for work in queue:
            work()


@pytest.fixture
def disk() -> DiskThread:
    return DiskThread()


@pytest.fixture
def leader(disk: DiskThread) -> RecordBroker:
    """Leads t-0 (with follower 2), t-1 and t-2; the first of two batches of t-0 is cold."""
    leader = RecordBroker(run_beside=disk.queue.append)
    leader.apply(1, EPOCH)
    leader.apply(1, EPOCH, T1, T2, isr=(1,), replicas=(1,))
    leader.produce(b"a", acks=1)
    leader.produce(b"b", acks=1)
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    follower.follow(leader, times=2)
    leader.log().batches_in_memory = 1
    return leader


# --- consumers ------------------------------------------------------------------------------------


def test_a_consumer_waits_until_its_records_are_in_memory(leader: RecordBroker, disk: DiskThread):
    fetch = leader.consume({T0: 0})
    assert fetch.is_waiting
    disk.work()
    assert consumed(fetch.answer[T0]) == [b"a", b"b"]


def test_records_in_memory_are_read_at_once(leader: RecordBroker, disk: DiskThread):
    assert consumed(leader.consume({T0: 1}).answer[T0]) == [b"b"]
    assert not disk.queue


def test_appends_continue_while_a_consumer_waits_for_the_disk(
    leader: RecordBroker, disk: DiskThread
):
    fetch = leader.consume({T0: 0})
    leader.produce(b"c", acks=1)
    assert fetch.is_waiting
    assert len(disk.queue) == 1
    disk.work()
    assert consumed(fetch.answer[T0]) == [b"a", b"b"]


def test_records_of_other_partitions_are_answered_without_the_disk(
    leader: RecordBroker, disk: DiskThread
):
    leader.produce(b"x", acks=1, topic_partition=T1)
    answer = leader.consume({T0: 0, T1: 0}).answer
    assert (consumed(answer[T0]), consumed(answer[T1])) == ([], [b"x"])
    assert answer[T0].error_code is Errors.NONE
    disk.work()
    assert consumed(leader.consume({T0: 0, T1: 1}).answer[T0]) == [b"a", b"b"]


def test_two_consumers_at_one_position_wait_for_one_read_of_the_disk(
    leader: RecordBroker, disk: DiskThread
):
    first, second = leader.consume({T0: 0}), leader.consume({T0: 0})
    assert len(disk.queue) == 1
    disk.work()
    assert consumed(first.answer[T0]) == [b"a", b"b"]
    disk.work()
    assert consumed(second.answer[T0]) == [b"a", b"b"]


def test_a_consumer_that_does_not_wait_reads_the_disk_itself(
    leader: RecordBroker, disk: DiskThread
):
    assert consumed(leader.consume({T0: 0}, waits=False).answer[T0]) == [b"a", b"b"]
    assert not disk.queue


def test_a_fetch_that_expires_before_the_disk_has_read_is_empty_and_the_next_one_is_not(
    leader: RecordBroker, disk: DiskThread
):
    fetch = leader.consume({T0: 0})
    assert consumed(fetch.expire()[T0]) == []
    again = leader.consume({T0: 0})
    assert len(disk.queue) == 1
    disk.work()
    assert consumed(again.answer[T0]) == [b"a", b"b"]


def test_a_leadership_that_ends_answers_a_consumer_that_waits_for_the_disk(
    leader: RecordBroker, disk: DiskThread
):
    fetch = leader.consume({T0: 0})
    leader.apply(2, EPOCH + 1)
    assert fetch.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    disk.work()


def test_a_log_that_fails_meanwhile_answers_a_consumer_that_waits_for_the_disk(
    leader: RecordBroker, disk: DiskThread
):
    fetch = leader.consume({T0: 0})
    leader.log().is_offline = True
    disk.work()
    assert fetch.answer[T0].error_code is Errors.KAFKA_STORAGE_ERROR


def test_beyond_the_limit_records_are_read_under_the_lock(
    leader: RecordBroker, disk: DiskThread, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(all_partitions, "MAX_PREFETCHES", 0)
    assert consumed(leader.consume({T0: 0}).answer[T0]) == [b"a", b"b"]
    assert not disk.queue


# --- followers ------------------------------------------------------------------------------------


def test_a_follower_gets_records_from_the_disk_when_these_are_in_memory(
    leader: RecordBroker, disk: DiskThread
):
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    _, fetch = follower.fetch_from(leader)
    assert fetch.is_waiting
    disk.work()
    assert fetched_values(fetch.answer) == {T0: [b"a", b"b"]}


def test_a_follower_gets_at_the_next_fetch_what_the_disk_had_not_read(
    leader: RecordBroker, disk: DiskThread
):
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    request, fetch = follower.fetch_from(leader)
    follower.take(leader, request, fetch.expire())
    assert follower.values() == []
    disk.work()
    follower.follow(leader)
    assert follower.values() == [b"a", b"b"]


# --- coordinators ---------------------------------------------------------------------------------


def test_the_log_of_a_coordinator_is_read_into_memory_by_the_thread_that_loads_it(
    leader: RecordBroker, disk: DiskThread
):
    read = leader.manager.read_in_term(T0, EPOCH, 0, 1000)
    assert read.error_code is Errors.NONE
    assert read.records.size > 0
    assert not disk.queue
