"""The logs of a broker in several directories, and files of others in them."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from regent.core.errors import DamagedRecordsError, ForeignDirectoryError, StorageError
from regent.core.model import TopicPartition
from regent.core.replica_logs import SeenOfCluster
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    BATCH_BYTES,
    OTHER_ID,
    T0,
    T1,
    THREE_A_SEGMENT,
    TOPIC_ID,
    U0,
    Machine,
    create,
    fill,
    flip_byte,
    log_of,
    numbered,
    segment_file,
    values,
)

OLD_MESSAGE = struct.Struct(">qiIb")  # offset, size, CRC-32, magic
CLUSTER = "Yx3F9Jk0T1-abcdefghij_"


def blocked(machine: Machine, index: int) -> Path:
    """Create a file in place of a log directory."""
    path = machine.directories[index]
    path.write_bytes(b"")
    return path


# --- directories ----------------------------------------------------------------------------------


def test_new_logs_are_spread_over_the_directories(two: Machine):
    logs = two.start()
    for partition in range(10):
        create(logs, TopicPartition("t", partition))
    places = Counter(log_of(logs, name).directory.path for name in logs.hosted())
    assert places == {two.directories[0]: 5, two.directories[1]: 5}
    logs.delete(T0)
    create(logs, U0)
    assert set(two.restart().hosted()) == {*(TopicPartition("t", p) for p in range(1, 10)), U0}


def test_a_broker_starts_without_one_bad_directory_of_two(
    two: Machine, caplog: pytest.LogCaptureFixture
):
    bad = blocked(two, 0)
    logs = two.start()
    assert logs.failed_directories == {bad}
    assert logs.failures == [f"log directory {bad} is offline: {bad}: File exists"]
    assert two.failed == []
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line == f"log directory {bad} is offline: {bad}: File exists"


def test_a_log_that_may_be_in_a_bad_directory_is_not_created(two: Machine):
    blocked(two, 0)
    logs = two.start()
    with pytest.raises(StorageError, match="t-0 may be in a log directory that is offline"):
        logs.get_or_create(T0, TOPIC_ID, is_new=False)
    log = logs.get_or_create(T0, TOPIC_ID, is_new=True)
    assert log.directory.path == two.directories[1]
    assert logs.get_or_create(T0, TOPIC_ID, is_new=False) is log


def test_without_a_good_directory_there_is_an_error_of_one_line(two: Machine):
    blocked(two, 0)
    blocked(two, 1)
    with pytest.raises(StorageError, match=r"one is offline: .*two is offline: ") as raised:
        two.start()
    assert "\n" not in str(raised.value)


def test_a_directory_in_use_stops_the_start_and_leaves_no_lock(two: Machine):
    other = Machine(two.directories[1])
    other.start()
    with pytest.raises(ForeignDirectoryError, match="in use by another process"):
        two.start()
    other.end()
    assert two.start().failures == []


def test_all_directories_join_the_cluster(two: Machine):
    logs = two.start()
    logs.join_cluster(CLUSTER)
    for directory in two.directories:
        assert f"cluster.id={CLUSTER}" in (directory / "meta.properties").read_text()
    with pytest.raises(ForeignDirectoryError, match="belongs to cluster"):
        two.restart().join_cluster("another-cluster-abcdef")


def test_the_newest_zxid_survives_the_process_and_a_failed_directory(two: Machine):
    logs = two.start()
    assert logs.seen == SeenOfCluster()
    logs.note_seen(controller_epoch=7, zxid=300, mark=200)
    assert two.restart().seen == SeenOfCluster(7, 300, 200)
    two.end()
    (two.directories[0] / "control-plane.properties").unlink()
    assert two.start().seen == SeenOfCluster(7, 300, 200)


@pytest.mark.parametrize("older", [(299, 200), (300, 199), (300, 0), (2**32, 199)])
def test_a_zookeeper_with_older_data_is_refused_until_the_file_is_removed(
    two: Machine, older: tuple[int, int]
):
    logs = two.start()
    logs.note_seen(controller_epoch=7, zxid=300, mark=200)
    for mark in (200, 201, None):  # None: unreadable
        logs.check_not_older(300, mark)
    files = [directory / "control-plane.properties" for directory in two.directories]
    for zxid, mark in older, (400, 400):  # attempts to start cause transactions too
        with pytest.raises(
            ForeignDirectoryError, match=r"older than .* seen.*remove control-plane\.properties"
        ):
            two.restart().check_not_older(zxid, mark)
    two.end()
    for file in files:
        file.unlink()
    two.start().check_not_older(100, 0)


def test_a_log_that_is_in_two_directories_is_used_in_neither(two: Machine):
    for directory in two.directories:
        alone = Machine(directory)
        fill(create(alone.start()), 1)
        alone.end()
    logs = two.start()
    assert (logs.get(T0), logs.is_offline(T0)) == (None, True)
    with pytest.raises(
        StorageError, match=r"t-0: there are logs of this partition in .*one and .*two"
    ):
        create(logs)


# --- files of others ------------------------------------------------------------------------------


def test_other_directories_are_ignored(machine: Machine, caplog: pytest.LogCaptureFixture):
    [directory] = machine.directories
    names = ["lost+found", "t-x", "t-01", f"t-3.{'a' * 32}-stray", "__consumer_offsets-12"]
    for name in names:
        (directory / name).mkdir(parents=True)
    (directory / "cleaner-offset-checkpoint").write_text("0\n0\n")
    logs = machine.start()
    assert set(logs.hosted()) == {TopicPartition("__consumer_offsets", 12)}
    logs.clean_up()
    assert {path.name for path in directory.iterdir() if path.is_dir()} == set(names)
    assert "ignoring 3 directories that are not logs, the first is lost+found" in caplog.text


def test_logs_without_a_topic_id_get_one(machine: Machine, logs: LogManager):
    create(logs, T0, None)
    logs = machine.restart()
    assert logs.hosted() == {T0: None}
    assert create(logs).topic_id == TOPIC_ID
    assert machine.restart().hosted() == {T0: TOPIC_ID}


# --- settings -------------------------------------------------------------------------------------


def test_configurations_apply_to_present_and_future_logs(logs: LogManager):
    small = replace(THREE_A_SEGMENT, segment_bytes=BATCH_BYTES)
    first = create(logs, T0)
    logs.configure({"t": small, "v": small})
    second = create(logs, T1)
    other = create(logs, U0)
    assert [log.config for log in (first, second, other)] == [small, small, THREE_A_SEGMENT]
    logs.configure({"u": small})
    assert [log.config for log in (first, other)] == [small, small]


# --- checkpoints ----------------------------------------------------------------------------------


def test_each_directory_has_kafkas_checkpoints(two: Machine):
    logs = two.start()
    for name in (T0, T1, U0):
        fill(create(logs, name), 5)
        log_of(logs, name).flush()
    log_of(logs, T0).advance_log_start_offset(2)
    logs.checkpoint_high_watermarks({T0: 3, T1: 4})
    logs.checkpoint_recovery_points()
    logs.checkpoint_log_start_offsets()
    one, other = (
        {
            path.name.removesuffix("-checkpoint"): path.read_text().splitlines()
            for path in directory.glob("*-checkpoint")
        }
        for directory in two.directories
    )
    assert one == {
        "replication-offset": ["0", "2", "t 0 3", "u 0 0"],
        "recovery-point-offset": ["0", "2", "t 0 5", "u 0 5"],
        "log-start-offset": ["0", "2", "t 0 2", "u 0 0"],
    }
    assert other["replication-offset"] == ["0", "1", "t 1 4"]


def test_high_watermarks_of_other_logs_are_kept(machine: Machine, logs: LogManager):
    for name in (T0, T1):
        fill(create(logs, name), 5)
    logs.checkpoint_high_watermarks({T0: 3, T1: 4})
    logs = machine.restart()
    logs.checkpoint_high_watermarks({T1: 5, U0: 7})
    logs.delete(T1)
    logs.checkpoint_high_watermarks({})
    logs = machine.crash()
    high_watermarks = [logs.checkpointed_high_watermark(name) for name in (T0, T1, U0)]
    assert high_watermarks == [3, 0, 0]


def test_an_unchanged_checkpoint_is_not_written(machine: Machine, logs: LogManager):
    fill(create(logs), 1)
    path = machine.directories[0] / "replication-offset-checkpoint"
    logs.checkpoint_high_watermarks({T0: 0})
    before = path.stat().st_ino
    logs.checkpoint_high_watermarks({T0: 0})
    assert path.stat().st_ino == before
    logs.checkpoint_high_watermarks({T0: 1})
    assert path.read_text() == "0\n1\nt 0 1\n"


# --- damage ---------------------------------------------------------------------------------------


def test_damage_affects_only_its_log(
    machine: Machine, logs: LogManager, caplog: pytest.LogCaptureFixture
):
    for name in (T0, T1):
        fill(create(logs, name), 7)
    logs = machine.restart()
    damaged, sound = log_of(logs, T0), log_of(logs, T1)
    flip_byte(segment_file(damaged.path, 0), BATCH_BYTES + 16)  # its magic
    with pytest.raises(DamagedRecordsError, match=r"00\.log: "):
        damaged.read(1, 1000, 7, at_least_one=True)
    assert (logs.get(T0), machine.failed) == (damaged, [])
    with pytest.raises(StorageError, match=r"00\.log: "):
        damaged.truncate_to(2)
    assert (logs.get(T0), logs.is_offline(T0), logs.is_damaged(T0)) == (None, True, True)
    assert machine.failed == machine.directories
    assert logs.failed_directories == frozenset()
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.startswith("Log(t-0, ")
    assert "cannot be used: it is damaged: " in line
    assert values(sound) == numbered(0, 7)
    fill(sound, 1)
    logs.clean_up()
    logs.delete(T0)
    assert create(logs, T0).log_end_offset == 0


def test_a_damaged_log_is_logged_once(
    machine: Machine, logs: LogManager, caplog: pytest.LogCaptureFixture
):
    fill(create(logs), 7)
    for _ in range(2):
        logs.mark_damaged(T0, "at 3: its CRC does not match")
    assert machine.failed == machine.directories
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.endswith("cannot be used: it is damaged: at 3: its CRC does not match")
    with pytest.raises(StorageError, match="t-0: the log is damaged: at 3"):
        create(logs)


@pytest.mark.parametrize("removal", [LogManager.delete, LogManager.set_aside])
def test_a_log_refused_at_the_start_can_be_replaced(
    machine: Machine, logs: LogManager, removal: Callable[[LogManager, TopicPartition], None]
):
    fill(create(logs), 7)
    logs.close(is_clean=True)
    [directory] = machine.directories
    old = OLD_MESSAGE.pack(0, 14, zlib.crc32(bytes(10)), 0) + bytes(9)
    segment_file(directory / "t-0", 0).write_bytes(old)
    logs = machine.start()
    assert (logs.get(T0), logs.is_offline(T0), logs.is_damaged(T0)) == (None, True, True)
    removal(logs, T0)
    assert (logs.is_offline(T0), logs.is_damaged(T0)) == (False, False)
    assert [path.name[:4] for path in directory.iterdir() if path.is_dir()] == ["t-0."]
    fill(create(logs), 2)
    assert values(log_of(machine.restart())) == numbered(0, 2)


@pytest.mark.parametrize("removal", [LogManager.delete, LogManager.set_aside])
def test_a_log_that_was_in_two_directories_is_replaced_in_both(
    two: Machine, removal: Callable[[LogManager, TopicPartition], None]
):
    for directory in two.directories:
        alone = Machine(directory)
        fill(create(alone.start()), 1)
        alone.end()
    logs = two.start()
    assert logs.is_damaged(T0)
    removal(logs, T0)
    fill(create(logs), 3)
    assert values(log_of(two.crash())) == numbered(0, 3)


@pytest.mark.parametrize("removal", [LogManager.delete, LogManager.set_aside])
def test_a_damaged_log_is_replaced_although_another_directory_failed(
    two: Machine, removal: Callable[[LogManager, TopicPartition], None]
):
    logs = two.start()
    for name in (T0, T1):
        fill(create(logs, name), 2)
    logs.mark_damaged(T0, "damage")
    failing = log_of(logs, T1)
    failing.directory.fail("a test")
    logs.mark_damaged(T1, "damage")
    assert [logs.is_damaged(name) for name in (T0, T1)] == [True, False]
    removal(logs, T0)
    assert create(logs).log_end_offset == 0
    assert [logs.is_offline(name) for name in (T0, T1)] == [False, True]


def test_a_damaged_log_is_recovered_at_the_next_start(machine: Machine, logs: LogManager):
    fill(create(logs), 7)
    logs = machine.restart()
    damaged = log_of(logs)
    flip_byte(segment_file(damaged.path, 6), 16)
    logs = machine.restart()
    assert values(log_of(logs)) == numbered(0, 6)


# --- topics that are deleted and created again ----------------------------------------------------


@pytest.mark.parametrize("removal", [LogManager.delete, LogManager.set_aside])
def test_a_new_log_does_not_use_the_checkpoints_of_its_predecessor(
    machine: Machine, logs: LogManager, removal: Callable[[LogManager, TopicPartition], None]
):
    former = create(logs)
    fill(former, 8)
    former.advance_log_start_offset(7)
    former.flush()
    for write in (logs.checkpoint_recovery_points, logs.checkpoint_log_start_offsets):
        write()
    logs.checkpoint_high_watermarks({T0: 8})
    logs = machine.crash()  # so that another process wrote them
    removal(logs, T0)
    fill(create(logs, topic_id=OTHER_ID), 5)
    logs = machine.crash()
    log = log_of(logs)
    assert (log.log_start_offset, values(log)) == (0, numbered(0, 5))
    assert logs.checkpointed_high_watermark(T0) == 0


@pytest.mark.parametrize("cut", [UnifiedLog.truncate_to, UnifiedLog.truncate_fully_and_start_at])
def test_records_appended_below_the_former_start_are_kept(
    machine: Machine, logs: LogManager, cut: Callable[[UnifiedLog, int], None]
):
    log = create(logs)
    fill(log, 8)
    log.advance_log_start_offset(7)
    logs.checkpoint_log_start_offsets()
    cut(log, 4)
    fill(log, 2)
    assert values(log_of(machine.crash())) == numbered(4, 6)


# --- crashes during deletions ---------------------------------------------------------------------


def test_a_crash_while_old_segments_are_deleted_leaves_no_gap(
    machine: Machine, logs: LogManager, monkeypatch: pytest.MonkeyPatch
):
    fill(create(logs), 8)
    logs.checkpoint_high_watermarks({T0: 8})
    logs.configure({"t": replace(machine.defaults, retention_bytes=1)})
    rename = LogSegment.rename_suffix
    renamed: list[LogSegment] = []

    def rename_one_and_crash(segment: LogSegment, suffix: str) -> None:
        if len(renamed) == 1:
            machine.copy()
        renamed.append(segment)
        rename(segment, suffix)

    monkeypatch.setattr(LogSegment, "rename_suffix", rename_one_and_crash)
    logs.clean_up()
    assert len(renamed) > 1
    assert values(log_of(machine.start())) == numbered(3, 8)
