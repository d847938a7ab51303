"""The transactions of the batches that a cleaning passes, in the order of their offsets.

Mirrors ``CleanedTransactionMetadata``. Records of an aborted transaction go at once: they shadow no
older value. The marker of a transaction may go when none of its batches is left. It then has a
delete horizon like a tombstone, and goes in a later cleaning.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from regent.records.end_transaction_marker import ABORT, COMMIT
from regent.records.record_batch import BatchHeader
from regent.storage.log.aborted_transaction import AbortedTransaction


class CleanedTransactions:
    """The state is carried from segment to segment in one cleaning (KAFKA-8351).

    ``on_aborted`` is called with each aborted transaction of which a batch is left: the index of
    the new segment must have it, or readers would take that batch for a committed one.
    """

    def __init__(self, on_aborted: Callable[[AbortedTransaction], None] = lambda _: None) -> None:
        self._on_aborted = on_aborted
        self._committed: set[int] = set()
        self._aborted: dict[int, AbortedTransaction] = {}
        self._observed: set[int] = set()  # producers of which a batch of ``_aborted`` was seen
        self._to_come: list[tuple[int, AbortedTransaction]] = []

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the segment that comes next."""
        for one in aborted:
            heapq.heappush(self._to_come, (one.first_offset, one))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of the next batch, which is not a control batch, were aborted."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        if header.producer_id in self._aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_marker_done(self, header: BatchHeader, marker: int | None) -> bool:
        """Whether none of the batches of a marker is left. ``marker`` None: it was removed."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker == ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is None or producer_id not in self._observed:
                return True
            self._observed.discard(producer_id)
            self._on_aborted(aborted)
            return False
        if marker == COMMIT:
            is_left = producer_id in self._committed
            self._committed.discard(producer_id)
            return not is_left
        return marker is None

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            _, begun = heapq.heappop(self._to_come)
            self._aborted.setdefault(begun.producer_id, begun)
