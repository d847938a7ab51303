"""Writes the markers that end transactions to the partitions that this broker leads.

Mirrors ``kafka.server.KafkaApis.handleWriteTxnMarkersRequest``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock

from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.transactions import PartitionOutcome, TxnMarker, TxnMarkerResult
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.replica_manager import ReplicaManager
from regent.records.end_transaction_marker import EndTransactionMarker, build_marker


class PartitionMarkers:
    """Implements ``core.protocol.transactions.MarkerTarget``. Thread-safe.

    ``timeout_ms``: how long a marker waits until all replicas in sync have it.
    """

    def __init__(
        self, replica_manager: ReplicaManager, scheduler: Scheduler, timeout_ms: int
    ) -> None:
        self._replica_manager = replica_manager
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms
        self._lock = Lock()
        self._waiting: deque[tuple[int, DelayedOperation]] = deque()  # with their deadlines
        self._has_timer = False

    def write_markers(
        self,
        markers: Sequence[TxnMarker],
        respond: Callable[[Sequence[TxnMarkerResult]], None],
    ) -> None:
        """See ``MarkerTarget.write_markers``."""
        if not markers:
            respond(())
            return
        results = _Results(len(markers), respond)
        for number, marker in enumerate(markers):
            self._write(marker, partial(results.set, number, marker))

    def _write(
        self,
        marker: TxnMarker,
        respond: Callable[[Mapping[TopicPartition, ProducedPartition]], None],
    ) -> None:
        batch = build_marker(
            EndTransactionMarker(marker.is_commit, marker.coordinator_epoch),
            marker.producer_id,
            marker.producer_epoch,
            time.time_ns() // 1_000_000,
        )
        batches = {topic_partition: bytearray(batch) for topic_partition in marker.partitions}
        operation = self._replica_manager.append_markers(batches, monotonic_ms(), respond)
        if operation is not None:
            with self._lock:
                self._waiting.append((monotonic_ms() + self._timeout_ms, operation))
            self._set_timer()

    def _set_timer(self) -> None:
        with self._lock:
            while self._waiting and self._waiting[0][1].is_completed:
                self._waiting.popleft()
            if self._has_timer or not self._waiting:
                return
            self._has_timer = True
            due_ms = self._waiting[0][0]
        self._scheduler.schedule(max(due_ms - monotonic_ms(), 0), self._expire)

    def _expire(self) -> None:
        now_ms = monotonic_ms()
        with self._lock:
            self._has_timer = False
            due = []
            while self._waiting and self._waiting[0][0] <= now_ms:
                due.append(self._waiting.popleft()[1])
        for operation in due:
            self._replica_manager.expire(operation, now_ms)
        self._set_timer()


class _Results:
    """Collects the results of some markers, and answers when all are there."""

    def __init__(self, count: int, respond: Callable[[Sequence[TxnMarkerResult]], None]) -> None:
        self._results: list[TxnMarkerResult] = [TxnMarkerResult(-1, ())] * count
        self._missing = count
        self._respond = respond
        self._lock = Lock()

    def set(
        self, number: int, marker: TxnMarker, produced: Mapping[TopicPartition, ProducedPartition]
    ) -> None:
        outcomes = (
            PartitionOutcome(*name, produced[name].error_code, produced[name].base_offset)
            for name in marker.partitions
        )
        self._results[number] = TxnMarkerResult(marker.producer_id, tuple(outcomes))
        with self._lock:
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._respond(self._results)
