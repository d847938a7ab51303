"""The suite ``clean``: the cleaner over one real log on disk.

The log does not keep an index of aborted transactions: the runner keeps the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from regent.core.log_config import LogConfig
from regent.storage.compaction.log_cleaner import Cleaning, Work
from regent.storage.compaction.log_cleaner_manager import examine
from regent.storage.compaction.offset_map import OffsetMap
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError
from tests.support.disk_logs import T0, Machine, create
from tests.support.record_batches import (
    CONTROL_MASK,
    HEADER,
    TRANSACTIONAL_MASK,
    UNCOUNTED_BYTES,
    Record,
    keyed_batch,
    records_of,
)

_UNLIMITED = 1 << 30
_LOAD_FACTOR = 0.75


class SeenBatch(NamedTuple):
    """A batch in the log."""

    base: int
    last: int
    producer: int
    last_sequence: int
    is_control: bool
    records: list[Record]


class CleanSuite(Suite):
    """A log and its cleanings."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        config = LogConfig(
            cleanup_policy="compact",
            delete_retention_ms=given.get("delete_retention_ms", 1_000),
        )
        directory = self.undo.enter_context(TemporaryDirectory())
        machine = Machine(Path(directory) / "one", defaults=config)
        self.undo.callback(machine.end)
        self.logs, self.clock = machine.start(), machine.clock
        self.clock.now_ms = 0
        self.log = create(self.logs)
        slots = given.get("map_slots", _UNLIMITED)
        self.max_keys = int(slots * _LOAD_FACTOR)
        self.sequences: dict[tuple[int, int], int] = {}

    def do(self, step: Step) -> None:
        match step["do"]:
            case "append":
                self._append(step)
            case "marker":
                self._mark(step)
            case "roll":
                with self.log.exclusively() as contents:
                    contents.roll(contents.log_end_offset, 0)
            case "clean":
                self._clean(step)
            case "expire_producers":
                with self.log.exclusively() as contents:
                    contents.producers.remove_expired(1 << 62, 1)
            case verb:
                raise UnknownInCaseError(verb)

    def _append(self, step: Step) -> None:
        keys, deleted = step["keys"], set(step.get("delete", ()))
        producer, epoch = step.get("producer", -1), step.get("epoch", 0)
        is_transactional = step.get("txn", False)
        sequence = self.sequences.get((producer, epoch), 0) if producer >= 0 else -1
        self.sequences[producer, epoch] = sequence + len(keys)
        self.log.append_as_follower(
            keyed_batch(
                *((_key(key), None if key in deleted else b"value") for key in keys),
                base_offset=self.log.log_end_offset,
                producer_id=producer,
                producer_epoch=epoch if producer >= 0 else -1,
                base_sequence=sequence,
                timestamp_ms=0,
                attributes=TRANSACTIONAL_MASK if is_transactional else 0,
            )
        )

    def _mark(self, step: Step) -> None:
        producer, epoch = step["producer"], step.get("epoch", 0)
        is_commit, offset = step["commit"], self.log.log_end_offset
        self.log.append_as_follower(
            keyed_batch(
                (struct.pack(">hh", 0, is_commit), struct.pack(">hi", 0, 0)),
                base_offset=offset,
                producer_id=producer,
                producer_epoch=epoch,
                timestamp_ms=0,
                attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
            )
        )

    def _clean(self, step: Step) -> None:
        now_ms = self.clock.now_ms = step["now"]
        first_dirty = step.get("first_dirty", "previous")
        uncleanable = step.get("uncleanable", "active")
        if first_dirty != "previous":
            assert self.log.note_cleaned(first_dirty, self.log.truncations)
        limit = self.log.log_end_offset if uncleanable == "active" else uncleanable
        self.logs.checkpoint_high_watermarks({T0: limit})
        work = Work(
            lambda: OffsetMap(self.max_keys),
            1_000,
            lambda _: None,
            lambda _: self.logs.checkpoint_cleaned_offsets(),
        )
        Cleaning(examine(self.log, now_ms), work, now_ms).run()

    def see(self, key: str, expected: Any) -> Any:
        batches = list(self._batches())
        records = [one for batch in batches for one in batch.records]
        data = [one for batch in batches if not batch.is_control for one in batch.records]
        keyed = [(int(one.key), one) for one in data if one.key is not None]
        match key:
            case "offsets":
                return [one.offset for one in records]
            case "keys":
                return [number for number, _ in keyed]
            case "tombstones":
                return [number for number, one in keyed if one.value is None]
            case "batch_bases":
                return [batch.base for batch in batches]
            case "batch_lasts":
                return [batch.last for batch in batches]
            case "sequences":
                return _sequences(batches)
            case "aborted":
                with self.log.exclusively() as contents:
                    return [
                        [*one[:3]]
                        for segment in contents.segments
                        for one in segment.transactions.entries
                    ]
            case "first_dirty":
                return self.log.first_dirty
            case _:
                return super().see(key, expected)

    def _batches(self) -> Iterator[SeenBatch]:
        offset, end = 0, self.log.log_end_offset
        while offset < end:
            data = bytes(self.log.read(offset, 1 << 20, end, at_least_one=True).read())
            at = 0
            while at < len(data):
                base, length, *_, attributes, delta, _, _, producer, _, sequence, _ = (
                    HEADER.unpack_from(data, at)
                )
                size = UNCOUNTED_BYTES + length
                yield SeenBatch(
                    base,
                    base + delta,
                    producer,
                    sequence + delta if sequence >= 0 else -1,
                    bool(attributes & CONTROL_MASK),
                    records_of(data[at : at + size]),
                )
                at += size
                offset = base + delta + 1
            if not data:
                return


def _key(key: int | None) -> bytes | None:
    return None if key is None else str(key).encode()


def _sequences(batches: list[SeenBatch]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for batch in batches:
        if batch.producer >= 0:
            name = str(batch.producer)
            found[name] = max(found.get(name, -1), batch.last_sequence)
    return found
