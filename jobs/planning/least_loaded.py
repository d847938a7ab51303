"""The brokers that can take replicas, least loaded first.

A choice looks at all brokers in an array: some microseconds for thousands of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from regent.jobs.planning.model import Layout, Slot

_FULL: Final = 2**62


class LeastLoaded:
    """Finds the broker for one more replica.

    Brokers are compared by load minus ``offset``, equal ones by their sequence in ``brokers``;
    those at ``limit`` are not found.
    """

    def __init__(
        self,
        layout: Layout,
        brokers: Sequence[int],
        limit: Sequence[int],
        offset: Sequence[int] | None = None,
    ) -> None:
        self._layout = layout
        self._place = {broker: place for place, broker in enumerate(brokers)}
        self._limit = limit
        self._offset = offset or [0] * len(layout.load)
        racks = np.array(layout.brokers.racks)
        self._of_rack = {rack: np.flatnonzero(racks == rack) for rack in set(racks.tolist())}
        self._worth = np.full(len(layout.load), _FULL)  # the smallest is the best
        for broker in brokers:
            self._update(broker)

    def put(self, slot: Slot, broker: int) -> None:
        """Put a broker into a slot, in place of the present one."""
        present = int(self._layout.after[slot])
        self._layout.put(slot, broker)
        self._update(present)
        self._update(broker)

    def excess(self, broker: int) -> int:
        """Return a broker's load beyond its offset."""
        return self._layout.load[broker] - self._offset[broker]

    def best(self, slot: Slot, *, in_new_rack: bool = False) -> int | None:
        """Return the least loaded broker that may hold a slot.

        With ``in_new_rack`` one in a rack without a replica of the row comes first.
        """
        closed = self._layout.closed_racks(slot)
        found = None
        if in_new_rack and not closed:
            found = self._outside(slot, self._layout.racks_without(slot))
        return self._outside(slot, closed) if found is None else found

    def _update(self, broker: int) -> None:
        if broker in self._place:
            worth = self.excess(broker) * len(self._place) + self._place[broker]
            is_full = self._layout.load[broker] >= self._limit[broker]
            self._worth[broker] = _FULL if is_full else worth

    def _outside(self, slot: Slot, racks: Collection[int]) -> int | None:
        worth = self._worth.copy()
        worth[self._layout.replicas_of(slot[0])] = _FULL
        for rack in racks:
            worth[self._of_rack[rack]] = _FULL
        broker = int(worth.argmin())
        return None if worth[broker] == _FULL else broker
