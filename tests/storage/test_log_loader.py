"""Logs after a crash, after a clean shutdown, and after changes by others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regent.core.replica_logs import EpochEndOffset
from regent.storage.log.transaction_index import AbortedTransaction
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import (
    BATCH_BYTES,
    T0,
    T1,
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
from tests.support.record_batches import batch, old_message

MARKER = ".kafka_cleanshutdown"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
)


def crashed(machine: Machine, log: UnifiedLog) -> Path:
    """Crash without another start; return the path of the log."""
    machine.copy()
    return machine.directories[0] / log.path.name


def restarted(machine: Machine) -> UnifiedLog:
    """Start a process and return the log."""
    return log_of(machine.start())


# --- the end of the log ---------------------------------------------------------------------------


def test_everything_written_is_there_after_a_crash(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    log = log_of(machine.crash())
    assert values(log) == numbered(0, 8)
    fill(log, 1)
    assert values(log) == numbered(0, 9)


def test_an_epoch_that_begins_behind_the_recovered_end_is_removed(
    machine: Machine, disk_log: UnifiedLog
):
    fill(disk_log, 7)
    fill(disk_log, 1, leader_epoch=7)
    os.truncate(segment_file(crashed(machine, disk_log), 6), 0)
    assert restarted(machine).latest_epoch == 0


@pytest.mark.parametrize("cut", [1, 30, BATCH_BYTES - 1])
def test_half_a_batch_at_the_end_is_cut_off(machine: Machine, disk_log: UnifiedLog, cut: int):
    fill(disk_log, 8)
    last = segment_file(crashed(machine, disk_log), 6)
    os.truncate(last, 2 * BATCH_BYTES - cut)
    log = restarted(machine)
    assert values(log) == numbered(0, 7)
    assert last.stat().st_size == BATCH_BYTES
    fill(log, 2)
    assert values(log) == numbered(0, 9)


@pytest.mark.parametrize("garbage", [bytes(1000), b"\xff" * 1000, os.urandom(200)])
def test_garbage_at_the_end_is_cut_off(machine: Machine, disk_log: UnifiedLog, garbage: bytes):
    fill(disk_log, 8)
    with segment_file(crashed(machine, disk_log), 6).open("ab") as file:
        file.write(garbage)
    assert values(restarted(machine)) == numbered(0, 8)


def test_batches_after_a_bad_one_are_cut_off_too(
    machine: Machine, disk_log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    fill(disk_log, 8)
    path = crashed(machine, disk_log)
    flip_byte(segment_file(path, 3), 2 * BATCH_BYTES - 1)
    assert values(restarted(machine)) == numbered(0, 4)
    assert files(path) == [".log", "3.log"]
    assert files(path, ".deleted") == []
    assert f"1 logs had incomplete ends; cut off {4 * BATCH_BYTES} bytes" in caplog.text


def test_lost_committed_records_are_reported(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, caplog: pytest.LogCaptureFixture
):
    fill(disk_log, 8)
    logs.checkpoint_high_watermarks({T0: 8})
    os.truncate(segment_file(crashed(machine, disk_log), 6), 1)
    logs = machine.start()
    assert log_of(logs).log_end_offset == logs.checkpointed_high_watermark(T0) == 6
    assert "1 logs lost committed records that only other replicas have, first: t-0" in caplog.text


def test_batches_before_the_recovery_point_are_not_checked(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    disk_log.flush()
    machine_logs = machine.logs
    machine_logs.checkpoint_recovery_points()
    path = crashed(machine, disk_log)
    flip_byte(segment_file(path, 0), BATCH_BYTES - 1)
    assert restarted(machine).log_end_offset == 8


def test_after_a_clean_shutdown_no_recovery_is_needed(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    machine.logs.close(is_clean=True)
    directory = machine.directories[0]
    assert (directory / MARKER).exists()
    flip_byte(segment_file(disk_log.path, 6), 2 * BATCH_BYTES - 1)
    log = restarted(machine)
    assert (log.log_end_offset, log.recovery_point) == (8, 8)
    assert not (directory / MARKER).exists()


def test_after_an_unclean_shutdown_there_is_no_marker(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 1)
    machine.logs.close(is_clean=False)
    assert not (machine.directories[0] / MARKER).exists()


def test_a_log_truncated_after_a_clean_shutdown_is_recovered(
    machine: Machine, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    machine.logs.close(is_clean=True)
    os.truncate(segment_file(disk_log.path, 6), 2 * BATCH_BYTES - 1)
    assert values(restarted(machine)) == numbered(0, 7)


def test_batches_after_a_gap_are_cut_off(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    path = crashed(machine, disk_log)
    os.truncate(segment_file(path, 0), 2 * BATCH_BYTES)
    assert values(restarted(machine)) == numbered(0, 2)
    assert files(path) == [".log"]


def test_gaps_of_kafkas_log_cleaner_are_accepted(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    path = crashed(machine, disk_log)
    os.truncate(segment_file(path, 0), 2 * BATCH_BYTES)
    (path.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 6\n")
    log = restarted(machine)
    assert (log.log_end_offset, log.size) == (8, 7 * BATCH_BYTES)


def test_gaps_of_compaction_are_accepted(machine: Machine, disk_log: UnifiedLog):
    for base_offset in (0, 2, 5):  # without 1 and 4
        disk_log.append_as_follower(batch(b"", base_offset=base_offset))
    disk_log.append_as_follower(batch(b"", base_offset=10))
    log = log_of(machine.crash())
    assert (log.log_end_offset, files(log.path)) == (11, [".log", "6.log"])


@pytest.mark.parametrize("is_clean", [True, False])
def test_more_offsets_than_a_segment_can_have_may_be_missing_between_two(
    machine: Machine, disk_log: UnifiedLog, is_clean: bool
):
    fill(disk_log, 2)
    disk_log.append_as_follower(batch(b"", base_offset=2**31 + 5))
    log = log_of(machine.restart() if is_clean else machine.crash())
    assert (log.log_end_offset, files(log.path)) == (2**31 + 6, [".log", f"{2**31 + 5}.log"])


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("base_offset", [0, 3])
def test_a_log_with_a_missing_segment_is_refused(
    machine: Machine,
    logs: LogManager,
    disk_log: UnifiedLog,
    caplog: pytest.LogCaptureFixture,
    is_clean: bool,
    base_offset: int,
):
    fill(disk_log, 8)
    disk_log.flush()
    logs.checkpoint_recovery_points()
    if is_clean:
        logs.close(is_clean=True)
    else:
        machine.copy()
    segment_file(machine.directories[0] / "t-0", base_offset).unlink()
    logs = machine.start()
    assert logs.get(T0) is None
    assert logs.is_damaged(T0)
    assert f"offsets {base_offset} to {base_offset + 2} are missing" in caplog.text
    logs.set_aside(T0)
    assert create(logs).log_end_offset == 0


@pytest.mark.parametrize("deleted", [(0,), (0, 3), (0, 3, 6)])
def test_segments_that_a_crashed_kafka_was_deleting_are_not_missing(
    machine: Machine, disk_log: UnifiedLog, deleted: tuple[int, ...]
):
    """Kafka renames them, and then writes where the oldest leader epoch begins."""
    fill(disk_log, 10, leader_epoch=3)
    path = crashed(machine, disk_log)
    for base_offset in deleted:
        for suffix in (".log", ".index", ".timeindex"):
            file = segment_file(path, base_offset, suffix)
            if file.exists():
                file.rename(f"{file}.deleted")
    log = restarted(machine)
    first = deleted[-1] + 3
    assert (log.log_start_offset, values(log)) == (first, numbered(first, 10))
    assert not list(path.glob("*.deleted"))
    assert values(log_of(machine.crash())) == numbered(first, 10)


def test_a_segment_that_is_missing_beside_deleted_ones_is_missed(
    machine: Machine, disk_log: UnifiedLog
):
    fill(disk_log, 10, leader_epoch=3)
    path = crashed(machine, disk_log)
    segment_file(path, 0).rename(segment_file(path, 0, ".log.deleted"))
    segment_file(path, 3).unlink()
    assert machine.start().get(T0) is None


def test_segments_that_kafka_compacted_need_not_meet(machine: Machine, disk_log: UnifiedLog):
    for base_offset in (0, 2, 5, 6, 7, 8):  # without 1, 3 and 4
        disk_log.append_as_follower(batch(b"", base_offset=base_offset))
    machine.logs.close(is_clean=True)
    os.truncate(segment_file(disk_log.path, 0), 2 * len(batch(b"")))  # without 5, at its end
    log = restarted(machine)
    assert log.log_end_offset == 9
    assert log.read(3, 1 << 20, 9, at_least_one=True).size == 3 * len(batch(b""))


def test_the_end_of_a_segment_is_found_without_its_index(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 8)
    machine.logs.close(is_clean=True)
    segment_file(disk_log.path, 0, ".index").unlink()
    segment_file(disk_log.path, 3, ".index").write_bytes(bytes(7) + b"\1" + bytes(7) + b"\5")
    assert values(restarted(machine)) == numbered(0, 8)


# --- other files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "0\n2\n0 0\n", "nonsense", "0\n2\n3 0\n1 5\n"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_epochs_are_restored_from_the_records(
    machine: Machine, disk_log: UnifiedLog, text: str | None, is_clean: bool
):
    for epoch in (1, 3, 4):
        fill(disk_log, 3, leader_epoch=epoch)
    if is_clean:
        machine.logs.close(is_clean=True)
    else:
        machine.copy()
    path = machine.directories[0] / "t-0" / "leader-epoch-checkpoint"
    path.unlink()
    if text is not None:
        path.write_text(text)
    log = restarted(machine)
    ends = [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3, 4)]
    assert ends == [
        EpochEndOffset(1, 3),
        EpochEndOffset(1, 3),
        EpochEndOffset(3, 6),
        EpochEndOffset(4, 9),
    ]
    assert path.read_text() == "0\n3\n1 0\n3 3\n4 6\n"


def test_epochs_that_contradict_the_records_are_ignored(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 3, leader_epoch=1)
    fill(disk_log, 3, leader_epoch=2)
    (crashed(machine, disk_log) / "leader-epoch-checkpoint").write_text("0\n1\n5 0\n")
    log = restarted(machine)
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 3)
    assert log.latest_epoch == 2


def test_deleted_records_that_return_after_a_crash_have_their_epochs(
    machine: Machine, disk_log: UnifiedLog
):
    for epoch in (1, 2):
        fill(disk_log, 4, leader_epoch=epoch)
    disk_log.flush()
    machine.logs.checkpoint_recovery_points()
    disk_log.advance_log_start_offset(6)
    log = log_of(machine.crash())
    assert log.log_start_offset == 0, "it was not checkpointed"
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 4)


def test_epochs_without_records_are_kept(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 3, leader_epoch=1)
    disk_log.assign_epoch(4)
    assert log_of(machine.crash()).end_offset_for_epoch(1) == EpochEndOffset(1, 3)


def test_epochs_of_records_that_are_cut_off_are_removed(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 3, leader_epoch=1)
    fill(disk_log, 3, leader_epoch=2)
    os.truncate(segment_file(crashed(machine, disk_log), 3), BATCH_BYTES - 1)
    log = restarted(machine)
    assert log.log_end_offset == 3
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 3)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_indexes_are_rebuilt(machine: Machine, disk_log: UnifiedLog, suffix: str, is_clean: bool):
    fill(disk_log, 8)
    if is_clean:
        machine.logs.close(is_clean=True)
    else:
        machine.copy()
    path = machine.directories[0] / "t-0"
    segment_file(path, 0, suffix).unlink()
    segment_file(path, 3, suffix).write_bytes(b"\1\2\3")
    assert values(restarted(machine)) == numbered(0, 8)


def test_index_files_of_an_empty_segment_do_not_count(machine: Machine, disk_log: UnifiedLog):
    path = crashed(machine, disk_log)
    aborted = AbortedTransaction(producer_id=7, first_offset=0, last_offset=4, last_stable_offset=0)
    segment_file(path, 0, ".txnindex").write_bytes(aborted.encode())
    segment_file(path, 0, ".index").write_bytes(b"\1\2\3")
    log = restarted(machine)
    fill(log, 8)
    assert values(log) == numbered(0, 8)
    with log.locked() as contents:
        assert contents.aborted_between(0, 8) == []


def test_the_recovery_of_an_empty_log_writes_no_index_files(machine: Machine, disk_log: UnifiedLog):
    path = crashed(machine, disk_log)
    restarted(machine)
    assert not list(path.glob("*index"))


def test_an_index_without_records_is_deleted(machine: Machine, disk_log: UnifiedLog):
    fill(disk_log, 1)
    path = crashed(machine, disk_log)
    segment_file(path, 77, ".index").write_bytes(b"")
    segment_file(path, 77, ".txnindex").write_bytes(b"")
    restarted(machine)
    assert not list(path.glob("*77.*"))


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("text", [None, "", "0\n9\nt 0 5\n", "7\n1\nt 0 5\n", "0\n1\nt 0 x\n"])
def test_a_torn_checkpoint_is_ignored(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, name: str, text: str | None
):
    fill(disk_log, 8)
    logs.flush()
    logs.checkpoint_high_watermarks({T0: 5})
    logs.checkpoint_recovery_points()
    logs.checkpoint_log_start_offsets()
    machine.copy()
    checkpoint = machine.directories[0] / name
    checkpoint.unlink()
    if text is not None:
        checkpoint.write_text(text)
    logs = machine.start()
    assert values(log_of(logs)) == numbered(0, 8)
    high_watermark = 0 if "replication" in name else 5
    assert logs.checkpointed_high_watermark(T0) == high_watermark


def test_a_checkpoint_beyond_the_log_is_ignored(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    directory = crashed(machine, disk_log).parent
    for name in CHECKPOINTS:
        (directory / name).write_text("0\n1\nt 0 1000\n")
    logs = machine.start()
    log = log_of(logs)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 2, 2)
    assert values(log) == numbered(0, 2)
    assert logs.checkpointed_high_watermark(T0) == 2


def test_a_torn_topic_id_is_replaced(machine: Machine, disk_log: UnifiedLog):
    (crashed(machine, disk_log) / "partition.metadata").write_text("version: 0\ntop")
    logs = machine.start()
    assert logs.hosted() == {T0: None}


def test_the_log_start_offset_is_restored(machine: Machine, logs: LogManager, disk_log: UnifiedLog):
    fill(disk_log, 8)
    disk_log.advance_log_start_offset(4)
    logs.checkpoint_log_start_offsets()
    log = log_of(machine.crash())
    assert (log.log_start_offset, log.log_end_offset) == (4, 8)


def test_a_log_that_ends_before_its_start_keeps_its_records(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    disk_log.advance_log_start_offset(7)
    logs.checkpoint_log_start_offsets()
    os.truncate(segment_file(crashed(machine, disk_log), 6), BATCH_BYTES - 1)
    log = restarted(machine)
    assert values(log) == numbered(0, 6)


def test_a_log_without_segments_is_empty_despite_its_checkpoint(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    disk_log.truncate_fully_and_start_at(50)
    logs.checkpoint_log_start_offsets()
    segment_file(crashed(machine, disk_log), 50).unlink()
    log = restarted(machine)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


# --- sequences of producers -----------------------------------------------------------------------


def test_sequences_are_known_after_a_crash_at_any_point(machine: Machine, disk_log: UnifiedLog):
    log = disk_log
    for sequence in range(10):
        send(log, b"", producer_id=7, producer_epoch=0, base_sequence=sequence)
        log = log_of(machine.crash())
        again = send(log, b"", producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert (again.first_offset, again.is_duplicate) == (sequence, True)


def test_sequences_of_records_that_are_cut_off_are_removed(machine: Machine, disk_log: UnifiedLog):
    for sequence in range(8):
        send(disk_log, b"", producer_id=7, producer_epoch=0, base_sequence=sequence)
    size = segment_file(disk_log.path, 6).stat().st_size
    os.truncate(segment_file(crashed(machine, disk_log), 6), size - 1)
    log = restarted(machine)
    again = send(log, b"", producer_id=7, producer_epoch=0, base_sequence=7)
    assert (again.first_offset, again.is_duplicate) == (7, False)


def test_a_snapshot_of_unchecked_records_is_ignored(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 3)
    other = create(logs, T1)
    for sequence in range(4):
        send(other, b"", producer_id=7, producer_epoch=0, base_sequence=sequence)
    snapshot = "00000000000000000003.snapshot"
    path = crashed(machine, disk_log)
    (path / snapshot).write_bytes((path.parent / "t-1" / snapshot).read_bytes())
    log = restarted(machine)
    assert not send(log, b"", producer_id=7, producer_epoch=0, base_sequence=2).is_duplicate


# --- old formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
def test_a_log_of_an_old_format_is_refused_and_left_as_it_is(
    machine: Machine, logs: LogManager, magic: int, caplog: pytest.LogCaptureFixture
):
    old, new = create(logs, T0), create(logs, T1)
    fill(new, 3)
    data = old_message(b"old", magic) * 3
    segment_file(crashed(machine, old), 0).write_bytes(data)
    logs = machine.start()
    assert logs.get(T0) is None
    assert logs.is_offline(T0)
    assert values(log_of(logs, T1)) == numbered(0, 3)
    assert f"messages of format {magic} are not supported; with Kafka, copy them" in caplog.text
    assert segment_file(machine.directories[0] / "t-0", 0).read_bytes() == data
    logs.delete(T0)
    assert create(logs, T0).log_end_offset == 0


def test_garbage_that_looks_like_an_old_format_is_cut_off(machine: Machine, disk_log: UnifiedLog):
    path = segment_file(crashed(machine, disk_log), 0)
    message = bytearray(old_message(b"old"))
    message[-1] ^= 1
    path.write_bytes(message)
    assert restarted(machine).log_end_offset == 0
    assert path.stat().st_size == 0


# --- many -----------------------------------------------------------------------------------------


def test_logs_are_recovered_by_several_threads(tmp_path: Path):
    machine = Machine(tmp_path / "one", recovery_threads=4)
    names = [T0._replace(partition=partition) for partition in range(20)]
    logs = machine.start()
    for name in names:
        create(logs, name).append_as_leader(batch(b"a"), 0)
    logs = machine.crash()
    assert [log_of(logs, name).log_end_offset for name in names] == [1] * 20
    machine.end()
