"""Copysets: a small number of sets of brokers; each partition has all its replicas on one set.

Mirrors Cidon et al., "Copysets: Reducing the Frequency of Data Loss in Cloud Storage" (USENIX ATC
2013). A *copyset* is a set of R brokers that holds all R replicas of a partition. When R brokers
die at once, data is lost only if they are a copyset. With random placement almost every set of R
brokers is a copyset. Here there are as few copysets as the *scatter width* S allows. S is the
number of other brokers that share partitions with a broker, and that help to restore it. A
permutation of the brokers is cut into copysets, which gives each broker R - 1 others. The number
of permutations is therefore ``ceil(S / (R - 1))``.

How a permutation is cut. Its n brokers are dealt to ``n // R`` groups, rack after rack. A group
then has two brokers of one rack only if that rack is larger than the number of groups. A group of R
brokers is a copyset. When R does not divide n, some groups are larger. Such a group is a ring: each
of its copysets is R neighbours, and begins where the one before ended. No broker is left over.

Large racks. A rack with more than its share of brokers (``rack * R > n``) is *large*. With equal
load, some copysets would have two of its brokers. Here racks are more important than equal load: a
large rack gives one broker to every copyset, in turn. The permutations are of the other brokers,
and their copysets are smaller by one for each large rack. There are as many permutations as the
brokers of the large rack need for the scatter width. They carry less than the brokers of small
racks, and their loads differ by at most one copyset. With fewer racks than replicas, racks are
spread as evenly as equal load allows.

Hosts. Brokers of one host are never in one copyset. A host is in one rack; so where there are
enough racks nothing else is needed. With fewer racks than replicas the hosts take the place of
racks in all of the above, and they are dealt rack after rack.

The *rota* is a sequence of copysets with the leader first: partition i uses entry i modulo the
length. Without large racks, all brokers hold and lead the same number of entries of the whole rota.
After any number of entries from the first, the replicas of two brokers differ by at most one, or by
two when R does not divide n.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from types import MappingProxyType
from typing import Final, TypeAlias

from regent.core.model import BrokerId
from regent.core.placement.splitmix64 import splitmix64

Copyset: TypeAlias = tuple[BrokerId, ...]
Hosts: TypeAlias = Mapping[BrokerId, BrokerId]
"""The lowest id of a broker on the host of each broker; empty if each has a host of its own."""

NO_HOSTS: Final[Hosts] = MappingProxyType({})

DEFAULT_SCATTER_WIDTH: Final = 10  # Facebook's, from the paper
MAX_ENTRIES: Final = 2_000_000

_LEADER_TURNS: Final = 3
_FIRST: Final = itemgetter(0)


def rota_length(brokers: int, factor: int, scatter_width: int) -> int:
    """Return the length of the rota, as if no rack were large."""
    return brokers * _permutations(factor, scatter_width)


def rota(
    brokers: Sequence[BrokerId],
    racks: Mapping[BrokerId, str],
    factor: int,
    scatter_width: int,
    seed: int,
    hosts: Hosts = NO_HOSTS,
) -> list[Copyset]:
    """Return the copysets of ``factor`` brokers in the order of their use, the leader first.

    ``racks`` has all brokers or none; ``factor`` is at most the number of brokers, and of hosts.
    The same arguments give the same rota, for any order of ``brokers``.
    """
    dice = _Dice(seed)
    hosts = hosts if len(set(racks.values())) < factor else NO_HOSTS
    by_rack: dict[str, list[BrokerId]] = defaultdict(list)
    for broker in sorted(brokers):
        on_host = str(hosts.get(broker, broker))
        by_rack[racks[broker] if racks and not hosts else on_host].append(broker)
    large, others = _large_racks([by_rack[rack] for rack in sorted(by_rack)], factor)
    core_factor = factor - len(large)
    groups = sum(map(len, others)) // core_factor
    wanted = _permutations(factor, scatter_width)
    rounds = max([wanted, *(-(-wanted * len(rack) // groups) for rack in large)])
    turns = [_in_turn(rack, dice) for rack in large]
    entries: list[Copyset] = []
    for _ in range(rounds):
        parts = _groups(others, racks, groups, dice)
        guests = [tuple(next(turn) for turn in turns) for _ in parts]
        entries += _laps(parts, guests, core_factor, factor)
    return _with_leaders(entries)


def _permutations(factor: int, scatter_width: int) -> int:
    return max(1, -(-scatter_width // (factor - 1))) if factor > 1 else 1


def _large_racks(
    racks: list[list[BrokerId]], factor: int
) -> tuple[list[list[BrokerId]], list[list[BrokerId]]]:
    """Return the large racks, of which every copyset has one broker, and the other racks."""
    if len(racks) < factor:
        return [], racks
    by_size = sorted(racks, key=len, reverse=True)
    large: list[list[BrokerId]] = []
    while len(by_size[0]) * (factor - len(large)) > sum(map(len, by_size)):
        large.append(by_size.pop(0))
    return large, by_size


def _groups(
    racks: list[list[BrokerId]], names: Mapping[BrokerId, str], groups: int, dice: _Dice
) -> list[list[BrokerId]]:
    """Deal the brokers of a new permutation, rack after rack; within a group racks alternate.

    ``racks`` may be hosts; ``names`` has the racks that keep hosts together.
    """
    order = dice.shuffled(range(len(racks)))
    of_each = [names.get(racks[number][0]) for number in order]
    permutation = [
        (broker, rack)
        for _, rack in sorted(zip(map(of_each.index, of_each), order, strict=True), key=_FIRST)
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
    """Yield the copysets of a permutation until all its brokers are in equally many.

    ``guests``: for each group, the brokers of large racks. A lap goes round every group once. Rings
    are last in a lap, because their last copyset may reach into the next lap.
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
    """Put the broker first, in each entry, that leads the fewest entries.

    This is repeated, because later entries change the numbers. With equal load, once is enough.
    """
    led: Counter[BrokerId] = Counter()
    for turn in range(_LEADER_TURNS):
        for number, entry in enumerate(entries):
            if turn > 0:
                led[entry[0]] -= 1
            leader = min(entry, key=led.__getitem__)  # of equals, the present leader
            led[leader] += 1
            place = entry.index(leader)
            entries[number] = entry[place:] + entry[:place]
    return entries


class _Dice:
    """Random numbers that the seed determines."""

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
