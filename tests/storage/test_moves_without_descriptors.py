"""A log that is moved without file descriptors keeps its records, and the move goes on later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from regent.core.errors import ShortageError
from regent.core.model import TopicPartition
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_moves import MovesOfLogs
from tests.storage.test_log_moves import Host
from tests.support.descriptors import SHORTAGE
from tests.support.disk_logs import Machine, fill, log_of, numbered, values

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


def check_epochs(log: UnifiedLog) -> None:
    """The first five records are of epoch 0, the others of epoch 1."""
    end = log.log_end_offset
    assert log.latest_epoch == (1 if end > 5 else 0)
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
