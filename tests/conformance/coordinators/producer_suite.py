"""The suite ``producer``: the producers of one partition, and their transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regent.core.errors import RecordsRefusedError
from regent.core.setting import DAY_MS
from regent.records.end_transaction_marker import EndTransactionMarker, build_marker
from regent.records.record_batch import INT32_MAX, BatchHeader, read_header
from regent.storage.log.producer_state_manager import ProducerStateManager
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError, one_of
from tests.support.record_batches import TRANSACTIONAL_MASK, batch


class ProducerSuite(Suite):
    """The state of one partition, whose snapshots are in a directory of their own."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.now_ms = given.get("now", 0)
        self.expiration_ms = given.get("expiration_ms", DAY_MS)
        self.max_timeout_ms = given.get("max_txn_timeout_ms", 900_000)
        self.path = Path(self.undo.enter_context(TemporaryDirectory()))
        self.state = ProducerStateManager(self.path)
        self.high_watermark = self.map_end = self.snapshot_at = 0
        self.completed: list[Any] | None = None

    def do(self, step: Step) -> None:
        match step["do"]:
            case "append":
                self.append(step)
            case "marker":
                self.mark(step)
            case "hw":
                self.high_watermark = step["offset"]
            case "log_start":
                self.begin_at(step["offset"])
            case "snapshot":
                if self.map_end > self.snapshot_at:
                    self.state.take_snapshot(self.map_end)
                    self.snapshot_at = self.map_end
            case "expire":
                self.state.remove_expired(self.now_ms, self.expiration_ms)
            case "tick":
                self.now_ms += step["ms"]
            case "guard":
                header = self.header(step["sequence"], 1, step)
                self.answer(step, guard=self.state.begin_verification(header, self.now_ms))
            case _:
                self.change_files(step)

    def change_files(self, step: Step) -> None:
        match step["do"]:
            case "restart":
                self.state = ProducerStateManager(self.path)
                self.map_end = 0
                self.reload(step)
            case "reload":
                self.reload(step)
            case "truncate_fully":
                self.state.clear()
                self.map_end, self.snapshot_at = step["offset"], 0
            case "damage_snapshot":
                path = self.path / f"{step['offset']:020d}.snapshot"
                data = path.read_bytes()
                path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            case "delete_snapshots_before":
                self.state.delete_snapshots_before(step["offset"])
            case "stray":
                self.state.remove_stray_snapshots(step["segments"])
            case verb:
                raise UnknownInCaseError(verb)

    def begin_at(self, log_start_offset: int) -> None:
        """The log begins here: what is before counts as replicated."""
        self.high_watermark = max(self.high_watermark, log_start_offset)
        self.map_end = max(self.map_end, log_start_offset)
        self.snapshot_at = max(self.state.snapshot_offsets(), default=log_start_offset)

    def reload(self, step: Step) -> None:
        """Read what is below the end, unless nothing else was taken in.

        Kafka also deletes a snapshot at the log start. The product keeps it, because producers need
        not be forgotten then; so the runner deletes it.
        """
        start, end, now_ms = step["start"], step["end"], step.get("time", self.now_ms)
        self.state.retain_snapshots(range(start + 1, end + 1))
        if end == self.map_end:
            self.begin_at(start)
        else:
            self.map_end = self.snapshot_at = self.state.restore(
                start, end, now_ms, self.expiration_ms
            )

    def header(self, sequence: int, count: int, step: Step) -> BatchHeader:
        return read_header(
            batch(
                *[b""] * count,
                base_offset=step.get("offset", 0),
                producer_id=step.get("producer", 1),
                producer_epoch=step.get("epoch", 0),
                base_sequence=sequence,
                timestamp_ms=step.get("time", self.now_ms),
                attributes=TRANSACTIONAL_MASK if step.get("txn", False) else 0,
            )
        )

    def append(self, step: Step) -> None:
        header = self.header(step["first"], step.get("count", 1), step)
        try:
            _check(self.state, header, None, step.get("origin", "client"))
        except RecordsRefusedError as refused:
            self.answer(step, error=refused.error_code.name)
            return
        self.state.update(header)
        self.map_end = header.next_offset
        self.answer(step, error="NONE")

    def mark(self, step: Step) -> None:
        marker = EndTransactionMarker(step["commit"], step.get("coordinator_epoch", 0))
        producer_id, time_ms = step.get("producer", 1), step.get("time", self.now_ms)
        data = build_marker(marker, producer_id, step.get("epoch", 0), time_ms)
        header = read_header(data)._replace(base_offset=step["offset"])
        written = None if step.get("empty", False) else marker
        try:
            _check(self.state, header, written, step.get("origin", "coordinator"))
        except RecordsRefusedError as refused:
            self.answer(step, error=refused.error_code.name)
            return
        known = self.state.entry(header.producer_id)
        first = -1 if known is None else known.first_offset_of_transaction
        aborted = self.state.update(header, written)
        if aborted is not None:
            self.completed = [*aborted[:3], True, aborted.last_stable_offset]
        elif first >= 0 and written is not None:
            undecided = self.state.first_undecided_offset
            stable = header.next_offset if undecided is None else undecided
            self.completed = [header.producer_id, first, header.last_offset, False, stable]
        else:
            self.completed = None
        self.map_end = header.next_offset
        self.answer(step, error="NONE")

    def see(self, key: str, expected: Any) -> Any:
        match key:
            case "producers":
                return {name: self.producer(int(name)) for name in expected}
            case "first_unstable":
                return self.state.first_unstable_offset(self.high_watermark)
            case "first_undecided":
                return self.state.first_undecided_offset
            case "snapshots":
                return self.state.snapshot_offsets()
            case "count":
                return len(self.state)
            case "late":
                return self.state.has_late_transaction(self.now_ms, self.max_timeout_ms)
            case "map_end":
                return self.map_end
            case "completed":
                return self.completed
            case _:
                return super().see(key, expected)

    def producer(self, producer_id: int) -> Mapping[str, int] | None:
        entry = self.state.entry(producer_id)
        if entry is None:
            return None
        known = entry.batches
        first = (known[0].last_sequence - known[0].offset_delta) & INT32_MAX if known else -1
        return {
            "epoch": entry.epoch,
            "first": first,
            "last": entry.last_sequence,
            "first_offset": known[0].first_offset if known else -1,
            "last_offset": known[-1].last_offset if known else -1,
            "time": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "txn": entry.first_offset_of_transaction,
        }


def _check(
    state: ProducerStateManager,
    header: BatchHeader,
    marker: EndTransactionMarker | None,
    origin: str,
) -> None:
    """Check a batch as that of a client or of a coordinator; followers do not check."""
    check: Callable[[], None] = one_of(
        origin,
        {
            "client": lambda: state.check([header]),
            "coordinator": lambda: state.check_of_coordinator(header, marker),
            "replication": lambda: None,
        },
        "the origin",
    )
    check()
