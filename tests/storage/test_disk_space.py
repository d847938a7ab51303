"""Producers are refused before the disk is full; a person is told how full it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import AppendOrigin
from regent.storage.disk_space import DiskSpace
from tests.support.disk_logs import T0, Machine, send, values
from tests.support.record_batches import batch

MB = 1_000_000


class Disk:
    """A file system of 100 MB, and a clock."""

    def __init__(self) -> None:
        self.free = 50 * MB
        self.now_s = 0.0

    def statvfs(self, _: Path) -> Any:
        return SimpleNamespace(f_blocks=100 * MB, f_frsize=1, f_bavail=self.free)

    def space(self) -> DiskSpace:
        return DiskSpace(Path("/d"), self.statvfs, lambda: self.now_s)


def leader_on(disk: Disk, path: Path) -> tuple[Machine, Any]:
    machine = Machine(path)
    logs = machine.start()
    (space,) = logs.spaces
    space.statvfs, space.min_free_bytes = disk.statvfs, 10 * MB
    space.clock = lambda: disk.now_s
    return machine, logs.get_or_create(T0, None, is_new=True)


def test_producers_are_refused_while_too_little_is_free_and_then_accepted_again(
    tmp_path: Path,
) -> None:
    disk = Disk()
    machine, log = leader_on(disk, tmp_path)
    send(log, b"a")
    disk.free, disk.now_s = 9 * MB, 1.0

    with pytest.raises(RecordsRefusedError, match=r"has 9\.0 MB left, less than") as refused:
        send(log, b"b")

    assert refused.value.error_code is Errors.KAFKA_STORAGE_ERROR
    assert not machine.failed, "the directory stays in use"
    disk.free, disk.now_s = 11 * MB, 2.0
    send(log, b"c")
    assert values(log) == [b"a", b"c"]
    machine.end()


def test_the_log_says_once_when_producers_are_refused_and_when_they_no_longer_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    disk = Disk()
    space = disk.space()
    space.min_free_bytes = 10 * MB
    for second, free in enumerate((50, 9, 8, 11, 12)):
        disk.now_s, disk.free = float(second), free * MB
        space.sample()
    refused, accepted = (r.getMessage() for r in caplog.records)
    assert refused.startswith("records of producers are refused: log directory /d has 9.0 MB left,")
    assert accepted == "records of producers are accepted again: log directory /d has 11 MB left"


def test_coordinators_and_followers_may_use_what_is_left(tmp_path: Path) -> None:
    disk = Disk()
    disk.free = MB
    machine, log = leader_on(disk, tmp_path)
    log.append_as_leader(bytearray(batch(b"a")), 0, AppendOrigin.COORDINATOR)
    log.append_as_follower(bytes(batch(b"b", base_offset=1)))
    assert values(log) == [b"a", b"b"]
    machine.end()


def test_a_repeated_batch_is_answered_although_the_disk_is_nearly_full(tmp_path: Path) -> None:
    """Else its producer would never learn that it was written."""
    disk = Disk()
    machine, log = leader_on(disk, tmp_path)
    sequence = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    send(log, b"a", **sequence)
    disk.free, disk.now_s = MB, 1.0
    assert send(log, b"a", **sequence).is_duplicate
    machine.end()


@pytest.mark.parametrize(
    ("free_mb", "said"),
    [(16, ""), (15, "nearly full: 85 % used, 15 MB left"), (5, "almost full: 95 % used")],
)
def test_a_nearly_full_directory_is_a_warning(free_mb: int, said: str) -> None:
    disk = Disk()
    disk.free = free_mb * MB
    line = disk.space().warning(85, 95)
    assert said in line
    assert bool(line) is bool(said)


def test_the_warning_says_when_it_is_full_at_the_present_rate() -> None:
    disk = Disk()
    space = disk.space()
    assert space.filled_per_s() is None
    for minute in range(3):
        disk.now_s, disk.free = 60.0 * minute, (14 - minute) * MB
        space.sample()
    assert "full in 12 min at the present 17 kB a second" in space.warning(85, 95)


def test_a_file_system_that_does_not_answer_refuses_nobody_and_is_no_warning() -> None:
    def broken(_: Path) -> Any:
        raise OSError

    space = DiskSpace(Path("/d"), broken)
    space.min_free_bytes = 10 * MB
    space.check(AppendOrigin.CLIENT)
    space.sample()
    assert space.warning(85, 95) == ""
