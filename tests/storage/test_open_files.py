"""More logs than open files: files are closed when too many are open, and opened when needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.model import TopicPartition
from regent.core.records import Records
from regent.storage.log.open_files import OpenFiles, default_limit
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_names import TO_DELETE
from tests.support.descriptors import no_descriptor_left
from tests.support.disk_logs import (
    TOPIC_ID,
    Machine,
    break_disk,
    create,
    files,
    fill,
    log_of,
    numbered,
    segment_file,
    values,
)

LIMIT = 3
NAMES = [TopicPartition("many", number) for number in range(10)]


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Machine]:
    """A machine with two log directories, whose processes keep few files open."""
    machine = Machine(tmp_path / "one", tmp_path / "two", open_files_max=LIMIT)
    yield machine
    machine.end()


@pytest.fixture
def ten(few: Machine) -> list[UnifiedLog]:
    """Ten logs with two records each."""
    logs = few.start()
    created = [create(logs, name) for name in NAMES]
    for log in created:
        fill(log, 2)
    return created


def open_below(*directories: Path) -> list[str]:
    """Return the paths of segments that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if ".log" in Path(target).name and target.startswith(tuple(map(str, directories))):
            found.append(target)
    return found


def read(log: UnifiedLog) -> Records:
    """Read all records of a log."""
    return log.read(0, 10_000, log.log_end_offset, at_least_one=True)


def test_more_logs_than_open_files_are_written_and_read(few: Machine, ten: list[UnifiedLog]):
    for log in ten * 2:
        assert values(log) == numbered(0, log.log_end_offset)
        fill(log, 1)
        assert len(open_below(*few.directories)) <= LIMIT
    assert [log.log_end_offset for log in ten] == [4] * len(ten)


def test_a_log_without_records_has_no_file_open(few: Machine):
    logs = few.start()
    log = create(logs)
    assert open_below(*few.directories) == []
    fill(log, 1)
    assert open_below(*few.directories) == [str(segment_file(log.path, 0))]


def test_a_log_that_was_loaded_has_no_file_open(few: Machine, ten: list[UnifiedLog]):
    assert len(ten) == len(NAMES)
    logs = few.crash()
    assert open_below(*few.directories) == []
    assert [values(log_of(logs, name)) for name in NAMES] == [numbered(0, 2)] * len(NAMES)


def test_a_file_that_is_used_stays_open(few: Machine, ten: list[UnifiedLog]):
    busy, *others = ten
    assert values(busy) == numbered(0, 2)
    opened = few.logs.files.opened
    for log in others:
        fill(log, 1)
        assert values(busy) == numbered(0, 2)
    assert few.logs.files.opened - opened == len(others)


def test_records_that_were_read_stay_readable_when_the_file_is_closed(
    few: Machine, ten: list[UnifiedLog]
):
    first, *others = ten
    records = read(first)
    data = records.read()
    path = str(segment_file(first.path, 0))
    for log in others:
        fill(log, 1)
    assert open_below(*few.directories).count(path) == 1
    first.truncate_fully_and_start_at(9)
    first.delete_dropped_files(2**62)
    assert records.read() == data
    del records
    assert not any(".deleted" in target for target in open_below(*few.directories))


def test_readers_of_many_logs_do_not_keep_more_files_open(few: Machine, ten: list[UnifiedLog]):
    found = [read(log) for log in ten]
    assert len(open_below(*few.directories)) <= 2 * LIMIT
    assert [records.file_range is None for records in found].count(True) >= len(ten) - 2 * LIMIT
    contents = {bytes(records.read()) for records in found}
    assert len(contents) == 1


def test_aborted_transactions_are_found_by_the_file_that_was_read(
    few: Machine, ten: list[UnifiedLog]
):
    first, *others = ten
    records = read(first)
    for log in others:
        fill(log, 1)
    part = records.file_range
    assert part is not None
    with first.locked() as contents:
        assert contents.active.file is not part.file
        assert contents.active.is_open_as(part.file)


def test_logs_whose_files_are_closed_are_truncated_flushed_and_rolled(
    few: Machine, ten: list[UnifiedLog]
):
    for log in ten:
        log.truncate_to(1)
    for log in ten:
        fill(log, 4)
        log.flush()
        assert log.recovery_point == 5
        assert files(log.path) == [".log", "3.log"]
    logs = few.crash()
    assert [values(log_of(logs, name)) for name in NAMES] == [numbered(0, 5)] * len(NAMES)


def test_a_log_is_opened_under_its_present_name(few: Machine, ten: list[UnifiedLog]):
    moved, *others = ten
    path = moved.path.with_name("renamed-0")
    with moved.locked():
        moved.path.rename(path)
        moved.move_to(path)
    for log in others:
        fill(log, 1)
    fill(moved, 1)
    assert values(moved) == numbered(0, 3)


def test_a_deleted_log_has_no_file_open(few: Machine, ten: list[UnifiedLog]):
    name = ten.pop().topic_partition
    assert len(open_below(*few.directories)) == LIMIT
    few.logs.delete(name, deleted_topic=TOPIC_ID)
    assert len(open_below(*few.directories)) == LIMIT - 1
    assert [path for path in open_below(*few.directories) if TO_DELETE in path] == []


def test_a_log_is_not_flushed_when_its_file_is_closed(few: Machine, ten: list[UnifiedLog]):
    first, *others = ten
    fill(first, 1)
    break_disk(segment_file(first.path, 0))
    for log in others:
        fill(log, 1)
    assert few.failed == []
    assert values(first) == numbered(0, 3)


def test_without_a_descriptor_others_are_closed(tmp_path: Path):
    machine = Machine(tmp_path / "one")
    logs = machine.start()
    created = [create(logs, name) for name in NAMES]
    for log in created[1:]:
        fill(log, 1)
    assert len(logs.files) == len(NAMES) - 1
    fill(created[0], 1)
    with created[0].locked() as contents:
        contents.active.close()
    with no_descriptor_left():
        fill(created[0], 1)
    assert values(created[0]) == numbered(0, 2)
    machine.end()


@pytest.mark.parametrize(
    ("descriptors", "limit"),
    [(64, 16), (512, 128), (1_024, 512), (20_000, 10_000), (2**20, 2**19)],
)
def test_half_of_the_descriptors_are_for_logs_and_some_hundreds_are_not(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, limit: int
):
    monkeypatch.setattr("resource.getrlimit", lambda _: (descriptors, descriptors))
    assert default_limit() == OpenFiles().limit == limit
    assert OpenFiles(7).limit == 7
