"""The fair share of replicas for each broker, within the limits of racks, hosts and brokers.

Every broker is filled to the same level, but not beyond its limits. Racks and hosts have limits
too. If partitions have a replica in every rack, the number of replicas in a rack cannot change, and
its brokers share them. A host has one replica of a partition at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from regent.jobs.planning.model import UNLIMITED, Ints, Replicas, distinct_racks


class Groups(NamedTuple):
    """The group of each broker, its rack or its host, and the minimum and maximum of groups.

    A group that is missing in ``limits`` has none.
    """

    of_broker: Sequence[int] | Ints
    limits: Mapping[int, tuple[int, int]]


class Share(NamedTuple):
    """The minimum and maximum number of replicas of each broker; they differ by 0 or 1."""

    low: list[int]
    high: list[int]


class _Tier(NamedTuple):
    """Groups by index; ``first`` has one broker of each."""

    of_broker: Ints
    first: Ints
    fewest: Ints
    most: Ints


def nested(tiers: Sequence[Groups]) -> list[Groups]:
    """Divide the groups of a tier where those of the tier before it do: a host in two racks.

    The parts of a divided group have no minimum.
    """
    found: list[Groups] = []
    parts = np.zeros(len(tiers[0].of_broker) if tiers else 0, np.int64)
    for groups in tiers:
        both = np.stack([parts, np.array(groups.of_broker, np.int64)])
        pairs, parts = np.unique(both, axis=1, return_inverse=True)
        parts = parts.ravel()
        names, limits = pairs[1].tolist(), {}
        times = Counter(names)
        for part, name in enumerate(names):
            if name in groups.limits:
                fewest, most = groups.limits[name]
                limits[part] = (fewest if times[name] == 1 else 0, most)
        found.append(Groups(parts, limits))
    return found


def fair_share(
    least: Sequence[int] | Ints,
    most: Sequence[int] | Ints,
    tiers: Sequence[Groups],
    replicas: int,
) -> Share:
    """Return the fair shares of brokers, in their sequence, within ``nested`` tiers."""
    floors, ceilings = np.array(least, np.int64), np.array(most, np.int64)
    indexed = [_indexed(groups) for groups in tiers]

    def filled(level: int) -> Ints:
        return floors.clip(level, ceilings)

    def in_groups(level: int) -> tuple[list[Ints], int]:
        """Return what the groups of each tier would hold without their limits, and the sum."""
        found, values, brokers = [], filled(level), np.arange(len(floors))
        for tier in reversed(indexed):
            of_group = np.bincount(tier.of_broker[brokers], values).astype(np.int64)
            values, brokers = of_group.clip(tier.fewest, tier.most), tier.first
            found.append(of_group)
        return found[::-1], int(values.sum())

    level = _highest(lambda level: in_groups(level)[1], replicas)
    now, held = in_groups(level)
    above = level + (held != replicas)
    later, _ = in_groups(above)
    low, high = filled(level), filled(above)
    is_open = np.ones(len(floors), np.bool_)
    for depth, tier in enumerate(indexed):
        is_full = now[depth] >= tier.most
        is_short = (later[depth] <= tier.fewest) & (tier.fewest > 0)
        for group in np.flatnonzero(is_full | is_short).tolist():
            members = np.flatnonzero((tier.of_broker == group) & is_open)
            if len(members):
                limit = int(tier.most[group] if is_full[group] else tier.fewest[group])
                within = [
                    Groups(np.asarray(inner.of_broker)[members], inner.limits)
                    for inner in tiers[depth + 1 :]
                ]
                low[members], high[members] = fair_share(
                    floors[members], ceilings[members], within, limit
                )
                is_open[members] = False
    return Share(low.tolist(), high.tolist())


def _indexed(groups: Groups) -> _Tier:
    names, first, index = np.unique(groups.of_broker, return_index=True, return_inverse=True)
    limits = [groups.limits.get(name, (0, UNLIMITED)) for name in names.tolist()]
    fewest, most = np.array(limits, np.int64).T
    return _Tier(index, first, fewest, most)


def spreads(racks: Replicas) -> Counter[tuple[int, int]]:
    """Count rows by (replicas, racks).

    A row has the racks of its replicas; -1 stands for no replica and for no rack.
    """
    width = racks.shape[1] + 1
    key = (racks >= 0).sum(axis=1) * width + distinct_racks(racks)
    numbers, counts = (found.tolist() for found in np.unique(key, return_counts=True))
    return Counter({divmod(n, width): count for n, count in zip(numbers, counts, strict=True)})


def group_limits(
    spreads: Mapping[tuple[int, int], int], groups: Sequence[int], fixed: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the minimum and maximum of each rack when no partition may lose a rack; or of hosts.

    ``spreads`` are numbers of partitions by (replicas, racks), counted in these racks only.
    ``fixed`` is added, by rack: the replicas of partitions that do not move, less those of others
    on brokers that take none, which the limits do not count.
    """
    names = sorted(set(groups))
    everywhere = sum(n for (_, spread), n in spreads.items() if spread >= len(names))
    together = sum(n * (factor - spread + 1) for (factor, spread), n in spreads.items() if factor)
    return {
        name: (max(0, everywhere + fixed.get(name, 0)), max(0, together + fixed.get(name, 0)))
        for name in names
    }


def moves_needed(load: Sequence[int], share: Share, tiers: Sequence[Groups]) -> int:
    """Return the fewest moves that give every broker its fair share, in ``nested`` tiers.

    A rack or a host whose number of replicas cannot change is counted separately.
    """
    parts: list[tuple[int, int] | None] = [None] * len(load)
    for depth, (of_broker, limits) in enumerate(tiers):
        held = np.bincount(of_broker, load).astype(np.int64).tolist()
        for broker, group in enumerate(np.asarray(of_broker).tolist()):
            fewest, most = limits.get(group, (0, UNLIMITED))
            if fewest == most == held[group]:
                parts[broker] = depth, group
    above, below = Counter[tuple[int, int] | None](), Counter[tuple[int, int] | None]()
    for part, holds, low, high in zip(parts, load, *share, strict=True):
        above[part] += max(0, holds - high)
        below[part] += max(0, low - holds)
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
