"""The goals of plans: the new replicas of partitions, and the fewest moves.

Each goal checks its brokers before Spark starts, and plans in the layout of the partitions that may
move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from regent.client.wording import counted
from regent.core.model import BrokerId
from regent.jobs.command import InputError
from regent.jobs.planning.fair_share import (
    Groups,
    Share,
    fair_share,
    group_limits,
    moves_needed,
    nested,
    spreads,
)
from regent.jobs.planning.fill import level, place
from regent.jobs.planning.model import (
    NO_RACK,
    VACANT,
    Brokers,
    InfeasibleError,
    Ints,
    Layout,
    NotImprovingError,
    Slot,
    named,
)
from regent.jobs.planning.transfer import Transfer


class Planned(NamedTuple):
    """The result of a goal for a layout."""

    lower_bound: int  # every plan for the goal has at least so many moves
    left: int = 0  # replicas that are still misplaced
    is_reached: str = ""  # why nothing has to be moved
    full_hosts: Sequence[int] = ()  # whose brokers hold fewer replicas than others


@dataclass
class Goal(ABC):
    """The purpose of a plan."""

    keeps_places = False
    """Whether a broker that replaces another takes its places: preferred leaders and bytes too."""

    @property
    def new_factor(self) -> int:
        """How many replicas each partition is to have; 0: as many as now."""
        return 0

    @abstractmethod
    def check(self, listed: Collection[BrokerId]) -> None:
        """Raise ``InputError`` or ``InfeasibleError`` for errors that need no assignment."""

    @abstractmethod
    def plan(self, layout: Layout, seed: int) -> Planned:
        """Change the layout. Raises InputError, InfeasibleError, NotImprovingError."""

    def left_brokers(self, brokers: Brokers) -> list[int]:
        """Return the indexes of the brokers that remain after the plan."""
        return list(range(brokers.usable))

    def takers(self, brokers: Brokers) -> list[int]:
        """Return the indexes of the brokers that may get replicas."""
        return self.left_brokers(brokers)


@dataclass
class Decommission(Goal):
    """Take all replicas away from some brokers."""

    leaving: Sequence[BrokerId]

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        if set(listed) <= set(self.leaving):
            raise InfeasibleError("--from names every listed broker, so none remains")

    def plan(self, layout: Layout, seed: int) -> Planned:
        """Spread the replicas of the leaving brokers over the others."""
        slots = self._vacate(layout)
        _spread(layout, slots, self.takers(layout.brokers), seed)
        return self._planned(slots)

    def left_brokers(self, brokers: Brokers) -> list[int]:
        """See Goal."""
        return [b for b in range(brokers.usable) if brokers.ids[b] not in self.leaving]

    def _vacate(self, layout: Layout) -> list[Slot]:
        known = set(layout.brokers.ids)
        for broker_id in self.leaving:
            if broker_id not in known:
                raise InputError(f"--from: broker {broker_id} is not listed and holds no replica")
        slots = layout.slots_on(layout.brokers.indexes(self.leaving))
        for slot in slots:
            layout.put(slot, VACANT)
        return slots

    def _planned(self, slots: Sequence[Slot]) -> Planned:
        empty = "" if slots else f"--from {named(self.leaving)} has no replica of these topics"
        return Planned(len(slots), is_reached=empty)


@dataclass
class Replace(Decommission):
    """Replace some brokers by others."""

    to: Sequence[BrokerId]
    keeps_places = True

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        both = sorted(set(self.leaving) & set(self.to))
        if both:
            raise InputError(f"broker {both[0]} is in --from and in --to")
        if len(self.leaving) != len(self.to):
            raise InputError(
                f"--from has {counted(len(self.leaving), 'broker')} and --to {len(self.to)}: name"
                " one in --to for each (decommission spreads replicas over all other brokers)"
            )
        _check_listed(self.to, "--to", listed)

    def plan(self, layout: Layout, seed: int) -> Planned:
        """Put each of the brokers ``to`` into the slots of its counterpart.

        A slot goes to another of ``to`` if the counterpart has the partition already or is full, or
        if a rack would be lost.
        """
        del seed
        slots = self._vacate(layout)
        brokers, to = layout.brokers, self.takers(layout.brokers)
        counterpart = dict(zip(brokers.indexes(self.leaving), to, strict=True))
        open_slots = []
        for slot in slots:
            taker = counterpart[int(layout.before[slot])]
            if layout.load[taker] < brokers.capacities[taker] and layout.fits(slot, taker):
                layout.put(slot, taker)
            else:
                open_slots.append(slot)
        place(layout, open_slots, to)
        return self._planned(slots)

    def takers(self, brokers: Brokers) -> list[int]:
        """See Goal."""
        return brokers.indexes(self.to)


@dataclass
class ReplicationFactor(Goal):
    """Give every partition ``factor`` replicas."""

    factor: int

    @property
    def new_factor(self) -> int:
        """See Goal."""
        return self.factor

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        if self.factor > len(listed):
            raise InfeasibleError(
                f"replication factor {self.factor} needs as many brokers, and {len(listed)} are"
                " listed"
            )

    def plan(self, layout: Layout, seed: int) -> Planned:
        """Add or drop replicas.

        New replicas are appended. Replicas on unusable brokers are dropped first, then those on a
        host and those in a rack with another replica, then those on the fullest broker; the
        preferred leader stays.
        """
        layout.set_factor(self.factor)
        held = (layout.before != VACANT).sum(axis=1)
        for row in np.flatnonzero(held > self.factor).tolist():
            for _ in range(held[row] - self.factor):
                _drop(layout, row)
        rows, positions = np.nonzero(layout.after[:, : self.factor] == VACANT)
        slots = list(zip(rows.tolist(), positions.tolist(), strict=True))
        _spread(layout, slots, self.takers(layout.brokers), seed)
        is_reached = (
            ""
            if (held != self.factor).any()
            else (f"every partition has replication factor {self.factor} already")
        )
        return Planned(len(slots), is_reached=is_reached)


def _spread(layout: Layout, slots: Sequence[Slot], takers: list[int], seed: int) -> None:
    """Fill vacant slots; the seed decides between equal takers."""
    Random(seed).shuffle(takers)
    place(layout, slots, takers)
    level(layout, takers)


def _drop(layout: Layout, row: int) -> None:
    replicas, racks = layout.replicas_of(row), layout.racks
    hosts = layout.hosts[replicas].tolist()

    def worth(position: int) -> tuple[bool, bool, bool, bool, int, int]:
        broker = replicas[position]
        rack = racks[broker]
        is_only_one = all(racks[b] != rack for b in replicas if b != broker) and rack != NO_RACK
        is_live = broker < layout.brokers.live
        is_alone = hosts.count(hosts[position]) == 1
        return (is_live, position == 0, is_alone, is_only_one, -layout.load[broker], -position)

    position = min(range(len(replicas)), key=worth)
    layout.put((row, position), VACANT)
    del replicas[position]
    layout.after[row] = [*replicas, *[VACANT] * (layout.after.shape[1] - len(replicas))]


@dataclass
class Rebalance(Goal):
    """Give every broker its fair share; with ``new`` (which may be empty) only those get any."""

    new: Sequence[BrokerId] | None = None

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        _check_listed(self.new or (), "--new", listed)

    def plan(self, layout: Layout, seed: int) -> Planned:
        """See Goal."""
        load = layout.brokers.replicas[: layout.brokers.usable]
        takers = self.takers(layout.brokers)
        if not takers:
            raise InputError("every listed broker has replicas: say which are new with --new")
        share, bound, full = _fair_share(layout, takers)
        if not bound and self.new is not None:
            reached = "the new brokers have their fair share already"
            return Planned(0, is_reached=reached, full_hosts=full)
        if not bound:
            found = f"{min(load)} to {max(load)} replicas"
            reached = f"every broker has its fair share already ({found})"
            return Planned(0, is_reached=reached, full_hosts=full)
        if all(held <= low for held, low in zip(load, share.low, strict=True)):
            raise NotImprovingError(
                "nothing can be moved: brokers with too many replicas have none of the topics that"
                " --topics and --exclude leave"
            )
        Random(seed).shuffle(takers)
        left = Transfer(layout, share, takers, seed).run()
        if not len(layout.changed_rows()):
            raise NotImprovingError(
                "nothing can be moved: each broker with too few replicas holds the partitions of"
                f" those with too many already{reasons_beside(layout.brokers)}"
            )
        return Planned(bound, left, full_hosts=full)

    def takers(self, brokers: Brokers) -> list[int]:
        """See Goal."""
        if self.new:
            return brokers.indexes(self.new)
        usable = range(brokers.usable)
        return [b for b in usable if self.new is None or not brokers.replicas[b]]


def reasons_beside(brokers: Brokers) -> str:
    """Return what else may keep a replica off a broker than another one of its partition there."""
    reasons = ["is on a host with one that does"] * bool(brokers.hosts)
    if len({*brokers.racks[: brokers.live]} - {NO_RACK}) > 1:
        reasons.append("the partition would lose a rack")
    return "".join(f", or {reason}" for reason in reasons)


def _fair_share(layout: Layout, takers: Collection[int]) -> tuple[Share, int, list[int]]:
    """Return the fair shares of the usable brokers, and the fewest moves that give them.

    Also the hosts that are full: their brokers get fewer replicas than others.
    """
    brokers, usable = layout.brokers, layout.brokers.usable
    load = np.array(brokers.replicas[:usable])
    total = int(load.sum())
    movable = np.bincount(layout.before[layout.before != VACANT], minlength=len(brokers.ids))
    fixed, most = load - movable[:usable], load.copy()
    most[list(takers)] = total
    most = np.maximum(fixed, np.minimum(brokers.capacities[:usable], most))
    if most.sum() < total:
        raise InfeasibleError(
            f"capacity: the brokers hold {total} replicas and may hold {most.sum()}"
        )
    racks, hosts = (
        _limited(layout, groups, fixed, movable) for groups in (brokers.racks, brokers.hosts)
    )
    tiers = nested([groups for groups in (racks, hosts) if len(groups.limits) > 1])
    share = fair_share(fixed, most, tiers, total)
    return share, moves_needed(load.tolist(), share, tiers), _full_hosts(hosts, share)


def _limited(layout: Layout, groups: Sequence[int], fixed: Ints, movable: Ints) -> Groups:
    """Return the usable brokers in racks or on hosts, with the limits of these."""
    if not groups:
        return Groups((), {})
    usable = layout.brokers.usable
    of_usable = groups[:usable]
    of_broker = np.array([*groups, VACANT], np.int32)
    of_broker[~np.isin(of_broker, of_usable)] = VACANT
    beside = Counter[int]()
    for broker, group in enumerate(groups):
        beside[group] += int(fixed[broker] if broker < usable else -movable[broker])
    return Groups(of_usable, group_limits(spreads(of_broker[layout.before]), of_usable, beside))


def _full_hosts(hosts: Groups, share: Share) -> list[int]:
    of_broker, high = np.array(hosts.of_broker), np.array(share.high)
    found = []
    for host, (_, most) in hosts.limits.items():
        of_host = high[of_broker == host]
        if of_host.sum() >= most and of_host.max() < max(share.low):
            found.append(host)
    return found


def _check_listed(
    broker_ids: Sequence[BrokerId], option: str, listed: Collection[BrokerId]
) -> None:
    for broker_id in broker_ids:
        if broker_id not in listed:
            raise InputError(f"{option}: broker {broker_id} is not one of the listed brokers")
