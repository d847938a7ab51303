"""Evens out the bytes of brokers by swapping replicas, which leaves their numbers as they are.

A replica on a broker with too many bytes changes places with a smaller one on a broker with too
few. Most swaps cost no move: they choose which of equally good partitions moves, and where to. Some
more are made within a limit. Every swap makes the two brokers more even. This is a local search: a
better plan may exist.

All partitions to plan are in memory, as arrays. A step costs some milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from regent.jobs.planning.model import Layout

_PARTNERS: Final = 8  # brokers to try a swap with
_NEIGHBOURS: Final = 4  # smaller and larger ones to try as the counterpart of a replica
_TRIALS: Final = 8  # pairs of replicas to try, for each neighbour
_STEPS_OF_A_BROKER: Final = 50

Ints: TypeAlias = npt.NDArray[np.int64]


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
    _before: npt.NDArray[np.int32] = field(init=False)
    _after: npt.NDArray[np.int32] = field(init=False)
    _sizes: Ints = field(init=False)
    _slots: dict[int, Ints] = field(init=False)

    def __post_init__(self) -> None:
        width = max(map(len, [*self.layout.replicas, *self.layout.rows.replicas]), default=0)
        self._before = _matrix(self.layout.rows.replicas, width)
        self._after = _matrix(self.layout.replicas, width)
        self._sizes = np.array(self.layout.rows.sizes, np.int64)
        assert self.layout.held_bytes is not None
        self.now = self.layout.held_bytes.copy()
        for matrix, sign in ((self._before, -1), (self._after, 1)):
            flat = matrix.ravel()
            sizes = np.repeat(self._sizes, width)[flat >= 0]
            np.add.at(self.now, flat[flat >= 0], sign * sizes)
        flat = self._after.ravel()
        order = np.argsort(flat, kind="stable")
        ends = np.searchsorted(flat[order], np.arange(len(self.now) + 1))
        self._slots = {b: order[ends[b] : ends[b + 1]] for b in self.left}

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
            if not self._improve(worst, partners[:_PARTNERS], gives=excess > 0):
                open_brokers.remove(worst)

    def _improve(self, broker: int, partners: Iterable[int], *, gives: bool) -> bool:
        pairs = [(broker, partner) if gives else (partner, broker) for partner in partners]
        return any(self._swap(*pair, most=0) for pair in pairs) or (
            self.spare > 0 and any(self._swap(*pair, most=self.spare) for pair in pairs)
        )

    def _swap(self, giver: int, taker: int, *, most: int) -> bool:
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
        rows = slots // self._after.shape[1]
        had_taker = (self._before[rows] == taker).any(axis=1)
        had_giver = (self._before[rows] == giver).any(axis=1)
        can = ~(self._after[rows] == taker).any(axis=1)
        if taker not in self.takers:
            can &= had_taker
        cost = had_giver.astype(np.int64) - had_taker
        return slots[can], cost[can]

    def _closest_pairs(self, large: Ints, small: Ints, gap: int) -> list[tuple[int, int, int]]:
        """Return pairs whose difference in size is closest to half of ``gap``, and its distance."""
        width = self._after.shape[1]
        small = small[np.argsort(self._sizes[small // width], kind="stable")]
        wanted = self._sizes[large // width] - gap // 2
        places = np.searchsorted(self._sizes[small // width], wanted)
        pairs = []
        for offset in range(-_NEIGHBOURS, _NEIGHBOURS):
            place = np.clip(places + offset, 0, len(small) - 1)
            difference = self._sizes[large // width] - self._sizes[small[place] // width]
            helps = np.flatnonzero((difference > 0) & (difference < gap))
            distance = np.abs(difference - gap // 2)[helps]
            best = helps[np.argsort(distance, kind="stable")[:_TRIALS]]
            distances = np.abs(difference - gap // 2)[best]
            pairs += list(
                zip(
                    distances.tolist(),
                    large[best].tolist(),
                    small[place[best]].tolist(),
                    strict=True,
                )
            )
        return pairs

    def _carry_out(self, first: int, second: int, giver: int, taker: int) -> bool:
        width = self._after.shape[1]
        slots = divmod(first, width), divmod(second, width)
        (row, position), (other_row, other_position) = slots
        layout = self.layout
        if row == other_row or not (layout.fits(slots[0], taker) and layout.fits(slots[1], giver)):
            return False
        before = self._moves(row) + self._moves(other_row)
        layout.put(slots[0], taker)
        layout.put(slots[1], giver)
        self._after[row, position], self._after[other_row, other_position] = taker, giver
        self.spare -= max(0, self._moves(row) + self._moves(other_row) - before)
        difference = self._sizes[row] - self._sizes[other_row]
        self.now[giver] -= difference
        self.now[taker] += difference
        for broker, gone, new in ((giver, first, second), (taker, second, first)):
            kept = self._slots[broker]
            self._slots[broker] = np.append(kept[kept != gone], new)
        return True

    def _moves(self, row: int) -> int:
        return len(set(self.layout.replicas[row]) - set(self.layout.rows.replicas[row]))


def _matrix(lists: list[list[int]], width: int) -> npt.NDArray[np.int32]:
    matrix = np.full((len(lists), width), -1, np.int32)
    for row, brokers in enumerate(lists):
        matrix[row, : len(brokers)] = brokers
    return matrix
