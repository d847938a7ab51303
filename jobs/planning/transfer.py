"""Moves replicas from brokers that have too many to those that have too few.

Brokers above their fair share give, the fullest first; those below take, the emptiest first. When
one side is done, the other continues with brokers at the limit of their share, until all are within
it. The number of moves is the larger of the excess of the givers and the lack of the takers. If
racks or replicas of the same partition prevent a move, a replica goes over a third broker, with one
move more.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from random import Random
from typing import Final

import numpy as np

from regent.jobs.planning.chains import Chains
from regent.jobs.planning.fair_share import Share
from regent.jobs.planning.least_loaded import LeastLoaded
from regent.jobs.planning.model import Layout, Slot

_CHOICES: Final = 16  # slots to examine for one that helps an empty broker and is alone in its row


def moves_needed(
    load: Sequence[int],
    share: Share,
    racks: Sequence[int],
    rack_limits: Mapping[int, tuple[int, int]],
) -> int:
    """Return the fewest moves that give every broker its fair share.

    A rack whose number of replicas cannot change is counted separately.
    """
    above, below, of_rack = Counter[int | None](), Counter[int | None](), Counter[int]()
    for rack, held in zip(racks, load, strict=True):
        of_rack[rack] += held
    for rack, held, low, high in zip(racks, load, share.low, share.high, strict=True):
        fewest, most = rack_limits.get(rack, (0, -1))
        part = rack if fewest == most == of_rack[rack] else None
        above[part] += max(0, held - high)
        below[part] += max(0, low - held)
    return (above | below).total()


class Transfer:
    """Moves replicas in a layout until every broker has its fair share, or nothing fits.

    ``takers`` may get replicas; ``share`` is by index of the usable brokers. The same seed gives
    the same plan.
    """

    def __init__(self, layout: Layout, share: Share, takers: Sequence[int], seed: int) -> None:
        self._layout = layout
        self._share = share
        order = list(takers)
        Random(seed).shuffle(order)
        self._takers = order
        self._queue = LeastLoaded(layout, order, share.high, share.low)
        self._moved_rows: set[int] = set()
        self._candidates = _slots_to_give(layout, share, seed)

    def run(self) -> int:
        """Move what is possible; return the remaining number of excess or missing replicas."""
        self._take_away(self._share.high)
        self._take_away(self._share.low)
        if self._left():
            self._move_by_chains()
            self._layout.restore_places()
        return self._left()

    def _left(self) -> int:
        return max(self._above(), self._below())

    def _above(self) -> int:
        high = self._share.high
        return sum(max(0, self._layout.load[b] - high[b]) for b in range(len(high)))

    def _below(self) -> int:
        low = self._share.low
        return sum(max(0, low[b] - self._layout.load[b]) for b in self._takers)

    def _take_away(self, level: Sequence[int]) -> None:
        """Take replicas from brokers above ``level``, the fullest first, while it helps."""
        load = self._layout.load
        givers = [(level[b] - load[b], b) for b in range(len(level)) if load[b] > level[b]]
        heapify(givers)
        above, below = self._above(), self._below()
        while givers and (above or below):
            _, giver = heappop(givers)
            taker = self._give_one(giver, need_only=below >= above)
            if taker is None:
                continue
            above -= load[giver] >= self._share.high[giver]
            below -= load[taker] <= self._share.low[taker]
            if load[giver] > level[giver]:
                heappush(givers, (level[giver] - load[giver], giver))

    def _give_one(self, giver: int, *, need_only: bool) -> int | None:
        """Move one replica, if possible to a broker below its share; return the target."""
        slots, width = self._candidates[giver], self._layout.after.shape[1]
        found: list[tuple[tuple[bool, bool], Slot, int]] = []
        while slots and len(found) < _CHOICES:
            slot = divmod(slots.pop(), width)
            taker = self._queue.best(slot)
            if taker is None or (need_only and self._queue.excess(taker) >= 0):
                continue  # no broker that it fits on will need it more later
            drawbacks = (self._queue.excess(taker) >= 0, slot[0] in self._moved_rows)
            found.append((drawbacks, slot, taker))
            if not any(drawbacks):
                break
        if not found:
            return None
        best = min(found, key=lambda candidate: candidate[0])
        slots.extend(row * width + i for _, (row, i), _ in reversed(found) if (row, i) != best[1])
        _, slot, taker = best
        self._queue.put(slot, taker)
        self._moved_rows.add(slot[0])
        return taker

    def _move_by_chains(self) -> None:
        load, share = self._layout.load, self._share
        chains = Chains(self._layout, self._takers)
        brokers = range(len(share.low))
        for giver in brokers:
            while load[giver] > share.high[giver]:
                if not chains.move(giver, lambda taker: load[taker] < share.high[taker]):
                    break
        while any(load[taker] < share.low[taker] for taker in self._takers):
            givers = sorted((b for b in brokers if load[b] > share.low[b]), key=lambda b: -load[b])
            if not any(
                chains.move(giver, lambda taker: load[taker] < share.low[taker]) for giver in givers
            ):
                return


def _slots_to_give(layout: Layout, share: Share, seed: int) -> dict[int, array[int]]:
    """Return the slots of every broker that may give some, as row * width + position, best last.

    The sequence is random; otherwise all moves would be from the first topics. If sizes are known,
    the best have the size that brings the broker to the mean bytes.
    """
    excess = np.zeros(len(layout.load) + 1, np.int64)  # the last one is that of vacant slots
    excess[: len(share.low)] = np.array(layout.load[: len(share.low)]) - share.low
    giver = layout.after.ravel()
    slots = np.random.default_rng(seed).permutation(np.flatnonzero(excess[giver] > 0))
    worth = np.zeros(len(slots), np.int64)
    if layout.sizes is not None:
        held = layout.bytes_held(layout.after)
        wanted = (held - held[: len(share.low)].mean()) / np.maximum(excess[:-1], 1)
        sizes = layout.sizes[slots // layout.after.shape[1]]
        worth = -np.abs(sizes - wanted[giver[slots]])
    slots = slots[np.lexsort((worth, giver[slots]))]
    starts = np.searchsorted(giver[slots], np.arange(len(excess)))
    return {
        broker: array("q", slots[start:end].tobytes())
        for broker, (start, end) in enumerate(pairwise(starts.tolist()))
    }
