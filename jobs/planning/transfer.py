"""Moves replicas from brokers that have too many to those that have too few.

Brokers above their fair share give, the fullest first; those below take, the emptiest first. When
one side is done, the other continues with brokers at the limit of their share, until all are within
it. The number of moves is the larger of the excess of the givers and the lack of the takers. If
racks or replicas of the same partition prevent a move, a replica goes over a third broker, with one
move more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

import numpy as np

from regent.jobs.planning.fair_share import Share
from regent.jobs.planning.fill import Chains, LeastLoaded
from regent.jobs.planning.model import Layout

_CHOICES: Final = 16  # slots to examine for one that helps an empty broker and is alone in its row


class Transfer:
    """Moves replicas in a layout until every broker has its fair share, or nothing fits.

    ``takers`` may get replicas, the first of equal ones; ``share`` is by index of the usable
    brokers. The same seed gives the same plan.
    """

    def __init__(self, layout: Layout, share: Share, takers: Sequence[int], seed: int) -> None:
        self._layout = layout
        self._share = share
        self._takers = takers
        self._queue = LeastLoaded(layout, takers, share.high, share.low)
        self._moved_rows: set[int] = set()
        self._candidates = _slots_to_give(layout, share, seed)

    def run(self) -> int:
        """Move what is possible; return the remaining number of excess or missing replicas."""
        self._take_away(self._share.high)
        self._take_away(self._share.low)
        if any(self._left()):
            self._move_by_chains()
            self._layout.restore_places()
        return max(self._left())

    def _left(self) -> tuple[int, int]:
        """Return how many replicas are too many, and how many are missing."""
        load, (low, high) = self._layout.load, self._share
        above = sum(max(0, held - most) for held, most in zip(load, high, strict=False))
        return above, sum(max(0, low[b] - load[b]) for b in self._takers)

    def _take_away(self, level: Sequence[int]) -> None:
        """Take replicas from brokers above ``level``, the fullest first, while it helps."""
        load, (low, high) = self._layout.load, self._share
        givers = [(level[b] - load[b], b) for b in range(len(level)) if load[b] > level[b]]
        heapify(givers)
        above, below = self._left()
        while givers and (above or below):
            _, giver = heappop(givers)
            taker = self._give_one(giver, need_only=below >= above)
            if taker is None:
                continue
            above -= load[giver] >= high[giver]
            below -= load[taker] <= low[taker]
            if load[giver] > level[giver]:
                heappush(givers, (level[giver] - load[giver], giver))

    def _give_one(self, giver: int, *, need_only: bool) -> int | None:
        """Move one replica, if possible to a broker below its share; return the target."""
        slots, width = self._candidates[giver], self._layout.after.shape[1]
        found: list[tuple[tuple[bool, bool], int, int]] = []
        while slots and len(found) < _CHOICES:
            place = slots.pop()
            taker = self._queue.best(divmod(place, width))
            if taker is None or (need_only and self._queue.excess(taker) >= 0):
                continue  # no broker that it fits on will need it more later
            drawbacks = (self._queue.excess(taker) >= 0, place // width in self._moved_rows)
            found.append((drawbacks, place, taker))
            if not any(drawbacks):
                break
        if not found:
            return None
        _, chosen, taker = min(found, key=lambda candidate: candidate[0])
        slots.extend(place for _, place, _ in reversed(found) if place != chosen)
        self._queue.put(divmod(chosen, width), taker)
        self._moved_rows.add(chosen // width)
        return taker

    def _move_by_chains(self) -> None:
        load, (low, high) = self._layout.load, self._share
        chains = Chains(self._layout, self._takers)
        for giver in range(len(low)):
            while load[giver] > high[giver] and chains.move(giver, high):
                pass
        while any(load[taker] < low[taker] for taker in self._takers):
            givers = sorted(
                (b for b in range(len(low)) if load[b] > low[b]), key=lambda b: -load[b]
            )
            if not any(chains.move(giver, low) for giver in givers):
                return


def _slots_to_give(layout: Layout, share: Share, seed: int) -> dict[int, array[int]]:
    """Return the slots of every broker that may give some, as row * width + position.

    The sequence is random; otherwise all moves would be from the first topics.
    """
    usable = len(share.low)
    excess = np.zeros(len(layout.load), np.int64)
    excess[:usable] = np.array(layout.load[:usable]) - share.low
    giver = layout.after.ravel()
    slots = np.random.default_rng(seed).permutation(np.flatnonzero(excess[giver] > 0))
    slots = slots[np.argsort(giver[slots], kind="stable")]
    starts = np.searchsorted(giver[slots], np.arange(len(excess)))
    return {
        broker: array("q", slots[start:end].tobytes())
        for broker, (start, end) in enumerate(pairwise(starts.tolist()))
    }
