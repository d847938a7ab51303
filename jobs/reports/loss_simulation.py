"""The probability that partitions are lost when several brokers, or a rack, fail at once.

A partition is lost when every broker of its copyset has failed. The average number of lost
partitions depends only on their number. The *probability* of any loss depends on the number of
distinct copysets (Cidon et al., "Copysets", USENIX ATC 2013), and is simulated: in each trial
brokers fail in a random sequence, until the first copyset is lost.

If losses are rare, most trials have no information. Then a lost copyset is drawn, and then the
other failures: the sum of the copysets' probabilities, divided by the average number of copysets
lost together, is the probability of any loss (Karp and Luby, "Monte-Carlo Algorithms for
Enumeration and Reliability Problems", FOCS 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regent.jobs.reports.replica_arrays import Copysets, Counts, Positions

_RARE: Final = 0.1  # up to this sum of the copysets' probabilities, losses are drawn
_FEWER: Final = 8  # an eighth as many draws as trials are enough
_Z: Final = 1.96  # of 95 %


class LossPoint(NamedTuple):
    """The losses when ``failures`` random brokers fail at once.

    ``probability`` is that of losing any partition; ``low`` and ``high`` enclose it with 95 %, and
    are the same when it ``is_exact``. ``expected_partitions`` are lost on average; always exact.
    """

    failures: int
    probability: float
    low: float
    high: float
    is_exact: bool
    expected_partitions: float


def loss_curve(
    sets: Sequence[Copysets], brokers: int, failures: int, *, trials: int, seed: int
) -> list[LossPoint]:
    """Return the points for 1 to ``failures`` brokers of ``brokers``.

    A point is exact when a copyset needs as many failures or more, or when there are no more ways
    to fail than ``trials``; the others are from the same ``trials`` sequences of failures, or from
    an eighth as many draws of a loss.
    """
    index = _CopysetIndex(sets, brokers)
    first_losses: Counts | None = None
    points = []
    for k in range(1, failures + 1):
        expected = sum(
            float(s.partitions.sum()) * _share(s.members.shape[1], k, brokers) for s in sets
        )
        exact = _exact_probability(index, sets, k, trials)
        if exact is not None:
            points.append(LossPoint(k, exact, exact, exact, True, expected))
            continue
        if index.sum_of_probabilities(k) <= _RARE:
            estimate = index.drawn_probability(k, -(-trials // _FEWER), seed)
        else:
            if first_losses is None:
                first_losses = np.sort(index.first_losses(failures, trials, seed))
            losses = int(np.searchsorted(first_losses, k, side="right"))
            estimate = losses / trials, *_wilson_interval(losses, trials)
        points.append(LossPoint(k, *estimate, False, expected))
    return points


def rack_losses(sets: Sequence[Copysets], rack_of: Positions, racks: int) -> Counts:
    """Count for each rack the partitions that are lost when it fails: all replicas are in it.

    ``rack_of`` is the number of each broker's rack; -1 is none, which never fails as a whole.
    """
    lost = np.zeros(racks, np.int64)
    for members, partitions in sets:
        rack = rack_of[members[:, 0]]
        is_inside = (rack >= 0) & (rack_of[members] == rack[:, np.newaxis]).all(axis=1)
        np.add.at(lost, rack[is_inside], partitions[is_inside])
    return lost


def default_failures(brokers: int, factor: int) -> int:
    """Return the default: 1 % of the brokers, but two more than the factor at least."""
    return min(brokers, max(-(-brokers // 100), factor + 2))


def _share(factor: int, failures: int, brokers: int) -> float:
    """Return the probability that ``factor`` certain brokers are among those that failed."""
    share = 1.0
    for taken in range(factor):
        share *= max(0, failures - taken) / (brokers - taken)
    return share


def _exact_probability(
    index: _CopysetIndex, sets: Sequence[Copysets], failures: int, trials: int
) -> float | None:
    smallest = min(s.members.shape[1] for s in sets)
    ways = comb(index.brokers, failures)
    if failures < smallest:
        return 0.0
    if failures == smallest:
        return sum(len(s.members) for s in sets if s.members.shape[1] == smallest) / ways
    return index.counted_probability(failures) if ways <= trials else None


def _wilson_interval(losses: int, trials: int) -> tuple[float, float]:
    # Unlike the usual interval it is usable when no trial, or every trial, had losses.
    share, weight = losses / trials, _Z**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


class _CopysetIndex:
    """The copysets by their first member, so that a trial examines few of them."""

    def __init__(self, sets: Sequence[Copysets], brokers: int) -> None:
        self.brokers = brokers
        self._columns = [
            [np.ascontiguousarray(s.members[:, j]) for j in range(s.members.shape[1])] for s in sets
        ]
        everyone = np.arange(brokers + 1)
        self._starts = [np.searchsorted(columns[0], everyone) for columns in self._columns]
        # By broker: the rank of its failure, or ``brokers`` if it does not fail.
        self._rank = np.full(brokers, brokers, np.int64)

    def first_losses(self, failures: int, trials: int, seed: int) -> Counts:
        """Return for each trial the failures until a loss; ``failures`` + 1: more."""
        rng = np.random.default_rng(seed)
        found = np.empty(trials, np.int64)
        for trial in range(trials):
            order = rng.choice(self.brokers, failures, replace=False)
            found[trial] = self._first_loss(order)
        return found

    def counted_probability(self, failures: int) -> float:
        """Try every set of ``failures`` brokers."""
        ways = combinations(range(self.brokers), failures)
        losses = sum(self._first_loss(np.array(way)) <= failures for way in ways)
        return losses / comb(self.brokers, failures)

    def sum_of_probabilities(self, failures: int) -> float:
        """Return the average number of lost copysets: at least the probability of any loss."""
        return sum(self._probabilities(failures))

    def drawn_probability(self, failures: int, draws: int, seed: int) -> tuple[float, float, float]:
        """Estimate the probability of any loss, with its interval, from ``draws`` losses."""
        rng = np.random.default_rng([seed, failures])
        probabilities = np.array(self._probabilities(failures))
        total = float(probabilities.sum())
        groups = rng.choice(len(probabilities), draws, p=probabilities / total)
        together = np.array([self._lost_with_one(group, failures, rng) for group in groups])
        share = float((1 / together).mean())
        # The rule of three: an event with no occurrence in n draws has a probability up to 3 / n.
        half = max(_Z * float((1 / together).std()) / sqrt(draws), 3 / draws)
        return total * share, total * max(0.0, share - half), total * min(1.0, share + half)

    def _probabilities(self, failures: int) -> list[float]:
        return [
            len(columns[0]) * _share(len(columns), failures, self.brokers)
            for columns in self._columns
        ]

    def _lost_with_one(self, group: int, failures: int, rng: np.random.Generator) -> int:
        """Let a random copyset fail, and others up to ``failures``; return the lost copysets."""
        columns = self._columns[group]
        row = rng.integers(len(columns[0]))
        members = [int(column[row]) for column in columns]
        others = rng.choice(
            self.brokers - len(members), failures - len(members), replace=False, shuffle=False
        )
        for member in members:  # ascending: count past them
            others += others >= member
        failed = np.concatenate([others, members])
        self._rank[failed] = 0
        lost = 0
        for columns, starts in zip(self._columns, self._starts, strict=True):
            rows = _rows(starts, failed)
            for column in columns[1:]:
                rows = rows[self._rank[column[rows]] == 0]
            lost += len(rows)
        self._rank[failed] = self.brokers
        return lost

    def _first_loss(self, order: NDArray[np.integer]) -> int:
        rank = self._rank
        rank[order] = np.arange(len(order))
        best = len(order)  # the rank of the failure that completes a copyset
        for columns, starts in zip(self._columns, self._starts, strict=True):
            rows = _rows(starts, order)
            complete = np.maximum.reduce([rank[column[rows]] for column in columns])
            best = int(complete.min(initial=best))
        rank[order] = self.brokers
        return best + 1


def _rows(starts: Counts, first: NDArray[np.integer]) -> Counts:
    """Return the rows of the copysets whose first member is one of ``first``."""
    sizes = starts[first + 1] - starts[first]
    ends = np.cumsum(sizes)
    rows: Counts = np.arange(ends[-1]) + np.repeat(starts[first] - ends + sizes, sizes)
    return rows
