"""The goals of plans: the partitions to move, their new replicas, and the fewest moves.

Each goal checks its brokers before Spark starts, gives a condition for the partitions to load, and
plans in their layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from regent.admin.wording import counted
from regent.core.model import BrokerId
from regent.jobs.command import InputError
from regent.jobs.planning.fair_share import Share, fair_share, rack_limits
from regent.jobs.planning.model import InfeasibleError, Layout, NotImprovingError
from regent.jobs.planning.replacement import decommission, replace
from regent.jobs.planning.replication_factor import change_factor
from regent.jobs.planning.selection import Survey, replicas_by_rack
from regent.jobs.planning.transfer import Transfer, moves_needed

ALL_ROWS: Final = 500_000  # up to this many partitions every candidate is examined
_SPARE_SHARE: Final = 2.0
_SPARE_COUNT: Final = 100


class Planned(NamedTuple):
    """The result of a goal for a layout."""

    lower_bound: int  # every plan for the goal has at least so many moves
    left: int = 0  # replicas that are still misplaced
    keeps_places: bool = False  # a broker that replaces a preferred leader is one, if possible


class Goal(ABC):
    """The purpose of a plan."""

    @abstractmethod
    def check(self, listed: Collection[BrokerId]) -> None:
        """Raise ``InputError`` or ``InfeasibleError`` for errors that need no assignment."""

    @abstractmethod
    def concerns(self, survey: Survey, seed: int) -> Column:
        """Return the condition for the partitions to load.

        Raises InputError, InfeasibleError, NotImprovingError.
        """

    @abstractmethod
    def plan(self, survey: Survey, layout: Layout, seed: int) -> Planned:
        """Change the layout. Raises InfeasibleError."""

    def left_brokers(self, survey: Survey) -> list[int]:
        """Return the indexes of the brokers that remain after the plan."""
        return list(range(survey.brokers.usable))

    def takers(self, survey: Survey) -> list[int]:
        """Return the indexes of the brokers among which replicas may be swapped for their size."""
        return self.left_brokers(survey)


@dataclass
class Decommission(Goal):
    """Take all replicas away from some brokers."""

    leaving: Sequence[BrokerId]

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        if set(listed) <= set(self.leaving):
            raise InfeasibleError("brokers: every listed broker is in --from, so none remains")

    def concerns(self, survey: Survey, seed: int) -> Column:
        """See Goal."""
        del seed
        known = set(survey.brokers.ids)
        for broker_id in self.leaving:
            if broker_id not in known:
                raise InputError(f"--from: broker {broker_id} is not listed and holds no replica")
        return survey.holds_any(self.leaving)

    def plan(self, survey: Survey, layout: Layout, seed: int) -> Planned:
        """See Goal."""
        leaving = set(survey.indexes(self.leaving))
        decommission(layout, leaving, seed)
        return Planned(_replicas_before(layout, leaving))

    def left_brokers(self, survey: Survey) -> list[int]:
        """See Goal."""
        leaving = set(survey.indexes(self.leaving))
        return [b for b in range(survey.brokers.usable) if b not in leaving]


@dataclass
class Replace(Decommission):
    """Replace some brokers by others."""

    to: Sequence[BrokerId]

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

    def plan(self, survey: Survey, layout: Layout, seed: int) -> Planned:
        """See Goal."""
        leaving = survey.indexes(self.leaving)
        replace(layout, leaving, survey.indexes(self.to))
        return Planned(_replicas_before(layout, leaving), keeps_places=True)

    def takers(self, survey: Survey) -> list[int]:
        """See Goal."""
        return []


@dataclass
class ReplicationFactor(Goal):
    """Give every partition ``factor`` replicas."""

    factor: int

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        if self.factor > len(listed):
            raise InfeasibleError(
                f"brokers: replication factor {self.factor} needs as many brokers, and"
                f" {len(listed)} are listed"
            )

    def concerns(self, survey: Survey, seed: int) -> Column:
        """See Goal."""
        return F.size("replicas") != self.factor

    def plan(self, survey: Survey, layout: Layout, seed: int) -> Planned:
        """See Goal."""
        change_factor(layout, self.factor, seed)
        return Planned(sum(abs(self.factor - len(before)) for before in layout.rows.replicas))


@dataclass
class Rebalance(Goal):
    """Give every broker its fair share; with ``new`` (which may be empty) only those get any."""

    new: Sequence[BrokerId] | None = None
    _share: Share = field(default_factory=lambda: Share([], []), init=False)
    _bound: int = field(default=0, init=False)

    def check(self, listed: Collection[BrokerId]) -> None:
        """See Goal."""
        _check_listed(self.new or (), "--new", listed)

    def concerns(self, survey: Survey, seed: int) -> Column:
        """See Goal."""
        brokers = survey.brokers
        if self.new is not None and not self.new:
            self.new = [brokers.ids[b] for b in range(brokers.usable) if not brokers.replicas[b]]
            if not self.new:
                raise InputError("every listed broker has replicas: say which are new with --new")
        self._find_shares(survey)
        load, low = brokers.replicas, self._share.low
        if not self._bound:
            raise NotImprovingError(self._why_not(survey))
        givers = [b for b in range(brokers.usable) if load[b] > low[b] and survey.movable[b]]
        if not givers:
            raise NotImprovingError("nothing to move: --topics and --exclude leave nothing")
        if survey.movable_partitions <= ALL_ROWS:
            return survey.holds_any(brokers.ids[b] for b in givers)
        chances = {
            brokers.ids[b]: (_SPARE_SHARE * (load[b] - low[b]) + _SPARE_COUNT) / survey.movable[b]
            for b in givers
        }
        return survey.sample(chances, seed)

    def plan(self, survey: Survey, layout: Layout, seed: int) -> Planned:
        """See Goal."""
        left = Transfer(layout, self._share, self.takers(survey), seed).run()
        if not any(layout.changed_rows()):
            raise NotImprovingError(
                "nothing can be moved: brokers with too few replicas hold the same partitions as"
                " those with too many, or partitions would lose a rack"
            )
        return Planned(self._bound, left)

    def takers(self, survey: Survey) -> list[int]:
        """See Goal."""
        if self.new is None:
            return list(range(survey.brokers.usable))
        return survey.indexes(self.new)

    def _find_shares(self, survey: Survey) -> None:
        brokers = survey.brokers
        usable = range(brokers.usable)
        takers = set(self.takers(survey))
        load = [brokers.replicas[b] for b in usable]
        fixed = [load[b] - survey.movable[b] for b in usable]
        most = [
            max(fixed[b], min(brokers.capacities[b], load[b] if b not in takers else sum(load)))
            for b in usable
        ]
        if sum(most) < sum(load):
            raise InfeasibleError(
                f"capacity: the brokers hold {sum(load)} replicas and may hold {sum(most)}"
            )
        racks = [brokers.racks[b] for b in usable]
        limits = {}
        if len(set(racks)) > 1:
            limits = rack_limits(survey.spreads(), racks, replicas_by_rack(survey, fixed))
        self._share = fair_share(fixed, most, racks, limits, sum(load))
        self._bound = moves_needed(load, self._share, racks, limits)

    def _why_not(self, survey: Survey) -> str:
        load = survey.brokers.replicas[: survey.brokers.usable]
        if self.new is not None:
            return "nothing to move: the new brokers have their fair share of replicas already"
        return (
            f"nothing to move: every broker has its fair share already"
            f" ({min(load)} to {max(load)} replicas)"
        )


def _check_listed(
    broker_ids: Sequence[BrokerId], option: str, listed: Collection[BrokerId]
) -> None:
    for broker_id in broker_ids:
        if broker_id not in listed:
            raise InputError(f"{option}: broker {broker_id} is not one of the listed brokers")


def _replicas_before(layout: Layout, brokers: Collection[int]) -> int:
    return sum(b in brokers for replicas in layout.rows.replicas for b in replicas)
