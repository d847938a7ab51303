"""ListOffsets and OffsetsForLeaderEpoch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from regent.core.errors import Errors
from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.core.model import TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from regent.core.protocol.control import TopicId
from regent.core.replica_logs import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    OffsetOfTimestamp,
)
from regent.core.replication.partition import Role
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import T0, T1, T2, A
from tests.support.memory_logs import MemoryLog, MemoryLogs
from tests.support.record_batches import TIMESTAMP_MS, batch, offsets_of
from tests.support.replicas import hosted_as

EPOCHS = [(4, Errors.FENCED_LEADER_EPOCH), (6, Errors.UNKNOWN_LEADER_EPOCH)]


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0 in epoch 5 with records at 100, 200 and 300 ms; two are committed."""
    leader = RecordBroker()
    leader.apply(1, 3)
    follower = RecordBroker(2)
    follower.apply(1, 3)
    leader.produce_to({T0: batch(b"a", timestamp_ms=100)}, acks=1)
    leader.apply(1, 5)
    follower.apply(1, 5)
    leader.produce_to({T0: batch(b"b", timestamp_ms=200)}, acks=1)
    follower.follow(leader, times=2)
    leader.produce_to({T0: batch(b"c", timestamp_ms=300)}, acks=1)
    return leader


def listed(leader: RecordBroker, timestamp_ms: int, leader_epoch: int = -1) -> ListedOffset:
    return leader.manager.list_offsets({T0: OffsetQuery(timestamp_ms, leader_epoch)})[T0]


def test_the_latest_offset_is_the_high_watermark(leader: RecordBroker) -> None:
    assert listed(leader, LATEST_TIMESTAMP) == ListedOffset(Errors.NONE, -1, 2, 5)


@pytest.mark.parametrize("timestamp_ms", [EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP])
def test_the_earliest_offset_is_the_log_start_with_its_epoch(
    leader: RecordBroker, timestamp_ms: int
) -> None:
    assert listed(leader, timestamp_ms) == ListedOffset(Errors.NONE, -1, 0, 3)
    leader.delete_records({T0: 1})
    assert listed(leader, timestamp_ms) == ListedOffset(Errors.NONE, -1, 1, 5)


def test_an_empty_log_has_the_epoch_of_its_leader() -> None:
    leader = RecordBroker()
    leader.apply(1, 3)
    for timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP):
        assert listed(leader, timestamp_ms) == ListedOffset(Errors.NONE, -1, 0, 3)
    for timestamp_ms in (MAX_TIMESTAMP, LATEST_TIERED_TIMESTAMP, TIMESTAMP_MS):
        assert listed(leader, timestamp_ms) == ListedOffset(Errors.NONE)


def test_records_without_a_known_epoch_are_listed_without_one(leader: RecordBroker) -> None:
    log = leader.log()
    log.epochs = [(epoch, start) for epoch, start in log.epochs if start]
    assert listed(leader, EARLIEST_TIMESTAMP) == ListedOffset(Errors.NONE, -1, 0, -1)


@pytest.mark.parametrize(
    ("timestamp_ms", "found"),
    [
        (0, ListedOffset(Errors.NONE, 100, 0, 3)),
        (101, ListedOffset(Errors.NONE, 200, 1, 5)),
        (200, ListedOffset(Errors.NONE, 200, 1, 5)),
        (201, ListedOffset(Errors.NONE)),
        (MAX_TIMESTAMP, ListedOffset(Errors.NONE, 200, 1, 5)),
    ],
)
def test_a_timestamp_is_searched_in_committed_records(
    leader: RecordBroker, timestamp_ms: int, found: ListedOffset
) -> None:
    answer = listed(leader, timestamp_ms)
    assert answer._replace(batch=None) == found
    if found.offset >= 0:
        assert answer.batch is not None
        assert offsets_of(answer.batch.read()) == [found.offset]


def test_nothing_is_in_tiered_storage(leader: RecordBroker) -> None:
    assert listed(leader, LATEST_TIERED_TIMESTAMP) == ListedOffset(Errors.NONE, -1, -1, -1)


def test_a_search_may_begin_behind_a_record(leader: RecordBroker) -> None:
    query = OffsetQuery(0, from_offset=1)
    assert leader.manager.list_offsets({T0: query})[T0][:3] == (Errors.NONE, 200, 1)
    query = OffsetQuery(MAX_TIMESTAMP, from_offset=2)
    assert leader.manager.list_offsets({T0: query})[T0] == ListedOffset(Errors.NONE)


@pytest.mark.parametrize(
    ("timestamp_ms", "count", "offsets"),
    [
        (LATEST_TIMESTAMP, 1, (2,)),
        (LATEST_TIMESTAMP, 9, (2, 0)),
        (LATEST_TIMESTAMP, 0, ()),
        (LATEST_TIMESTAMP, -1, ()),
        (EARLIEST_TIMESTAMP, 9, (0,)),
        (TIMESTAMP_MS, 9, (2, 0)),
        (TIMESTAMP_MS - 1, 9, ()),
    ],
)
def test_version_0_lists_committed_starts_of_segments_and_the_end(
    leader: RecordBroker, timestamp_ms: int, count: int, offsets: tuple[int, ...]
) -> None:
    query = OffsetQuery(timestamp_ms, max_num_offsets=count)
    answer = leader.manager.list_offsets({T0: query})[T0]
    assert (answer.error_code, tuple(answer.old_style_offsets)) == (Errors.NONE, offsets)


def test_a_new_leader_does_not_know_the_latest_offset_yet() -> None:  # KIP-207
    leader = RecordBroker(2)
    leader.apply(1, 3)
    former = RecordBroker(1)
    former.apply(1, 3)
    former.produce(b"a", acks=1)
    leader.follow(former)
    leader.apply(2, 4)
    assert listed(leader, LATEST_TIMESTAMP).error_code is Errors.OFFSET_NOT_AVAILABLE
    assert listed(leader, 0).error_code is Errors.OFFSET_NOT_AVAILABLE
    assert listed(leader, EARLIEST_TIMESTAMP).error_code is Errors.NONE
    old = {T0: OffsetQuery(LATEST_TIMESTAMP, max_num_offsets=1)}
    assert leader.manager.list_offsets(old)[T0].error_code is Errors.OFFSET_NOT_AVAILABLE
    former.apply(2, 4)
    former.follow(leader)
    assert listed(leader, LATEST_TIMESTAMP) == ListedOffset(Errors.NONE, -1, 1, 4)


@pytest.mark.parametrize(("epoch", "error"), EPOCHS)
def test_a_request_with_another_leader_epoch_is_refused(
    leader: RecordBroker, epoch: int, error: Errors
) -> None:
    assert listed(leader, LATEST_TIMESTAMP, epoch).error_code is error
    query = {T0: EpochQuery(3, epoch)}
    assert leader.manager.offsets_for_leader_epoch(query)[T0].error_code is error


@pytest.mark.parametrize(
    ("epoch", "end"),
    [(2, (2, 0)), (3, (3, 1)), (4, (3, 1)), (5, (5, 3)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_begins(
    leader: RecordBroker, epoch: int, end: tuple[int, int]
) -> None:
    answer = leader.manager.offsets_for_leader_epoch({T0: EpochQuery(epoch)})
    assert answer == {T0: EpochEnd(Errors.NONE, *end)}


def test_only_leaders_answer(leader: RecordBroker) -> None:
    leader.apply(2, 1, T1)
    unknown = TopicPartition("u", 0)
    errors = {T1: Errors.NOT_LEADER_OR_FOLLOWER, unknown: Errors.UNKNOWN_TOPIC_OR_PARTITION}
    offsets = leader.manager.list_offsets(dict.fromkeys(errors, OffsetQuery(LATEST_TIMESTAMP)))
    epochs = leader.manager.offsets_for_leader_epoch(dict.fromkeys(errors, EpochQuery(0)))
    assert {topic_partition: a.error_code for topic_partition, a in offsets.items()} == errors
    assert {topic_partition: a.error_code for topic_partition, a in epochs.items()} == errors


def test_a_failed_disk_is_a_storage_error(leader: RecordBroker) -> None:
    leader.apply(1, 1, T2)
    leader.log().is_offline = leader.log(T2).is_offline = True
    assert listed(leader, 0).error_code is Errors.KAFKA_STORAGE_ERROR
    answer = leader.manager.offsets_for_leader_epoch({T2: EpochQuery(1)})
    assert answer == {T2: EpochEnd(Errors.KAFKA_STORAGE_ERROR)}
    assert hosted_as(Role.OFFLINE, leader.manager) == 2


# --- without the lock -----------------------------------------------------------------------------


class SearchedLog(MemoryLog):
    """A log that calls ``on_search`` when it is searched by time."""

    on_search: Callable[[], None] = staticmethod(lambda: None)

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int = 0
    ) -> OffsetOfTimestamp | None:
        """Search."""
        self.on_search()
        return super().offset_of_timestamp(timestamp_ms, limit, from_offset)


class SearchedLogs(MemoryLogs):
    """Logs that are searched by time."""

    def make_log(self, topic_partition: TopicPartition, topic_id: TopicId | None) -> MemoryLog:
        """Return a new log."""
        return SearchedLog(
            topic_partition, topic_id, lambda: DEFAULT_LOG_CONFIG, lambda: TIMESTAMP_MS
        )


@pytest.fixture
def lock() -> threading.Lock:
    return threading.Lock()


@pytest.fixture
def searched(lock: threading.Lock) -> RecordBroker:
    """Leads t-0 alone, with one record at 100 ms."""
    leader = RecordBroker(lock=lock, logs=SearchedLogs())
    leader.apply(1, 5, isr=(1,), replicas=(1,))
    leader.produce_to({T0: batch(b"a", timestamp_ms=100)})
    return leader


def on_search(leader: RecordBroker, act: Callable[[], None]) -> None:
    log = leader.log()
    assert isinstance(log, SearchedLog)
    log.on_search = act


def test_a_log_is_searched_by_time_without_the_lock(searched: RecordBroker, lock: threading.Lock):
    was_locked: list[bool] = []
    on_search(searched, lambda: was_locked.append(lock.locked()))
    assert listed(searched, 100).offset == 0
    assert was_locked == [False]


def test_an_error_of_a_search_takes_the_replica_out_of_service(searched: RecordBroker):
    on_search(searched, lambda: setattr(searched.log(), "is_offline", True))
    assert listed(searched, 100).error_code is Errors.KAFKA_STORAGE_ERROR
    assert searched.hosted().role is Role.OFFLINE


def test_an_error_of_a_log_that_was_replaced_meanwhile_is_not_that_of_its_successor(
    searched: RecordBroker,
):
    log = searched.log()

    def replace() -> None:
        log.is_offline = True
        searched.hosted().log = SearchedLogs().make_log(T0, A)

    on_search(searched, replace)
    assert listed(searched, 100).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert searched.hosted().role is Role.LEADER
