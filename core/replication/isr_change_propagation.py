"""Collects ISR changes that leaders wrote to ZooKeeper, to notify the controller in batches.

Mirrors ``kafka.server.ReplicaManager.maybePropagateIsrChanges``. If every change had its own
notification, the controller would read ZooKeeper as often as all leaders write to it (KAFKA-2722,
KAFKA-2406).
"""

from __future__ import annotations

from collections.abc import Iterable

from regent.core.model import TopicPartition

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
