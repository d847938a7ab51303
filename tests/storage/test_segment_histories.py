"""A segment under random operations behaves as a list of its batches."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.core.records import Records
from regent.records.record_batch import BatchHeader, batches
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.segment_indexes import OffsetIndex, TimeIndex
from tests.support.record_batches import batch

BASE = 1_000
CONFIG = replace(DEFAULT_LOG_CONFIG, index_interval_bytes=250)
FILES = OpenFiles(1)
EVERYTHING = 2**63 - 1


class SegmentHistory(RuleBasedStateMachine):
    """Keeps the expected batches beside the segment."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.segment = LogSegment.create(self.directory, BASE, CONFIG, 0, FILES)
        self.epoch = 0
        self.batches: list[bytes] = []
        self.held: list[tuple[Records, bytes]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # --- operations ---

    @rule(
        parts=st.lists(
            st.tuples(st.integers(1, 4), st.integers(0, 200), st.integers(0, 50)), min_size=1
        )
    )
    def append(self, parts: list[tuple[int, int, int]]) -> None:
        offset, added = self.end, []
        for count, size, time in parts:
            added.append(
                batch(
                    *[b"x" * size] * count,
                    base_offset=offset,
                    leader_epoch=self.epoch,
                    timestamp_ms=time,
                )
            )
            offset += count
        data = b"".join(added)
        self.segment.append(data, list(batches(data)))
        self.batches += added

    @rule(back=st.integers(0, 20))
    def truncate(self, back: int) -> None:
        offset = self.end - back
        kept = [data for data, header in self.with_headers if header.last_offset < offset]
        dropped = sum(map(len, self.batches[len(kept) :]))
        self.held.clear()
        assert self.segment.truncate_to(offset) == dropped
        self.batches = kept
        self.epoch += 1

    @rule()
    def seal(self) -> None:
        self.segment.seal()

    @rule()
    def close_idle(self) -> None:
        self.segment.close_idle()

    @rule()
    def close_and_open(self) -> None:
        self.segment.close()
        self.segment = LogSegment.open(self.directory, BASE, CONFIG, 0, FILES)

    @rule(tail=st.binary(max_size=100))
    def crash(self, tail: bytes) -> None:
        self.held.clear()
        with self.segment.path.open("ab") as file:
            file.write(tail)
        self.segment = LogSegment.open(self.directory, BASE, CONFIG, 0, FILES)
        reported: list[BatchHeader] = []
        assert self.segment.recover(reported.append) == len(tail)
        assert reported == [header for _, header in self.with_headers]

    @precondition(lambda self: self.batches)
    @rule(kind=st.sampled_from(["index", "timeindex"]), data=st.binary(max_size=30))
    def damage_an_index(self, kind: str, data: bytes) -> None:
        self.segment.close()
        (self.directory / f"{BASE:020d}.{kind}").write_bytes(data)
        self.segment = LogSegment.open(self.directory, BASE, CONFIG, 0, FILES)
        assert self.segment.next_offset == self.end  # retention may lower it

    # --- reads ---

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(BASE, self.end - 1))
        limit = data.draw(st.integers(start, self.end))
        max_bytes = data.draw(st.integers(0, sum(map(len, self.batches))))
        expected = b""
        for part, header in self.with_headers:
            if header.last_offset < start:
                continue
            if header.next_offset > limit or (expected and len(expected + part) > max_bytes):
                break
            expected += part
            if len(expected) > max_bytes:
                break
        check_to = data.draw(st.sampled_from((None, self.end)))
        records = self.segment.read(start, max_bytes, limit, at_least_one=True, check_to=check_to)
        assert records is not None
        assert records.read() == expected
        self.held.append((records, expected))

    @rule(time=st.integers(0, 51), back=st.integers(0, 10))
    def find_time(self, time: int, back: int) -> None:
        start = self.end - back
        headers = [header for _, header in self.with_headers]
        expected = [h for h in headers if h.last_offset >= start and h.max_timestamp >= time]
        assert self.segment.find_timestamp(time, start) == (expected[0] if expected else None)

    # --- invariants ---

    @invariant()
    def it_has_the_appended_batches(self) -> None:
        whole = b"".join(self.batches)
        assert self.segment.path.read_bytes() == whole
        assert self.segment.size == len(whole)
        assert self.segment.next_offset == self.end
        times = [header.max_timestamp for _, header in self.with_headers]
        assert self.segment.largest.timestamp == max(times, default=-1)
        assert self.segment.read(self.end, 1, EVERYTHING, at_least_one=True) is None

    @invariant()
    def records_in_use_do_not_change(self) -> None:
        for records, data in self.held:
            assert records.read() == data

    @invariant()
    def index_files_name_batches(self) -> None:
        if self.segment.size == 0:
            return
        self.segment.seal()
        headers, position = {}, 0
        for data, header in self.with_headers:
            headers[position] = header
            position += len(data)
        index = (self.directory / f"{BASE:020d}.index").read_bytes()
        offsets = OffsetIndex.decode(BASE, index, 2**31)
        while len(offsets):
            last = offsets.last
            assert headers[last.position].last_offset == last.offset
            offsets.truncate_to(last.offset)
        times = TimeIndex.decode(BASE, (self.directory / f"{BASE:020d}.timeindex").read_bytes())
        assert times.last == self.segment.largest

    @property
    def end(self) -> int:
        return self.with_headers[-1][1].next_offset if self.batches else BASE

    @property
    def with_headers(self) -> list[tuple[bytes, BatchHeader]]:
        return [(data, next(iter(batches(data)))[1]) for data in self.batches]


TestSegmentHistory = SegmentHistory.TestCase
TestSegmentHistory.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)
