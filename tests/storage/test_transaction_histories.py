"""Transactions in real files, under random operations and crashes.

The state that is rebuilt from any snapshot equals the one in memory, the rebuilt index equals the
one that was written, and both agree with a model that walks through all batches.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regent.core.errors import RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.replica_logs import AppendOrigin
from regent.storage.log.log_contents import LogContents
from regent.storage.log.producer_state_manager import ProducerStateManager
from regent.storage.log.unified_log import UnifiedLog
from tests.support.disk_logs import Machine, create, log_of, send
from tests.support.transactional_batches import ABORT, COMMIT, in_transaction, marker
from tests.support.transactions_in_memory import (
    aborted_between,
    first_unstable_offset,
    transactions_of,
)

PRODUCERS = st.integers(1, 4)
MEMORY = Path("/dev/shm")  # there, a flush takes no time
SMALL_SEGMENTS = LogConfig(segment_bytes=600, index_interval_bytes=150)


class TransactionHistory(RuleBasedStateMachine):
    """``batches`` are those of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.machine = Machine(self.directory / "log", defaults=SMALL_SEGMENTS, open_files_max=1)
        self.log: UnifiedLog = create(self.machine.start())
        self.coordinator_epoch = 0
        self.stable = 0  # the last stable offset

    def teardown(self) -> None:
        self.machine.end()
        shutil.rmtree(self.directory)

    # --- operations ---

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3))
    def produce(self, producer_id: int, count: int) -> None:
        known = self.log.last_of_producer(producer_id)
        sequence = 0 if known is None else known.sequence + 1
        epoch = 0 if known is None else known.epoch
        data = in_transaction(
            *[b"x"] * count, producer_id=producer_id, producer_epoch=epoch, sequence=sequence
        )
        self.log.append_as_leader(bytearray(data), 0)

    @rule()
    def produce_without_transaction(self) -> None:
        send(self.log, b"plain")

    @rule(producer_id=PRODUCERS, kind=st.sampled_from([ABORT, COMMIT]), fences=st.booleans())
    def end(self, producer_id: int, kind: int, *, fences: bool) -> None:
        known = self.log.last_of_producer(producer_id)
        epoch = 0 if known is None else known.epoch
        data = marker(
            kind,
            producer_id=producer_id,
            producer_epoch=epoch + fences,
            coordinator_epoch=self.coordinator_epoch,
        )
        self.log.append_as_leader(bytearray(data), 0, AppendOrigin.COORDINATOR)

    @rule()
    def elect_coordinator(self) -> None:
        self.coordinator_epoch += 1

    @rule(producer_id=PRODUCERS)
    def end_as_a_former_coordinator(self, producer_id: int) -> None:
        data = marker(ABORT, producer_id=producer_id, producer_epoch=9, coordinator_epoch=-9)
        known = self.log.last_of_producer(producer_id)
        try:
            self.log.append_as_leader(bytearray(data), 0, AppendOrigin.COORDINATOR)
        except RecordsRefusedError:
            assert known is not None

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        self.log.truncate_to(self.log.log_end_offset - back)
        self.stable = 0

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.machine.logs.checkpoint_recovery_points()

    @rule()
    def idle(self) -> None:
        for _ in range(2):
            self.log.delete_old_segments(self.machine.clock.now_ms)

    @rule()
    def restart(self) -> None:
        self.log = log_of(self.machine.restart())

    @rule()
    def crash(self) -> None:
        self.log = log_of(self.machine.crash())

    @rule(data=st.sampled_from([b"", b"\0" * 34, b"torn"]))
    def crash_with_damaged_indexes(self, data: bytes) -> None:
        """What is not flushed may be anything after a crash; then it is rebuilt."""
        self.machine.copy()
        path = self.machine.directories[0] / self.log.path.name
        recovered = self.log.recovery_point
        for segment in self.contents.segments_from(recovered):
            (path / f"{segment.base_offset:020d}.txnindex").write_bytes(data)
        self.log = log_of(self.machine.start())

    @rule()
    def lose_index_of_a_closed_segment(self) -> None:
        """A damaged index is rebuilt when it is read."""
        for segment in self.contents.segments[:-1]:
            if segment.transactions.entries:
                segment.close()
                (self.log.path / f"{segment.base_offset:020d}.txnindex").write_bytes(b"torn")

    # --- what holds ---

    @property
    def contents(self) -> LogContents:
        with self.log.exclusively() as contents:
            return contents

    @property
    def batches(self) -> list[bytes]:
        found, offset = [], 0
        while offset < self.log.log_end_offset:
            data = bytes(
                self.log.read(offset, 1, self.log.log_end_offset, at_least_one=True).read()
            )
            found.append(data)
            offset += int.from_bytes(data[23:27], "big") + 1
        return found

    @invariant()
    def the_first_unstable_offset_is_right(self) -> None:
        end = self.log.log_end_offset
        assert self.log.first_unstable_offset(end) == first_unstable_offset(self.batches, end)

    @invariant()
    def the_last_stable_offset_never_falls(self) -> None:
        end = self.log.log_end_offset
        unstable = self.log.first_unstable_offset(end)
        stable = end if unstable is None else min(unstable, end)
        assert stable >= self.stable
        self.stable = stable

    @invariant()
    def readers_are_told_of_all_aborted_transactions(self) -> None:
        end, batches = self.log.log_end_offset, self.batches
        for offset in range(0, end, 3):
            records = self.log.read(offset, 200, end, at_least_one=True)
            last = offset_after(bytes(records.read()))
            told = set(self.log.aborted_transactions(offset, records))
            assert told >= set(aborted_between(batches, offset, last))
            assert told <= set(aborted_between(batches, offset, end))

    @invariant()
    def the_state_is_rebuilt_from_every_snapshot(self) -> None:
        contents = self.contents
        live = contents.producers
        for offset in (None, *live.snapshot_offsets()):
            rebuilt = ProducerStateManager(self.log.path)
            start = 0 if offset is None else rebuilt.load_before(offset)
            assert start is not None
            found = list(replayed(contents, rebuilt, start))
            assert all(rebuilt.entry(each) == live.entry(each) for each in range(1, 5))
            assert rebuilt.first_undecided_offset == live.first_undecided_offset
            indexed = [e for s in contents.segments for e in contents.transactions_of(s).entries]
            assert found == [entry for entry in indexed if entry.last_offset >= start]

    @invariant()
    def the_index_has_the_aborted_transactions(self) -> None:
        contents = self.contents
        indexed = [e for s in contents.segments for e in contents.transactions_of(s).entries]
        assert [entry[:3] for entry in indexed] == [
            (each.producer_id, each.first_offset, each.marker_offset)
            for each in transactions_of(self.batches)
            if each.is_aborted
        ]


def replayed(
    contents: LogContents, producers: ProducerStateManager, start: int
) -> Iterator[object]:
    """Replay batches; yield the aborted transactions."""
    for segment in contents.segments_from(start):
        for header, found in segment.headers_and_markers(start):
            aborted = producers.update(header, found)
            if aborted is not None:
                yield aborted


def offset_after(data: Iterable[int]) -> int:
    """Return the offset after the last of some batches."""
    whole, position, end = bytes(data), 0, 0
    while position < len(whole):
        base_offset = int.from_bytes(whole[position : position + 8], "big")
        end = base_offset + int.from_bytes(whole[position + 23 : position + 27], "big") + 1
        position += 12 + int.from_bytes(whole[position + 8 : position + 12], "big")
    return end


TestTransactionHistory = TransactionHistory.TestCase
TestTransactionHistory.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
