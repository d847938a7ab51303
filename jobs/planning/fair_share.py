"""The fair share of replicas for each broker, within the limits of racks and brokers.

Every broker is filled to the same level, but not beyond its limits. Racks have limits too. If
partitions have a replica in every rack, the number of replicas in a rack cannot change, and its
brokers share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Share(NamedTuple):
    """The minimum and maximum number of replicas of each broker; they differ by 0 or 1."""

    low: list[int]
    high: list[int]


@dataclass(frozen=True, slots=True)
class Pool:
    """Brokers that share replicas, with the minimum and maximum of each, by position."""

    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]

    def held(self, level: int) -> int:
        """Return the number of replicas when the brokers are filled to a level."""
        return int(np.clip(level, self.least, self.most).sum())

    def level_of(self, replicas: int) -> tuple[int, bool]:
        """Return the highest level with at most ``replicas``, and whether it has just as many."""
        level = _highest(self.held, replicas)
        return level, self.held(level) == replicas


def fair_share(
    least: Sequence[int],
    most: Sequence[int],
    racks: Sequence[int],
    rack_limits: Mapping[int, tuple[int, int]],
    replicas: int,
) -> Share:
    """Return the fair shares of brokers, in their sequence.

    ``rack_limits`` are the minimum and maximum of a rack; a missing rack has no limits.
    """
    every = Pool(np.array(least, np.int64), np.array(most, np.int64))
    of_rack = np.array(racks)
    members = {rack: np.flatnonzero(of_rack == rack) for rack in sorted(set(racks))}
    pools = {rack: Pool(every.least[where], every.most[where]) for rack, where in members.items()}
    limits = {
        rack: rack_limits.get(rack, (0, pool.held(int(every.most.max()))))
        for rack, pool in pools.items()
    }

    def held(level: int) -> int:
        return sum(
            min(max(pool.held(level), limits[rack][0]), limits[rack][1])
            for rack, pool in pools.items()
        )

    common = _highest(held, replicas)
    low, high = np.empty_like(every.least), np.empty_like(every.least)
    for rack, pool in pools.items():
        fewest, most_of_rack = limits[rack]
        level, is_even = common, held(common) == replicas
        if pool.held(common) >= most_of_rack:
            level, is_even = pool.level_of(most_of_rack)
        elif pool.held(common + 1) <= fewest:
            level, is_even = pool.level_of(fewest)
        low[members[rack]] = np.clip(level, pool.least, pool.most)
        high[members[rack]] = np.clip(level + (not is_even), pool.least, pool.most)
    return Share(low.tolist(), high.tolist())


def spreads(racks: npt.NDArray[np.int32]) -> Counter[tuple[int, int]]:
    """Count rows by (replicas, racks).

    A row has the racks of its replicas; -1 stands for no replica and for no rack.
    """
    racks = np.sort(racks, axis=1)
    is_next = np.diff(racks, axis=1, prepend=-1) != 0
    width = racks.shape[1] + 1
    key = (racks >= 0).sum(axis=1) * width + is_next.sum(axis=1)
    counts = enumerate(np.bincount(key).tolist())
    return Counter({divmod(number, width): count for number, count in counts if count})


def rack_limits(
    spreads: Mapping[tuple[int, int], int], racks: Sequence[int], fixed: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the minimum and maximum of each rack when no partition may lose a rack.

    ``spreads`` are numbers of partitions by (replicas, racks); ``fixed`` are the replicas that do
    not move, by rack.
    """
    names = sorted(set(racks))
    everywhere = sum(n for (_, spread), n in spreads.items() if spread >= len(names))
    together = sum(n * (factor - spread + 1) for (factor, spread), n in spreads.items() if factor)
    return {
        rack: (everywhere + fixed.get(rack, 0), together + fixed.get(rack, 0)) for rack in names
    }


def _highest(held: Callable[[int], int], replicas: int) -> int:
    low, high = 0, replicas + 1
    while high - low > 1:
        middle = (low + high) // 2
        if held(middle) <= replicas:
            low = middle
        else:
            high = middle
    return low
