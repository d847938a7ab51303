"""The contents of a disk after a loss of power: flushed data (fsync), and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regent.core.replica_logs import AppendOrigin
from regent.records.record_batch import read_header
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import T0, TOPIC_ID, Machine, create, fill, log_of, send, values
from tests.support.durable_files import DurableFiles
from tests.support.transactional_batches import ABORT, in_transaction, marker


@pytest.fixture
def disk() -> Iterator[DurableFiles]:
    disk = DurableFiles()
    with disk.watched():
        yield disk


@pytest.fixture
def machine(disk: DurableFiles, tmp_path: Path) -> Iterator[Machine]:
    """A machine that can lose its power."""
    machine = Machine(tmp_path / "one")
    yield machine
    machine.end()


def lose_power(
    machine: Machine, disk: DurableFiles, dice: random.Random | None = None
) -> LogManager:
    """Restart with the flushed data; with ``dice``, also with some of the other data."""
    [before] = machine.directories
    after = before.with_name(before.name + "+")
    if dice is None:
        disk.restore(before, after)
    else:
        disk.restore_torn(before, after, dice)
    machine.directories = [after]
    return machine.start()


def lose_data(machine: Machine, disk: DurableFiles) -> LogManager:
    """Restart with the flushed data in files that have their last names."""
    [before] = machine.directories
    after = before.with_name(before.name + "+")
    disk.restore_named(before, after)
    machine.directories = [after]
    return machine.start()


def epochs_of(log: UnifiedLog) -> dict[int, int]:
    """Return the end offsets of the epochs in the records."""
    ends: dict[int, int] = {}
    offset = 0
    while offset < log.log_end_offset:
        data = log.read(offset, 1, log.log_end_offset, at_least_one=True).read()
        header = read_header(data)
        offset = ends[header.partition_leader_epoch] = header.next_offset
    return ends


def test_flushed_records_survive_with_epochs_and_topic_id(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog
):
    fill(disk_log, 4, leader_epoch=1)
    fill(disk_log, 4, leader_epoch=2)
    disk_log.flush()
    machine.logs.checkpoint_recovery_points()
    fill(disk_log, 4, leader_epoch=3)
    log = log_of(lose_power(machine, disk))
    assert log.topic_id == TOPIC_ID
    assert len(values(log)) == 8
    assert (log.latest_epoch, log.end_offset_for_epoch(1).end_offset) == (2, 4)


def test_a_new_unflushed_log_is_empty_and_suspect(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog
):
    fill(disk_log, 4)
    machine.logs.checkpoint_high_watermarks({T0: 4})
    logs = lose_power(machine, disk)
    assert values(log_of(logs)) == []
    assert logs.is_suspect(T0)


@pytest.mark.parametrize("seed", range(3))
def test_the_rest_of_a_log_has_its_topic_id(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog, seed: int
):
    fill(disk_log, 4)
    logs = lose_power(machine, disk, random.Random(seed))
    assert logs.hosted() == {T0: TOPIC_ID}


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_begins_at_its_leaders_start_has_its_topic_id(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog, seed: int
):
    disk_log.truncate_fully_and_start_at(100)
    logs = lose_power(machine, disk, random.Random(seed))
    assert logs.hosted() == {T0: TOPIC_ID}


def test_records_without_a_topic_id_get_one_once(
    machine: Machine, disk: DurableFiles, logs: LogManager
):
    log = create(logs, topic_id=None)
    fill(log, 4)
    log.flush()
    create(logs, topic_id=TOPIC_ID)
    assert lose_power(machine, disk).hosted() == {T0: TOPIC_ID}


def test_a_flush_after_a_crash_includes_the_names_of_files(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog
):
    fill(disk_log, 4)
    logs = machine.crash()
    log_of(logs).flush()
    logs.checkpoint_recovery_points()
    assert len(values(log_of(lose_power(machine, disk)))) == 4


@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_everything_before_the_recovery_point_is_on_the_disk(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog, seed: int, is_torn: bool
):
    dice = random.Random(seed)
    logs, epoch = machine.logs, 0
    for step in range(40):
        match dice.randrange(8):
            case 0 | 1 | 2:
                for i in range(dice.randrange(1, 5)):
                    send(disk_log, b"%d" % (1000 + step * 10 + i), leader_epoch=epoch)
            case 3:
                epoch += 1
                disk_log.truncate_to(dice.randrange(disk_log.log_end_offset + 1))
            case 4:
                logs.flush()
            case 5:
                disk_log.flush()
            case _:
                logs.checkpoint_recovery_points()
    safe, expected = disk_log.recovery_point, values(disk_log)
    logs = lose_power(machine, disk, dice if is_torn else None)
    if logs.get(T0) is None:
        assert safe == 0
        return
    log = log_of(logs)
    assert values(log)[:safe] == expected[:safe]
    ends = epochs_of(log)
    assert {e: log.end_offset_for_epoch(e).end_offset for e in ends} == ends


def drop_the_oldest(log: UnifiedLog) -> None:
    log.advance_log_start_offset(7)
    assert log.delete_old_segments(0) > 0


def begin_at_the_leaders_start(log: UnifiedLog) -> None:
    log.truncate_fully_and_start_at(8)


@pytest.mark.parametrize("drop", [drop_the_oldest, begin_at_the_leaders_start])
def test_no_segment_counts_as_missing_that_was_dropped(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog, drop: Callable[[UnifiedLog], None]
):
    fill(disk_log, 8, leader_epoch=1)
    disk_log.flush()
    machine.logs.checkpoint_recovery_points()
    machine.logs.checkpoint_high_watermarks({T0: 8})
    drop(disk_log)
    assert log_of(lose_data(machine, disk)).log_end_offset == 8


def test_records_appended_after_a_truncation_below_the_recovery_point_are_recovered(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog
):
    send(disk_log, *[b"1"] * 10)
    disk_log.flush()
    machine.logs.checkpoint_recovery_points()
    disk_log.truncate_to(0)
    fill(disk_log, 10, leader_epoch=1)
    log = log_of(lose_data(machine, disk))
    assert len(values(log)) == log.log_end_offset


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_shut_down", [False, True])
def test_aborted_transactions_are_known_as_long_as_their_records(
    machine: Machine, disk: DurableFiles, seed: int, is_shut_down: bool
):
    """An entry that is lost would make aborted records readable."""
    log = create(machine.start())
    abort = marker(ABORT, producer_id=7)
    for sequence in range(12):
        data = in_transaction(b"x", producer_id=7, sequence=sequence)
        log.append_as_leader(bytearray(data), 0)
        log.append_as_leader(bytearray(abort), 0, AppendOrigin.COORDINATOR)
        if sequence % 4 == 3:
            log.flush()
            machine.logs.checkpoint_recovery_points()
    if is_shut_down:
        machine.restart()
    log = log_of(lose_power(machine, disk, random.Random(seed)))
    offset, told = 0, set[int]()
    while offset < log.log_end_offset:
        records = log.read(offset, 1, log.log_end_offset, at_least_one=True)
        told |= {each.first_offset for each in log.aborted_transactions(offset, records)}
        offset = read_header(records.read()).next_offset
    assert told == set(range(0, log.log_end_offset - 1, 2))


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_log_that_is_held_for_undelete_is_whole_until_it_is_used_again(
    machine: Machine, disk: DurableFiles, disk_log: UnifiedLog, seed: int | None
):
    dice = None if seed is None else random.Random(seed)
    fill(disk_log, 8, leader_epoch=3)
    machine.logs.delete(T0, deleted_topic=TOPIC_ID)
    assert machine.logs.deleted.hold(T0, TOPIC_ID)
    for _ in range(2):
        logs = lose_power(machine, disk, dice)
        disk.note_all(*machine.directories)
        assert logs.deleted.hold(T0, TOPIC_ID)
    log = logs.get_or_create(T0, TOPIC_ID, is_new=False)
    assert len(values(log)) == 8
    fill(log, 1, leader_epoch=4)
    logs = lose_power(machine, disk, dice)
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert not logs.deleted.hold(T0, TOPIC_ID), "its last records may be lost"
