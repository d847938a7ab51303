"""The brokers that can take replicas, least loaded first.

A choice looks at all brokers in an array: some microseconds for thousands of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np

from regent.jobs.planning.model import Layout

_FULL: Final = 2**62


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
        self._brokers = list(brokers)
        self._place = {broker: place for place, broker in enumerate(self._brokers)}
        racks = np.array([layout.brokers.racks[broker] for broker in self._brokers])
        self._places_of_rack = {rack: np.flatnonzero(racks == rack) for rack in set(racks.tolist())}
        self._load = np.full(len(self._brokers), _FULL)
        for broker in self._brokers:
            self.update(broker)

    def update(self, broker: int) -> None:
        """Take over the load of a broker, which has changed."""
        if broker in self._place:
            has_room = self._layout.load[broker] < self._limit[broker]
            self._load[self._place[broker]] = self.excess(broker) if has_room else _FULL

    def excess(self, broker: int) -> int:
        """Return a broker's load beyond its offset."""
        return self._layout.load[broker] - self._offset[broker]

    def best(self, members: Collection[int], closed_racks: Collection[int]) -> int | None:
        """Return the least loaded broker outside ``members`` and ``closed_racks``."""
        if not self._brokers:
            return None
        load = self._load.copy()
        for broker in members:
            if broker in self._place:
                load[self._place[broker]] = _FULL
        for rack in closed_racks:
            if rack in self._places_of_rack:
                load[self._places_of_rack[rack]] = _FULL
        place = int(load.argmin())
        return None if load[place] == _FULL else self._brokers[place]
