"""Logs that are taken away: at once by name, later by file, whatever happens in between."""

from __future__ import annotations

import os
import re

import pytest

from core.errors import StorageError
from core.model import TopicPartition
from storage.log import Log
from storage.log_manager import LogManager
from storage.removed_logs import STRAY_KEPT_MS
from tests.support.disk_logs import T0, Machine, create, fill, log_of, send, values

DELAY_MS = 60_000


def directories(machine: Machine) -> list[str]:
    """Return the names of what is in the log directory, without the digits that differ."""
    [directory] = machine.directories
    names = [path.name for path in directory.iterdir() if path.is_dir()]
    return sorted(re.sub(r"\.[0-9a-f]{32}-", "-", name) for name in names)


def test_a_deleted_log_is_renamed_and_deleted_when_it_is_time(
    machine: Machine, logs: LogManager, disk_log: Log
):
    fill(disk_log, 2)
    logs.delete(T0)
    assert (logs.get(T0), logs.hosted(), logs.is_offline(T0)) == (None, {}, False)
    assert directories(machine) == ["t-0-delete"]
    machine.clock.now_ms += DELAY_MS - 1
    logs.purge()
    assert directories(machine) == ["t-0-delete"]
    machine.clock.now_ms += 1
    logs.purge()
    assert directories(machine) == []


def test_a_stray_log_is_kept_for_longer(machine: Machine, logs: LogManager, disk_log: Log):
    fill(disk_log, 2)
    logs.set_aside(T0)
    assert logs.hosted() == {}
    machine.clock.now_ms += STRAY_KEPT_MS - 1
    logs.purge()
    assert directories(machine) == ["t-0-stray"]
    machine.clock.now_ms += 1
    logs.purge()
    assert directories(machine) == []


@pytest.mark.parametrize("way", ["delete", "set_aside"])
def test_what_was_removed_stays_so_and_its_time_goes_on(
    machine: Machine, logs: LogManager, disk_log: Log, way: str
):
    fill(disk_log, 2)
    getattr(logs, way)(T0)
    machine.clock.now_ms += STRAY_KEPT_MS - 1
    logs = machine.crash()
    assert logs.hosted() == {}
    assert create(logs).log_end_offset == 0
    logs = machine.restart()
    machine.clock.now_ms += 1
    logs.purge()
    assert directories(machine) == ["t-0"]


def test_a_removed_log_can_no_longer_be_written(logs: LogManager, disk_log: Log):
    fill(disk_log, 2)
    logs.delete(T0)
    with pytest.raises(StorageError, match="t-0: the log is deleted"):
        send(disk_log, b"")
    create(logs)
    disk_log.delete_dropped_files()
    assert not disk_log.directory.is_offline
    assert values(log_of(logs)) == []


def test_a_long_name_is_cut(machine: Machine, logs: LogManager):
    name = TopicPartition("x" * 249, 12)
    create(logs, name)
    logs.delete(name)
    [moved] = [path for path in machine.directories[0].iterdir() if path.is_dir()]
    assert len(moved.name) == 255
    machine.clock.now_ms += DELAY_MS
    machine.crash().purge()
    assert directories(machine) == []


def test_a_log_that_somebody_deleted_by_hand_can_be_deleted(logs: LogManager, disk_log: Log):
    disk_log.path.rename(disk_log.path.parent.parent / "elsewhere")
    logs.delete(T0)
    assert logs.hosted() == {}
    assert not disk_log.directory.is_offline


def test_a_log_that_is_removed_while_it_is_flushed_fails_nothing(
    logs: LogManager, disk_log: Log, monkeypatch: pytest.MonkeyPatch
):
    fill(disk_log, 1)
    disk_log.flush()
    fill(disk_log, 7)
    fsync = os.fsync

    def removed_first(fd: int) -> None:
        logs.delete(T0)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", removed_first)
    disk_log.flush()
    assert not disk_log.directory.is_offline
    assert logs.hosted() == {}
