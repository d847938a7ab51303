"""ISR changes that leaders write to ZooKeeper themselves, and the notifications of them.

Mirrors ``kafka.server.ZkIsrManager`` and ``ReplicaManager.maybePropagateIsrChanges``. The
controller is notified in batches: if every change had its own notification, it would read ZooKeeper
as often as all leaders write to it (KAFKA-2722, KAFKA-2406).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.replication.replica_manager import ReplicaManager

CHECK_INTERVAL_MS = 2_500
LINGER_MS = 5_000
MAX_DELAY_MS = 60_000


class IsrChangePropagation:
    """The partitions with ISR changes that the controller was not notified of."""

    def __init__(self, now_ms: int) -> None:
        self._waiting: dict[TopicPartition, None] = {}
        self._last_change_ms = now_ms
        self._last_propagation_ms = now_ms

    def record(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Add partitions with a changed ISR."""
        changed = dict.fromkeys(partitions)
        if changed:
            self._waiting |= changed
            self._last_change_ms = now_ms

    def due(self, now_ms: int) -> tuple[TopicPartition, ...]:
        """Return all collected partitions if a notification is due, otherwise nothing.

        It is due if the last change is older than ``LINGER_MS``, or, during continuous changes, if
        the last notification is older than ``MAX_DELAY_MS``.
        """
        is_quiet = now_ms - self._last_change_ms > LINGER_MS
        is_overdue = now_ms - self._last_propagation_ms > MAX_DELAY_MS
        return tuple(self._waiting) if is_quiet or is_overdue else ()

    def propagated(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Remove partitions, because the controller was notified."""
        for topic_partition in partitions:
            self._waiting.pop(topic_partition, None)
        self._last_propagation_ms = now_ms


class IsrStore(Protocol):
    """Writes ISRs to ZooKeeper."""

    def alter_partitions(
        self, request: AlterPartitionRequest, controller_epochs: Mapping[TopicPartition, int]
    ) -> AlterPartitionResponse:
        """Write the proposed ISRs conditionally; ``controller_epochs`` has the known partitions."""

    def announce(self, partitions: Sequence[TopicPartition]) -> None:
        """Notify the controller that these ISRs have changed."""


class IsrWriter:
    """Answers the AlterPartition requests of this broker by conditional writes.

    Not thread-safe. Every method raises what the store raises.
    """

    def __init__(self, replica_manager: ReplicaManager, store: IsrStore, now_ms: int) -> None:
        self._replica_manager = replica_manager
        self._store = store
        self._propagation = IsrChangePropagation(now_ms)

    def alter_partitions(
        self, request: AlterPartitionRequest, now_ms: int
    ) -> AlterPartitionResponse:
        """Write the proposals, with the controller epochs of the leaders."""
        hosted = self._replica_manager.partitions
        controller_epochs = {
            row.topic_partition: partition.controller_epoch
            for row in request.partitions
            if (partition := hosted.get(row.topic_partition)) is not None
        }
        response = self._store.alter_partitions(request, controller_epochs)
        written = [r.topic_partition for r in response.partitions if r.error_code is Errors.NONE]
        self._propagation.record(written, now_ms)
        return response

    def propagate(self, now_ms: int) -> None:
        """Notify the controller if that is due; call it every ``CHECK_INTERVAL_MS``."""
        due = self._propagation.due(now_ms)
        if due:
            self._store.announce(due)
            self._propagation.propagated(due, now_ms)
