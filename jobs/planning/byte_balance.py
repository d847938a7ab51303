"""Evens out the bytes of brokers by swapping replicas, which leaves their numbers as they are.

A replica on a broker with too many bytes changes places with a smaller one on a broker with too
few. Most swaps cost no move: they choose which of equally good partitions moves, and where to. Some
more are made within a limit. Every swap makes the two brokers more even. This is a local search: a
better plan may exist.

A step costs some milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from regent.jobs.planning.model import Ints, Layout

_PARTNERS: Final = 8  # brokers to try a swap with
_NEIGHBOURS: Final = 4  # smaller and larger ones to try as the counterpart of a replica
_TRIALS: Final = 8  # pairs of replicas to try, for each neighbour
_STEPS_OF_A_BROKER: Final = 50


@dataclass(slots=True)
class ByteBalance:
    """The bytes of the brokers of a layout.

    Replicas of ``rows`` may be swapped, and only ``takers`` may receive some. ``tolerance`` is the
    share that a broker may deviate from the mean; at most ``spare`` moves more are made than there
    are.
    """

    layout: Layout
    rows: Ints
    left: Collection[int]
    takers: Collection[int]
    tolerance: float
    spare: int
    now: Ints = field(init=False)
    _slots: dict[int, Ints] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.layout.bytes_held(self.layout.after)
        width = self.layout.after.shape[1]
        broker = self.layout.after[self.rows].ravel()
        order = np.argsort(broker, kind="stable")
        slots = (self.rows[:, None] * width + np.arange(width)).ravel()[order]
        ends = np.searchsorted(broker[order], np.arange(len(self.now) + 1))
        self._slots = {b: slots[ends[b] : ends[b + 1]] for b in self.left}

    def run(self) -> None:
        """Swap while a broker is beyond the tolerance and a swap helps."""
        mean = sum(int(self.now[b]) for b in self.left) / len(self.left)
        open_brokers = set(self.left)
        for _ in range(_STEPS_OF_A_BROKER * len(self.left)):
            if not open_brokers:
                return
            worst = max(open_brokers, key=lambda b: (abs(self.now[b] - mean), -b))
            excess = self.now[worst] - mean
            if abs(excess) <= self.tolerance * mean:
                return
            sign = 1 if excess > 0 else -1
            partners = [b for b in self.left if (self.now[b] - mean) * sign < 0]
            partners.sort(key=lambda b: sign * self.now[b])
            pairs = [(worst, b) if excess > 0 else (b, worst) for b in partners[:_PARTNERS]]
            tries = ((*pair, most) for most in sorted({0, self.spare}) for pair in pairs)
            if not any(self._swap(giver, taker, most) for giver, taker, most in tries):
                open_brokers.remove(worst)

    def _swap(self, giver: int, taker: int, most: int) -> bool:
        """Swap a large replica of one broker with a small one of another.

        It costs at most ``most`` moves more.
        """
        gap = int(self.now[giver] - self.now[taker])
        large, cost_of_large = self._movable(giver, taker)
        small, cost_of_small = self._movable(taker, giver)
        found: list[tuple[int, int, int]] = []
        for cost in (-1, 0, 1):
            some, rest = large[cost_of_large == cost], small[cost_of_small + cost <= most]
            if len(rest) and len(some):
                found += self._closest_pairs(some, rest, gap)
        return any(
            self._carry_out(first, second, giver, taker) for _, first, second in sorted(found)
        )

    def _movable(self, giver: int, taker: int) -> tuple[Ints, Ints]:
        """Return the slots that ``taker`` may get from ``giver``, and the moves that each adds."""
        slots = self._slots[giver]
        rows = slots // self.layout.after.shape[1]
        can = ~(self.layout.after[rows] == taker).any(axis=1)
        if taker not in self.takers:
            can &= (self.layout.before[rows] == taker).any(axis=1)
        return slots[can], self._moves_added(rows[can], giver, taker)

    def _moves_added(self, rows: Ints, giver: int, taker: int) -> Ints:
        had_giver, had_taker = (
            (self.layout.before[rows] == broker).any(axis=1) for broker in (giver, taker)
        )
        added: Ints = had_giver.astype(np.int64) - had_taker
        return added

    def _closest_pairs(self, large: Ints, small: Ints, gap: int) -> list[tuple[int, int, int]]:
        """Return pairs whose difference in size is closest to half of ``gap``, and its distance."""
        sizes, width = self.layout.sizes, self.layout.after.shape[1]
        small = small[np.argsort(sizes[small // width], kind="stable")]
        of_large, of_small = sizes[large // width], sizes[small // width]
        places = np.searchsorted(of_small, of_large - gap // 2)
        pairs: list[tuple[int, int, int]] = []
        for offset in range(-_NEIGHBOURS, _NEIGHBOURS):
            place = np.clip(places + offset, 0, len(small) - 1)
            difference = of_large - of_small[place]
            helps = np.flatnonzero((difference > 0) & (difference < gap))
            distance = np.abs(difference - gap // 2)[helps]
            order = np.argsort(distance, kind="stable")[:_TRIALS]
            best = helps[order]
            chosen = (distance[order], large[best], small[place[best]])
            pairs += zip(*(values.tolist() for values in chosen), strict=True)
        return pairs

    def _carry_out(self, first: int, second: int, giver: int, taker: int) -> bool:
        width = self.layout.after.shape[1]
        slots = divmod(first, width), divmod(second, width)
        row, other_row = slots[0][0], slots[1][0]
        layout = self.layout
        if row == other_row or not (layout.fits(slots[0], taker) and layout.fits(slots[1], giver)):
            return False
        cost = self._moves_added(np.array([row]), giver, taker)
        cost += self._moves_added(np.array([other_row]), taker, giver)
        self.spare -= max(0, int(cost[0]))
        layout.put(slots[0], taker)
        layout.put(slots[1], giver)
        difference = int(self.layout.sizes[row] - self.layout.sizes[other_row])
        self.now[giver] -= difference
        self.now[taker] += difference
        for broker, gone, new in ((giver, first, second), (taker, second, first)):
            kept = self._slots[broker]
            self._slots[broker] = np.append(kept[kept != gone], new)
        return True
