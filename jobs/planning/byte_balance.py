"""Evens out the bytes of brokers by swapping replicas, which leaves their numbers as they are.

A replica on a broker with too many bytes changes places with a smaller one on a broker with fewer.
Most swaps cost no move: they choose which of equally good partitions moves, and where to. Some more
are made within a limit. Every swap makes the two brokers more even, so the fullest broker is never
fuller than at the start. This is a local search: a better plan may exist.

A step costs some milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from regent.jobs.planning.model import NO_RACK, Ints, Layout, Mask, Replicas, distinct_racks

_PARTNERS: Final = 8  # brokers to compare swaps with, before the best is made
_NEIGHBOURS: Final = 4  # smaller and larger ones to try as the counterpart of a replica
_MOST_PARTNERS: Final = 100  # brokers to try in vain
_SEARCHES: Final = 4_000  # of a swap of two brokers, and so many more for each broker:
_SEARCHES_OF_A_BROKER: Final = 40
_MOST_MOVES: Final = 2  # that a swap adds
_LEAST_GAIN: Final = 0.001  # of the mean: what a swap has to bring
_FAR: Final = 2**62


class _Swap(NamedTuple):
    """Two slots that change places, as row * width + position; the least swap is the best."""

    cost: int  # the moves that it adds; 0 also if there is one less
    distance: int  # of the difference in size from the wanted one
    large: int
    small: int
    giver: int
    taker: int


@dataclass(slots=True)
class ByteBalance:
    """The bytes of the brokers of a layout.

    Only ``takers`` may receive replicas. ``tolerance`` is the share that a broker may deviate from
    the mean; at most ``spare`` moves more are made than there are.
    """

    layout: Layout
    left: Collection[int]
    takers: Collection[int]
    tolerance: float
    spare: int
    now: Ints = field(init=False)
    _mean: float = field(init=False)
    _slots: dict[int, Ints] = field(init=False)
    _racks: Replicas = field(init=False)  # of each broker
    _searches_left: int = field(init=False)
    _takes: frozenset[int] = field(init=False)
    _version: dict[int, int] = field(init=False)  # counts the changes of a broker
    _in_vain: dict[tuple[int, int], tuple[int, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.layout.bytes_held(self.layout.after)
        self._mean = sum(int(self.now[b]) for b in self.left) / len(self.left)
        self._racks = np.array(self.layout.racks, np.int32)
        self._takes = frozenset(self.takers)
        self._version = dict.fromkeys(self.left, 0)
        self._in_vain = {}
        broker = self.layout.after.ravel()
        slots = np.argsort(broker, kind="stable")
        ends = np.searchsorted(broker[slots], np.arange(len(self.now) + 1))
        self._slots = {b: slots[ends[b] : ends[b + 1]] for b in self.left}

    def run(self) -> None:
        """Swap while a broker is beyond the tolerance and a swap helps.

        First without a move more; then with some, of which each has to be worth its bytes.
        """
        for most in sorted({0, self.spare}):
            self._searches_left = _SEARCHES + _SEARCHES_OF_A_BROKER * len(self.left)
            while self._pass(most) and self._searches_left > 0:
                pass

    def _pass(self, most: int) -> bool:
        """Try each broker beyond the tolerance, until no swap helps it; return whether one did."""
        has_swapped = False
        open_brokers = set(self.left)
        while open_brokers and self._searches_left > 0:
            worst = max(open_brokers, key=lambda b: (abs(self.now[b] - self._mean), -b))
            if abs(self.now[worst] - self._mean) <= self.tolerance * self._mean:
                break
            swap = self._best_swap(worst, min(most, self.spare, _MOST_MOVES))
            if swap is None:
                open_brokers.remove(worst)
            else:
                self._carry_out(swap)
                has_swapped = True
        return has_swapped

    def _best_swap(self, broker: int, most: int) -> _Swap | None:
        """Return a swap that brings a broker nearer to the mean; it adds at most ``most`` moves.

        The partners that differ most are compared first.
        """
        sign = 1 if self.now[broker] > self._mean else -1
        partners = [
            b
            for b in self.left
            if (self.now[broker] - self.now[b]) * sign > 0
            and (broker in self._takes or b in self._takes)
        ]
        partners.sort(key=lambda b: sign * self.now[b])
        excess = int(abs(self.now[broker] - self._mean))
        best: _Swap | None = None
        for number, partner in enumerate(partners[:_MOST_PARTNERS]):
            if self._searches_left <= 0 or (best is not None and number % _PARTNERS == 0):
                break
            giver, taker = (broker, partner) if sign > 0 else (partner, broker)
            state = self._version[giver], self._version[taker], most
            if self._in_vain.get((giver, taker)) == state:
                continue
            self._searches_left -= 1
            found = min(self._swaps(giver, taker, excess, most), default=None)
            if found is None:
                self._in_vain[giver, taker] = state
            elif best is None or found < best:
                best = found
        return best

    def _swaps(self, giver: int, taker: int, wanted: int, most: int) -> Iterator[_Swap]:
        """Yield swaps of large replicas of a broker with small ones of another, for each cost.

        The difference in size is to be ``wanted``, but no more than evens out the two.
        """
        gap = int(self.now[giver] - self.now[taker])
        large, cost_of_large = self._movable(giver, taker)
        small, cost_of_small = self._movable(taker, giver)
        for added in (-1, 0, 1):
            some, costs = large[cost_of_large == added], (cost_of_small + added).clip(0)
            for cost in range(most + 1):
                rest = small[costs == cost]
                if len(rest) and len(some):
                    found = self._closest_pair(some, rest, gap, min(wanted, gap // 2), cost)
                    if found is not None:
                        yield _Swap(cost, *found, giver, taker)

    def _movable(self, giver: int, taker: int) -> tuple[Ints, Ints]:
        """Return the slots that ``taker`` may get from ``giver``, and the moves that each adds."""
        layout, slots = self.layout, self._slots[giver]
        rows, positions = np.divmod(slots, layout.after.shape[1])
        can = ~(layout.after[rows] == taker).any(axis=1)
        if taker not in self.takers:
            can &= (layout.before[rows] == taker).any(axis=1)
        slots, rows, positions = slots[can], rows[can], positions[can]
        if layout.brokers.hosts and layout.hosts[giver] != layout.hosts[taker]:
            free = ~(layout.hosts[layout.after[rows]] == layout.hosts[taker]).any(axis=1)
            slots, rows, positions = slots[free], rows[free], positions[free]
        if self._racks[giver] != self._racks[taker]:
            keeps = self._keeps_racks(rows, positions, taker)
            slots, rows = slots[keeps], rows[keeps]
        return slots, self._moves_added(rows, giver, taker)

    def _keeps_racks(self, rows: Ints, positions: Ints, taker: int) -> Mask:
        """Return whether each row has enough racks when a broker gets this slot."""
        racks = self._racks[self.layout.after[rows]]
        racks[np.arange(len(rows)), positions] = NO_RACK
        is_closed = distinct_racks(racks) < self.layout.racks_needed[rows]
        keeps: Mask = ~(is_closed & (racks == self._racks[taker]).any(axis=1))
        return keeps

    def _moves_added(self, rows: Ints, giver: int, taker: int) -> Ints:
        had_giver, had_taker = (
            (self.layout.before[rows] == broker).any(axis=1) for broker in (giver, taker)
        )
        added: Ints = had_giver.astype(np.int64) - had_taker
        return added

    def _closest_pair(
        self, large: Ints, small: Ints, gap: int, wanted: int, cost: int
    ) -> tuple[int, int, int] | None:
        """Return the pair whose difference in size is closest to ``wanted``, after its distance.

        A move that is added has to be worth its bytes.
        """
        sizes, width = self.layout.sizes, self.layout.after.shape[1]
        least = max(1, int(self._mean * _LEAST_GAIN))
        small = small[np.argsort(sizes[small // width], kind="stable")]
        of_large, of_small = sizes[large // width], sizes[small // width]
        places = np.searchsorted(of_small, of_large - wanted)[:, np.newaxis]
        places = (places + np.arange(-_NEIGHBOURS, _NEIGHBOURS)).clip(0, len(small) - 1)
        difference = of_large[:, np.newaxis] - of_small[places]
        helps = (difference >= least) & (difference <= gap - least)
        helps &= (large // width)[:, np.newaxis] != small[places] // width
        if cost:
            helps &= difference * 2 >= of_large[:, np.newaxis]
        if not helps.any():
            return None
        distance = np.abs(difference - wanted)
        distance[difference * 2 > gap] += gap  # the taker would become the fuller one
        distance[~helps] = _FAR
        row, column = divmod(int(distance.argmin()), places.shape[1])
        return int(distance[row, column]), int(large[row]), int(small[places[row, column]])

    def _carry_out(self, swap: _Swap) -> None:
        width = self.layout.after.shape[1]
        giver, taker = swap.giver, swap.taker
        slots = divmod(swap.large, width), divmod(swap.small, width)
        (row, _), (other_row, _) = slots
        layout = self.layout
        self.spare -= swap.cost
        layout.put(slots[0], taker)
        layout.put(slots[1], giver)
        difference = int(self.layout.sizes[row] - self.layout.sizes[other_row])
        self.now[giver] -= difference
        self.now[taker] += difference
        for broker, gone, new in (
            (giver, swap.large, swap.small),
            (taker, swap.small, swap.large),
        ):
            self._version[broker] += 1
            kept = self._slots[broker]
            self._slots[broker] = np.append(kept[kept != gone], new)
