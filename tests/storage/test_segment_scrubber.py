"""Segments are verified in the background, so that damage is found before a reader finds it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.storage.log.log_file import LogFile
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.testing.waits import scaled
from tests.support.disk_logs import (
    BATCH_BYTES,
    T0,
    T1,
    THREE_A_SEGMENT,
    Machine,
    break_disk,
    create,
    fill,
    flip_byte,
    log_of,
    numbered,
    segment_file,
    values,
)
from tests.support.record_batches import batch

SEGMENT = 3 * BATCH_BYTES
MIB = 1024 * 1024
EVERYTHING = 2**31 - 1
MINUTE_MS = 60 * 1000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS


@pytest.fixture
def log(disk_log: UnifiedLog) -> UnifiedLog:
    """A log of three closed segments, and one batch in the active one."""
    fill(disk_log, 10)
    return disk_log


def damage(log: UnifiedLog, base_offset: int, at: int = BATCH_BYTES - 1) -> None:
    flip_byte(segment_file(log.path, base_offset), at)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


# --- which segments are verified, and when --------------------------------------------------------


def test_closed_segments_are_checked_once(machine: Machine, logs: LogManager, log: UnifiedLog):
    assert logs.verify(EVERYTHING) == 3 * SEGMENT
    assert logs.verify(EVERYTHING) == 0
    fill(log, 3)
    assert logs.verify(EVERYTHING) == SEGMENT
    assert machine.restart().verify(EVERYTHING) == 4 * SEGMENT
    assert machine.damaged == []


def test_a_week_later_they_are_checked_again(machine: Machine, logs: LogManager, log: UnifiedLog):
    logs.verify(EVERYTHING)
    machine.clock.now_ms += WEEK_MS - 1
    assert logs.verify(EVERYTHING) == 0
    machine.clock.now_ms += 1
    assert values(log) == numbered(0, 10)
    assert logs.verify(EVERYTHING) == 3 * SEGMENT


def test_a_segment_is_checked_again_after_a_write(
    machine: Machine, logs: LogManager, log: UnifiedLog
):
    logs.verify(EVERYTHING)
    segment_file(log.path, 3).touch()
    assert logs.verify(EVERYTHING) == SEGMENT
    damage(log, 6)
    logs.verify(EVERYTHING)
    assert machine.damaged == [T0]


@pytest.mark.parametrize("max_bytes", [1, SEGMENT, SEGMENT + 1, 4 * SEGMENT])
def test_a_call_checks_a_limited_amount_and_the_next_one_continues(
    machine: Machine, logs: LogManager, log: UnifiedLog, max_bytes: int
):
    fill(create(logs, T1), 7)
    checked = []
    while found := logs.verify(max_bytes):
        checked.append(found)
    assert sum(checked) == 5 * SEGMENT
    assert max(checked) < max_bytes + BATCH_BYTES
    assert all(found >= max_bytes for found in checked[:-1])
    for name in (T0, T1):
        assert all(segment.is_verified() for segment in closed_segments(log_of(logs, name)))


def closed_segments(log: UnifiedLog) -> list[LogSegment]:
    with log.exclusively() as contents:
        return contents.segments[:-1]


def test_segments_that_were_read_unchecked_come_first(logs: LogManager, log: UnifiedLog):
    other = create(logs, T1)
    fill(other, 10)
    other.read(6, 1, 10, at_least_one=True)
    assert logs.verify(SEGMENT) == SEGMENT
    verified = [one.is_verified() for each in (log, other) for one in closed_segments(each)]
    assert verified == [False, False, False, False, False, True]


def test_the_search_for_segments_is_split_over_calls(machine: Machine, logs: LogManager):
    names = [T0._replace(partition=partition) for partition in range(150)]
    for name in names:
        create(logs, name)
    fill(log_of(logs, names[-1]), 10)
    fill(log_of(logs, names[-2]), 10)
    checked = [logs.verify(EVERYTHING) for _ in range(4)]
    assert sum(checked) == 6 * SEGMENT
    damage(log_of(logs, names[-1]), 0)
    for _ in range(2):
        logs.verify(EVERYTHING)
    assert machine.damaged == [names[-1]]


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at", [0, 7, 9, 11, 13, 16, 17, 22, 26, 40, BATCH_BYTES - 1, 2 * BATCH_BYTES, SEGMENT - 1]
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_damage_is_found_without_any_read(
    machine: Machine, logs: LogManager, log: UnifiedLog, at: int, *, is_restarted: bool
):
    create(logs, T1)
    damage(log, 3, at)
    logs = machine.restart() if is_restarted else logs
    logs.verify(EVERYTHING)
    assert machine.damaged == [T0]
    assert machine.failed == []
    assert log_of(logs).log_end_offset == 10


@pytest.mark.parametrize("size", [0, 5, SEGMENT - 1])
def test_a_truncated_file_is_damaged(
    machine: Machine, logs: LogManager, log: UnifiedLog, size: int
):
    os.truncate(segment_file(log.path, 3), size)
    logs.verify(EVERYTHING)
    assert machine.damaged == [T0]


def test_damage_is_reported_once_a_minute_and_logged_once(
    machine: Machine, logs: LogManager, log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    damage(log, 3, 2 * BATCH_BYTES - 1)
    assert logs.verify(EVERYTHING) == 2 * SEGMENT + BATCH_BYTES
    for _ in range(3):
        with pytest.raises(DamagedRecordsError):
            log.read(4, 1, 10, at_least_one=True)
        assert logs.verify(EVERYTHING) == 0
    assert machine.damaged == [T0]
    machine.clock.now_ms += MINUTE_MS
    assert logs.verify(EVERYTHING) == BATCH_BYTES
    assert machine.damaged == [T0, T0]
    [line] = errors(caplog)
    path = segment_file(log.path, 3)
    text = f"{path}: at {BATCH_BYTES}: a corrupt batch: its CRC does not match"
    assert line == f"t-0: records are damaged: {text}"


def test_damage_that_was_repaired_is_forgotten(machine: Machine, logs: LogManager, log: UnifiedLog):
    damage(log, 3)
    logs.verify(EVERYTHING)
    damage(log, 3)
    machine.clock.now_ms += MINUTE_MS
    assert logs.verify(EVERYTHING) == SEGMENT
    assert machine.damaged == [T0]
    assert values(log) == numbered(0, 10)


def test_no_log_is_locked_during_the_report_of_damage(tmp_path: Path):
    reported: list[DamagedRecordsError] = []

    def mark_damaged(name: object, error: DamagedRecordsError) -> None:
        reported.append(error)
        with ThreadPoolExecutor(1) as executor:  # a lock would block for ever
            executor.submit(manager.mark_damaged, T0, str(error)).result(timeout=scaled(10))

    manager = LogManager(
        [tmp_path / "one"], 1, defaults=THREE_A_SEGMENT, on_records_damaged=mark_damaged
    )
    manager.open()
    log = create(manager)
    fill(log, 10)
    damage(log, 0)
    manager.verify(EVERYTHING)
    assert "its CRC does not match" in str(reported[0])
    assert manager.is_damaged(T0)
    assert manager.verify(EVERYTHING) == 0
    manager.close(is_clean=False)


def test_damage_is_reported_again_after_a_failed_report(tmp_path: Path):
    def fail(name: object, error: DamagedRecordsError) -> None:
        raise RuntimeError(f"{name}: {error}")

    manager = LogManager([tmp_path], 1, defaults=THREE_A_SEGMENT, on_records_damaged=fail)
    manager.open()
    log = create(manager)
    fill(log, 10)
    damage(log, 3)
    with pytest.raises(RuntimeError, match=r"3\.log: at 0"):
        manager.verify(EVERYTHING)
    assert manager.verify(EVERYTHING) == SEGMENT
    assert [segment.is_verified() for segment in closed_segments(log)] == [True, False, True]
    manager.close(is_clean=False)


# --- segments that are deleted during the check ---------------------------------------------------


def delete_log(logs: LogManager, log: UnifiedLog) -> None:
    logs.delete(log.topic_partition)


def retain_nothing(logs: LogManager, log: UnifiedLog) -> None:
    log.configure(replace(THREE_A_SEGMENT, retention_bytes=1))
    logs.checkpoint_high_watermarks({T0: 10})
    logs.clean_up()


WAYS_TO_GO: dict[str, Callable[[LogManager, UnifiedLog], object]] = {
    "retention": retain_nothing,
    "truncation": lambda _, log: log.truncate_to(1),
    "truncation of all": lambda _, log: log.truncate_to(0),
    "a new begin": lambda _, log: log.truncate_fully_and_start_at(5),
    "deletion": delete_log,
    "the process ends": lambda logs, _: logs.close(is_clean=True),
    "marked as damaged": lambda logs, _: logs.mark_damaged(T0, "damage"),
}


@pytest.mark.parametrize("go", WAYS_TO_GO.values(), ids=WAYS_TO_GO)
@pytest.mark.parametrize("max_bytes", [1, SEGMENT - 1])
def test_a_segment_deleted_during_the_check_is_not_damaged(
    machine: Machine,
    logs: LogManager,
    log: UnifiedLog,
    max_bytes: int,
    go: Callable[[LogManager, UnifiedLog], object],
):
    damage(log, 0, SEGMENT - 1)
    assert logs.verify(1) == BATCH_BYTES
    go(logs, log)
    machine.failed.clear()
    for _ in range(5):
        logs.verify(max_bytes)
    assert (machine.damaged, machine.failed) == ([], [])


def test_records_replaced_during_the_check_are_not_damaged(
    machine: Machine, logs: LogManager, log: UnifiedLog
):
    damage(log, 0, SEGMENT - 1)
    logs.verify(1)
    log.truncate_to(2)
    fill(log, 8)
    assert logs.verify(EVERYTHING) >= 3 * SEGMENT
    assert machine.damaged == []
    assert all(segment.is_verified() for segment in closed_segments(log))


def test_reads_and_writes_do_not_wait_for_the_check(
    machine: Machine, logs: LogManager, log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
):
    is_reading, may_go_on = threading.Event(), threading.Event()
    read = LogFile.read

    def slow(file: LogFile, position: int, size: int) -> bytes:
        if threading.current_thread().name.startswith("verifier"):
            is_reading.set()
            assert may_go_on.wait(scaled(10))
        return read(file, position, size)

    monkeypatch.setattr(LogFile, "read", slow)
    with ThreadPoolExecutor(1, "verifier") as executor:
        verified = executor.submit(logs.verify, EVERYTHING)
        assert is_reading.wait(scaled(10))
        fill(log, 1)
        assert values(log) == numbered(0, 11)
        log.truncate_to(4)
        may_go_on.set()
        verified.result(scaled(10))
    assert (machine.damaged, machine.failed) == ([], [])


# --- disks ----------------------------------------------------------------------------------------


def test_a_disk_that_cannot_be_read_fails_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    machine = Machine(tmp_path / "one", tmp_path / "two", defaults=LogConfig(segment_bytes=2 * MIB))
    logs = machine.start()
    for name in (T0, T1):
        log = create(logs, name)
        for offset in range(30):
            log.append_as_follower(batch(b"x" * 100_000, base_offset=offset))
    assert logs.verify(1) > 100_000
    break_disk(segment_file(log_of(logs).path, 0), "/proc/self/mem")
    logs.verify(EVERYTHING)
    assert machine.failed == [machine.directories[0]]
    assert (machine.damaged, len(errors(caplog))) == ([], 1)
    assert all(segment.is_verified() for segment in closed_segments(log_of(logs, T1)))
    machine.end()


def test_a_file_that_is_gone_is_damage_of_its_log(
    machine: Machine, logs: LogManager, log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    log.close()
    log = log_of(machine.restart())
    segment_file(log.path, 3).unlink()
    for _ in range(2):
        machine.logs.verify(EVERYTHING)
    assert (machine.failed, machine.damaged) == ([], [T0])
    assert [text for text in errors(caplog) if "the file is gone" in text]
    with pytest.raises(DamagedRecordsError):
        log.read(3, 1000, 10, at_least_one=True)
    assert log.read(6, 1000, 10, at_least_one=True).size > 0


def test_a_directory_that_is_gone_has_failed(machine: Machine, logs: LogManager, log: UnifiedLog):
    log = log_of(machine.restart())
    log.path.rename(log.path.with_name("elsewhere"))
    machine.logs.verify(EVERYTHING)
    assert (machine.failed, machine.damaged) == (machine.directories, [])


def test_a_segment_with_a_gap_to_the_next_is_damaged(
    machine: Machine, logs: LogManager, log: UnifiedLog
):
    with log.exclusively() as contents:
        del contents.segments[1]
    logs.verify(EVERYTHING)
    assert machine.damaged == [T0]
    with pytest.raises(DamagedRecordsError, match="offsets 3 to 5 are missing"):
        log.read(3, 1000, 10, at_least_one=True)
