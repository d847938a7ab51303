"""Bits that flip in closed segments: a reader gets the written records or an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.core.replica_logs import MAX_TIMESTAMP
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    BATCH_BYTES,
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
from tests.support.record_batches import TIMESTAMP_MS, batch, offsets_of

COUNT = 11  # in segments of three, so that the last one has two
EVERYTHING = 2**31 - 1
MIB = 1024 * 1024
FIELDS = {
    "base offset": 7,
    "base offset, far off": 2,
    "base offset, negative": 0,
    "length": 11,
    "length, far off": 9,
    "leader epoch": 15,
    "magic": 16,
    "crc": 17,
    "attributes": 22,
    "last offset delta": 26,
    "last offset delta, far off": 24,
    "max timestamp": 36,
    "record count": 60,
    "records": BATCH_BYTES - 1,
}


def flip_before_the_start(machine: Machine, damage: Callable[[], None]) -> None:
    machine.logs.close(is_clean=True)
    damage()
    machine.start()


def flip_while_open(machine: Machine, damage: Callable[[], None]) -> None:
    del machine
    damage()


def flip_when_verified(machine: Machine, damage: Callable[[], None]) -> None:
    assert machine.logs.verify(MIB) > 0
    values(log_of(machine.logs))
    damage()


def flip_when_half_of_it_was_read(machine: Machine, damage: Callable[[], None]) -> None:
    log = log_of(machine.restart())
    end = log.log_end_offset
    for offset in range(0, end, 2):
        log.read(offset, 1, end, at_least_one=True)
    damage()


WHEN = [
    flip_before_the_start,
    flip_while_open,
    flip_when_verified,
    flip_when_half_of_it_was_read,
]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("interval", [1, 4096])
def test_no_reader_gets_a_damaged_batch(
    machine: Machine,
    position: int,
    interval: int,
    when: Callable[[Machine, Callable[[], None]], None],
):
    """Each field is damaged in the batch at this position of another segment of three."""
    machine.defaults = replace(THREE_A_SEGMENT, index_interval_bytes=interval)
    disk_log = create(machine.start())
    # Where segments meet, a too new epoch cannot be noticed.
    fields = [at for name, at in FIELDS.items() if (name, position) != ("leader epoch", 2)]
    bases = range(3, 3 * len(fields) + 3, 3)
    end = bases[-1] + 5  # the first segment is sound, and the last one, which has two
    fill(disk_log, end)

    def damage() -> None:
        for base, at in zip(bases, fields, strict=True):
            flip_byte(segment_file(disk_log.path, base), position * BATCH_BYTES + at)

    when(machine, damage)
    log = log_of(machine.logs)
    got: set[int] = set()
    for _ in range(2):
        for offset in range(end):
            for max_bytes in (1, 2 * BATCH_BYTES, EVERYTHING):
                try:
                    data = log.read(offset, max_bytes, end, at_least_one=True).read()
                except DamagedRecordsError:
                    continue
                assert data == written(offset, offset + len(data) // BATCH_BYTES)
                assert data
                got.update(offsets_of(data))
    assert got.isdisjoint(base + position for base in bases)
    # The batch before a bad offset may be the bad one.
    sound = {offset for base in bases for offset in range(base, base + position - 1)}
    assert got >= {0, 1, 2, end - 2, end - 1} | sound
    assert machine.failed == []


def written(start: int, end: int) -> bytes:
    """Return the batches that ``fill`` writes."""
    return b"".join(batch(b"%04d" % offset, base_offset=offset) for offset in range(start, end))


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("size", [2 * BATCH_BYTES + 5, 3 * BATCH_BYTES - 1])
def test_a_truncated_file_is_read_up_to_its_end(
    machine: Machine,
    disk_log: UnifiedLog,
    size: int,
    when: Callable[[Machine, Callable[[], None]], None],
):
    fill(disk_log, COUNT)
    when(machine, lambda: os.truncate(segment_file(disk_log.path, 3), size))
    log = log_of(machine.logs)
    assert offsets_of(log.read(3, EVERYTHING, COUNT, at_least_one=True).read()) == [3, 4]
    with pytest.raises(DamagedRecordsError):
        log.read(5, EVERYTHING, COUNT, at_least_one=True)
    assert log.read(6, EVERYTHING, COUNT, at_least_one=True).read() == written(6, 9)


def test_a_batch_in_the_middle_of_a_large_read_ends_it(machine: Machine):
    machine.defaults = LogConfig(segment_bytes=3 * MIB)
    log = create(machine.start())
    data = b"".join(batch(b"x" * 10_000, base_offset=offset) for offset in range(500))
    size = len(data) // 500
    for start in range(0, 500, 10):
        log.append_as_follower(data[start * size : (start + 10) * size])
    flip_byte(segment_file(log.path, 0), 50 * size + 5_000)
    assert log.read(0, EVERYTHING, 500, at_least_one=True).read() == data[: 50 * size]
    with pytest.raises(DamagedRecordsError, match=f"at {50 * size}: "):
        log.read(50, EVERYTHING, 500, at_least_one=True)
    records = log.read(51, EVERYTHING, 500, at_least_one=True)
    assert records.file_range is not None
    assert MIB - size < records.size <= MIB  # the limit of one check
    assert records.read() == data[51 * size : 51 * size + records.size]


def test_the_number_of_batches_in_one_check_is_limited(machine: Machine):
    machine.defaults = LogConfig(segment_bytes=2_100 * BATCH_BYTES)
    log = create(machine.start())
    for start in range(0, 3_000, 100):
        log.append_as_follower(written(start, start + 100))
    assert log.read(0, EVERYTHING, 3_000, at_least_one=True).size == 2_000 * BATCH_BYTES
    assert values(log) == numbered(0, 3_000)


def test_a_batch_larger_than_the_limit_of_one_check_is_checked(machine: Machine):
    machine.defaults = LogConfig(segment_bytes=4 * MIB)
    log = create(machine.start())
    data = [batch(b"x" * 3 * MIB, base_offset=offset) for offset in range(3)]
    for each in data:
        log.append_as_follower(each)
    assert log.read(0, 1, 3, at_least_one=True).read() == data[0]
    flip_byte(segment_file(log.path, 1), 2 * MIB)
    with pytest.raises(DamagedRecordsError, match="its CRC does not match"):
        log.read(1, 1, 3, at_least_one=True)


# --- which batches are not checked again ----------------------------------------------------------


def test_verified_batches_are_not_checked_until_the_next_write(
    logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, COUNT)
    logs.verify(MIB)
    path = segment_file(disk_log.path, 3)
    modified_ns = path.stat().st_mtime_ns
    flip_byte(path, BATCH_BYTES - 1)
    os.utime(path, ns=(modified_ns, modified_ns))
    assert offsets_of(disk_log.read(3, EVERYTHING, COUNT, at_least_one=True).read()) == [3, 4, 5]
    path.touch()
    with pytest.raises(DamagedRecordsError):
        disk_log.read(3, EVERYTHING, COUNT, at_least_one=True)


def test_batches_of_a_former_process_in_the_active_segment_are_checked(
    machine: Machine, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    log = log_of(machine.restart())
    flip_byte(segment_file(log.path, 0), BATCH_BYTES - 1)
    fill(log, 1)
    assert files(log.path) == [".log"]
    with pytest.raises(DamagedRecordsError):
        log.read(0, EVERYTHING, 3, at_least_one=True)
    assert log.read(1, EVERYTHING, 3, at_least_one=True).read() == written(1, 3)


def test_appended_batches_are_not_checked_until_the_segment_is_closed(
    machine: Machine, disk_log: UnifiedLog
):
    fill(disk_log, 1)
    log = log_of(machine.restart())
    fill(log, 2)
    flip_byte(segment_file(log.path, 0), 3 * BATCH_BYTES - 1)
    assert offsets_of(log.read(2, EVERYTHING, 3, at_least_one=True).read()) == [2]
    fill(log, 1)
    with pytest.raises(DamagedRecordsError):
        log.read(2, EVERYTHING, 4, at_least_one=True)


@pytest.mark.parametrize("is_verified", [False, True])
@pytest.mark.parametrize("end", [4, 5])
def test_the_rest_of_a_truncated_closed_segment_is_checked(
    logs: LogManager, disk_log: UnifiedLog, end: int, *, is_verified: bool
):
    fill(disk_log, COUNT)
    if is_verified:
        logs.verify(MIB)
    disk_log.truncate_to(end)
    flip_byte(segment_file(disk_log.path, 3), BATCH_BYTES - 1)
    fill(disk_log, COUNT - end)
    with pytest.raises(DamagedRecordsError):
        disk_log.read(3, EVERYTHING, COUNT, at_least_one=True)
    disk_log.truncate_to(3)
    fill(disk_log, COUNT - 3)
    assert values(disk_log) == numbered(0, COUNT)


def test_recovered_batches_are_not_checked_again(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, COUNT)
    log = log_of(machine.crash())
    path = segment_file(log.path, 3)
    modified_ns = path.stat().st_mtime_ns
    flip_byte(path, BATCH_BYTES - 1)
    os.utime(path, ns=(modified_ns, modified_ns))
    assert offsets_of(log.read(3, EVERYTHING, COUNT, at_least_one=True).read()) == [3, 4, 5]
    path.touch()
    with pytest.raises(DamagedRecordsError):
        log.read(3, EVERYTHING, COUNT, at_least_one=True)


def test_gaps_of_compaction_are_no_damage(disk_log: UnifiedLog):
    for offset in (0, 5, 6, 20, 40, 41, 60):
        disk_log.append_as_follower(batch(b"0000", base_offset=offset))
    assert files(disk_log.path) == [".log", "42.log", "7.log"]
    for offset, first in ((1, 5), (7, 20), (19, 20), (21, 40), (59, 60)):
        data = disk_log.read(offset, 1, 61, at_least_one=True).read()
        assert offsets_of(data) == [first]


# --- batches that cannot be found -----------------------------------------------------------------


@pytest.mark.parametrize("when", WHEN)
def test_no_time_is_found_in_a_damaged_segment(
    machine: Machine, disk_log: UnifiedLog, when: Callable[[Machine, Callable[[], None]], None]
):
    for number in range(COUNT):
        send(disk_log, b"%04d" % number, timestamp_ms=TIMESTAMP_MS + number)
    path = segment_file(disk_log.path, 0)
    when(machine, lambda: flip_byte(path, BATCH_BYTES + 16))
    log = log_of(machine.logs)
    with pytest.raises(DamagedRecordsError):
        log.offset_of_timestamp(MAX_TIMESTAMP, 2)
    assert log_of(machine.logs) is log
