"""Full or broken disks: the directory goes offline, with one log line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.core.errors import StorageError
from regent.core.model import TopicPartition
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    OTHER_ID,
    T0,
    T1,
    TOPIC_ID,
    U0,
    Machine,
    break_disk,
    create,
    fill,
    log_of,
    numbered,
    segment_file,
    values,
)
from tests.support.record_batches import batch


@pytest.fixture
def logs(two: Machine) -> LogManager:
    """A process on it with the logs t-0 and u-0 in the first directory, and t-1 in the other."""
    logs = two.start()
    for name in (T0, T1, U0):
        fill(create(logs, name), 2)
    return logs


def full(log: UnifiedLog) -> None:
    """Make the disk of a log full."""
    break_disk(segment_file(log.path, 0))


WRITES: dict[str, Callable[[UnifiedLog], object]] = {
    "leader": lambda log: fill(log, 1),
    "follower": lambda log: log.append_as_follower(batch(b"", base_offset=log.log_end_offset)),
    "flush": lambda log: log.flush(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_failed_write_takes_its_directory_offline(
    two: Machine,
    logs: LogManager,
    write: Callable[[UnifiedLog], object],
    caplog: pytest.LogCaptureFixture,
):
    first, other, neighbour = (log_of(logs, name) for name in (T0, T1, U0))
    full(first)
    with pytest.raises(StorageError):
        write(first)
    assert two.failed == [two.directories[0]]
    assert logs.failed_directories == {two.directories[0]}
    assert [logs.is_offline(name) for name in (T0, T1, U0)] == [True, False, True]
    assert set(logs.hosted()) == {T1}
    for log in (first, neighbour):
        with pytest.raises(StorageError, match="is offline"):
            write(log)
        with pytest.raises(StorageError, match="is offline"):
            log.read(0, 1000, 2, at_least_one=True)
    assert two.failed == [two.directories[0]]
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.startswith(f"log directory {two.directories[0]} is offline: ")
    fill(other, 1)
    assert values(other) == numbered(0, 3)


def test_a_truncation_that_fails_takes_the_directory_offline(two: Machine, logs: LogManager):
    path = segment_file(log_of(logs).path, 0)
    break_disk(path, str(path))
    with pytest.raises(StorageError):
        log_of(logs).truncate_to(1)
    assert logs.failed_directories == {two.directories[0]}


def test_a_failing_read_takes_the_directory_offline(two: Machine, logs: LogManager):
    log = log_of(logs)
    records = log.read(0, 1000, 2, at_least_one=True)
    break_disk(segment_file(log.path, 0), "/proc/self/mem")
    with pytest.raises(StorageError, match="Input/output error"):
        records.read()
    assert two.failed == [two.directories[0]]
    assert logs.is_offline(T0)


def test_the_error_of_a_full_disk_names_the_cause(logs: LogManager):
    full(log_of(logs))
    with pytest.raises(StorageError, match=r"00\.log: No space left on device"):
        fill(log_of(logs), 1)


def test_the_recovery_point_does_not_include_unflushed_records(logs: LogManager):
    log = log_of(logs)
    full(log)
    with pytest.raises(StorageError):
        log.flush()
    assert log.recovery_point == 0
    logs.flush()
    logs.checkpoint_recovery_points()
    assert log.recovery_point == 0


def test_logs_of_a_failed_directory_are_unusable(two: Machine, logs: LogManager):
    full(log_of(logs))
    with pytest.raises(StorageError):
        fill(log_of(logs), 1)
    for is_new in (True, False):
        with pytest.raises(StorageError, match="t-0: its log directory failed"):
            logs.get_or_create(T0, TOPIC_ID, is_new=is_new)
    with pytest.raises(StorageError):
        logs.delete(T0)
    logs.set_aside(U0)
    assert (two.directories[0] / "u-0").exists()
    assert [logs.is_offline(name) for name in (T0, U0)] == [True, True]
    unheard_of = T0._replace(partition=7)
    assert not logs.is_offline(unheard_of)
    with pytest.raises(StorageError, match="t-7 may be in a log directory"):
        logs.get_or_create(unheard_of, TOPIC_ID, is_new=False)
    assert create(logs, unheard_of).directory.path == two.directories[1]


def test_the_other_directory_is_maintained(two: Machine, logs: LogManager):
    full(log_of(logs))
    with pytest.raises(StorageError):
        fill(log_of(logs), 1)
    log_of(logs, T1).flush()
    logs.checkpoint_high_watermarks({T0: 2, T1: 2, U0: 2})
    logs.checkpoint_recovery_points()
    logs.clean_up()
    logs.close(is_clean=True)
    failed, live = two.directories
    assert not (failed / ".kafka_cleanshutdown").exists()
    assert (live / ".kafka_cleanshutdown").exists()
    assert (live / "replication-offset-checkpoint").read_text() == "0\n1\nt 1 2\n"
    logs = two.start()
    assert set(logs.hosted()) == {T0, T1, U0}
    assert values(log_of(logs)) == numbered(0, 2)


def test_a_directory_that_fails_while_closing_is_not_marked_clean(two: Machine, logs: LogManager):
    full(log_of(logs))
    logs.close(is_clean=True)
    assert logs.failed_directories == {two.directories[0]}
    assert not (two.directories[0] / ".kafka_cleanshutdown").exists()
    assert (two.directories[1] / ".kafka_cleanshutdown").exists()


def test_a_directory_with_an_unflushed_damaged_log_is_not_marked_clean(
    two: Machine, logs: LogManager
):
    log = log_of(logs)
    assert log.recovery_point < log.log_end_offset
    logs.mark_damaged(T0, "damaged")
    logs.close(is_clean=True)
    assert not (two.directories[0] / ".kafka_cleanshutdown").exists()
    assert (two.directories[1] / ".kafka_cleanshutdown").exists()


def test_a_directory_that_disappears_fails(two: Machine, logs: LogManager):
    two.directories[0].rename(two.directories[0].with_name("gone"))
    logs.checkpoint_high_watermarks({T0: 2})
    assert logs.failed_directories == {two.directories[0]}
    assert two.failed == [two.directories[0]]


def test_a_log_that_cannot_be_read_at_the_start_fails_its_directory(two: Machine, logs: LogManager):
    logs.close(is_clean=True)
    path = segment_file(two.directories[0] / "t-0", 0)
    path.unlink()
    path.mkdir()
    logs = two.start()
    assert logs.failed_directories == {two.directories[0]}
    assert set(logs.hosted()) == {T1}
    assert two.failed == []


def test_a_log_that_may_be_in_a_failed_directory_is_not_known_to_be_gone(
    two: Machine, logs: LogManager
):
    two.copy()
    meta = two.directories[0] / "meta.properties"
    meta.unlink(missing_ok=True)
    meta.mkdir()  # cannot be read
    logs = two.start()
    assert logs.failed_directories == {two.directories[0]}
    assert [logs.is_offline(name) for name in (T0, T1, U0)] == [False, False, False]
    assert [logs.may_be_offline(name) for name in (T0, T1, U0)] == [True, False, True]
    logs.delete(T1)
    assert not logs.may_be_offline(T1), "it was in the directory that works"
    create(logs, T0, OTHER_ID)
    assert not logs.may_be_offline(T0)
    assert logs.topic_id(T0) == OTHER_ID


def test_the_topic_id_of_an_unusable_log_is_known(two: Machine, logs: LogManager):
    path = log_of(logs).path
    logs.close(is_clean=True)
    segment_file(path, 0).write_bytes(b"")
    (path / f"{5:020d}.log").write_bytes(batch(b"x", base_offset=5))
    logs = two.start()
    assert logs.is_damaged(T0)
    assert logs.topic_id(T0) == TOPIC_ID
    assert logs.topic_id(TopicPartition("nothing", 0)) is None


def test_a_replica_stays_suspect_when_the_directory_of_its_former_log_fails(
    two: Machine, logs: LogManager
):
    logs.note_lost(())
    logs.mark_damaged(T0, "at 7")
    logs.mark_suspect(T0)
    logs.set_aside(T0)
    for number in range(3):  # the next log is created in the other directory
        if logs.get_or_create(T0, TOPIC_ID, is_new=True).directory.path == two.directories[1]:
            break
        create(logs, T0._replace(partition=10 + number))
    full_directory = log_of(logs, U0)
    assert full_directory.directory.path == two.directories[0]
    full(full_directory)
    with pytest.raises(StorageError):
        fill(full_directory, 1)
    assert logs.suspects().end_of(T0) is not None
