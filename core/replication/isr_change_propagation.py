"""When leaders that write their ISRs themselves tell the controller: seldom, of many at once.

Mirrors ``kafka.server.ReplicaManager.maybePropagateIsrChanges``: a controller told of each change
would read as often as all leaders write (KAFKA-2722, KAFKA-2406).
"""

from __future__ import annotations

from collections.abc import Iterable

from regent.core.model import TopicPartition

CHECK_INTERVAL_MS = 2_500
LINGER_MS = 5_000
MAX_DELAY_MS = 60_000


class IsrChangePropagation:
    """The partitions whose change of ISR the controller has not been told of."""

    def __init__(self, now_ms: int) -> None:
        self._waiting: dict[TopicPartition, None] = {}
        self._last_change_ms = now_ms
        self._last_propagation_ms = now_ms

    def record(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Note that the ISRs of these were changed."""
        changed = dict.fromkeys(partitions)
        if changed:
            self._waiting |= changed
            self._last_change_ms = now_ms

    def due(self, now_ms: int) -> tuple[TopicPartition, ...]:
        """Return what to tell of now, if it is time: all that waits, or nothing.

        It is time when the last change is older than ``LINGER_MS``, or, where changes do not end,
        the last propagation older than ``MAX_DELAY_MS``.
        """
        is_quiet = now_ms - self._last_change_ms > LINGER_MS
        is_overdue = now_ms - self._last_propagation_ms > MAX_DELAY_MS
        return tuple(self._waiting) if is_quiet or is_overdue else ()

    def propagated(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Note that the controller has been told of these."""
        for topic_partition in partitions:
            self._waiting.pop(topic_partition, None)
        self._last_propagation_ms = now_ms
