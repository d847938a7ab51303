"""Copysets: few sets of brokers that hold all the replicas of a partition, chosen on purpose.

Mirrors Cidon et al., "Copysets: Reducing the Frequency of Data Loss in Cloud Storage" (USENIX ATC
2013). When as many brokers as there are replicas die at once, data is lost if they are a *copyset*:
the replicas of some partition. Replicas strewn at random make every set a copyset; here there are
as few as a *scatter width* of S allows, the number of other brokers that help to restore one. A
permutation of the brokers, cut into copysets of R, gives each broker R - 1 others, so that
``ceil(S / (R - 1))`` permutations are needed.

How a permutation is cut. Its n brokers are dealt to ``n // R`` groups, rack after rack, so that a
group has two of one rack only if that rack is larger than the number of groups. A group of R is a
copyset. When R does not divide n some groups are larger: such a group is a ring, and its copysets
are the R neighbours on it that begin behind the last ones. No broker is left over.

A rack with more than its share of brokers (``rack * R > n``) would have two in a copyset, or others
twice its load. Racks come first: such a rack gives one broker to every copyset, in turn, and the
permutations are of the others, with a copyset that is smaller by one. Permutations go on until
each broker is in as many copysets as the scatter width asks for. Its brokers then carry less than
those of small racks, and one copyset more or less than each other. With fewer racks than replicas
racks are spread as evenly as equal load allows.

The *rota* is a sequence of copysets with their leaders: partition i takes entry i modulo its
length. Without such large racks, over one length every broker holds and leads as many as any other,
and after any number of entries from the first the replicas of two brokers differ by one at most, or
by two when R does not divide n.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeAlias

from regent.core.model import BrokerId
from regent.core.placement.splitmix64 import splitmix64

Copyset: TypeAlias = tuple[BrokerId, ...]

DEFAULT_SCATTER_WIDTH: Final = 10  # as at Facebook, in the paper
MAX_ENTRIES: Final = 2_000_000

_LEADER_TURNS: Final = 3


def rota_length(brokers: int, factor: int, scatter_width: int) -> int:
    """Return how long the rota is, or would be if no rack were too large."""
    return brokers * _permutations(factor, scatter_width)


def rota(
    brokers: Sequence[BrokerId],
    racks: Mapping[BrokerId, str],
    factor: int,
    scatter_width: int,
    seed: int,
) -> list[Copyset]:
    """Return the copysets of ``factor`` brokers in the order of their use, the leader first.

    ``racks`` has all brokers or none; ``factor`` is at most their number. The same arguments give
    the same rota, for any sequence of the brokers.
    """
    dice = _Dice(seed)
    by_rack: dict[str, list[BrokerId]] = defaultdict(list)
    for broker in sorted(brokers):
        by_rack[racks[broker] if racks else str(broker)].append(broker)
    large, others = _large_racks([by_rack[rack] for rack in sorted(by_rack)], factor)
    core_factor = factor - len(large)
    groups = sum(map(len, others)) // core_factor
    wanted = _permutations(factor, scatter_width)
    rounds = max([wanted, *(-(-wanted * len(rack) // groups) for rack in large)])
    turns = [_in_turn(rack, dice) for rack in large]
    entries: list[Copyset] = []
    for _ in range(rounds):
        parts = _groups(others, groups, dice)
        guests = [tuple(next(turn) for turn in turns) for _ in parts]
        entries += _laps(parts, guests, core_factor, factor)
    return _with_leaders(entries)


def _permutations(factor: int, scatter_width: int) -> int:
    return max(1, -(-scatter_width // (factor - 1))) if factor > 1 else 1


def _large_racks(
    racks: list[list[BrokerId]], factor: int
) -> tuple[list[list[BrokerId]], list[list[BrokerId]]]:
    """Return the racks of which every copyset has one broker, and the others."""
    if len(racks) < factor:
        return [], racks
    by_size = sorted(racks, key=len, reverse=True)
    large: list[list[BrokerId]] = []
    while len(by_size[0]) * (factor - len(large)) > sum(map(len, by_size)):
        large.append(by_size.pop(0))
    return large, by_size


def _groups(racks: list[list[BrokerId]], groups: int, dice: _Dice) -> list[list[BrokerId]]:
    """Deal the brokers of a new permutation, rack after rack; in a group racks take turns."""
    permutation = [
        (broker, rack)
        for rack in dice.shuffled(range(len(racks)))
        for broker in dice.shuffled(racks[rack])
    ]
    dealt = []
    for number in range(groups):
        by_rack: dict[int, list[BrokerId]] = defaultdict(list)
        for broker, rack in permutation[number::groups]:
            by_rack[rack].append(broker)
        in_turn = zip_longest(*sorted(by_rack.values(), key=len, reverse=True))
        dealt.append([broker for turn in in_turn for broker in turn if broker is not None])
    return dealt


def _in_turn(rack: Sequence[BrokerId], dice: _Dice) -> Iterator[BrokerId]:
    while True:
        yield from dice.shuffled(rack)


def _laps(
    parts: list[list[BrokerId]], guests: list[Copyset], core_factor: int, factor: int
) -> Iterator[Copyset]:
    """Yield the copysets of a permutation so often that all its brokers are in as many.

    A lap goes round every group once; rings go last, as their last copyset begins the next lap.
    """
    order = sorted(range(len(parts)), key=lambda number: len(parts[number]))
    begun = [0] * len(parts)  # on each ring, where the next copyset begins, counted over the laps
    for lap in range(1, factor + 1):
        for number in order:
            ring = parts[number]
            while begun[number] < lap * len(ring):
                first = begun[number]
                neighbours = (ring[(first + j) % len(ring)] for j in range(core_factor))
                yield (*neighbours, *guests[number])
                begun[number] += core_factor


def _with_leaders(entries: list[Copyset]) -> list[Copyset]:
    """Put the broker first that leads least; repeated, because later entries change it.

    With equal load the first time is enough.
    """
    led: Counter[BrokerId] = Counter()
    for turn in range(_LEADER_TURNS):
        for number, entry in enumerate(entries):
            if turn > 0:
                led[entry[0]] -= 1
            leader = min(entry, key=led.__getitem__)  # the present one among equals
            led[leader] += 1
            place = entry.index(leader)
            entries[number] = entry[place:] + entry[:place]
    return entries


class _Dice:
    """Numbers that follow from the seed, one after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._thrown = 0

    def _below(self, limit: int) -> int:
        self._thrown += 1
        return (splitmix64(self._seed, self._thrown - 1) * limit) >> 64

    def shuffled(self, values: Sequence[int]) -> list[int]:
        """Return the values in another order (Fisher-Yates)."""
        order = list(values)
        for last in range(len(order) - 1, 0, -1):
            other = self._below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order
