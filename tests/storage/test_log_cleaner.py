"""Compacted logs: what is left of them, and what happens to a log while it is cleaned."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from regent.core.log_config import DEFAULT_CLEANER_SETTINGS, LogConfig
from regent.core.replica_logs import MAX_TIMESTAMP, AppendOrigin
from regent.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compressed
from regent.storage.checkpoints import CLEANED_OFFSETS
from regent.storage.compaction.log_cleaner import group_segments
from regent.storage.compaction.log_cleaner_manager import IoThrottle
from regent.storage.compaction.offset_map import OffsetMap
from regent.storage.log.log_file import LogFile
from regent.storage.log.segment_indexes import SegmentIndexes
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.testing.waits import eventually
from tests.storage.test_power_loss import lose_power
from tests.support.disk_logs import T0, T1, Machine, create, files, flip_byte, log_of, segment_file
from tests.support.durable_files import DurableFiles
from tests.support.kept_records import KeptRecord, batches_of
from tests.support.record_batches import TIMESTAMP_MS, TRANSACTIONAL_MASK, keyed_batch
from tests.support.stage import TIMEOUT_S
from tests.support.transactional_batches import ABORT, marker

HOUR_MS = 3_600_000
MAGIC_AT = 16
CONFIG = LogConfig(
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    segment_bytes=500,
    index_interval_bytes=1,
    delete_retention_ms=HOUR_MS,
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "one", defaults=CONFIG)
    yield machine
    machine.end()


@pytest.fixture
def logs(machine: Machine) -> LogManager:
    return machine.start()


@pytest.fixture
def log(logs: LogManager) -> UnifiedLog:
    return create(logs)


def write(log: UnifiedLog, *keys: str, **fields: Any) -> None:
    """Append batches of one record; a key with ``-`` before it is a tombstone's."""
    for key in keys:
        value = None if key.startswith("-") else b"%d" % log.log_end_offset
        row = key.removeprefix("-").encode(), value
        log.append_as_leader(bytearray(keyed_batch(row, **fields)), 0)


def roll(log: UnifiedLog) -> None:
    with log.exclusively() as contents:
        contents.roll(contents.log_end_offset, 0)


def commit(logs: LogManager, *logs_of: UnifiedLog) -> None:
    ends = {log.topic_partition: log.log_end_offset for log in logs_of}
    logs.checkpoint_high_watermarks(ends)


def clean(logs: LogManager, log: UnifiedLog) -> None:
    """Clean a log as a whole."""
    roll(log)
    commit(logs, log)
    logs.cleaner.clean_all()


def kept(log: UnifiedLog, start: int = 0) -> list[KeptRecord]:
    found: list[KeptRecord] = []
    offset, end = max(start, log.log_start_offset), log.log_end_offset
    while offset < end:
        data = bytes(log.read(offset, 1 << 20, end, at_least_one=True).read())
        if not data:
            break
        for batch in batches_of(data):
            found += [one for one in batch.records if one.offset >= start]
            offset = batch.last + 1
    return found


def offsets(log: UnifiedLog) -> list[int]:
    return [one.offset for one in kept(log)]


# --- what is left ---


def test_the_newest_record_of_each_key_remains_also_after_restarts(machine: Machine):
    log = create(machine.start())
    write(log, *"abcabcabdeabcd")
    clean(machine.logs, log)
    assert offsets(log) == [9, 10, 11, 12, 13]
    assert log.log_end_offset == 14
    checkpoint = machine.directories[0] / CLEANED_OFFSETS
    assert checkpoint.read_text() == "0\n1\nt 0 14\n"
    for begin in (machine.restart, machine.crash):
        log = log_of(begin())
        assert (offsets(log), log.first_dirty) == ([9, 10, 11, 12, 13], 14)
    write(log, "a")
    clean(machine.logs, log)
    assert offsets(log) == [9, 11, 12, 13, 14]


def test_a_compacted_log_that_was_stray_may_have_gaps(machine: Machine):
    logs = machine.start()
    log = create(logs)
    write(log, *"abcdefg", *"abababa", *"cdefghi")
    clean(logs, log)
    assert files(log.path) == [".log", "14.log", "21.log", "7.log"]
    assert offsets(log)[:3] == [12, 13, 14], "there is a gap before the second segment"
    expected = kept(log)
    logs.set_aside(T0)
    log = create(machine.restart())
    assert kept(log) == expected
    assert (machine.directories[0] / CLEANED_OFFSETS).read_text() == "0\n1\nt 0 0\n"
    assert kept(log_of(machine.crash())) == expected


def test_the_old_files_are_deleted_after_the_delay(machine: Machine, logs: LogManager):
    log = create(logs)
    write(log, *"abab" * 5)
    clean(logs, log)
    old = files(log.path, ".log.deleted")
    assert len(old) > 2
    machine.clock.now_ms += CONFIG.file_delete_delay_ms
    logs.purge(lambda _: True)
    assert files(log.path, ".deleted") == []
    assert offsets(log) == [18, 19]


def test_small_segments_become_one_in_the_next_cleaning(logs: LogManager, log: UnifiedLog):
    write(log, *"abcabca" * 3)
    clean(logs, log)
    assert files(log.path) == [".log", "14.log", "21.log", "7.log"]
    write(log, "d")
    clean(logs, log)
    assert files(log.path) == [".log", "22.log"]
    assert offsets(log) == [18, 19, 20, 21]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_compressed_batch_is_compressed_again(logs: LogManager, log: UnifiedLog, codec: int):
    rows = [(b"a", b"1" * 90), (b"b", b"2" * 90), (b"a", b"3" * 90)]
    batch = keyed_batch(
        *rows, attributes=codec, compress=lambda x: compressed(codec, x), time_step_ms=7
    )
    log.append_as_leader(bytearray(batch), 0)
    clean(logs, log)
    [left] = batches_of(bytes(log.read(0, 1 << 20, 3, at_least_one=True).read()))
    assert (left.base, left.last, left.attributes) == (0, 2, codec)
    assert left.records == [
        KeptRecord(1, TIMESTAMP_MS + 7, *rows[1]),
        KeptRecord(2, TIMESTAMP_MS + 14, *rows[2]),
    ]


def test_a_batch_that_is_larger_than_the_buffers_is_cleaned(tmp_path: Path):
    settings = replace(DEFAULT_CLEANER_SETTINGS, log_cleaner_io_buffer_size=1_024)
    config = replace(CONFIG, segment_bytes=1 << 20)
    machine = Machine(tmp_path / "one", defaults=config, cleaner=settings)
    log = create(machine.start())
    for number in range(3):
        rows = [(b"%d" % number, bytes(9_000)), (b"all", b"%d" % number)]
        log.append_as_leader(bytearray(keyed_batch(*rows)), 0)
    clean(machine.logs, log)
    assert offsets(log) == [0, 2, 4, 5]
    machine.end()


def test_a_tombstone_stays_for_its_time_after_the_first_cleaning(machine: Machine):
    log = create(machine.start())
    write(log, "a", "-a", "b")
    for later_ms, left in ((0, [1, 2, 3]), (HOUR_MS - 1, [1, 2, 4]), (1, [2, 5])):
        machine.clock.now_ms += later_ms
        write(log, "c")
        clean(machine.logs, log)
        assert offsets(log) == left
    write(log, "-b", timestamp_ms=5)
    clean(machine.logs, log)
    assert kept(log)[-1] == KeptRecord(6, 5, b"b", None), "its time is its own"


def test_tombstones_of_a_batch_that_was_compared_in_part_get_no_horizon(tmp_path: Path):
    machine = Machine(tmp_path / "one", defaults=CONFIG)
    log = create(machine.start())
    log.append_as_leader(bytearray(keyed_batch((b"a", None), (b"b", None))), 0)
    roll(log)
    commit(machine.logs, log)
    machine.logs.cleaner.new_map = lambda: OffsetMap(1)  # type: ignore[method-assign]
    assert machine.logs.cleaner.clean_dirtiest()
    assert log.first_dirty == 1
    machine.clock.now_ms += 2 * HOUR_MS
    assert machine.logs.cleaner.clean_dirtiest()
    assert (log.first_dirty, offsets(log)) == (2, [0, 1])
    machine.end()


def test_indexes_of_a_copy_are_those_of_its_batches(logs: LogManager, log: UnifiedLog):
    write(log, *"abcdefg" * 2, *"hijklmn")
    clean(logs, log)
    with log.exclusively() as contents:
        copy = contents.segments[2]
    file = LogFile(copy.path)
    rebuilt = SegmentIndexes.rebuilt(copy.base_offset, 1, file, copy.size)
    rebuilt.times.maybe_append(rebuilt.largest)
    assert len(rebuilt.offsets) == 6
    assert segment_file(log.path, 14, ".index").read_bytes() == rebuilt.offsets.encode()
    assert segment_file(log.path, 14, ".timeindex").read_bytes() == rebuilt.times.encode()
    assert copy.is_verified()


def test_remaining_records_are_found_by_time(logs: LogManager, log: UnifiedLog):
    rows = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    log.append_as_leader(bytearray(keyed_batch(*rows, timestamp_ms=100, time_step_ms=10)), 0)
    write(log, "c", timestamp_ms=110)
    write(log, "c", timestamp_ms=90)
    clean(logs, log)
    assert offsets(log) == [1, 2, 4]
    end = log.log_end_offset
    for time_ms in (95, 105, 120):
        found = log.offset_of_timestamp(time_ms, end)
        assert found is not None
        first = next(one for one in kept(log) if one.time_ms >= time_ms)
        assert kept(log, found.offset)[0].offset <= first.offset
        assert found.timestamp_ms >= time_ms
    newest = log.offset_of_timestamp(MAX_TIMESTAMP, end)
    assert newest is not None
    assert newest.timestamp_ms == 120
    assert log.offset_of_timestamp(121, end) is None


def test_a_follower_copies_a_compacted_log(logs: LogManager, log: UnifiedLog):
    write(log, *"abcabc" * 4)
    clean(logs, log)
    write(log, *"ab")
    follower = create(logs, T1)
    while follower.log_end_offset < log.log_end_offset:
        end = log.log_end_offset
        data = log.read(follower.log_end_offset, 200, end, at_least_one=True).read()
        follower.append_as_follower(bytes(data))
    assert kept(follower) == kept(log)
    commit(logs, follower)
    roll(follower)
    write(follower, "z")
    clean(logs, follower)
    assert [one.key for one in kept(follower)] == [b"c", b"a", b"b", b"z"]


def test_retention_drops_segments_of_a_log_that_is_compacted_too(tmp_path: Path):
    config = replace(CONFIG, cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    machine = Machine(tmp_path / "one", defaults=config)
    log = create(machine.start())
    write(log, *"abab")
    clean(machine.logs, log)
    machine.clock.now_ms += HOUR_MS + 1
    write(log, "c", timestamp_ms=machine.clock.now_ms)
    roll(log)
    commit(machine.logs, log)
    machine.logs.clean_up()
    assert (log.log_start_offset, offsets(log)) == (4, [4])
    clean(machine.logs, log)
    assert (log.first_dirty, offsets(log)) == (5, [4])
    machine.end()


def test_the_scrubber_finds_no_damage_in_copies(machine: Machine, logs: LogManager):
    log = create(logs)
    write(log, *"abcdefg" * 2, *"abx", *"aaaaaaaa")
    clean(logs, log)
    write(log, *"aaaaaaaaaa")
    roll(log)
    assert logs.verify(1 << 20) == log.size
    assert machine.damaged == []


# --- which log ---


def test_the_dirtiest_log_is_cleaned_first_and_the_others_after_it(logs: LogManager):
    first, second = create(logs), create(logs, T1)
    write(first, *"ab" * 9)
    write(second, *"ab" * 9)
    for log in (first, second):
        roll(log)
    commit(logs, first)
    logs.cleaner.clean_all()
    assert (first.first_dirty, second.first_dirty) == (18, -1), "the second is not committed"
    write(first, "a")
    roll(first)
    commit(logs, first, second)
    assert logs.cleaner.clean_dirtiest()
    assert (first.first_dirty, second.first_dirty) == (18, 18)
    assert int(100 * logs.cleaner.max_dirty_ratio) == 100
    assert logs.cleaner.last_stats.bytes_written < logs.cleaner.last_stats.bytes_read
    logs.cleaner.clean_all()
    assert first.first_dirty == 19


def test_a_log_with_the_policy_delete_is_not_cleaned(logs: LogManager, log: UnifiedLog):
    logs.configure({"t": replace(CONFIG, cleanup_policy="delete")})
    write(log, *"aaa")
    clean(logs, log)
    assert offsets(log) == [0, 1, 2]


def test_a_log_with_many_keys_is_cleaned_in_several_cleanings(tmp_path: Path):
    settings = replace(DEFAULT_CLEANER_SETTINGS, log_cleaner_dedupe_buffer_size=160 * 3)
    machine = Machine(tmp_path / "one", defaults=CONFIG, cleaner=settings)
    log = create(machine.start())
    write(log, *"abcdeabcdefabcdef")
    roll(log)
    commit(machine.logs, log)
    assert machine.logs.cleaner.new_map().max_keys == 2
    rounds = 0
    while machine.logs.cleaner.clean_dirtiest():
        rounds += 1
    assert (log.first_dirty, offsets(log)) == (17, [11, 12, 13, 14, 15, 16])
    assert rounds > 5
    machine.end()


# --- what happens meanwhile ---


def test_a_loss_of_power_at_any_step_loses_nothing():
    disk = DurableFiles()
    with disk.watched(), TemporaryDirectory(dir="/dev/shm") as directory:
        steps = 0
        while _is_interrupted(Path(directory) / str(steps), disk, steps):
            steps += 1
    assert steps > 8


class PowerLost(BaseException):
    """The power is gone."""


def _is_interrupted(path: Path, disk: DurableFiles, steps: int) -> bool:
    """Lose the power after some calls that change the disk; False: the cleaning ended before."""
    path.mkdir()
    machine = Machine(path / "one", defaults=CONFIG)
    log = create(machine.start())
    write(log, *"abcdabcdabcd")
    roll(log)
    log.flush()
    commit(machine.logs, log)
    machine.logs.checkpoint_recovery_points()
    expected = [one for one in kept(log) if one.offset >= 8]
    is_interrupted = False
    left = steps
    with pytest.MonkeyPatch.context() as patches:

        def counted(owner: Any, name: str) -> None:
            call = getattr(owner, name)

            def counting(*args: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise PowerLost
                left -= 1
                return call(*args, **options)

            patches.setattr(owner, name, counting)

        counted(os, "fsync")
        counted(Path, "rename")
        counted(os, "replace")
        try:
            machine.logs.cleaner.clean_all()
        except PowerLost:
            is_interrupted = True
    log = log_of(lose_power(machine, disk))
    assert [one for one in kept(log) if one.offset >= 8] == expected
    clean(machine.logs, log)
    assert kept(log) == expected
    machine.end()
    return is_interrupted


def interfering(logs: LogManager, action: Any) -> None:
    """Do something in the middle of the next cleaning."""
    check, pending = logs.cleaner._check, [action]

    def checked(log: UnifiedLog) -> None:
        if pending:
            pending.pop()()
        check(log)

    logs.cleaner._check = checked  # type: ignore[method-assign]
    logs.cleaner.work_s = 0


def test_a_log_that_is_deleted_meanwhile_is_forgotten(machine: Machine, logs: LogManager):
    log = create(logs)
    write(log, *"abab" * 5)

    def replace_log() -> None:
        logs.delete(T0)
        create(logs)

    interfering(logs, replace_log)
    clean(logs, log)
    assert machine.failed == []
    assert not logs.cleaner.uncleanable_partitions()
    new = log_of(logs)
    assert [path.name for path in new.path.iterdir() if "cleaned" in path.name] == []
    write(new, *"aa")
    clean(logs, new)
    assert offsets(new) == [1]


def test_a_truncation_below_the_cleaned_part_lowers_the_checkpoint(
    machine: Machine, logs: LogManager
):
    log = create(logs)
    write(log, *"abab" * 5)
    clean(logs, log)
    write(log, *"abab")
    log.truncate_to(19)
    assert log.first_dirty == 19
    assert (machine.directories[0] / CLEANED_OFFSETS).read_text() == "0\n1\nt 0 19\n"
    log.truncate_fully_and_start_at(7)
    assert log.first_dirty == 7


def test_a_truncation_in_the_middle_of_a_cleaning_ends_it(logs: LogManager, log: UnifiedLog):
    write(log, *"abab" * 5)

    def rewrite() -> None:
        log.truncate_to(6)
        write(log, *"xyxy" * 5)
        roll(log)

    interfering(logs, rewrite)
    clean(logs, log)
    assert [one.value for one in kept(log)][-1] == b"25"
    assert kept(log)[-1].key == b"y"
    commit(logs, log)
    logs.cleaner.clean_all()
    assert [one.key for one in kept(log)] == [b"a", b"b", b"x", b"y"]


def test_a_pause_waits_for_the_end_of_a_cleaning_and_keeps_others_off(
    logs: LogManager, log: UnifiedLog
):
    write(log, *"abab" * 5)
    is_cleaning, is_paused = threading.Event(), threading.Event()

    def pause() -> None:
        assert is_cleaning.wait(TIMEOUT_S)
        logs.cleaner.pause(T0)
        is_paused.set()

    pausing = threading.Thread(target=pause)
    pausing.start()

    def wait_for_pause() -> None:
        is_cleaning.set()
        eventually(lambda: logs.cleaner.states.is_aborted(T0), "it is told", TIMEOUT_S)
        assert not is_paused.is_set()

    interfering(logs, wait_for_pause)
    clean(logs, log)
    pausing.join(TIMEOUT_S)
    assert is_paused.is_set()
    assert len(offsets(log)) == 20
    logs.cleaner.clean_all()
    assert len(offsets(log)) == 20, "it is paused"
    logs.cleaner.resume(T0)
    logs.cleaner.clean_all()
    assert len(offsets(log)) == 2


def test_a_throttled_cleaning_ends_when_it_is_paused(tmp_path: Path):
    settings = replace(DEFAULT_CLEANER_SETTINGS, log_cleaner_io_max_bytes_per_second=1.0)
    machine = Machine(tmp_path / "one", defaults=CONFIG, cleaner=settings)
    log = create(machine.start())
    write(log, *"abab" * 5)
    cleaner, note = machine.logs.cleaner, machine.logs.cleaner.throttle.note

    def paused(size: int) -> None:
        cleaner.states.pause(T0)
        note(size)  # it would wait for minutes

    cleaner.throttle.note, cleaner.work_s = paused, 0  # type: ignore[method-assign]
    clean(machine.logs, log)
    cleaner.states.await_pause(T0)
    assert len(offsets(log)) == 20
    machine.end()


def test_a_cleaning_ends_when_the_broker_stops(logs: LogManager, log: UnifiedLog):
    write(log, *"abab" * 5)
    interfering(logs, logs.cleaner.stop)
    clean(logs, log)
    assert len(offsets(log)) == 20
    assert files(log.path, ".cleaned") == []


def test_damage_is_reported_and_the_other_logs_are_cleaned(machine: Machine, logs: LogManager):
    damaged, other = create(logs), create(logs, T1)
    write(damaged, *"abab" * 5)
    write(other, *"abab" * 5)
    flip_byte(segment_file(damaged.path, 0), 70)
    roll(damaged)
    commit(logs, damaged)
    clean(logs, other)
    assert machine.damaged == [T0]
    assert machine.failed == []
    assert damaged.is_usable
    assert logs.cleaner.uncleanable_partitions() == {machine.directories[0]: 1}
    assert len(offsets(other)) == 2
    logs.delete(T0)
    logs.cleaner.clean_all()
    assert not logs.cleaner.uncleanable_partitions()


def test_a_damaged_header_that_is_met_in_the_search_for_dirty_logs_is_reported(tmp_path: Path):
    machine = Machine(tmp_path / "one", defaults=replace(CONFIG, max_compaction_lag_ms=HOUR_MS))
    log = create(machine.start())
    write(log, *"abab" * 5)
    machine.logs.close(is_clean=True)
    flip_byte(segment_file(log.path, 0), MAGIC_AT)
    logs = machine.start()
    commit(logs, log_of(logs))
    assert not logs.cleaner.clean_all()
    assert (machine.damaged, machine.failed) == ([T0], [])
    assert log_of(logs).is_usable
    assert logs.cleaner.uncleanable_partitions() == {machine.directories[0]: 1}
    machine.end()


def test_a_log_that_cannot_be_decoded_is_not_changed(machine: Machine, logs: LogManager):
    log = create(logs)
    batch = bytearray(keyed_batch((b"a", b"1"), compress=lambda data: data + b"more"))
    log.append_as_follower(batch)
    clean(logs, log)
    assert logs.cleaner.uncleanable_partitions() == {machine.directories[0]: 1}
    assert log.is_usable
    assert log.log_end_offset == 1


def test_records_of_aborted_transactions_replace_no_older_ones(logs: LogManager):
    """Also if the marker is in the segment that is written to."""
    log = create(logs)
    write(log, *"ab")
    of_producer = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
    write(log, "a", base_sequence=0, **of_producer)
    write(log, "b", base_sequence=1, **of_producer)
    roll(log)
    log.append_as_leader(marker(ABORT, producer_id=7), 0, AppendOrigin.COORDINATOR)
    commit(logs, log)
    logs.cleaner.clean_all()
    assert offsets(log) == [0, 1, 4]
    records = log.read(0, 1 << 20, 5, at_least_one=True)
    assert log.aborted_transactions(0, records) == [(7, 2)]


def test_the_index_of_a_cleaned_segment_has_the_transactions_with_a_remaining_batch(
    machine: Machine, logs: LogManager
):
    log = create(logs)
    of_producer = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_MASK}
    for sequence in range(3):
        write(log, "a", base_sequence=sequence, **of_producer)
        log.append_as_leader(marker(ABORT, producer_id=7), 0, AppendOrigin.COORDINATOR)
    clean(logs, log)
    machine.clock.now_ms += 2 * HOUR_MS
    clean(logs, log)
    with log.exclusively() as contents:
        (first, *_) = contents.segments
        index = first.transactions
    assert index.entries[-1][:3] == (7, 4, 5)
    (path,) = log.path.glob("*.txnindex")
    assert path.read_bytes() == index.encode()


def test_a_failure_to_write_takes_the_directory_offline(machine: Machine, logs: LogManager):
    log = create(logs)
    write(log, *"abab" * 5)
    roll(log)
    commit(logs, log)
    (log.path / f"{0:020d}.log.cleaned").mkdir()
    logs.cleaner.clean_all()
    assert machine.failed == machine.directories


# --- parts ---


def test_a_throttle_waits_for_what_was_too_much():
    now, waits = [0.0], list[float]()

    def wait(seconds: float) -> None:
        waits.append(round(seconds, 3))
        now[0] += seconds

    throttle = IoThrottle(1_000, lambda: now[0], wait)
    throttle.note(200)
    assert waits == []
    throttle.note(200)
    assert waits == [0.4]
    now[0] += 1
    throttle.note(900)
    assert waits == [0.4]
    throttle.note(2_000)
    assert waits == [0.4, 2.0]


class Sized:
    """A segment with sizes."""

    def __init__(self, base_offset: int, size: int, index_bytes: tuple[int, int] = (0, 0)) -> None:
        self.base_offset, self.size, self.index_bytes = base_offset, size, index_bytes


@pytest.mark.parametrize(
    ("segments", "groups"),
    [
        ([Sized(0, 300), Sized(10, 200), Sized(20, 1)], [[0, 10], [20]]),
        ([Sized(0, 900), Sized(10, 1)], [[0], [10]]),
        ([Sized(0, 1, (8, 0)), Sized(10, 1, (8, 0)), Sized(20, 1, (8, 0))], [[0, 10], [20]]),
        ([Sized(0, 1, (0, 9)), Sized(10, 1, (0, 9))], [[0], [10]]),
        ([Sized(0, 1), Sized(2**31 - 5, 1), Sized(2**31 + 5, 1)], [[0], [2**31 - 5, 2**31 + 5]]),
        ([Sized(0, 1), Sized(2**31 - 5, 0), Sized(2**31 + 5, 1)], [[0, 2**31 - 5], [2**31 + 5]]),
        ([], []),
    ],
)
def test_segments_are_grouped_up_to_each_limit(segments: list[Sized], groups: list[list[int]]):
    config = LogConfig(segment_bytes=500, segment_index_bytes=16)
    found = group_segments(segments, 2**31 + 100, config)
    assert [[one.base_offset for one in group] for group in found] == groups


def test_a_copy_keeps_the_modification_time_of_its_last_segment(logs: LogManager, log: UnifiedLog):
    write(log, *"ab", timestamp_ms=-1)
    roll(log)
    path = segment_file(log.path, 0)
    os.utime(path, ns=(5_000_000_000, 5_000_000_000))
    clean(logs, log)
    assert path.stat().st_mtime_ns == 5_000_000_000
    with log.exclusively() as contents:
        assert contents.segments[0].largest_timestamp == 5_000
