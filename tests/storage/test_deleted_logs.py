"""Logs of deleted topics: until their files are deleted, they are held and used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.core.errors import StorageError
from regent.core.model import EPOCH_DURING_DELETE
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.storage.recovery.stray_logs import STRAY_KEPT_MS
from tests.support.disk_logs import (
    BATCH_BYTES,
    BROKER,
    OTHER_ID,
    T0,
    T1,
    TOPIC_ID,
    Machine,
    create,
    fill,
    flip_byte,
    log_of,
    numbered,
    segment_file,
    values,
)

DELAY_MS = 60_000
OTHER = BROKER + 1


def again(logs: LogManager, *, is_new: bool = False) -> UnifiedLog:
    """Return the log that a replica of the topic gets which is not new."""
    return logs.get_or_create(T0, TOPIC_ID, is_new=is_new)


def unknown(_: str) -> bool:
    return False


@pytest.fixture
def deleted(logs: LogManager, disk_log: UnifiedLog) -> LogManager:
    """The logs of a broker that had eight records of a topic that was deleted."""
    fill(disk_log, 8, leader_epoch=3)
    logs.checkpoint_high_watermarks({T0: 7})
    logs.delete(T0, deleted_topic=TOPIC_ID)
    return logs


@pytest.mark.parametrize("end_process", ["restart", "crash", None])
@pytest.mark.parametrize("is_held_before", [True, False])
def test_a_held_log_outlives_its_delay_and_is_used_again(
    machine: Machine, deleted: LogManager, end_process: str | None, is_held_before: bool
):
    logs = deleted
    if is_held_before:
        assert logs.deleted.hold(T0, TOPIC_ID)
    if end_process is not None:
        logs = getattr(machine, end_process)()
    assert logs.deleted.hold(T0, TOPIC_ID)
    assert logs.deleted.hold(T0, TOPIC_ID), "it is held already"
    machine.clock.now_ms += 10 * DELAY_MS
    logs.purge(unknown)
    log = again(logs)
    assert (values(log), log.latest_epoch) == (numbered(0, 8), 3)
    assert logs.checkpointed_high_watermark(T0) == 7
    assert not logs.deleted.hold(T0, TOPIC_ID), "it is in use"
    fill(log, 1, leader_epoch=4)
    assert values(again(machine.restart())) == numbered(0, 9)


@pytest.mark.parametrize("is_in_isr_again", [True, False])
def test_a_suspect_log_that_was_stray_meanwhile_is_held_only_after_a_later_isr(
    logs: LogManager, disk_log: UnifiedLog, is_in_isr_again: bool
):
    fill(disk_log, 8, leader_epoch=3)
    logs.mark_suspect(T0)
    replicas = ReplicaManager(BROKER, logs, MetadataCache())
    replicas.broker_epoch = 7

    def receive(request: ControlRequest) -> None:
        replicas.handle(ControlHeader(OTHER, 1, 7), request, 0)

    def follow(leader_epoch: int, *isr: int) -> None:
        replicas_of = (BROKER, OTHER)
        row = LeaderAndIsrPartition(
            0, 1, OTHER, leader_epoch, isr, leader_epoch, replicas_of, (), (), False, 0
        )
        topics = (LeaderAndIsrTopic("t", TOPIC_ID, (row,)),)
        receive(LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, topics, ()))

    receive(LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ()))
    assert len(logs.strays) == 1
    follow(5, OTHER)
    assert values(log_of(logs)) == numbered(0, 8)
    if is_in_isr_again:
        follow(6, BROKER, OTHER)
    deletion = StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=True)
    receive(StopReplicaRequest((StopReplicaTopic("t", TOPIC_ID, (deletion,)),)))
    assert logs.deleted.hold(T0, TOPIC_ID) is is_in_isr_again


def out_of_use(machine: Machine) -> Path:
    """Return the directory of the only log that is not in use."""
    (path,) = machine.directories[0].glob("t-0.*")
    return path


def remove(logs: LogManager, way: str) -> None:
    """Let a log wait for its topic: as the deleted one, or as a stray one."""
    if way == "set_aside":
        logs.set_aside(T0)
    else:
        logs.delete(T0, deleted_topic=TOPIC_ID)
    assert way != "hold" or logs.deleted.hold(T0, TOPIC_ID)


@pytest.mark.parametrize("end_process", ["restart", "crash"])
@pytest.mark.parametrize("way", ["hold", "delete", "set_aside"])
def test_a_log_whose_end_was_damaged_meanwhile_is_refused_and_suspect(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, way: str, end_process: str
):
    """Recovery cuts what follows the damage, which may be committed: others have it."""
    fill(disk_log, 8)
    remove(logs, way)
    flip_byte(segment_file(out_of_use(machine), 6), BATCH_BYTES - 1)
    for _ in range(2):
        with pytest.raises(StorageError, match="it ends at 6 instead of 8"):
            again(logs)
    assert logs.is_damaged(T0)
    assert logs.is_suspect(T0)
    after = getattr(machine, end_process)()
    assert values(log_of(after)) == numbered(0, 6)
    assert after.is_suspect(T0)


@pytest.mark.parametrize("end_process", ["restart", "crash", None])
def test_a_held_log_loses_nothing_that_follows_damage(
    machine: Machine, deleted: LogManager, end_process: str | None
):
    """Its files were flushed, so only a reader or the scrubber looks for damage, as always."""
    logs = deleted
    assert logs.deleted.hold(T0, TOPIC_ID)
    flip_byte(segment_file(out_of_use(machine), 0), BATCH_BYTES - 1)
    if end_process is not None:
        logs = getattr(machine, end_process)()
    log = again(logs)
    assert (log.log_start_offset, log.log_end_offset) == (0, 8)
    log.advance_log_start_offset(3)
    assert values(log) == numbered(3, 8)


@pytest.mark.parametrize("columns", [3, 4])
def test_a_log_that_an_earlier_version_set_aside_is_used_again(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog, columns: int
):
    fill(disk_log, 8)
    logs.set_aside(T0)
    checkpoint = out_of_use(machine) / "set-aside-checkpoint"
    *head, row = checkpoint.read_text().splitlines()
    words = row.split(" ")[:columns]
    checkpoint.write_text("\n".join([*head, " ".join(words), ""]))
    assert values(again(machine.restart())) == numbered(0, 8)


def test_a_log_whose_delay_is_over_cannot_be_held(machine: Machine, deleted: LogManager):
    machine.clock.now_ms += DELAY_MS
    deleted.purge(unknown)
    assert not deleted.deleted.hold(T0, TOPIC_ID)
    assert again(deleted).log_end_offset == 0


def test_only_the_log_of_that_topic_and_partition_is_held(deleted: LogManager):
    assert not deleted.deleted.hold(T0, OTHER_ID)
    assert not deleted.deleted.hold(T1, TOPIC_ID)


def test_a_late_copy_of_the_deletion_does_not_delete_a_held_log(
    machine: Machine, deleted: LogManager
):
    assert deleted.deleted.hold(T0, TOPIC_ID)
    deleted.delete(T0, deleted_topic=TOPIC_ID)
    machine.clock.now_ms += DELAY_MS
    deleted.purge(unknown)
    assert deleted.deleted.hold(T0, TOPIC_ID)
    assert values(again(deleted)) == numbered(0, 8)


def test_a_replica_that_is_told_of_its_topic_again_uses_its_deleted_log(deleted: LogManager):
    assert values(again(deleted)) == numbered(0, 8)


def test_a_new_topic_gets_an_empty_log_and_the_deleted_one_is_gone(deleted: LogManager):
    assert again(deleted, is_new=True).log_end_offset == 0
    deleted.delete(T0)
    assert not deleted.deleted.hold(T0, TOPIC_ID)


def test_the_log_of_a_replica_that_was_moved_away_is_not_offered(
    logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 8)
    logs.delete(T0)
    assert not logs.deleted.hold(T0, TOPIC_ID)


def test_a_log_that_lost_its_records_is_not_offered(machine: Machine, deleted: LogManager):
    machine.clock.now_ms += DELAY_MS
    deleted.purge(unknown)
    again(deleted)  # it was in sync, and its log is gone
    logs = machine.restart()
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert not logs.deleted.hold(T0, TOPIC_ID)


def test_a_damaged_or_suspect_log_is_not_offered(logs: LogManager):
    for name, spoil in ((T0, logs.mark_damaged), (T1, lambda name, _: logs.note_lost([name]))):
        create(logs, name)
        spoil(name, "bits flipped")
        logs.delete(name, deleted_topic=TOPIC_ID)
        assert not logs.deleted.hold(name, TOPIC_ID)


def test_after_a_loss_of_power_only_held_logs_are_left(
    machine: Machine, deleted: LogManager, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.storage.recovery.suspect_logs.boot_id", lambda: "another boot")
    assert not machine.crash().deleted.hold(T0, TOPIC_ID)


def test_what_a_crash_leaves_of_a_log_is_not_offered(
    machine: Machine, deleted: LogManager, monkeypatch: pytest.MonkeyPatch
):
    def crash(path: str) -> None:
        raise SystemExit(path)

    monkeypatch.setattr("regent.storage.log_names.shutil.rmtree", crash)
    machine.clock.now_ms += DELAY_MS
    with pytest.raises(SystemExit):
        deleted.purge(unknown)
    assert not machine.crash().deleted.hold(T0, TOPIC_ID)


def test_an_earlier_stray_log_is_never_taken_for_the_deleted_one(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    fill(disk_log, 2)
    logs.set_aside(T0)
    (stray,) = logs.strays
    kept = Path(f"{stray}+")
    stray.rename(kept)  # out of sight for the moment
    fill(again(logs, is_new=True), 8)
    kept.rename(stray)
    logs = machine.restart()
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert logs.deleted.hold(T0, TOPIC_ID)
    assert values(again(logs)) == numbered(0, 8)


def test_a_log_whose_checkpoint_cannot_be_written_is_not_offered(
    logs: LogManager, disk_log: UnifiedLog, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    fill(disk_log, 8)
    monkeypatch.setattr("regent.storage.directory_logs.write_checkpoint", fail)
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert not logs.deleted.hold(T0, TOPIC_ID)


def test_a_held_log_is_kept_for_longer_than_a_stray_one(machine: Machine, deleted: LogManager):
    """Nothing but the return of its topic, or its deletion, ends the hold."""
    assert deleted.deleted.hold(T0, TOPIC_ID)
    machine.clock.now_ms += 2 * STRAY_KEPT_MS
    deleted.purge(lambda _: True)
    assert values(again(deleted)) == numbered(0, 8)
