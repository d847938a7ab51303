"""Followers get what was just appended from memory; it is what the log has."""

from __future__ import annotations

import pytest

from regent.core.model import TopicPartition
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendedRecords
from regent.core.replication.leader_partitions import ENTRY_BYTES, RecentAppends
from tests.core.replication.record_stage import RecordBroker, fetched_values
from tests.core.replication.stage import T0, T1

LIMIT = 100_000
NO_LIMIT = 2**31


def append(
    appends: RecentAppends,
    first_offset: int,
    data: RecordBytes,
    topic_partition: TopicPartition = T0,
) -> None:
    """Note one record."""
    appends.note(topic_partition, AppendedRecords(first_offset, first_offset, -1, data=data))


@pytest.fixture
def appends() -> RecentAppends:
    """Three records of T0, of 10, 20 and 30 bytes, and one of T1."""
    appends = RecentAppends(LIMIT)
    for offset, size in enumerate((10, 20, 30)):
        append(appends, offset, b"%d" % offset * size)
    append(appends, 7, b"x", T1)
    return appends


def test_as_many_appends_are_read_as_fit(appends: RecentAppends):
    sizes = [len(appends.read(T0, 0, max_bytes)) for max_bytes in (9, 10, 29, 30, 59, 60, NO_LIMIT)]
    assert sizes == [0, 10, 10, 30, 30, 60, 60]
    assert appends.read(T0, 1, NO_LIMIT) == b"1" * 20 + b"2" * 30
    assert [appends.read(T0, 3, NO_LIMIT), appends.read(T1, 0, NO_LIMIT)] == [b"", b""]


def test_committed_appends_are_forgotten(appends: RecentAppends):
    appends.on_committed(T0, 2)
    assert [len(appends.read(T0, offset, NO_LIMIT)) for offset in (0, 1, 2)] == [0, 0, 30]
    appends.on_committed(T0, 3)
    appends.on_committed(T1, 7)
    assert appends.size == 1 + ENTRY_BYTES
    appends.forget(T1)
    assert (appends.size, appends.read(T1, 7, NO_LIMIT)) == (0, b"")


def test_memory_is_limited_and_the_next_append_is_kept_again(appends: RecentAppends):
    append(appends, 3, bytes(LIMIT - 2_000))
    assert (appends.size, appends.read(T0, 0, NO_LIMIT)) == (0, b"")
    append(appends, 4, b"next")
    assert (appends.size, appends.read(T0, 4, NO_LIMIT)) == (4 + ENTRY_BYTES, b"next")


def test_a_large_view_counts_as_the_whole_request_and_a_small_one_is_copied():
    appends, request = RecentAppends(LIMIT), bytearray(50_000)
    append(appends, 0, memoryview(request)[:20_000])
    assert appends.size == 50_000 + ENTRY_BYTES
    append(appends, 1, memoryview(request)[20_000:20_010])
    assert appends.size == 50_010 + 2 * ENTRY_BYTES
    request[:] = b"x" * 50_000
    assert appends.read(T0, 1, NO_LIMIT) == bytes(10)


# --- a leader ---


def test_a_leader_keeps_what_followers_have_not_fetched():
    leader, follower = RecordBroker(1), RecordBroker(2)
    for broker in (leader, follower):
        broker.apply(1, 1)
    leader.produce(b"a", acks=1)
    leader.log().batches.clear()  # so it must come from memory
    leader.produce(b"b", acks=1)
    assert fetched_values(follower.follow(leader)) == {T0: [b"a", b"b"]}


def test_records_of_a_former_leadership_are_not_sent_after_a_truncation():
    first, second, third = map(RecordBroker, (1, 2, 3))
    for broker in (first, second):
        broker.apply(1, 1)
    first.produce(b"lost", acks=1)
    for broker in (first, second):
        broker.apply(2, 2)
    second.produce(b"kept", acks=1)
    first.follow(second, times=2)
    for broker in (first, third):
        broker.apply(1, 3, replicas=(1, 2, 3))
    assert first.hosted().high_watermark == 0, "nothing else has forgotten the lost record"
    assert fetched_values(third.follow(first)) == {T0: [b"kept"]}
