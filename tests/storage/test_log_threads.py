"""Appends during flushes, deletions, checkpoints, verification and reads in other threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.testing.waits import scaled
from tests.support.disk_logs import (
    BATCH_BYTES,
    T0,
    THREE_A_SEGMENT,
    Machine,
    fill,
    log_of,
    numbered,
    values,
)
from tests.support.record_batches import offsets_of

BATCHES = 600
SWITCH_INTERVAL_S = 0.0002


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Let threads take turns more often: more interleavings in less time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("many_switches")
def test_records_are_written_once_during_all_other_work(
    machine: Machine, logs: LogManager, disk_log: UnifiedLog
):
    logs.configure({"t": replace(THREE_A_SEGMENT, retention_bytes=30 * BATCH_BYTES)})
    is_done = threading.Event()

    def until_done(act: Callable[[], object]) -> int:
        count = 0
        while not is_done.is_set():
            act()
            count += 1
        return count

    def read() -> None:
        start, end = disk_log.log_start_offset, disk_log.log_end_offset
        data = disk_log.read(max(start, end - 10), 1 << 20, end, at_least_one=True).read()
        assert offsets_of(data) == sorted(set(offsets_of(data)))

    def write() -> None:
        try:
            fill(disk_log, BATCHES)
        finally:
            is_done.set()

    with ThreadPoolExecutor(6) as executor:
        beside = [
            executor.submit(until_done, act)
            for act in (
                logs.flush,
                logs.clean_up,
                lambda: logs.verify(10 * BATCH_BYTES),
                read,
                lambda: logs.checkpoint_high_watermarks({T0: disk_log.log_end_offset}),
            )
        ]
        executor.submit(write).result(scaled(60))
        assert all(future.result(scaled(20)) > 0 for future in beside)
    assert (disk_log.log_end_offset, machine.failed, machine.damaged) == (BATCHES, [], [])
    logs.clean_up()
    start = disk_log.log_start_offset
    assert start > 0
    assert values(disk_log) == numbered(start, BATCHES)
    assert values(log_of(machine.restart())) == numbered(start, BATCHES)
