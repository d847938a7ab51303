"""Without file descriptors operations fail, no data are lost, and the next attempt succeeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from regent.core.errors import Errors, ShortageError
from regent.core.model import EPOCH_DURING_DELETE, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
)
from regent.core.replica_logs import MAX_TIMESTAMP, SeenOfCluster
from regent.core.replication.all_partitions import FOR_NOW
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log.unified_log import NEVER_STRAY, UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.descriptors import SHORTAGE, no_descriptor_left
from tests.support.disk_logs import (
    BROKER,
    OTHER_ID,
    T0,
    T1,
    THREE_A_SEGMENT,
    TOPIC_ID,
    U0,
    Machine,
    create,
    fill,
    log_of,
    numbered,
    segment_file,
    values,
)
from tests.support.record_batches import batch
from tests.support.transactional_batches import in_transaction

_MOST_OPENS = 60

COMPACTED = replace(THREE_A_SEGMENT, cleanup_policy="compact")
Act: TypeAlias = Callable[[LogManager], None]

HISTORY = 8  # batches, three in a segment


def append(logs: LogManager) -> None:
    """Append in a new segment and a new leader epoch."""
    log = log_of(logs)
    fill(log, HISTORY + 2 - log.log_end_offset, leader_epoch=2)


def follow(logs: LogManager) -> None:
    """Append as a follower, in a new epoch and a new segment."""
    log = log_of(logs)
    while log.log_end_offset < HISTORY + 2:
        end = log.log_end_offset
        log.append_as_follower(batch(b"%04d" % end, base_offset=end, leader_epoch=2))


def truncate(logs: LogManager) -> None:
    """Truncate several segments."""
    log_of(logs).truncate_to(2)


def start_over(logs: LogManager) -> None:
    """Remove all records."""
    log_of(logs).truncate_fully_and_start_at(20)


def begin_later(logs: LogManager) -> None:
    """Delete the first records, and their segment."""
    log_of(logs).advance_log_start_offset(4)
    log_of(logs).delete_old_segments(0)
    log_of(logs).delete_dropped_files(MAX_TIMESTAMP)
    logs.checkpoint_log_start_offsets()


def read(logs: LogManager) -> None:
    """Read all records."""
    assert values(log_of(logs)) == numbered(0, HISTORY)


ACTS: dict[str, tuple[Act, list[bytes]]] = {
    "append": (append, numbered(0, HISTORY + 2)),
    "follow": (follow, numbered(0, HISTORY + 2)),
    "truncate": (truncate, numbered(0, 2)),
    "start over": (start_over, []),
    "begin later": (begin_later, numbered(4, HISTORY)),
    "read": (read, numbered(0, HISTORY)),
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log of two epochs, and a log that was set aside."""
    machine = Machine(tmp_path_factory.mktemp("history") / "logs")
    logs = machine.start()
    fill(create(logs), 5)
    fill(log_of(logs), HISTORY - 5, leader_epoch=1)
    fill(create(logs, T1, OTHER_ID), 4)
    logs.set_aside(T1)
    logs.checkpoint_high_watermarks({T0: HISTORY})
    logs.close(is_clean=True)
    return machine.directories[0]


def copied(history: Path, directory: Path) -> Machine:
    """Return another machine with the same history."""
    return Machine(Path(shutil.copytree(history, directory)))


def attempts(history: Path, directory: Path, act: Act) -> Iterator[Machine]:
    """Try an operation with too few descriptors, none, one, two …, and then with enough.

    Yield the machine after each attempt, with enough descriptors again.
    """
    for opened in range(_MOST_OPENS):
        machine = copied(history, directory / f"{opened}")
        logs = machine.start()
        try:
            with SHORTAGE.after(opened, machine.directories[0]), suppress(ShortageError):
                act(logs)
            was_met = SHORTAGE.is_met
            assert not logs.failed_directories
            assert not machine.damaged
            yield machine
        finally:
            machine.end()
        if not was_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")


@pytest.mark.parametrize("name", ACTS)
def test_an_operation_without_descriptors_succeeds_at_the_next_attempt(
    history: Path, tmp_path: Path, name: str
):
    act, expected = ACTS[name]
    for machine in attempts(history, tmp_path, act):
        act(machine.logs)
        log = log_of(machine.logs)
        assert values(log) == expected
        epoch = log.latest_epoch
        after = log_of(machine.crash())
        assert values(after) == expected
        assert after.latest_epoch == epoch
        assert not machine.damaged


@pytest.mark.parametrize("name", ACTS)
def test_a_crash_after_a_shortage_leaves_the_old_or_the_new_state(
    history: Path, tmp_path: Path, name: str
):
    act, expected = ACTS[name]
    sizes = sorted((len(expected), HISTORY))
    for machine in attempts(history, tmp_path, act):
        appended = log_of(machine.logs).log_end_offset if sizes[0] == HISTORY else 0
        log = log_of(machine.crash())
        left = values(log)
        assert left == numbered(log.log_start_offset, log.log_end_offset)
        assert sizes[0] <= len(left) <= sizes[1]
        assert len(left) >= appended
        assert not machine.damaged


@pytest.mark.parametrize(
    ("name", "topic_id", "is_new", "expected"),
    [(U0, TOPIC_ID, True, []), (U0, TOPIC_ID, False, []), (T1, OTHER_ID, True, numbered(0, 4))],
    ids=["new", "lost", "taken back"],
)
def test_a_log_that_could_not_be_created_is_created_by_the_next_attempt(
    history: Path,
    tmp_path: Path,
    name: TopicPartition,
    topic_id: str,
    *,
    is_new: bool,
    expected: list[bytes],
):
    def act(logs: LogManager) -> None:
        logs.get_or_create(name, topic_id, is_new=is_new)

    for machine in attempts(history, tmp_path, act):
        act(machine.logs)
        assert values(log_of(machine.logs, name)) == expected
        after = log_of(machine.crash(), name)
        assert values(after) == expected
        assert after.topic_id == topic_id


def test_the_next_attempt_creates_a_log_in_the_directory_that_was_asked_for(two: Machine):
    logs, (first, second) = two.start(), two.directories
    for name in (T0, T1):
        logs.moves.prefer(name, str(second))
        with SHORTAGE.after(0, first.parent), pytest.raises(ShortageError):
            create(logs, name)
        assert create(logs, name).directory.path == second


def test_a_deleted_log_that_could_not_be_held_is_held_by_the_next_attempt(
    history: Path, tmp_path: Path
):
    def act(logs: LogManager) -> None:
        if logs.get(T0) is not None:
            logs.delete(T0, deleted_topic=TOPIC_ID)
        assert logs.deleted.hold(T0, TOPIC_ID)

    for machine in attempts(history, tmp_path, act):
        act(machine.logs)
        back = machine.logs.get_or_create(T0, TOPIC_ID, is_new=False)
        assert values(back) == numbered(0, HISTORY)


@pytest.mark.parametrize("is_undeleted", [False, True])
def test_a_log_that_could_not_be_taken_back_is_taken_back_by_the_next_attempt(
    tmp_path: Path, is_undeleted: bool
):
    for opened in range(_MOST_OPENS):
        place = tmp_path / f"{opened}"
        machine = Machine(place / "one", place / "two", defaults=COMPACTED)
        logs = machine.start()
        try:
            fill(create(logs), HISTORY)
            log_of(logs).flush()
            log_of(logs).note_cleaned(3, 0)
            logs.checkpoint_recovery_points()
            logs.checkpoint_cleaned_offsets()
            logs.checkpoint_high_watermarks({T0: HISTORY})
            if is_undeleted:
                logs.delete(T0, deleted_topic=TOPIC_ID)
            else:
                logs.set_aside(T0)
            with SHORTAGE.after(opened, place), suppress(ShortageError):
                logs.get_or_create(T0, TOPIC_ID, is_new=False)
            was_met = SHORTAGE.is_met
            log = logs.get_or_create(T0, TOPIC_ID, is_new=False)
            assert not logs.failed_directories
            assert log.stray_high_watermark == (NEVER_STRAY if is_undeleted else HISTORY)
            assert [values(log), log.first_dirty] == [numbered(0, HISTORY), 0]
            log = log_of(machine.crash())
            assert [values(log), log.first_dirty] == [numbered(0, HISTORY), 0]
        finally:
            machine.end()
        if not was_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")


def test_a_damaged_log_whose_topic_id_cannot_be_read_is_not_deleted_for_an_earlier_topic(
    history: Path, tmp_path: Path
):
    machine = copied(history, tmp_path / "one")
    segment_file(machine.directories[0] / "t-0", 3).unlink()
    logs = machine.start()
    assert logs.is_damaged(T0)
    replicas = ReplicaManager(BROKER, logs, MetadataCache())
    replicas.broker_epoch = 7
    rows = (StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=True),)
    request = StopReplicaRequest((StopReplicaTopic("t", OTHER_ID, rows),))

    def errors() -> list[Errors]:
        response = replicas.handle(ControlHeader(BROKER, 1, 7), request, 0)
        assert isinstance(response, StopReplicaResponse)
        return [error.error_code for error in response.partition_errors]

    with SHORTAGE.after(0, machine.directories[0]):
        assert errors() == [FOR_NOW]
    assert errors() == [Errors.INCONSISTENT_TOPIC_ID]
    assert logs.is_damaged(T0)
    machine.end()


def test_a_log_that_cannot_be_set_aside_stays_in_use(history: Path, tmp_path: Path):
    for machine in attempts(history, tmp_path, lambda logs: logs.set_aside(T0)):
        if machine.logs.get(T0) is not None:
            assert values(log_of(machine.logs)) == numbered(0, HISTORY)
            machine.logs.set_aside(T0)
        assert values(machine.logs.get_or_create(T0, TOPIC_ID, is_new=False)) == numbered(
            0, HISTORY
        )


def test_records_after_a_truncation_are_not_committed_after_a_crash(history: Path, tmp_path: Path):
    def act(logs: LogManager) -> None:
        log = log_of(logs)
        if log.latest_epoch < 2:
            log.truncate_to(5)
        fill(log, HISTORY + 1 - log.log_end_offset, leader_epoch=2)

    for machine in attempts(history, tmp_path, act):
        act(machine.logs)
        assert machine.crash().checkpointed_high_watermark(T0) == 5


def test_what_was_seen_of_the_cluster_is_noted_by_the_next_attempt(two: Machine):
    logs, (first, second) = two.start(), two.directories
    logs.note_seen(controller_epoch=1, zxid=7)
    for directory in (first, second):
        with SHORTAGE.after(0, directory):
            logs.note_seen(controller_epoch=2)
        logs.note_seen(controller_epoch=2)
        for noted in (first, second):
            assert "controller.epoch=2" in (noted / "control-plane.properties").read_text()
    assert two.crash().seen == SeenOfCluster(2, 7)


def test_a_flush_without_descriptors_is_done_by_the_next_attempt(history: Path, tmp_path: Path):
    def act(logs: LogManager) -> None:
        fill(log_of(logs), 1)
        log_of(logs).flush()

    for machine in attempts(history, tmp_path, act):
        log = log_of(machine.logs)
        log.flush()
        assert log.recovery_point == log.log_end_offset


def test_a_start_without_descriptors_fails_and_changes_nothing(history: Path, tmp_path: Path):
    for opened in range(_MOST_OPENS):
        machine = copied(history, tmp_path / f"{opened}")
        with SHORTAGE.after(opened, machine.directories[0]), suppress(ShortageError):
            machine.start()
        was_met = SHORTAGE.is_met
        if was_met:
            assert values(log_of(machine.start())) == numbered(0, HISTORY)
            assert not machine.logs.is_suspect(T0)
            assert len(machine.logs.strays) == 1
        machine.end()
        if not was_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")


def test_no_directory_fails_in_a_process_without_descriptors(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    log = create(machine.start())
    fill(log, 3)
    with no_descriptor_left():
        for _ in range(3):
            with pytest.raises(ShortageError, match="Too many open files"):
                fill(log, 1)
        machine.logs.flush()
        machine.logs.checkpoint_recovery_points()
        machine.logs.checkpoint_high_watermarks({T0: 3})
        machine.logs.clean_up()
        machine.logs.purge(lambda _: True)
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "ulimit -n" in line
    fill(log, 1)
    assert values(log) == numbered(0, 4)
    assert values(log_of(machine.crash())) == numbered(0, 4)


@pytest.mark.parametrize("act", [truncate, start_over])
def test_a_partly_truncated_log_stays_usable(history: Path, tmp_path: Path, act: Act):
    for machine in attempts(history, tmp_path, act):
        log = log_of(machine.logs)
        log.assign_epoch(5)
        fill(log, 4, leader_epoch=5)
        whole = numbered(log.log_start_offset, log.log_end_offset)
        assert values(log) == whole
        assert log.end.leader_epoch == 5
        assert values(log_of(machine.crash())) == whole


def truncate_some(log: UnifiedLog) -> None:
    log.truncate_to(5)


def truncate_all(log: UnifiedLog) -> None:
    log.truncate_fully_and_start_at(0)


@pytest.mark.parametrize("act", [truncate_some, truncate_all])
def test_an_open_transaction_of_a_partly_truncated_log_stays_unstable(
    tmp_path: Path, act: Callable[[UnifiedLog], None]
):
    for opened in range(_MOST_OPENS):
        machine = Machine(tmp_path / f"{opened}")
        log = create(machine.start())
        fill(log, 1)
        log.append_as_leader(in_transaction(b"x", producer_id=7, sequence=0), 0)
        fill(log, HISTORY)
        with SHORTAGE.after(opened, machine.directories[0]), suppress(ShortageError):
            act(log)
        unstable = log.first_unstable_offset(HISTORY)
        assert unstable in (0, 1) or log.end.log_end_offset == 0
        machine.end()
        if not SHORTAGE.is_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")
