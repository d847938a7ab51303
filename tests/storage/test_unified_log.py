"""A log on disk and its segments; the behaviour of all logs is in ``contract``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.errors import StorageError
from regent.core.log_config import LogConfig
from regent.core.replica_logs import MAX_TIMESTAMP
from regent.storage.log.leader_epoch_file_cache import LeaderEpochFileCache
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OwnedFile
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    BATCH_BYTES,
    T0,
    T1,
    THREE_A_SEGMENT,
    TOPIC_ID,
    Machine,
    create,
    files,
    fill,
    numbered,
    segment_file,
    send,
    values,
)
from tests.support.record_batches import TIMESTAMP_MS, batch

HOUR_MS = 60 * 60 * 1000
LONG = LogConfig(segment_ms=HOUR_MS)


def test_the_files_of_a_log_are_kafkas(disk_log: UnifiedLog):
    fill(disk_log, 1)
    disk_log.close()
    assert sorted(path.name for path in disk_log.path.iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert disk_log.path.name == "t-0"
    text = (disk_log.path / "partition.metadata").read_text()
    assert text == f"version: 0\ntopic_id: {TOPIC_ID}"


# --- new segments ---------------------------------------------------------------------------------


def test_a_full_segment_is_followed_by_another(disk_log: UnifiedLog):
    fill(disk_log, 7)
    assert files(disk_log.path) == [".log", "3.log", "6.log"]
    assert values(disk_log) == numbered(0, 7)
    assert disk_log.size == 7 * BATCH_BYTES


def test_a_segment_ends_by_the_time_of_its_records(disk_log: UnifiedLog):
    disk_log.configure(LONG)
    send(disk_log, b"a")
    send(disk_log, b"b", timestamp_ms=TIMESTAMP_MS + HOUR_MS)
    assert files(disk_log.path) == [".log"]
    send(disk_log, b"c", timestamp_ms=TIMESTAMP_MS + HOUR_MS + 1)
    assert files(disk_log.path) == [".log", "2.log"]


def test_records_without_a_time_end_a_segment_by_the_clock(machine: Machine, disk_log: UnifiedLog):
    disk_log.configure(LONG)
    send(disk_log, b"a", timestamp_ms=-1)
    send(disk_log, b"b", timestamp_ms=-1)
    assert files(disk_log.path) == [".log"]
    machine.clock.now_ms += HOUR_MS + 1
    send(disk_log, b"c", timestamp_ms=-1)
    assert files(disk_log.path) == [".log", "2.log"]


def test_jitter_ends_segments_earlier_never_later(logs: LogManager):
    log = create(logs)
    log.configure(replace(LONG, segment_jitter_ms=HOUR_MS // 2))
    send(log, b"a")
    send(log, b"b", timestamp_ms=TIMESTAMP_MS + HOUR_MS // 2)
    assert files(log.path) == [".log"]
    send(log, b"c", timestamp_ms=TIMESTAMP_MS + HOUR_MS + 1)
    assert files(log.path) == [".log", "2.log"]


def test_a_full_index_ends_a_segment(disk_log: UnifiedLog):
    disk_log.configure(LogConfig(index_interval_bytes=1, segment_index_bytes=24))
    fill(disk_log, 8)
    assert len(files(disk_log.path)) > 1
    assert values(disk_log) == numbered(0, 8)


def test_a_segment_ends_at_the_largest_relative_offset(disk_log: UnifiedLog):
    disk_log.configure(LogConfig())
    disk_log.append_as_follower(batch(b"a"))
    disk_log.append_as_follower(batch(b"b", base_offset=2**31 - 1))
    disk_log.append_as_follower(batch(b"c", base_offset=2**31))
    assert files(disk_log.path) == [".log", f"{2**31}.log"]
    assert disk_log.log_end_offset == 2**31 + 1


def test_a_large_append_is_in_one_segment(disk_log: UnifiedLog):
    fill(disk_log, 1)
    data = b"".join(batch(b"%04d" % i, base_offset=i) for i in range(1, 9))
    disk_log.append_as_follower(data)
    assert files(disk_log.path) == [".log", "1.log"]
    fill(disk_log, 1)
    assert files(disk_log.path) == [".log", "1.log", "9.log"]
    assert values(disk_log) == numbered(0, 10)


def test_a_read_skips_a_gap(disk_log: UnifiedLog):
    fill(disk_log, 3)
    disk_log.append_as_follower(batch(b"late", base_offset=100))
    assert disk_log.log_end_offset == 101
    assert disk_log.read(50, 1000, 101, at_least_one=True).size == BATCH_BYTES


# --- truncation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
def test_truncation_removes_segments_and_the_end_of_one(disk_log: UnifiedLog, offset: int):
    fill(disk_log, 8)
    disk_log.truncate_to(offset)
    assert disk_log.log_end_offset == offset
    assert values(disk_log) == numbered(0, offset)
    fill(disk_log, 9 - offset)
    assert values(disk_log) == numbered(0, 9)


def test_files_of_dropped_segments_are_deleted_after_the_delay_of_the_topic(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    disk_log.configure(replace(THREE_A_SEGMENT, file_delete_delay_ms=1_000))
    fill(disk_log, 8)
    disk_log.truncate_to(1)
    assert files(disk_log.path) == [".log"]
    dropped = ["3.log.deleted", "6.log.deleted"]
    machine.clock.now_ms += 999
    assert logs.purge(lambda _: True) == 1, "so long until the files are due"
    assert files(disk_log.path, ".log.deleted") == dropped
    machine.clock.now_ms += 1
    logs.purge(lambda _: True)
    assert files(disk_log.path, ".deleted") == []


def test_a_log_that_starts_over_has_one_segment(disk_log: UnifiedLog):
    fill(disk_log, 8)
    disk_log.truncate_fully_and_start_at(3)
    assert files(disk_log.path) == ["3.log"]
    fill(disk_log, 2)
    assert values(disk_log) == numbered(3, 5)


def test_epochs_of_truncated_records_are_removed_on_the_disk_too(disk_log: UnifiedLog):
    fill(disk_log, 2)
    fill(disk_log, 2, leader_epoch=7)
    disk_log.truncate_to(2)
    known = LeaderEpochFileCache(disk_log.path)
    assert known.load()
    assert known.latest_epoch == 0


def test_records_truncated_during_a_flush_do_not_count_as_flushed(
    disk_log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
):
    fill(disk_log, 2)
    flush = LogSegment.flush

    def and_truncate(self: LogSegment, file: OwnedFile) -> None:
        flush(self, file)
        disk_log.truncate_to(1)
        fill(disk_log, 1)

    with monkeypatch.context() as patches:
        patches.setattr(LogSegment, "flush", and_truncate)
        disk_log.flush()
    assert disk_log.recovery_point == 0


# --- flushes --------------------------------------------------------------------------------------


def test_the_recovery_point_rises_when_all_is_flushed(disk_log: UnifiedLog):
    fill(disk_log, 8)
    assert disk_log.recovery_point == 0
    disk_log.flush()
    assert disk_log.recovery_point == 8


def test_complete_segments_are_flushed_in_the_background(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 3)
    disk_log.flush_if_due(machine.clock())
    assert disk_log.recovery_point == 0
    fill(disk_log, 5)
    disk_log.flush_if_due(machine.clock())
    assert disk_log.recovery_point == 6


def test_a_topic_limits_the_time_without_a_flush(machine: Machine, disk_log: UnifiedLog):
    disk_log.configure(replace(THREE_A_SEGMENT, flush_ms=1_000))
    fill(disk_log, 1)
    machine.clock.now_ms += 999
    disk_log.flush_if_due(machine.clock())
    assert disk_log.recovery_point == 0
    machine.clock.now_ms += 1
    disk_log.flush_if_due(machine.clock())
    assert disk_log.recovery_point == 1


def test_a_topic_limits_the_number_of_unflushed_records(logs: LogManager):
    logs.configure({"t": LogConfig(flush_messages=2)})
    leader, follower = create(logs, T0), create(logs, T1)
    ends = []
    for offset in range(4):
        fill(leader, 1)
        follower.append_as_follower(batch(b"", base_offset=offset))
        ends.append((leader.recovery_point, follower.recovery_point))
    assert ends == [(0, 0), (2, 2), (2, 2), (4, 4)]


def test_truncation_lowers_the_recovery_point(disk_log: UnifiedLog):
    fill(disk_log, 8)
    disk_log.flush()
    disk_log.truncate_to(4)
    assert disk_log.recovery_point == 4


def test_a_truncation_of_flushed_segments_lowers_the_checkpoint(disk_log: UnifiedLog):
    fill(disk_log, 8)
    disk_log.flush()
    disk_log.truncate_to(2)
    checkpoint = disk_log.directory.path / "recovery-point-offset-checkpoint"
    assert checkpoint.read_text() == "0\n1\nt 0 2\n"


# --- ends -----------------------------------------------------------------------------------------


def test_a_closed_log_is_refused_and_its_directory_works(disk_log: UnifiedLog):
    fill(disk_log, 1)
    disk_log.close()
    uses: list[Callable[[], object]] = [
        lambda: fill(disk_log, 1),
        lambda: disk_log.truncate_to(0),
        lambda: disk_log.read(0, 1000, 1, at_least_one=True),
        disk_log.flush,
    ]
    for use in uses:
        with pytest.raises(StorageError, match="t-0: the log is closed"):
            use()
    assert not disk_log.directory.is_offline


def test_unread_segments_hold_no_file(logs: LogManager, disk_log: UnifiedLog):
    fill(disk_log, 8)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert values(disk_log) == numbered(0, 8)
        for _ in range(2):
            logs.clean_up()
        assert len(os.listdir("/proc/self/fd")) == before - 2


def test_the_greatest_time_is_found_in_any_segment(disk_log: UnifiedLog):
    for offset in range(7):
        send(disk_log, b"0000", timestamp_ms=TIMESTAMP_MS + (100 if offset == 4 else offset))
    found = disk_log.offset_of_timestamp(MAX_TIMESTAMP, 7)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (4, TIMESTAMP_MS + 100)
    found = disk_log.offset_of_timestamp(MAX_TIMESTAMP, 4)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, TIMESTAMP_MS + 3)


def test_the_starts_of_old_segments_are_listed(disk_log: UnifiedLog):
    fill(disk_log, 8)
    for base_offset, modified_s in ((0, 10), (3, 20), (6, 30)):
        os.utime(segment_file(disk_log.path, base_offset), (modified_s, modified_s))
    now_ms = TIMESTAMP_MS
    for time_ms, count, offsets in (
        (9_999, 9, []),
        (10_000, 9, [0]),
        (29_999, 9, [3, 0]),
        (29_999, 1, [3]),
        (now_ms - 1, 9, [6, 3, 0]),
        (now_ms, 9, [8, 6, 3, 0]),
        (2**63 - 1, 2, [8, 6]),
    ):
        assert disk_log.offsets_before(time_ms, count) == offsets
    disk_log.advance_log_start_offset(4)
    assert disk_log.offsets_before(now_ms, 9) == [8, 6, 4]
    disk_log.truncate_fully_and_start_at(20)
    assert disk_log.offsets_before(now_ms, 9) == [20]
