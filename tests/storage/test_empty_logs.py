"""Logs that are only remembered."""

from __future__ import annotations

from core.model import TopicPartition
from core.ports import NO_EPOCH_END_OFFSET, ReplicaLogs
from storage.empty_logs import EmptyLogs

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = "A" * 22, "B" * 22


def test_a_log_keeps_the_first_topic_id_it_is_given() -> None:
    logs: ReplicaLogs = EmptyLogs()
    assert logs.get_or_create(T0, None, is_new=True) is None
    assert logs.get_or_create(T0, A, is_new=False) == A
    assert logs.get_or_create(T0, B, is_new=False) == A
    assert logs.get_or_create(T0, None, is_new=False) == A
    assert logs.hosted() == {T0: A}


def test_a_log_that_is_deleted_or_set_aside_is_forgotten() -> None:
    logs = EmptyLogs()
    for partition in (T0, T1):
        logs.get_or_create(partition, A, is_new=True)
    logs.delete(T0)
    logs.delete(T0)
    logs.set_aside(T1)
    assert logs.hosted() == {}
    assert logs.get_or_create(T0, B, is_new=True) == B


def test_memory_does_not_fail() -> None:
    assert not EmptyLogs().is_offline(T0)


def test_an_empty_log_begins_and_ends_at_zero_whatever_is_done_to_it() -> None:
    logs: ReplicaLogs = EmptyLogs()
    logs.get_or_create(T0, A, is_new=True)
    logs.assign_epoch(T0, 3)
    logs.truncate_to(T0, 0)
    assert (logs.log_start_offset(T0), logs.log_end_offset(T0)) == (0, 0)
    assert logs.latest_epoch(T0) == -1
    assert logs.end_offset_for_epoch(T0, 3) == NO_EPOCH_END_OFFSET == (-1, -1)
