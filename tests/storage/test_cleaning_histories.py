"""A compacted log under random operations, with crashes at any step of a cleaning.

Whatever happens: the newest record of every key stays, records keep their offsets and contents, a
tombstone stays as long as it must, and nothing that was not cleaned is missing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regent.core.log_config import LogConfig
from regent.core.replica_logs import LastOfProducer
from regent.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compressed
from regent.storage.checkpoints import NEVER_CLEANED
from regent.storage.compaction.log_cleaner import Cleaning, CleaningAbortedError, Work
from regent.storage.compaction.log_cleaner_manager import examine
from regent.storage.compaction.offset_map import OffsetMap
from tests.support.disk_logs import T0, Machine, create, log_of
from tests.support.kept_records import KeptBatch, KeptRecord, batches_of
from tests.support.record_batches import keyed_batch

DELETE_RETENTION_MS = 100
CONFIG = LogConfig(
    cleanup_policy="compact",
    delete_retention_ms=DELETE_RETENTION_MS,
    segment_bytes=600,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
)
KEYS = st.sampled_from([b"a", b"a", b"b", bytes(60), None])
BATCHES = st.tuples(
    st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=3),
    st.sampled_from([NONE, NONE, NONE, GZIP, SNAPPY, LZ4, ZSTD]),
    st.sampled_from([-1, 1, 2]),
)


class Killed(BaseException):
    """The process was killed."""


class CleaningHistory(RuleBasedStateMachine):
    """Keeps every record that was written and not truncated beside the log."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.machine = Machine(self.root / "one", defaults=CONFIG, open_files_max=1)
        self.log = create(self.machine.start())
        self.written: list[KeptRecord] = []
        self.sequences: dict[int, int] = {}
        self.producers: dict[int, LastOfProducer] = {}
        self.committed = 0
        self.cleaned_to = 0  # no cleaning has touched what is behind
        self.seen_at: dict[int, int] = {}  # when a cleaning saw a tombstone first, by offset
        self.is_thorough = True  # no cleaning was interrupted

    def teardown(self) -> None:
        self.machine.end()
        shutil.rmtree(self.root)

    # --- operations ---

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=8), is_committed=st.booleans())
    def fill(self, batches: list[tuple[Any, int, int]], is_committed: bool) -> None:
        for keys, codec, producer in batches:
            self.append(keys, codec, producer)
        if is_committed:
            self.roll()
            self.commit()

    def append(self, keys: list[tuple[bytes | None, bool]], codec: int, producer: int) -> None:
        """Append a batch of keys, each with a value or as a tombstone."""
        offset, now_ms = self.log.log_end_offset, self.machine.clock.now_ms
        rows = [
            (key, None if is_deleted and key else b"%d" % (offset + i) * 3)
            for i, (key, is_deleted) in enumerate(keys)
        ]
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        batch = keyed_batch(
            *rows,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            timestamp_ms=now_ms,
            time_step_ms=1,
            attributes=codec,
            compress=lambda data: compressed(codec, data),
        )
        self.log.append_as_leader(bytearray(batch), leader_epoch=0)
        if producer >= 0:
            self.sequences[producer] = sequence + len(rows)
            last = self.log.log_end_offset - 1
            self.producers[producer] = LastOfProducer(0, sequence + len(rows) - 1, last)
        self.written += [
            KeptRecord(offset + i, now_ms + i, key, value) for i, (key, value) in enumerate(rows)
        ]

    @rule()
    def roll(self) -> None:
        with self.log.exclusively() as contents:
            contents.roll(contents.log_end_offset, self.machine.clock.now_ms)

    @rule()
    def commit(self) -> None:
        self.committed = self.log.log_end_offset
        self.machine.logs.checkpoint_high_watermarks({T0: self.committed})

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self.log.truncate_to(data.draw(st.integers(self.committed, self.log.log_end_offset)))
        end = self.log.log_end_offset
        if end < self.committed:  # a batch that begins before it was dropped as a whole
            self.committed = end
        self.written = [one for one in self.written if one.offset < end]
        self.follow_producers()

    @rule()
    def wait(self) -> None:
        self.machine.clock.now_ms += 60

    @rule()
    def delete_files(self) -> None:
        self.machine.logs.purge(lambda _: False)

    @rule()
    def restart(self) -> None:
        self.log = log_of(self.machine.restart())
        if self.log.log_start_offset > 0:
            self.follow_producers()

    @rule(loses_snapshots=st.booleans())
    def crash(self, loses_snapshots: bool) -> None:
        """Without snapshots the log alone tells the sequences of its producers."""
        self.machine.copy()
        start = self.log.log_start_offset
        if loses_snapshots and start == 0:
            for path in (self.machine.directories[0] / str(T0)).glob("*.snapshot"):
                path.unlink()
        self.log = log_of(self.machine.start())
        self.is_thorough &= self.log.log_start_offset == start  # its checkpoint may be late
        if start > 0:
            self.follow_producers()

    def follow_producers(self) -> None:
        """Take what the log knows of its producers: their batches may be below its start."""
        with self.log.exclusively() as contents:
            self.producers = dict(contents.producers.last_of_all())
        self.sequences = {p: last.sequence + 1 for p, last in self.producers.items()}

    @rule(max_keys=st.sampled_from([1, 2, 100]))
    def clean(self, max_keys: int) -> None:
        with self.cleaning(max_keys) as cleaning:
            end = cleaning.run()
        assert self.log.first_dirty == end
        if self.is_thorough:
            keys = [one.key for one in self.kept() if one.offset < end]
            assert len(set(keys)) == len(keys), "of each key one record is left"

    @rule(max_keys=st.sampled_from([2, 100]), calls=st.integers(0, 25))
    def clean_and_crash(self, max_keys: int, calls: int) -> None:
        """Kill the process before one of the calls that rename a file or flush one."""
        left = calls
        rename, fsync = Path.rename, os.fsync

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*args: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return call(*args, **options)

            return counting

        self.is_thorough = False
        try:
            with (
                self.cleaning(max_keys) as cleaning,
                patch.object(Path, "rename", counted(rename)),
                patch.object(os, "fsync", counted(fsync)),
                patch.object(Path, "unlink", counted(Path.unlink)),
            ):
                cleaning.run()
        except Killed:
            pass
        self.crash(loses_snapshots=False)

    @rule(what=st.sampled_from(["append", "roll", "truncate", "clean_up", "start"]))
    def clean_and_interfere(self, what: str) -> None:
        """Change the log in the middle of a cleaning."""
        self.is_thorough = False
        tricks: dict[str, Callable[[], object]] = {
            "append": lambda: self.append([(b"a", False)], NONE, -1),
            "roll": self.roll,
            "truncate": self.cut,
            "clean_up": lambda: self.log.delete_old_segments(self.machine.clock.now_ms),
            "start": self.raise_start,
        }
        pending = [tricks[what]]

        def on_bytes(_: int) -> None:
            if pending:
                pending.pop()()

        try:
            with self.cleaning(100, on_bytes) as cleaning:
                cleaning.run()
        except CleaningAbortedError:
            assert not list(self.log.path.glob("*.cleaned"))

    def cut(self) -> None:
        """Truncate to what is committed."""
        self.log.truncate_to(self.committed)
        end = self.log.log_end_offset
        self.written = [one for one in self.written if one.offset < end]
        self.follow_producers()

    @rule()
    def raise_start(self) -> None:
        """Delete the older half of the committed records, as DeleteRecords does."""
        start = (self.log.log_start_offset + self.committed) // 2
        self.log.advance_log_start_offset(start)

    @contextmanager
    def cleaning(
        self, max_keys: int, on_bytes: Callable[[int], None] = lambda _: None
    ) -> Iterator[Cleaning]:
        """Return a cleaning, and note what it may have touched."""
        now_ms = self.machine.clock.now_ms
        work = Work(
            lambda: OffsetMap(max_keys),
            200,
            on_bytes,
            lambda _: self.machine.logs.checkpoint_cleaned_offsets(),
        )
        cleanable = examine(self.log, now_ms)
        assert cleanable.found.bound <= max(self.committed, self.log.log_start_offset)
        self.cleaned_to = max(self.cleaned_to, cleanable.found.bound)
        for one in self.written:
            if one.value is None and one.offset < self.cleaned_to:
                self.seen_at.setdefault(one.offset, now_ms)
        yield Cleaning(cleanable, work, now_ms)

    # --- invariants ---

    def batches(self) -> Iterator[KeptBatch]:
        """Yield what can be read."""
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            data = bytes(self.log.read(offset, 300, end, at_least_one=True).read())
            if not data:
                return
            for batch in batches_of(data):
                assert batch.last >= offset, "reads go on"
                yield batch
                offset = batch.last + 1

    def kept(self) -> list[KeptRecord]:
        """Return the readable records."""
        start = self.log.log_start_offset
        return [one for batch in self.batches() for one in batch.records if one.offset >= start]

    @invariant()
    def what_is_kept_was_written(self) -> None:
        by_offset = {one.offset: one for one in self.written}
        kept = self.kept()
        assert [one.offset for one in kept] == sorted({one.offset for one in kept})
        assert [by_offset[one.offset] for one in kept] == kept

    @invariant()
    def what_must_stay_is_kept(self) -> None:
        kept, start = {one.offset for one in self.kept()}, self.log.log_start_offset
        newest = {one.key: one.offset for one in self.written if one.key is not None}
        newest_committed = {
            one.key: one.offset
            for one in self.written
            if one.key is not None and one.offset < self.cleaned_to
        }
        now_ms = self.machine.clock.now_ms
        for one in self.written:
            if one.offset < start or one.offset in kept:
                continue
            assert one.offset < self.cleaned_to, f"{one} was never cleaned"
            if one.key is None or newest_committed[one.key] > one.offset:
                continue
            assert one.value is None, f"{one} is the newest of its key: {newest}"
            is_over = now_ms >= self.seen_at[one.offset] + DELETE_RETENTION_MS
            assert is_over, f"{one} is a tombstone that goes too early"

    @invariant()
    def producers_are_known(self) -> None:
        with self.log.exclusively() as contents:
            assert contents.producers.last_of_all() == self.producers

    @invariant()
    def it_is_in_use(self) -> None:
        assert self.log.is_usable
        assert not self.machine.failed
        assert self.log.first_dirty == NEVER_CLEANED or self.log.first_dirty <= self.committed


CleaningHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCleaningHistory = CleaningHistory.TestCase
