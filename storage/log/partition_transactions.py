"""The transactions of a partition that may still change what is stable.

Mirrors ``ongoingTxns`` and ``unreplicatedTxns`` of ``ProducerStateManager``. A transaction is open
from its first record to its marker. After that it counts until the marker is committed: another
leader may lack the marker.
"""

from __future__ import annotations

from heapq import heappop, heappush


class PartitionTransactions:
    """Not thread-safe, except ``oldest_producer``."""

    __slots__ = ("_open", "_unreplicated")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # first offset to producer id, in the order of the offsets
        self._unreplicated: list[tuple[int, int]] = []  # a heap of first offsets, and of markers

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note the first record of a transaction; first offsets grow from call to call."""
        self._open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Note the marker of a transaction; return the offset before which none is open."""
        del self._open[first_offset]
        heappush(self._unreplicated, (first_offset, marker_offset))
        return next(iter(self._open), marker_offset + 1)

    @property
    def oldest_producer(self) -> int | None:
        """The producer of the open transaction that began first; any thread may ask."""
        producers = list(self._open.values())  # atomic: ``next(iter(…))`` may find a changed dict
        return producers[0] if producers else None

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of an open transaction; None: none is open."""
        return next(iter(self._open), None)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset that readers of committed records must not get; None: none.

        Forget the transactions whose markers are below the high watermark.
        """
        first, unreplicated = next(iter(self._open), None), self._unreplicated
        while unreplicated and unreplicated[0][1] < high_watermark:
            heappop(unreplicated)
        if unreplicated and (first is None or unreplicated[0][0] < first):
            return unreplicated[0][0]
        return first
