"""The fair share of replicas for each broker, within the limits of racks and brokers.

Every broker is filled to the same level, but not beyond its limits. Racks have limits too. If
partitions have a replica in every rack, the number of replicas in a rack cannot change, and its
brokers share them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from regent.jobs.planning.model import Ints, Replicas, distinct_racks


class Share(NamedTuple):
    """The minimum and maximum number of replicas of each broker; they differ by 0 or 1."""

    low: list[int]
    high: list[int]


def fair_share(
    least: Sequence[int] | Ints,
    most: Sequence[int] | Ints,
    racks: Sequence[int],
    rack_limits: Mapping[int, tuple[int, int]],
    replicas: int,
) -> Share:
    """Return the fair shares of brokers, in their sequence.

    ``rack_limits`` are the minimum and maximum of a rack; a missing rack has no limits.
    """
    names, rack_of = np.unique(racks, return_inverse=True)
    limits = [rack_limits.get(rack, (0, math.inf)) for rack in names.tolist()]
    fewest, highest = np.array(limits).T
    floors, ceilings = np.array(least, np.int64), np.array(most, np.int64)

    def filled(level: int) -> Ints:
        return floors.clip(level, ceilings)

    def in_racks(level: int) -> Ints:
        return np.bincount(rack_of, filled(level)).astype(np.int64)

    def held(level: int) -> int:
        return int(np.clip(in_racks(level), fewest, highest).sum())

    level = _highest(held, replicas)
    is_full = in_racks(level) >= highest
    is_short = (in_racks(level + 1) <= fewest) & (fewest > 0)
    low, high = filled(level), filled(level + (held(level) != replicas))
    for rack in np.flatnonzero(is_full | is_short).tolist():
        limit = int(highest[rack] if is_full[rack] else fewest[rack])
        members = np.flatnonzero(rack_of == rack)
        of_rack = fair_share(floors[members], ceilings[members], [rack] * len(members), {}, limit)
        low[members], high[members] = of_rack
    return Share(low.tolist(), high.tolist())


def spreads(racks: Replicas) -> Counter[tuple[int, int]]:
    """Count rows by (replicas, racks).

    A row has the racks of its replicas; -1 stands for no replica and for no rack.
    """
    width = racks.shape[1] + 1
    key = (racks >= 0).sum(axis=1) * width + distinct_racks(racks)
    numbers, counts = (found.tolist() for found in np.unique(key, return_counts=True))
    return Counter({divmod(n, width): count for n, count in zip(numbers, counts, strict=True)})


def rack_limits(
    spreads: Mapping[tuple[int, int], int], racks: Sequence[int], fixed: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the minimum and maximum of each rack when no partition may lose a rack.

    ``spreads`` are numbers of partitions by (replicas, racks), counted in these racks only.
    ``fixed`` is added, by rack: the replicas of partitions that do not move, less those of others
    on brokers that take none, which the limits do not count.
    """
    names = sorted(set(racks))
    everywhere = sum(n for (_, spread), n in spreads.items() if spread >= len(names))
    together = sum(n * (factor - spread + 1) for (factor, spread), n in spreads.items() if factor)
    return {
        rack: (max(0, everywhere + fixed.get(rack, 0)), max(0, together + fixed.get(rack, 0)))
        for rack in names
    }


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
    for rack, held, low, high in zip(racks, load, *share, strict=True):
        fewest, most = rack_limits.get(rack, (0, -1))
        part = rack if fewest == most == of_rack[rack] else None
        above[part] += max(0, held - high)
        below[part] += max(0, low - held)
    return (above | below).total()


def _highest(held: Callable[[int], int], replicas: int) -> int:
    low, high = 0, replicas + 1
    while high - low > 1:
        middle = (low + high) // 2
        if held(middle) <= replicas:
            low = middle
        else:
            high = middle
    return low
