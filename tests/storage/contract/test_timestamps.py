from __future__ import annotations

import pytest

from regent.core.log_config import LOG_APPEND_TIME, LogConfig
from regent.core.replica_logs import MAX_TIMESTAMP, OffsetOfTimestamp, PartitionLog
from tests.storage.contract.hosts import Host, create, log_of
from tests.storage.contract.records import EVERYTHING, append, read
from tests.support.record_batches import LOG_APPEND_TIME_MASK, TIMESTAMP_MS, batch
from tests.support.record_checks import headers_of


@pytest.fixture
def log(host: Host) -> PartitionLog:
    """Forty records, ten milliseconds apart, except for the 20th, which is much older."""
    log = create(host)
    for number in range(40):
        time_ms = 1_000 if number == 20 else TIMESTAMP_MS + 10 * number
        log.append_as_leader(batch(b"%d" % number, timestamp_ms=time_ms), 3)
    return log


@pytest.mark.parametrize(
    ("after_ms", "number"), [(-5, 0), (0, 0), (1, 1), (10, 1), (195, 21), (200, 21), (390, 39)]
)
def test_the_first_record_at_or_after_a_time_is_found(
    host: Host, log: PartitionLog, after_ms: int, number: int
):
    for _ in range(2):
        found = log_of(host).offset_of_timestamp(TIMESTAMP_MS + after_ms, 40)
        assert found == OffsetOfTimestamp(TIMESTAMP_MS + 10 * number, number, 3)
        host.restart()


def test_there_may_be_no_record_after_a_time(log: PartitionLog):
    assert log.offset_of_timestamp(TIMESTAMP_MS + 391, 40) is None


def test_no_record_at_or_beyond_the_limit_is_found(log: PartitionLog):
    assert log.offset_of_timestamp(TIMESTAMP_MS + 100, 10) is None
    found = log.offset_of_timestamp(TIMESTAMP_MS + 100, 11)
    assert found is not None
    assert found.offset == 10


def test_no_record_below_the_start_is_found(log: PartitionLog):
    log.advance_log_start_offset(33)
    found = log.offset_of_timestamp(TIMESTAMP_MS, 40)
    assert found == OffsetOfTimestamp(TIMESTAMP_MS + 330, 33, 3)


def test_the_record_with_the_greatest_time_is_found(log: PartitionLog):
    found = log.offset_of_timestamp(MAX_TIMESTAMP, 40)
    assert found == OffsetOfTimestamp(TIMESTAMP_MS + 390, 39, 3)
    log.append_as_leader(batch(b"old", timestamp_ms=5), 3)
    assert log.offset_of_timestamp(MAX_TIMESTAMP, 41) == found


@pytest.mark.parametrize(
    ("from_offset", "limit", "number"), [(0, 20, 19), (20, 21, 20), (21, 30, 29), (5, 6, 5)]
)
def test_the_greatest_time_is_sought_between_two_offsets(
    host: Host, log: PartitionLog, from_offset: int, limit: int, number: int
):
    time_ms = 1_000 if number == 20 else TIMESTAMP_MS + 10 * number
    for _ in range(2):
        found = log_of(host).offset_of_timestamp(MAX_TIMESTAMP, limit, from_offset)
        assert found == OffsetOfTimestamp(time_ms, number, 3)
        host.restart()
    assert log_of(host).offset_of_timestamp(MAX_TIMESTAMP, limit, limit) is None


def test_a_search_may_begin_behind_the_first_record(log: PartitionLog):
    found = log.offset_of_timestamp(TIMESTAMP_MS, 40, 20)
    assert found == OffsetOfTimestamp(TIMESTAMP_MS + 210, 21, 3)


def test_the_first_of_several_records_with_the_greatest_time_is_found(host: Host):
    log = create(host)
    for time_ms in (5, 7, 6, 7, 7, 4, 7):
        for _ in range(4):
            log.append_as_leader(batch(b"x", timestamp_ms=time_ms), 3)
    for limit, number in ((28, 4), (5, 4), (4, 0)):
        found = log.offset_of_timestamp(MAX_TIMESTAMP, limit)
        assert found is not None
        assert found.offset == number


def test_a_greatest_time_beyond_the_limit_hides_none_before_it(host: Host):
    """Segments are searched in the order of their greatest times, visible or not."""
    log = create(host)
    times = (5, 7, 6, 3, 4, 99, 8, 2, 7, 1, 50, 0)
    for time_ms in times:
        log.append_as_leader(batch(b"x", timestamp_ms=time_ms), 3)
    for start in range(len(times)):
        for limit in range(start + 1, len(times) + 1):
            greatest = max(times[start:limit])
            found = log.offset_of_timestamp(MAX_TIMESTAMP, limit, start)
            assert found == OffsetOfTimestamp(greatest, times.index(greatest, start), 3)


def test_records_without_a_time_are_as_old_as_each_other(host: Host):
    log = create(host)
    for _ in range(20):
        log.append_as_leader(batch(b"x", timestamp_ms=-1), 3)
    assert log.offset_of_timestamp(MAX_TIMESTAMP, 20) == OffsetOfTimestamp(-1, 0, 3)
    assert log.offset_of_timestamp(MAX_TIMESTAMP, 20, 9) == OffsetOfTimestamp(-1, 9, 3)
    assert log.offset_of_timestamp(0, 20) is None


def test_an_empty_log_has_no_times(host: Host):
    log = create(host)
    assert log.offset_of_timestamp(0, 0) is None
    assert log.offset_of_timestamp(MAX_TIMESTAMP, 0) is None


def test_times_are_removed_with_truncated_records(host: Host, log: PartitionLog):
    log.truncate_to(15)
    for _ in range(2):
        log = log_of(host)
        assert log.offset_of_timestamp(TIMESTAMP_MS + 150, 15) is None
        greatest = log.offset_of_timestamp(MAX_TIMESTAMP, 15)
        assert greatest == OffsetOfTimestamp(TIMESTAMP_MS + 140, 14, 3)
        host.crash()


def test_records_keep_their_create_time(log: PartitionLog):
    assert append(log, b"x").log_append_time_ms == -1


def test_a_topic_may_use_the_append_time(host: Host):
    host.configure({"t": LogConfig(message_timestamp_type=LOG_APPEND_TIME)})
    log = create(host)
    appended = log.append_as_leader(batch(b"x", timestamp_ms=77), 0)
    assert appended.log_append_time_ms == TIMESTAMP_MS
    ((_, header),) = headers_of(log.read(0, EVERYTHING, 1, at_least_one=True).read())
    assert header.max_timestamp == TIMESTAMP_MS
    assert header.attributes & LOG_APPEND_TIME_MASK
    assert [record.value for record in read(log)] == [b"x"]
