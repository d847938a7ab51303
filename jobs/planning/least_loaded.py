"""The brokers that can take replicas, least loaded first, rack by rack.

A heap of racks, sorted by their least loaded broker, over a heap of brokers for each rack. Skipping
racks that have a replica costs one step a rack, not one a broker. Stale entries are dropped when
they reach the top.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush, heapreplace
from typing import TypeAlias

from regent.jobs.planning.model import Layout

_Entry: TypeAlias = tuple[int, int, int]  # load beyond the offset, rank, broker or rack


class LeastLoaded:
    """Finds the broker for one more replica.

    Brokers are compared by load minus ``offset``, equal ones by their sequence in ``brokers``;
    those at ``limit`` are not found. Call ``update`` after every change of a load.
    """

    def __init__(
        self,
        layout: Layout,
        brokers: Iterable[int],
        limit: Sequence[int],
        offset: Sequence[int] | None = None,
    ) -> None:
        self._layout = layout
        self._limit = limit
        self._offset = offset or [0] * len(layout.load)
        self._rank = {broker: rank for rank, broker in enumerate(brokers)}
        self._brokers_of: dict[int, list[_Entry]] = {}
        self._racks: list[_Entry] = []
        self._entry_of: dict[int, _Entry | None] = {}  # the one that is valid in ``_racks``
        for broker in self._rank:
            self.update(broker)

    def update(self, broker: int) -> None:
        """Update the entry of a broker whose load has changed."""
        if broker in self._rank and self._layout.load[broker] < self._limit[broker]:
            load = self._layout.load[broker] - self._offset[broker]
            self._push((load, self._rank[broker], broker))

    def excess(self, broker: int) -> int:
        """Return a broker's load beyond its offset."""
        return self._layout.load[broker] - self._offset[broker]

    def best(self, members: Collection[int], closed_racks: Collection[int]) -> int | None:
        """Return the least loaded broker outside ``members`` and ``closed_racks``."""
        closed: list[_Entry] = []
        passed: list[_Entry] = []
        found = None
        while self._racks and found is None:
            entry = self._racks[0]
            rack = entry[2]
            top = self._top(rack)
            if entry != self._entry_of.get(rack):
                heappop(self._racks)
            elif top is None:
                heappop(self._racks)
                self._entry_of[rack] = None
            elif top[:2] != entry[:2]:
                self._entry_of[rack] = (top[0], top[1], rack)
                heapreplace(self._racks, (top[0], top[1], rack))
            elif rack in closed_racks:
                closed.append(heappop(self._racks))
            elif top[2] in members:
                passed.append(heappop(self._brokers_of[rack]))
            else:
                found = top[2]
        for entry in passed:
            self._push(entry)
        for entry in closed:
            heappush(self._racks, entry)
        return found

    def _top(self, rack: int) -> _Entry | None:
        entries = self._brokers_of[rack]
        load, limit, offset = self._layout.load, self._limit, self._offset
        while entries:
            key, _, broker = entries[0]
            if key == load[broker] - offset[broker] and load[broker] < limit[broker]:
                return entries[0]
            heappop(entries)
        return None

    def _push(self, entry: _Entry) -> None:
        rack = self._layout.brokers.racks[entry[2]]
        heappush(self._brokers_of.setdefault(rack, []), entry)
        known = self._entry_of.get(rack)
        if known is None or entry[:2] < known[:2]:
            self._entry_of[rack] = (entry[0], entry[1], rack)
            heappush(self._racks, (entry[0], entry[1], rack))
