"""Reads records into memory before a fetch reads them under the lock.

The disk may need long for records that were written hours ago. Another thread reads them first,
without a lock. Meanwhile the partition counts as one without new records: the fetch waits, or is
answered with the records of others, and appends go on. Kafka reads the disk in one of several
threads, under a lock of the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from regent.core.model import TopicPartition
from regent.core.replica_logs import PartitionLog

MAX_PREFETCHES = 1_000
"""How many may be under way; further records are read under the lock."""

RunBeside: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs work on another thread, soon."""


class Prefetches:
    """Not thread-safe, except that ``run`` gets work for another thread.

    ``run`` None: there is no other thread. ``on_end`` is called there after each prefetch.
    """

    def __init__(
        self, run: RunBeside | None, on_end: Callable[[TopicPartition, int], None]
    ) -> None:
        self._run = run
        self._on_end = on_end
        self._under_way: set[tuple[TopicPartition, int]] = set()  # with the offset
        self._ended: dict[tuple[TopicPartition, int], None] = {}  # not read since

    def awaits(
        self, topic_partition: TopicPartition, log: PartitionLog, offset: int, max_bytes: int
    ) -> bool:
        """Whether a read must wait until records are in memory; begin to bring them there.

        A read directly after the end of its prefetch does not wait again: it reads what is missing
        from the disk. Raises ``StorageError`` and ``DamagedRecordsError``, as a read does.
        """
        if self._run is None:
            return False
        place = topic_partition, offset
        if place in self._under_way:
            return True
        if place in self._ended:
            del self._ended[place]
            return False
        work = log.prefetch(offset, max_bytes)
        if work is None or len(self._under_way) >= MAX_PREFETCHES:
            return False
        self._under_way.add(place)
        self._run(lambda: self._do(work, topic_partition, offset))
        return True

    def _do(self, work: Callable[[], None], topic_partition: TopicPartition, offset: int) -> None:
        try:
            work()
        finally:
            self._on_end(topic_partition, offset)

    def end(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note that a prefetch has ended."""
        self._under_way.discard((topic_partition, offset))
        self._ended[topic_partition, offset] = None
        if len(self._ended) > MAX_PREFETCHES:
            del self._ended[next(iter(self._ended))]
