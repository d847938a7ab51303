"""Moves of logs between the directories of a broker: copies, exchanges, crashes, failed disks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regent.core.errors import Errors, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import (
    ReplicaAlterLogDirsManager,
    cut_back,
)
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage import log_moves
from regent.storage.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from regent.storage.directory_logs import DirectoryLogs
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_directory import LogEndOffsetFile
from regent.storage.log_manager import LogManager
from regent.storage.log_moves import MovesOfLogs
from tests.support.disk_logs import (
    BATCH_BYTES,
    BROKER,
    OTHER_ID,
    T0,
    T1,
    TOPIC_ID,
    Machine,
    break_disk,
    create,
    fill,
    flip_byte,
    log_of,
    numbered,
    segment_file,
    send,
    values,
)
from tests.support.durable_files import DurableFiles
from tests.support.led_partitions import lead
from tests.support.transactional_batches import in_transaction
from tests.support.world import live_broker

ALIVE = live_broker(BROKER)
PIECE = "regent.core.replication.replica_alter_log_dirs_manager.PIECE_BYTES"


class Host:
    """A process with the replica t-0, which it leads; ``moves`` moves it."""

    def __init__(self, machine: Machine, logs: LogManager, *, leader_epoch: int = 0) -> None:
        self.machine = machine
        self.logs = logs
        self.replicas = ReplicaManager(BROKER, logs, MetadataCache())
        self.moves = ReplicaAlterLogDirsManager(self.replicas, logs.moves)
        self.lead(leader_epoch)

    def lead(self, leader_epoch: int, leader: int = BROKER) -> None:
        """Make ``leader`` lead t-0."""
        isr = (BROKER, 2) if leader != BROKER else (BROKER,)
        topics = {"t": 1}
        lead(
            self.replicas,
            ALIVE,
            topics,
            isr,
            topic_id=TOPIC_ID,
            leader=leader,
            leader_epoch=leader_epoch,
        )

    def move(self, directory: int = 1, topic_partition: TopicPartition = T0) -> Errors:
        """Ask for a move; return the error."""
        path = str(self.machine.directories[directory])
        return self.moves.alter({topic_partition: path})[topic_partition]

    def finish(self) -> None:
        """Copy until nothing can go on."""
        while [name for name in self.moves.moving() if self.moves.advance(name, 0)]:
            pass

    @property
    def log(self) -> UnifiedLog:
        """The current log of the replica."""
        log = self.replicas.partitions[T0].log
        assert log is self.logs.get(T0)
        assert isinstance(log, UnifiedLog)
        return log

    @property
    def future(self) -> UnifiedLog:
        """The copy."""
        moved = self.logs.moves.get(T0)
        assert moved is not None
        assert isinstance(moved.future, UnifiedLog)
        return moved.future


def names(machine: Machine) -> list[list[str]]:
    """Return the names in each directory, without the random digits."""
    return [
        sorted(
            re.sub(r"\.[0-9a-f]{32}-", "-", path.name)
            for path in directory.iterdir()
            if path.is_dir()
        )
        for directory in machine.directories
    ]


@pytest.fixture
def host(two: Machine) -> Host:
    """t-0 with ten records in four segments in the first of two directories."""
    host = Host(two, two.start())
    fill(host.log, 10)
    return host


# --- moves ---


def test_a_moved_log_is_in_the_other_directory_and_accepts_records(two: Machine, host: Host):
    assert host.move() is Errors.NONE
    assert names(two) == [["t-0"], ["t-0-future"]]
    host.finish()
    assert names(two) == [["t-0-delete"], ["t-0"]]
    assert host.log.directory.path == two.directories[1]
    assert host.logs.moves.moving() == []
    fill(host.log, 5)
    assert values(host.log) == numbered(0, 15)
    assert values(log_of(two.restart())) == numbered(0, 15)


def test_a_log_that_lacks_records_still_does_so_in_the_other_directory(two: Machine):
    logs = two.start()
    logs.get_or_create(T0, TOPIC_ID, is_new=False)
    host = Host(two, logs)
    host.move()
    host.finish()
    assert host.log.directory.path == two.directories[1]
    logs.delete(T0, deleted_topic=TOPIC_ID)
    assert not logs.deleted.hold(T0, TOPIC_ID)


def test_the_log_takes_records_while_it_is_copied(host: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PIECE, BATCH_BYTES)
    host.move()
    source = host.log
    for _ in range(5):
        assert host.moves.advance(T0, 0)
        fill(host.log, 1)
        assert host.log is source
    host.finish()
    assert host.log is not source
    assert values(host.log) == numbered(0, 15)


def test_records_read_from_the_former_log_can_still_be_sent(host: Host):
    records = host.log.read(0, 1 << 20, 10, at_least_one=True)
    before = records.read()
    host.move()
    host.finish()
    assert records.read() == before


def test_the_files_of_the_former_log_are_deleted_later(two: Machine, host: Host):
    host.move()
    host.finish()
    two.clock.now_ms += two.defaults.file_delete_delay_ms
    host.logs.purge(lambda _: True)
    assert names(two) == [[], ["t-0"]]


def test_a_follower_moves_too(host: Host):
    host.lead(1, leader=2)
    host.move()
    host.finish()
    assert host.log.directory.path == host.machine.directories[1]
    assert values(host.log) == numbered(0, 10)


def test_the_notes_of_a_log_move_with_its_records(two: Machine, host: Host):
    send(host.log, b"x", producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(3):
        fill(host.log, 3)
    host.logs.checkpoint_high_watermarks({T0: 14})
    host.log.advance_log_start_offset(14)
    host.log.delete_old_segments(two.clock.now_ms)
    host.lead(5)  # an epoch without records
    before = host.log
    known = before.active_producers(), before.latest_epoch, before.end_offset_for_epoch(0)
    host.move()
    host.finish()
    assert known[0]
    for is_restarted in (False, True):
        log = log_of(two.restart() if is_restarted else host.logs)
        assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (14, 20, TOPIC_ID)
        assert (log.active_producers(), log.latest_epoch, log.end_offset_for_epoch(0)) == known


def test_the_checkpoints_name_the_log_in_its_new_directory(two: Machine, host: Host):
    host.logs.checkpoint_high_watermarks({T0: 8})
    host.log.advance_log_start_offset(2)
    host.log.flush()
    host.move()
    host.finish()
    source, target = two.directories
    assert read_offsets(target / RECOVERY_POINTS) == {T0: 10}
    assert read_offsets(target / LOG_START_OFFSETS) == {T0: 2}
    assert host.logs.checkpointed_high_watermark(T0) == 8
    assert host.log.checkpointed_high_watermark == 8
    host.logs.checkpoint_high_watermarks({T0: 9})
    host.logs.checkpoint_recovery_points()
    host.logs.checkpoint_log_start_offsets()
    assert read_offsets(source / RECOVERY_POINTS) == {}
    assert (two.directories[1] / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 9\n"


def test_a_suspect_log_is_suspect_in_its_new_directory(two: Machine, host: Host):
    host.logs.note_lost([T0])
    host.move()
    host.finish()
    assert list(host.logs.suspects().ends) == [T0]
    assert "t 0 suspect" in (two.directories[1] / "suspect-logs").read_text()
    host.logs.save_suspects()
    assert "t 0" not in (two.directories[0] / "suspect-logs").read_text()


def test_a_moved_log_is_not_suspect_after_a_crash(two: Machine, host: Host):
    host.logs.close(is_clean=True)
    host = Host(two, two.start())
    host.move()
    host.finish()
    fill(host.log, 1)
    logs = two.crash()
    assert not logs.has_suspects
    assert values(log_of(logs)) == numbered(0, 11)


def test_a_log_without_records_moves(two: Machine):
    host = Host(two, two.start())
    host.move()
    host.finish()
    fill(host.log, 1)
    assert names(two)[1] == ["t-0"]
    assert values(host.log) == numbered(0, 1)


def test_a_batch_that_is_larger_than_a_piece_is_copied(host: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PIECE, 1)
    host.move()
    host.finish()
    assert values(host.log) == numbered(0, 10)


def test_the_first_batch_of_a_log_may_begin_before_its_start(host: Host):
    send(host.log, b"a", b"b", b"c")
    host.log.advance_log_start_offset(11)
    host.move()
    host.finish()
    assert (host.log.log_start_offset, host.log.log_end_offset) == (11, 13)


def test_configurations_apply_to_the_copy(host: Host):
    host.move()
    config = replace(host.log.config, segment_bytes=10 * BATCH_BYTES)
    host.logs.configure({"t": config})
    host.finish()
    assert host.log.config == config
    assert len(list(host.log.path.glob("*.log"))) == 1


def test_a_transaction_may_begin_in_the_copy_if_its_verification_began_before(host: Host):
    data = in_transaction(b"x", producer_id=7, sequence=0)
    guard = host.log.begin_verification(data)
    host.move()
    host.finish()
    host.log.append_as_leader(data, 0, guard=guard)
    assert host.log.log_end_offset == 11


# --- truncations ---


def test_a_truncation_of_the_log_truncates_the_copy(host: Host, monkeypatch: pytest.MonkeyPatch):
    host.move()
    monkeypatch.setattr(PIECE, 2 * BATCH_BYTES)
    for _ in range(4):
        host.moves.advance(T0, 0)
    assert host.future.log_end_offset == 6, "a piece is in one segment"
    host.lead(1, leader=2)
    host.log.truncate_to(5)
    host.lead(2)
    fill(host.log, 1, leader_epoch=2)
    send(host.log, b"else", leader_epoch=2)
    host.finish()
    assert values(host.log) == [*numbered(0, 6), b"else"]
    assert host.log.end_offset_for_epoch(0).end_offset == 5


def test_a_truncation_while_a_piece_is_read_is_noticed(host: Host, monkeypatch: pytest.MonkeyPatch):
    host.move()
    source = host.log
    read = UnifiedLog.read

    def read_and_truncate(log: UnifiedLog, *args: Any, **options: Any) -> Any:
        records = read(log, *args, **options)
        monkeypatch.undo()
        source.truncate_to(1)
        for _ in range(3):
            send(source, b"else", leader_epoch=1)
        return records

    monkeypatch.setattr(UnifiedLog, "read", read_and_truncate)
    host.moves.advance(T0, 0)
    assert host.future.log_end_offset == 0
    host.finish()
    assert values(host.log) == [b"0000", b"else", b"else", b"else"]


def append_to_a_new_segment(log: UnifiedLog) -> None:
    fill(log, 1)


def append_and_flush(log: UnifiedLog) -> None:
    fill(log, 1)
    log.flush()


def delete_records(log: UnifiedLog) -> None:
    log.advance_log_start_offset(6)


def write_other_records(log: UnifiedLog) -> None:
    log.truncate_to(11)
    send(log, b"else", leader_epoch=1)


@pytest.mark.parametrize(
    "change", [append_to_a_new_segment, append_and_flush, delete_records, write_other_records]
)
def test_logs_are_not_exchanged_when_the_log_changes_before(
    two: Machine,
    host: Host,
    change: Callable[[UnifiedLog], None],
    monkeypatch: pytest.MonkeyPatch,
):
    fill(host.log, 2)  # four complete segments
    host.move()
    prepare, source = MovesOfLogs.prepare, host.log

    def prepare_and_change(moves: MovesOfLogs, name: TopicPartition) -> None:
        prepare(moves, name)
        monkeypatch.undo()
        change(source)

    monkeypatch.setattr(MovesOfLogs, "prepare", prepare_and_change)
    for _ in range(4):
        assert host.moves.advance(T0, 0)
    assert host.log is source, "what was prepared is not enough now"
    expected = source.log_start_offset, values(source)
    host.finish()
    assert host.log is not source
    assert (host.log.log_start_offset, values(host.log)) == expected


def test_only_the_log_that_a_replica_uses_is_exchanged(two: Machine, host: Host):
    host.move()
    host.replicas.partitions[T0].log = None  # out of service
    for _ in range(6):
        host.moves.advance(T0, 0)
    assert names(two) == [["t-0"], ["t-0-future"]]


def test_a_copy_is_cut_back_to_what_both_logs_have(two: Machine):
    logs = two.start()
    current, future = create(logs, T0), create(logs, T1)
    # leader epochs of the records of each, and the offset up to which they agree
    for currents, futures, agreed in (
        ("", "", 0),
        ("000", "", 0),
        ("000", "00", 2),
        ("00", "000", 2),
        ("0022", "0011", 2),
        ("0022", "0001", 2),
        ("0033", "0122", 1),
        ("0133", "0122", 2),
        ("02", "0111", 1),
        ("0", "1", 0),
        ("", "11", 0),
        ("3", "12", 0),
        ("000", "011", 1),
        ("00000", "0011", 2),
        ("44444", "4", 1),
    ):
        for log, epochs in ((current, currents), (future, futures)):
            log.truncate_fully_and_start_at(0)
            for epoch in epochs:
                fill(log, 1, leader_epoch=int(epoch))
        cut_back(future, current)
        assert future.log_end_offset == agreed, (currents, futures)


@pytest.mark.parametrize(("start", "kept"), [(3, numbered(3, 5)), (5, []), (8, [])])
def test_a_copy_begins_where_the_log_begins(two: Machine, start: int, kept: list[bytes]):
    logs = two.start()
    current, future = create(logs, T0), create(logs, T1)
    fill(current, 10)
    fill(future, 5)
    current.advance_log_start_offset(start)
    cut_back(future, current)
    assert future.log_start_offset == start
    assert values(future) == kept


def test_a_copy_that_begins_after_the_log_is_made_again(two: Machine):
    logs = two.start()
    current, future = create(logs, T0), create(logs, T1)
    future.truncate_fully_and_start_at(7)
    fill(current, 10)
    cut_back(future, current)
    assert (future.log_start_offset, future.log_end_offset) == (0, 0)


def test_retention_of_the_log_moves_the_start_of_the_copy(two: Machine, host: Host):
    host.move()
    assert host.moves.advance(T0, 0)
    host.logs.checkpoint_high_watermarks({T0: 10})
    host.log.advance_log_start_offset(6)
    host.log.delete_old_segments(two.clock.now_ms)
    host.finish()
    assert values(host.log) == numbered(6, 10)
    assert host.log.log_start_offset == 6


# --- requests ---


def test_a_replica_that_is_in_its_directory_stays(two: Machine, host: Host):
    assert host.move(0) is Errors.NONE
    assert names(two) == [["t-0"], []]


def test_a_move_continues_when_it_is_requested_again(host: Host):
    host.move()
    host.moves.advance(T0, 0)
    assert host.move() is Errors.NONE
    assert host.future.log_end_offset == 3


def test_a_move_back_cancels_the_move(two: Machine, host: Host):
    host.move()
    future = host.future
    assert host.move(0) is Errors.NONE
    assert names(two) == [["t-0"], ["t-0-delete"]]
    with pytest.raises(StorageError):
        future.flush()
    host.finish()
    assert host.log.directory.path == two.directories[0]


def test_a_move_to_a_third_directory_replaces_the_move(tmp_path: Path):
    machine = Machine(*(tmp_path / name for name in "abc"))
    host = Host(machine, machine.start())
    fill(host.log, 3)
    host.move(1)
    host.move(2)
    assert names(machine) == [["t-0"], ["t-0-delete"], ["t-0-future"]]
    host.finish()
    assert names(machine) == [["t-0-delete"], ["t-0-delete"], ["t-0"]]
    machine.end()


def test_impossible_moves_are_refused(two: Machine, host: Host):
    long = TopicPartition("x" * 214, 0)
    nowhere = str(two.directories[0].parent)
    answers = host.moves.alter({T0: nowhere, long: nowhere, T0._replace(topic="y" * 213): nowhere})
    assert list(answers.values()) == [
        Errors.LOG_DIR_NOT_FOUND,
        Errors.INVALID_TOPIC_EXCEPTION,
        Errors.LOG_DIR_NOT_FOUND,
    ]


def test_a_replica_that_is_not_here_is_created_where_it_was_expected(two: Machine, host: Host):
    assert host.move(0, T1) is Errors.REPLICA_NOT_AVAILABLE
    assert host.logs.moves.moving() == []
    assert create(host.logs, T1).directory.path == two.directories[0], "the other one has fewer"
    host.logs.delete(T1)
    assert create(host.logs, T1).directory.path == two.directories[1], "that is forgotten"


def test_nothing_moves_while_a_directory_is_offline(tmp_path: Path):
    machine = Machine(*(tmp_path / name for name in "abc"))
    host = Host(machine, machine.start())
    fill(create(host.logs, T1), 1)
    assert log_of(host.logs, T1).directory.path == machine.directories[1]
    break_disk(segment_file(log_of(host.logs, T1).path, 0))
    with pytest.raises(StorageError):
        fill(log_of(host.logs, T1), 1)
    assert host.move(1) is Errors.KAFKA_STORAGE_ERROR
    assert host.move(2) is Errors.KAFKA_STORAGE_ERROR
    assert host.move(0) is Errors.NONE
    assert names(machine) == [["t-0"], ["t-1"], []]
    machine.end()


def test_an_offline_replica_does_not_move(two: Machine, host: Host):
    host.logs.mark_damaged(T0, "damaged")
    host.replicas.on_log_directory_failed()
    assert host.move() is Errors.KAFKA_STORAGE_ERROR


# --- removed replicas ---


def test_a_deleted_replica_leaves_no_copy(two: Machine, host: Host):
    host.move()
    topic = StopReplicaTopic("t", TOPIC_ID, (StopReplicaPartition(0, -2, True),))
    host.replicas.handle(ControlHeader(BROKER, 1, -1), StopReplicaRequest((topic,)), 0)
    assert names(two) == [["t-0-delete"], ["t-0-delete"]]
    host.finish()
    assert two.restart().hosted() == {}


def test_a_stray_replica_leaves_no_copy(two: Machine, host: Host):
    host.move()
    host.logs.set_aside(T0)
    assert names(two) == [["t-0-stray"], ["t-0-delete"]]


def test_a_replica_that_is_created_again_has_no_copy(two: Machine, host: Host):
    host.move()
    host.logs.delete(T0)
    create(host.logs, T0, OTHER_ID)
    host.finish()
    assert host.logs.moves.moving() == []


# --- restarts ---


@pytest.mark.parametrize("restart", [Machine.restart, Machine.crash])
def test_a_move_continues_after_a_restart(
    two: Machine,
    host: Host,
    restart: Callable[[Machine], LogManager],
    monkeypatch: pytest.MonkeyPatch,
):
    host.move()
    monkeypatch.setattr(PIECE, 4 * BATCH_BYTES)
    host.moves.advance(T0, 0)
    copied = host.future.log_end_offset
    assert 0 < copied < 10
    host = Host(two, restart(two), leader_epoch=1)
    assert host.future.log_end_offset == copied
    assert values(host.log) == numbered(0, 10)
    fill(host.log, 2, leader_epoch=1)
    host.finish()
    assert host.log.directory.path == two.directories[1]
    assert values(host.log) == numbered(0, 12)


def test_a_move_waits_until_the_replica_is_known_again(two: Machine, host: Host):
    host.move()
    logs = two.crash()
    moves = ReplicaAlterLogDirsManager(ReplicaManager(BROKER, logs, MetadataCache()), logs.moves)
    while moves.advance(T0, 0):
        pass
    assert names(two)[1] == ["t-0-future"]
    host = Host(two, logs)
    host.finish()
    assert values(host.log) == numbered(0, 10)


def test_a_copy_that_differs_after_a_restart_is_cut_back(two: Machine, host: Host):
    host.move()
    host.moves.advance(T0, 0)
    host.moves.advance(T0, 0)
    host.log.truncate_to(4)  # the process ends before the copy is truncated
    send(host.log, b"else", leader_epoch=1)
    host = Host(two, two.crash(), leader_epoch=2)
    assert host.future.log_end_offset == 6
    host.finish()
    assert values(host.log) == [*numbered(0, 4), b"else"]
    assert names(two)[1] == ["t-0"]


class Died(BaseException):
    """The process was killed."""

    @classmethod
    def now(cls, *args: object) -> None:
        """Kill it."""
        raise cls


def killed_at(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process before one of the steps of the exchange."""
    left = count

    def dies_first(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Died
            left -= 1
            return step(*args, **options)

        return run

    for owner, name in EXCHANGE_STEPS:
        monkeypatch.setattr(owner, name, dies_first(getattr(owner, name)))


EXCHANGE_STEPS: list[tuple[Any, str]] = [
    (DirectoryLogs, "save_suspects"),
    (LogEndOffsetFile, "add"),
    (LogEndOffsetFile, "note"),
    (LogEndOffsetFile, "remove"),
    (log_moves, "write_atomically"),
    (log_moves, "_promote"),
    (log_moves, "_put_away"),
    (log_moves, "move_log"),
    (UnifiedLog, "move_to"),
    (UnifiedLog, "retire"),
]


@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("is_suspect", [False, True])
def test_a_crash_in_the_exchange_loses_nothing(
    two: Machine, host: Host, steps: int, is_suspect: bool, monkeypatch: pytest.MonkeyPatch
):
    host.logs.note_lost([T0] if is_suspect else [])
    host.logs.save_suspects()
    host.log.advance_log_start_offset(4)
    host.logs.checkpoint_log_start_offsets()
    host.move()
    while host.future.log_end_offset < 9:
        host.moves.advance(T0, 0)
    with monkeypatch.context() as patch:
        killed_at(steps, patch)
        with pytest.raises(Died):
            host.finish()
    assert any("t-0" in found for found in names(two)), "Kafka would make an empty log"
    logs = two.crash()
    assert logs.knows_all
    assert list(logs.hosted()) == [T0]
    assert values(log_of(logs)) == numbered(4, 10)
    assert logs.is_suspect(T0) or not is_suspect
    logs.mark_sound(T0)
    host = Host(two, logs, leader_epoch=1)
    fill(host.log, 2, leader_epoch=1)
    host.finish()
    assert host.log.directory.path == two.directories[1]
    assert values(host.log) == numbered(4, 12)
    logs = two.restart()
    assert values(log_of(logs)) == numbered(4, 12)
    two.clock.now_ms += two.defaults.file_delete_delay_ms
    logs.purge(lambda _: True)
    assert names(two) == [[], ["t-0"]]


@pytest.mark.parametrize("steps", range(11))
def test_a_power_failure_in_the_exchange_keeps_what_was_flushed(
    two: Machine, steps: int, monkeypatch: pytest.MonkeyPatch
):
    disk = DurableFiles()
    with disk.watched():
        host = Host(two, two.start())
        fill(host.log, 10)
        host.log.advance_log_start_offset(4)
        host.log.flush()
        host.logs.checkpoint_recovery_points()
        host.logs.checkpoint_log_start_offsets()
        host.move()
        with monkeypatch.context() as patch, suppress(Died):
            killed_at(steps, patch)
            host.finish()
    for number, before in enumerate(two.directories):
        two.directories[number] = before.with_name(before.name + "+")
        disk.restore(before, two.directories[number])
    logs = two.start()
    assert list(logs.hosted()) == [T0]
    assert values(log_of(logs)) == numbered(4, 10)


def test_a_moved_log_is_in_use_after_a_power_failure_although_its_former_directory_is_lost(
    two: Machine,
):
    """With the defect, seed 58015146: it had its former name again, and was not used."""
    disk = DurableFiles()
    with disk.watched():
        host = Host(two, two.start())
        fill(host.log, 10)
        host.log.flush()
        host.logs.checkpoint_recovery_points()
        host.move()
        host.finish()
    first, second = two.directories
    shutil.rmtree(first)
    first.touch()
    two.directories[1] = second.with_name(second.name + "+")
    disk.restore(second, two.directories[1])
    logs = two.start()
    assert list(logs.hosted()) == [T0]
    assert values(log_of(logs)) == numbered(0, 10)


def test_a_log_that_was_killed_between_two_names_is_not_suspect(
    two: Machine, host: Host, monkeypatch: pytest.MonkeyPatch
):
    host.logs.note_lost([])
    host.logs.save_suspects()
    host.move()
    with monkeypatch.context() as patch:
        patch.setattr(log_moves, "_put_away", Died.now)
        with pytest.raises(Died):
            host.finish()
    assert names(two) == [["t-0"], ["t-0"]], "Kafka does not start"
    logs = two.crash()
    assert logs.knows_all
    assert not logs.suspects()
    assert names(two) == [["t-0-delete"], ["t-0"]]
    assert values(log_of(logs)) == numbered(0, 10)


@pytest.mark.parametrize("offline", [0, 1])
def test_the_log_that_was_used_since_a_crash_between_two_names_is_kept(
    two: Machine, host: Host, offline: int, monkeypatch: pytest.MonkeyPatch
):
    """One of the directories cannot be read for a while; the other one has the only log then."""
    host.move()
    with monkeypatch.context() as patch:
        patch.setattr(log_moves, "_put_away", Died.now)
        with pytest.raises(Died):
            host.finish()
    two.copy()
    meta = two.directories[offline] / "meta.properties"
    meta.unlink(missing_ok=True)
    meta.mkdir()
    host = Host(two, two.start(), leader_epoch=1)
    assert host.logs.failed_directories == {two.directories[offline]}
    fill(host.log, 2, leader_epoch=1)
    two.copy()
    (two.directories[offline] / "meta.properties").rmdir()
    logs = two.start()
    if offline == 0:
        assert values(log_of(logs)) == numbered(0, 12)
        assert names(two) == [["t-0-delete"], ["t-0"]]
    else:
        assert logs.is_damaged(T0), "it is not known which one is right"
        assert names(two) == [["t-0"], ["t-0"]]


def test_the_copy_of_a_lost_log_is_used_and_is_suspect(two: Machine, host: Host):
    host.move()
    host.moves.advance(T0, 0)
    host.logs.close(is_clean=True)
    shutil.rmtree(two.directories[0])
    logs = two.start()
    assert list(logs.suspects().ends) == [T0]
    assert values(log_of(logs)) == numbered(0, 3)


# --- failures ---


def test_a_target_that_fails_ends_only_the_move(two: Machine, host: Host):
    host.move()
    with host.future.locked() as copy:
        copy.active.open_file()
    break_disk(segment_file(host.future.path, 0))
    host.finish()
    assert host.logs.failed_directories == {two.directories[1]}
    fill(host.log, 1)
    assert values(host.log) == numbered(0, 11)
    assert host.logs.moves.moving() == []
    host = Host(two, two.crash(), leader_epoch=1)
    host.finish()
    assert host.log.directory.path == two.directories[1]
    assert values(host.log) == numbered(0, 11)


def test_a_target_that_fails_in_the_exchange_changes_nothing(
    two: Machine, host: Host, monkeypatch: pytest.MonkeyPatch
):
    host.logs.note_lost([])
    host.logs.save_suspects()
    host.move()
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name.endswith("-future"):
            raise OSError(5, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    host.finish()
    monkeypatch.undo()
    assert host.logs.failed_directories == {two.directories[1]}
    assert names(two) == [["t-0"], ["t-0-future"]]
    fill(host.log, 1)
    host = Host(two, two.crash(), leader_epoch=1)
    assert host.logs.knows_all
    assert not host.logs.has_suspects
    host.finish()
    assert values(host.log) == numbered(0, 11)
    assert names(two)[1] == ["t-0"]


def test_a_source_that_fails_fails_the_replica(two: Machine, host: Host):
    host.move()
    break_disk(segment_file(host.log.path, 9), "/proc/self/mem")
    break_disk(segment_file(host.log.path, 0), "/proc/self/mem")
    host.finish()
    assert host.logs.failed_directories == {two.directories[0]}
    assert host.replicas.on_log_directory_failed() == [T0]
    host.finish()
    assert names(two) == [["t-0"], ["t-0-future"]]


def test_a_copy_in_a_directory_that_was_offline_may_be_of_a_log_that_is_there(
    two: Machine, host: Host
):
    host.move()
    two.copy()
    meta = two.directories[0] / "meta.properties"
    meta.unlink(missing_ok=True)
    meta.mkdir()  # cannot be read
    logs = two.start()
    assert logs.failed_directories == {two.directories[0]}
    assert names(two)[1] == ["t-0-future"], "it does not become the current log"
    assert logs.hosted() == {}
    two.copy()
    (two.directories[0] / "meta.properties").rmdir()
    host = Host(two, two.start())
    host.finish()
    assert values(host.log) == numbered(0, 10)


def test_the_copy_of_a_log_whose_disk_failed_is_kept_until_it_can_be_used(two: Machine, host: Host):
    host.move()
    while host.future.log_end_offset < 9:
        host.moves.advance(T0, 0)
    two.copy()
    meta = two.directories[0] / "meta.properties"
    meta.unlink(missing_ok=True)
    meta.mkdir()  # cannot be read
    logs = two.start()
    for _ in range(2):
        with pytest.raises(StorageError, match="may be in a log directory that is offline"):
            logs.get_or_create(T0, TOPIC_ID, is_new=False)
        assert names(two)[1] == ["t-0-future"]
    two.copy()
    shutil.rmtree(two.directories[0])
    assert values(log_of(two.start())) == numbered(0, 9)


def test_a_damaged_copy_ends_the_move_at_the_start(two: Machine, host: Host):
    host.move()
    host.moves.advance(T0, 0)
    host.moves.advance(T0, 0)
    path = host.future.path
    host.logs.close(is_clean=True)
    segment_file(path, 0).write_bytes(b"")
    logs = two.start()
    assert logs.moves.moving() == []
    assert names(two)[1] == ["t-0-delete"]
    assert values(log_of(logs)) == numbered(0, 10)


def test_the_copy_of_another_topic_is_deleted(two: Machine, host: Host):
    host.move()
    host.logs.close(is_clean=True)
    (two.directories[0] / "t-0" / "partition.metadata").write_text(
        f"version: 0\ntopic_id: {OTHER_ID}"
    )
    logs = two.start()
    assert logs.topic_id(T0) == OTHER_ID
    assert logs.moves.moving() == []
    assert names(two)[1] == ["t-0-delete"]


def test_a_damaged_log_ends_the_move_of_the_last_copy(two: Machine, host: Host):
    flip_byte(segment_file(host.log.path, 3), BATCH_BYTES - 1)
    host.move()
    host.finish()
    assert names(two) == [["t-0"], ["t-0-delete"]]
    assert host.logs.failed_directories == frozenset()
    fill(host.log, 1)
