"""Deletion of logs: renamed at once, files deleted later, also after a crash."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from regent.core.errors import StorageError
from regent.core.model import TopicPartition
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.storage.recovery.stray_logs import STRAY_KEPT_MS
from tests.support.disk_logs import (
    OTHER_ID,
    T0,
    T1,
    TOPIC_ID,
    Machine,
    create,
    fill,
    log_of,
    numbered,
    segment_file,
    send,
    values,
)

DELAY_MS = 60_000


def known(topic_id: str) -> bool:
    """Every topic exists."""
    return True


def unknown(topic_id: str) -> bool:
    """No topic exists."""
    return False


def directories(machine: Machine) -> list[str]:
    """Return the names in the log directory, without the random digits."""
    [directory] = machine.directories
    names = [path.name for path in directory.iterdir() if path.is_dir()]
    return sorted(re.sub(r"\.[0-9a-f]{32}-", "-", name) for name in names)


def test_a_deleted_log_is_renamed_and_its_files_are_deleted_later(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    logs.delete(T0)
    assert (logs.get(T0), logs.hosted(), logs.is_offline(T0)) == (None, {}, False)
    assert directories(machine) == ["t-0-delete"]
    machine.clock.now_ms += DELAY_MS - 1
    assert logs.purge(known) == 1, "so long until the files are due"
    assert directories(machine) == ["t-0-delete"]
    machine.clock.now_ms += 1
    assert logs.purge(known) == DELAY_MS, "nothing else that is removed is due before"
    assert directories(machine) == []


def test_a_stray_log_of_a_known_topic_is_kept_longer(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    logs.set_aside(T0)
    assert logs.hosted() == {}
    machine.clock.now_ms += STRAY_KEPT_MS - 1
    logs.purge(known)
    assert directories(machine) == ["t-0-stray"]
    machine.clock.now_ms += 1
    logs.purge(known)
    assert directories(machine) == []


@pytest.mark.parametrize("topic_id", [TOPIC_ID, None])
def test_a_stray_log_of_an_unknown_topic_is_kept_for_ever(
    machine: Machine, logs: LogManager, topic_id: str | None
):
    fill(create(logs, T0, topic_id), 2)
    logs.set_aside(T0)
    for process in (logs, machine.crash()):
        machine.clock.now_ms += 10 * STRAY_KEPT_MS
        process.purge(unknown)
        assert directories(machine) == ["t-0-stray"]
        assert [path.name[:4] for path in process.strays] == ["t-0."]


def test_a_stray_log_that_an_operator_removed_is_not_named_any_longer(
    logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    logs.set_aside(T0)
    (path,) = logs.strays
    shutil.rmtree(path)
    assert logs.strays == []
    logs.purge(known)
    assert not logs.failed_directories


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("end_process", ["restart", "crash", None])
def test_a_log_that_was_set_aside_is_used_again_for_the_same_topic(
    machine: Machine,
    logs: LogManager,
    disk_log: UnifiedLog,
    end_process: str | None,
    is_flushed: bool,
):
    fill(disk_log, 8, leader_epoch=3)
    disk_log.advance_log_start_offset(1)
    if is_flushed:
        disk_log.flush()
    logs.checkpoint_high_watermarks({T0: 7})
    logs.set_aside(T0)
    if end_process is not None:
        logs = getattr(machine, end_process)()
    other = create(logs, T0, OTHER_ID)
    assert (other.log_end_offset, other.stray_high_watermark) == (0, -1)
    logs.delete(T0, deleted_topic=OTHER_ID)
    log = create(logs, T0, TOPIC_ID)
    assert (values(log), log.latest_epoch, log.stray_high_watermark) == (numbered(1, 8), 3, 7)
    assert logs.checkpointed_high_watermark(T0) == 7
    assert logs.strays == []
    fill(log, 1, leader_epoch=4)
    assert values(log_of(machine.restart())) == numbered(1, 9)
    assert log_of(machine.logs).stray_high_watermark == -1


def test_a_damaged_log_that_was_set_aside_is_not_used_again(logs: LogManager, disk_log: UnifiedLog):
    fill(disk_log, 8)
    logs.mark_damaged(T0, "bits flipped")
    logs.set_aside(T0)
    assert create(logs).log_end_offset == 0
    assert len(logs.strays) == 1


def test_a_log_that_was_damaged_while_set_aside_is_refused_and_kept(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    disk_log.flush()
    logs.set_aside(T0)
    segment_file(logs.strays[0], 3).unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match="offsets 3 to 5 are missing"):
            create(logs)
    assert logs.is_damaged(T0)
    logs.set_aside(T0)
    assert create(logs).log_end_offset == 0


def test_the_deletion_of_a_topic_deletes_its_logs_that_were_set_aside(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    logs.set_aside(T0)
    create(logs, T1)
    logs.set_aside(T1)
    logs.delete(T0, deleted_topic=OTHER_ID)
    logs.delete(T0, deleted_topic=None)
    assert directories(machine) == ["t-0-stray", "t-1-stray"]
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert directories(machine) == ["t-0-delete", "t-1-stray"]


@pytest.mark.parametrize("way", ["delete", "set_aside"])
def test_removed_logs_and_their_deadlines_survive_a_restart(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, way: str
):
    fill(disk_log, 2)
    getattr(logs, way)(T0)
    machine.clock.now_ms += STRAY_KEPT_MS - 1
    logs = machine.crash()
    assert logs.hosted() == {}
    assert create(logs, topic_id=OTHER_ID).log_end_offset == 0
    logs = machine.restart()
    machine.clock.now_ms += 1
    logs.purge(known)
    assert directories(machine) == ["t-0"]


def test_a_removed_log_can_no_longer_be_written(logs: LogManager, disk_log: UnifiedLog):
    fill(disk_log, 2)
    logs.delete(T0)
    with pytest.raises(StorageError, match="t-0: the log is deleted"):
        send(disk_log, b"")
    create(logs)
    assert not disk_log.directory.is_offline
    assert values(log_of(logs)) == []


def test_a_long_name_is_cut(machine: Machine, logs: LogManager):
    name = TopicPartition("x" * 249, 12)
    create(logs, name)
    logs.delete(name)
    [moved] = [path for path in machine.directories[0].iterdir() if path.is_dir()]
    assert len(moved.name) == 255
    machine.clock.now_ms += DELAY_MS
    machine.crash().purge(known)
    assert directories(machine) == []


def test_a_log_whose_files_were_deleted_by_hand_can_be_deleted(
    logs: LogManager, disk_log: UnifiedLog
):
    disk_log.path.rename(disk_log.path.parent.parent / "elsewhere")
    logs.delete(T0)
    assert logs.hosted() == {}
    assert not disk_log.directory.is_offline


def test_the_removal_of_a_log_during_a_flush_is_no_failure(
    logs: LogManager, disk_log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
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
