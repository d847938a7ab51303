"""Retention: segments are deleted by age, size and start offset, never uncommitted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.log_config import LogConfig
from regent.core.replica_logs import EpochEndOffset
from regent.storage.log.log_contents import SegmentSpan, segments_to_delete
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    BATCH_BYTES,
    T0,
    T1,
    THREE_A_SEGMENT,
    Machine,
    create,
    files,
    fill,
    flip_byte,
    log_of,
    numbered,
    segment_file,
    send,
    values,
)
from tests.support.record_batches import TIMESTAMP_MS

DAY_MS = 24 * 60 * 60 * 1000
MAGIC_AT = 16
FOREVER = replace(THREE_A_SEGMENT, retention_ms=-1)
SPANS = [SegmentSpan(10, 100, 1_000), SegmentSpan(20, 100, 2_000), SegmentSpan(30, 50, 3_000)]


def count(config: LogConfig, *, start: int = 0, limit: int = 30, now_ms: int = 0) -> int:
    """Return the number of deleted segments of three; the last one is active."""
    return segments_to_delete(SPANS, config, log_start_offset=start, limit=limit, now_ms=now_ms)


# --- the function ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ms", "gone"), [(1_500, 0), (1_501, 1), (2_501, 2), (9_999, 3)])
def test_segments_are_deleted_by_the_age_of_their_newest_record(now_ms: int, gone: int):
    assert count(LogConfig(retention_ms=500), now_ms=now_ms) == gone


@pytest.mark.parametrize(("size", "gone"), [(250, 0), (151, 0), (150, 1), (51, 1), (50, 2), (0, 3)])
def test_segments_are_deleted_when_the_others_are_large_enough(size: int, gone: int):
    assert count(LogConfig(retention_ms=-1, retention_bytes=size)) == gone


@pytest.mark.parametrize(("start", "gone"), [(9, 0), (10, 1), (29, 2), (30, 3)])
def test_segments_below_the_log_start_are_deleted(start: int, gone: int):
    assert count(LogConfig(retention_ms=-1), start=start) == gone


@pytest.mark.parametrize(("limit", "gone"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3)])
def test_segments_above_the_high_watermark_stay(limit: int, gone: int):
    assert count(LogConfig(retention_ms=0, retention_bytes=0), limit=limit, now_ms=9_999) == gone
    assert count(LogConfig(retention_ms=-1), start=30, limit=limit) == gone


def test_a_compacted_topic_keeps_all_segments_above_its_start():
    compacted = LogConfig(cleanup_policy="compact", retention_ms=0, retention_bytes=0)
    assert count(compacted, now_ms=9_999) == 0
    assert count(compacted, start=20, now_ms=9_999) == 2
    both = replace(compacted, cleanup_policy="compact,delete")
    assert count(both, now_ms=9_999) == 3


def test_an_old_empty_segment_stays():
    spans = [SegmentSpan(0, 0, 0)]
    config = LogConfig(retention_ms=0, retention_bytes=0)
    assert segments_to_delete(spans, config, log_start_offset=0, limit=0, now_ms=DAY_MS) == 0


# --- logs -----------------------------------------------------------------------------------------


def test_old_segments_are_deleted_and_the_log_starts_later(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    for offset in range(8):
        send(disk_log, b"%04d" % offset, timestamp_ms=TIMESTAMP_MS + offset * DAY_MS)
    logs.checkpoint_high_watermarks({T0: 8})
    machine.clock.now_ms = TIMESTAMP_MS + 13 * DAY_MS
    logs.clean_up()
    assert values(disk_log) == numbered(6, 8)
    assert files(disk_log.path) == ["6.log"]
    assert files(disk_log.path, ".log.deleted") == [".log.deleted", "3.log.deleted"]
    assert "retention dropped 2 segments of 1 logs, first: t-0" in caplog.text
    assert values(log_of(machine.restart())) == numbered(6, 8)


def test_a_log_with_only_old_records_keeps_its_end_offset(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8, leader_epoch=3)
    logs.checkpoint_high_watermarks({T0: 8})
    machine.clock.now_ms += 8 * DAY_MS
    logs.clean_up()
    assert (disk_log.log_start_offset, disk_log.log_end_offset) == (8, 8)
    assert files(disk_log.path) == ["8.log"]
    assert files(disk_log.path, ".snapshot") == ["8.snapshot"]
    assert disk_log.end_offset_for_epoch(3) == EpochEndOffset(3, 8)
    send(disk_log, b"0008", leader_epoch=3)
    assert values(disk_log) == numbered(8, 9)


def test_a_log_with_a_damaged_header_stays_in_use_and_the_others_are_cleaned_up(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    fill(disk_log, 8)
    fill(create(logs, T1), 8)
    logs.checkpoint_high_watermarks({T0: 8, T1: 8})
    logs.close(is_clean=True)
    flip_byte(segment_file(disk_log.path, 3), MAGIC_AT)
    segment_file(disk_log.path, 3, ".timeindex").unlink()
    logs = machine.start()
    machine.clock.now_ms += 8 * DAY_MS
    logs.clean_up()
    assert log_of(logs).log_end_offset == 8
    assert log_of(logs, T1).log_start_offset == 8
    assert machine.failed == []
    assert "t-0: retention deletes nothing" in caplog.text


def test_no_segment_is_deleted_before_a_high_watermark_is_known(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    machine.clock.now_ms += 8 * DAY_MS
    logs.clean_up()
    assert values(disk_log) == numbered(0, 8)
    logs.checkpoint_high_watermarks({T0: 5})
    logs.clean_up()
    assert values(disk_log) == numbered(3, 8)


def test_the_checkpointed_high_watermark_counts_after_a_restart(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    logs.checkpoint_high_watermarks({T0: 5})
    machine.clock.now_ms += 8 * DAY_MS
    logs = machine.restart()
    logs.clean_up()
    assert values(log_of(logs)) == numbered(3, 8)


def test_a_truncation_lowers_the_limit(machine: Machine, logs: LogManager, disk_log: UnifiedLog):
    fill(disk_log, 8)
    logs.checkpoint_high_watermarks({T0: 8})
    disk_log.truncate_to(4)
    fill(disk_log, 4)
    machine.clock.now_ms += 8 * DAY_MS
    logs.clean_up()
    assert values(disk_log) == numbered(3, 8)


def test_segments_of_deleted_records_are_deleted(logs: LogManager, disk_log: UnifiedLog):
    logs.configure({"t": FOREVER})
    fill(disk_log, 8)
    logs.checkpoint_high_watermarks({T0: 8})
    disk_log.advance_log_start_offset(7)
    assert files(disk_log.path) == [".log", "3.log", "6.log"]
    logs.clean_up()
    assert files(disk_log.path) == ["6.log"]
    assert values(disk_log) == [b"0007"]
    assert disk_log.log_start_offset == 7


def test_a_topic_may_keep_a_number_of_bytes(logs: LogManager, disk_log: UnifiedLog):
    logs.configure({"t": replace(FOREVER, retention_bytes=5 * BATCH_BYTES)})
    fill(disk_log, 8)
    logs.checkpoint_high_watermarks({T0: 8})
    logs.clean_up()
    assert values(disk_log) == numbered(3, 8)
