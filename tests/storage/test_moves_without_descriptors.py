"""A log that is moved without file descriptors keeps its records, and the move goes on later."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from regent.core.errors import Errors, ShortageError
from regent.core.model import TopicPartition
from regent.core.replica_logs import ActiveProducer, EpochEndOffset
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_moves import MovesOfLogs
from tests.storage.contract.test_transactions import ONE, TWO, Producers, aborted
from tests.storage.test_log_moves import Host, names
from tests.support.descriptors import SHORTAGE
from tests.support.disk_logs import T0, Machine, fill, log_of, numbered, values
from tests.support.record_batches import batch
from tests.support.transactional_batches import ABORT

_MOST_OPENS = 80


def hosts(directory: Path) -> Iterator[tuple[Host, AbstractContextManager[None]]]:
    """Yield followers with records of two epochs, which are moved, and a shortage for each.

    The shortages are of all descriptors, all but one, all but two … until one is not met.
    """
    for opened in range(_MOST_OPENS):
        place = directory / f"{opened}"
        machine = Machine(place / "one", place / "two")
        try:
            host = Host(machine, machine.start())
            fill(host.log, 5)
            host.lead(1)
            fill(host.log, 5, leader_epoch=1)
            host.lead(2, leader=2)
            host.move()
            yield host, SHORTAGE.after(opened, place)
        finally:
            machine.end()
        if not SHORTAGE.is_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")


def copy(host: Host) -> None:
    """Copy all complete segments."""
    while host.future.log_end_offset < 9:
        host.moves.advance(T0, 0)


def check_epochs(log: UnifiedLog, later: int = 1) -> None:
    """The first five records are of epoch 0, the others of ``later``."""
    end = log.log_end_offset
    assert log.latest_epoch == (later if end > 5 else 0)
    assert log.end_offset_for_epoch(0).end_offset == min(5, end)


def test_a_log_that_could_not_be_truncated_is_moved_as_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prepare = MovesOfLogs.prepare
    for host, shortage in hosts(tmp_path):
        source = host.log

        def prepare_and_truncate(
            moves: MovesOfLogs,
            name: TopicPartition,
            source: UnifiedLog = source,
            shortage: AbstractContextManager[None] = shortage,
        ) -> None:
            prepare(moves, name)
            monkeypatch.undo()
            with suppress(ShortageError), shortage:
                source.truncate_to(3)

        monkeypatch.setattr(MovesOfLogs, "prepare", prepare_and_truncate)
        host.finish()
        assert host.log is not source
        check_epochs(host.log)
        host.log.truncate_to(3)
        for log in (host.log, log_of(host.machine.crash())):
            assert values(log) == numbered(0, 3)
            check_epochs(log)


def test_a_copy_that_could_not_be_truncated_gets_the_records_of_the_log(tmp_path: Path):
    for host, shortage in hosts(tmp_path):
        copy(host)
        source = host.log
        source.truncate_to(3)
        fill(source, 2)
        for end in range(5, 10):
            source.append_as_follower(batch(b"else", base_offset=end, leader_epoch=3))
        with shortage:
            host.finish()
        host.finish()
        assert host.log is not source
        for log in (host.log, log_of(host.machine.crash())):
            assert values(log) == [*numbered(0, 5), *5 * [b"else"]]
            check_epochs(log, later=3)


def test_an_exchange_without_descriptors_changes_nothing_or_is_complete(tmp_path: Path):
    for host, shortage in hosts(tmp_path):
        producers, machine = Producers(host.log), host.machine
        producers.send(ONE)
        producers.send(TWO)
        copy(host)
        with shortage:
            host.finish()
        assert not machine.logs.failed_directories
        assert sum(directory.count("t-0") for directory in names(machine)) == 1
        source = host.log
        producers.log = source
        producers.end(ONE, ABORT)
        fill(source, 4, leader_epoch=1)  # another segment
        producers.send(TWO)
        source.flush()
        machine.clock.now_ms += machine.defaults.file_delete_delay_ms
        host.logs.purge(lambda _: True)
        known = known_of(source)
        assert known.aborted == {(ONE, 10)}
        after = machine.crash()
        assert known_of(log_of(after)) == known
        assert not after.failed_directories
        assert not after.is_suspect(T0)
        host.finish()
        assert host.log.directory.path.name == "two"
        assert known_of(host.log) == known


class Known(NamedTuple):
    """What can be asked about a log."""

    values: list[bytes | None]
    ends: list[EpochEndOffset]
    producers: list[ActiveProducer]
    aborted: set[tuple[int, int]]
    first_unstable: int | None


def known_of(log: UnifiedLog) -> Known:
    """Ask a log."""
    return Known(
        values(log),
        [log.end_offset_for_epoch(epoch) for epoch in range(4)],
        sorted(log.active_producers()),
        {known for offset in range(log.log_end_offset) for known in aborted(log, offset)},
        log.first_unstable_offset(log.log_end_offset),
    )


def test_the_copy_of_a_lost_log_is_suspect_after_a_start_without_descriptors(tmp_path: Path):
    for host, shortage in hosts(tmp_path):
        machine = host.machine
        host.moves.advance(T0, 0)
        host.logs.close(is_clean=True)
        shutil.rmtree(machine.directories[0])
        with suppress(ShortageError), shortage:
            machine.start()
        logs = machine.start() if SHORTAGE.is_met else machine.logs
        assert values(log_of(logs)) == numbered(0, 3)
        assert logs.is_suspect(T0)


def test_a_move_that_is_refused_without_descriptors_does_not_begin(tmp_path: Path):
    for host, shortage in hosts(tmp_path):
        host.move(0)  # back
        host.logs.configure({"t": replace(host.log.config, cleanup_policy="compact")})
        with shortage:
            error = host.move()
        assert host.logs.moves.moving() == ([T0] if error is Errors.NONE else [])
        assert host.move() is Errors.NONE
        host.machine.crash()
        assert host.machine.logs.moves.moving() == [T0]
