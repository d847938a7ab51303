"""What a starting broker knows of committed records that its logs may have lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.errors import StorageError
from regent.core.model import NO_LOG_END, LogEnd
from regent.storage.log_directory import LOG_ENDS, LogEndOffsetFile
from regent.storage.recovery import suspect_logs
from regent.storage.recovery.suspect_logs import SUSPECT_LOGS
from tests.support.disk_logs import BATCH_BYTES, T0, T1, U0, Machine, create, fill, log_of


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "one")
    machine.start()
    machine.logs.note_lost(())  # the new directory had no logs
    machine.logs.save_suspects()
    yield machine
    machine.end()


def cut(machine: Machine, size: int, name: str = "t-0") -> None:
    """Truncate a log's newest segment while no process uses it."""
    segment = max((machine.directories[0] / name).glob("*.log"))
    with segment.open("r+b") as file:
        file.truncate(size)


def crash_then(machine: Machine, size: int) -> None:
    machine.copy()
    cut(machine, size)
    machine.start()


def test_after_a_kill_no_log_is_suspect(machine: Machine) -> None:
    fill(create(machine.logs), 5)
    assert not machine.crash().suspects()


def test_a_partly_appended_batch_does_not_make_a_log_suspect(machine: Machine) -> None:
    fill(create(machine.logs), 2)
    machine.copy()
    (segment,) = (machine.directories[0] / "t-0").glob("*.log")
    with segment.open("ab") as file:
        file.write(b"\0" * 20)
    assert not machine.start().suspects()


@pytest.mark.parametrize("size", [BATCH_BYTES, BATCH_BYTES + 7, 0])
def test_a_truncated_log_is_suspect_also_between_two_batches(machine: Machine, size: int) -> None:
    fill(create(machine.logs), 2, leader_epoch=3)
    crash_then(machine, size)
    records = size // BATCH_BYTES
    end = LogEnd(3 if records else -1, records)
    assert dict(machine.logs.suspects().ends) == {T0: end}


def test_after_another_boot_all_logs_are_suspect(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(create(machine.logs), 5)
    machine.copy()
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(suspect_logs, "_BOOT_ID", tmp_path / "boot_id")
    assert dict(machine.start().suspects().ends) == {T0: LogEnd(0, 5)}


def test_after_another_boot_a_log_may_be_lost_with_its_entry(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(create(machine.logs), 5)
    machine.copy()
    shutil.rmtree(machine.directories[0] / "t-0")
    (machine.directories[0] / LOG_ENDS).unlink()
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(suspect_logs, "_BOOT_ID", tmp_path / "boot_id")
    assert machine.start().suspects().end_of(T0) == NO_LOG_END


def test_after_a_clean_shutdown_another_boot_makes_no_log_suspect(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(create(machine.logs), 5)
    machine.logs.close(is_clean=True)
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(suspect_logs, "_BOOT_ID", tmp_path / "boot_id")
    assert not machine.start().suspects()


def test_all_logs_are_suspect_once_older_zookeeper_data_are_accepted(
    machine: Machine,
) -> None:
    machine.logs.join_cluster("a-cluster")
    machine.logs.note_seen(zxid=1)
    fill(create(machine.logs), 2)
    assert not machine.restart().suspects()
    (machine.directories[0] / "control-plane.properties").unlink()
    machine.restart()
    assert set(machine.logs.suspects().ends) == {T0}
    machine.logs.note_seen(zxid=1)
    assert set(machine.restart().suspects().ends) == {T0}


def test_a_log_truncated_by_the_broker_is_sound(machine: Machine) -> None:
    log = create(machine.logs)
    fill(log, 5)
    log.truncate_to(2)
    assert not machine.crash().suspects()
    log_of(machine.logs).truncate_fully_and_start_at(7)
    assert not machine.crash().suspects()


def test_a_log_stays_suspect_over_restarts_until_it_is_marked_sound(
    machine: Machine,
) -> None:
    fill(create(machine.logs), 2)
    crash_then(machine, BATCH_BYTES)
    machine.restart()
    assert machine.crash().is_suspect(T0)
    machine.logs.mark_sound(T0)
    machine.logs.save_suspects()
    assert not machine.crash().has_suspects


def test_a_log_without_its_entry_is_suspect(machine: Machine) -> None:
    fill(create(machine.logs), 2)
    machine.copy()
    (machine.directories[0] / LOG_ENDS).unlink()
    assert machine.start().is_suspect(T0)


def test_a_log_of_an_unclean_directory_without_entries_is_suspect(machine: Machine) -> None:
    fill(create(machine.logs), 2)
    machine.copy()
    (machine.directories[0] / SUSPECT_LOGS).unlink()
    assert machine.start().is_suspect(T0)


def test_a_lost_log_makes_all_suspect_until_the_lost_ones_are_named(machine: Machine) -> None:
    fill(create(machine.logs, T0), 2)
    fill(create(machine.logs, T1), 2)
    machine.copy()
    for path in (machine.directories[0] / "t-0").iterdir():
        path.unlink()
    (machine.directories[0] / "t-0").rmdir()
    logs = machine.start()
    assert logs.suspects().sound == frozenset({T1})
    assert logs.suspects().end_of(T0) == NO_LOG_END
    assert logs.suspects().end_of(T1) is None
    logs.note_lost([T0])
    logs.save_suspects()
    assert dict(machine.crash().suspects().ends) == {T0: NO_LOG_END}


def test_a_new_directory_does_not_know_which_logs_were_lost(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "new")
    try:
        assert machine.start().suspects().sound == frozenset()
        assert not machine.restart().knows_all, "the same at the next start"
    finally:
        machine.end()


def test_a_deleted_log_does_not_count_as_lost(machine: Machine) -> None:
    fill(create(machine.logs), 2)
    machine.logs.delete(T0)
    assert not machine.crash().suspects()
    fill(create(machine.logs, T1), 1)
    assert not machine.crash().suspects()


def test_a_log_created_while_others_are_unknown_changes_the_list(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path / "one")
    logs = machine.start()
    changes = logs.suspect_changes
    assert logs.suspects().end_of(T0) is not None
    create(logs)
    assert logs.suspects().end_of(T0) is None
    assert logs.suspect_changes > changes
    logs.note_lost([T0])
    changes = logs.suspect_changes
    create(logs, T1)
    assert logs.suspect_changes == changes
    machine.end()


# --- directories that Kafka has used since --------------------------------------------------------

CLEAN = ".kafka_cleanshutdown"
CLOSED_BY_KAFKA = (b"", b'{"version":0,"brokerEpoch":42}')  # until 3.6, and later


def use_as_kafka(machine: Machine, closed: bytes | None) -> None:
    """Truncate a log and delete another, as Kafka does without a note of it; None: it dies."""
    directory = machine.directories[0]
    (directory / CLEAN).unlink(missing_ok=True)
    cut(machine, BATCH_BYTES)
    shutil.rmtree(directory / "t-1")
    (directory / "replication-offset-checkpoint").unlink(missing_ok=True)
    if closed is not None:
        (directory / CLEAN).write_bytes(closed)


@pytest.mark.parametrize("closed", CLOSED_BY_KAFKA)
@pytest.mark.parametrize("was_clean", [True, False])
def test_what_kafka_truncated_and_deleted_since_is_not_lost(
    machine: Machine, closed: bytes, was_clean: bool
) -> None:
    fill(create(machine.logs, T0), 2)
    fill(create(machine.logs, T1), 2)
    machine.logs.mark_suspect(T0)
    if was_clean:
        machine.logs.close(is_clean=True)
    else:
        machine.logs.save_suspects()
        machine.copy()
    use_as_kafka(machine, closed)
    logs = machine.start()
    assert not logs.suspects().ends
    assert logs.knows_all
    assert log_of(logs).log_end_offset == 1
    crash_then(machine, 0)
    assert machine.logs.is_suspect(T0), "what is noted since then counts"


def test_a_start_in_the_place_of_kafka_that_died_early_is_begun_again(machine: Machine) -> None:
    fill(create(machine.logs, T0), 2)
    fill(create(machine.logs, T1), 2)
    machine.logs.close(is_clean=True)
    use_as_kafka(machine, b"")

    def dies(*_: object) -> None:
        raise StorageError("it died")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogEndOffsetFile, "begin", dies)
        with pytest.raises(StorageError):
            machine.start()
    machine.copy()
    assert not machine.start().suspects().ends
    assert machine.logs.knows_all


def test_a_log_is_suspect_after_kafka_died(machine: Machine) -> None:
    fill(create(machine.logs, T0), 2)
    fill(create(machine.logs, T1), 2)
    machine.logs.close(is_clean=True)
    use_as_kafka(machine, None)
    assert machine.start().is_suspect(T0)


@pytest.mark.parametrize("was_ours", [True, False])
def test_logs_may_be_lost_as_a_whole_with_the_power_of_a_kafka(
    tmp_path: Path, was_ours: bool
) -> None:
    machine = Machine(tmp_path / "one")
    machine.start().join_cluster("a-cluster")
    machine.logs.note_lost(())
    fill(create(machine.logs), 2)
    machine.logs.close(is_clean=True)
    (machine.directories[0] / CLEAN).unlink()
    if not was_ours:
        (machine.directories[0] / SUSPECT_LOGS).unlink()
        (machine.directories[0] / LOG_ENDS).unlink()
    logs = machine.start()
    create(logs, U0)
    assert logs.suspects().sound == frozenset({U0})
    machine.end()


def test_a_suspicion_outlives_a_shutdown_of_version_0_3(machine: Machine) -> None:
    fill(create(machine.logs), 2)
    machine.logs.mark_suspect(T0)
    machine.logs.close(is_clean=True)
    noted = machine.directories[0] / SUSPECT_LOGS
    noted.write_text(noted.read_text().replace("closed all marked", "closed all logs"))
    (machine.directories[0] / CLEAN).write_bytes(b"")
    assert machine.start().is_suspect(T0)
