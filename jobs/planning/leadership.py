"""Spreads preferred leaders evenly by reordering replicas, which moves no data.

The numbers of leaders are as even as the replicas allow. As few partitions as possible get another
preferred leader: leaderships go along shortest chains from brokers with too many to those with too
few (min-cost flow by shortest paths). A chain of two: A leaves a partition to B, and B another one
to C.

All partitions that may be reordered are in memory, as arrays: a million partitions with three
replicas need 150 MB and some seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from regent.jobs.planning.model import Ints, Layout, Mask, Replicas

_FAR: Final = 1 << 40
_NOBODY: Final = -1


def choose_leaders(
    layout: Layout, left: Collection[int], *, evenly: bool, keeps_places: bool = False
) -> list[int]:
    """Choose the preferred leaders and reorder the replicas; return the leaders of each broker.

    Only brokers that are ``left`` get leaders. Without ``evenly`` a leader that stays a replica
    leads on, and of the moved ones only those without such a leader may choose. With
    ``keeps_places`` the broker that took the place of a leader is regarded as that leader.
    """
    after, before = layout.after, layout.before[:, 0].astype(np.int64)
    stays = (after == before[:, None]).any(axis=1)
    former = np.where(stays, before, after[:, 0] if keeps_places else -1)
    may_lead = np.zeros(len(layout.brokers.ids), np.bool_)
    may_lead[list(left)] = True
    leader = np.where(former >= 0, former, _first_that(may_lead, after))
    count = np.array(layout.brokers.leaders) - np.bincount(before, minlength=len(may_lead))
    count += np.bincount(leader, minlength=len(may_lead))
    rows = np.arange(len(leader)) if evenly else np.flatnonzero(former < 0)
    leaders = LeaderBalance(after[rows], leader[rows], former[rows], count, may_lead)
    leaders.balance()
    leader[rows] = leaders.leader
    reordered = np.flatnonzero(leader != after[:, 0])
    follows = after[reordered] != leader[reordered, None]
    sequence = np.argsort(follows, axis=1, kind="stable")  # the leader, then the others as before
    after[reordered] = np.take_along_axis(after[reordered], sequence, axis=1)
    counts: list[int] = leaders.count.tolist()
    return counts


def _first_that(may_lead: Mask, replicas: Replicas) -> Ints:
    """Return the first replica of each row that may lead; if none may, the first one."""
    can = may_lead[replicas] & (replicas >= 0)
    first: Ints = replicas[np.arange(len(replicas)), can.argmax(axis=1)].astype(np.int64)
    return first


class _Edges(NamedTuple):
    """The pairs of brokers (giver, taker) and the rows whose leadership can go between them.

    ``cost`` is the number of partitions that get another leader than before: 1, 0, or -1 if the
    former one leads again. The rows of edge n are ``rows[start[n]:start[n + 1]]``.
    """

    giver: Ints
    taker: Ints
    cost: Ints
    start: Ints
    rows: Ints


@dataclass(slots=True)
class LeaderBalance:
    """The leaders of rows of replicas, which ``balance`` changes.

    ``replicas`` are brokers from 0, -1 for none; ``leader`` is one of each row, ``former`` the one
    that is preferred (-1: none is), ``count`` the leaders of each broker. Only brokers that
    ``may_lead`` get leaders.
    """

    replicas: Replicas
    leader: Ints
    former: Ints
    count: Ints
    may_lead: Mask

    def balance(self) -> None:
        """Make the numbers of leaders as even as possible."""
        groups = [self.may_lead]
        while groups:
            group = groups.pop()
            if group.any() and len(self.leader):
                groups += self._balance(group)

    def _balance(self, group: Mask) -> list[Mask]:
        """Make the numbers in a group even; return parts that are to be balanced by themselves.

        Brokers with too many leaders and all that these can give to, or brokers with too few and
        all that can give to them, exchange nothing useful with the others.
        """
        low, rest = divmod(int(self.count[group].sum()), int(group.sum()))
        high = low + (rest > 0)
        for above, below in ((high, low), (high, high), (low, low)):
            self._shift(group, above, below)
        self._shift(group, low, high, only_to_former=True)
        has_more, has_less = group & (self.count > high), group & (self.count < low)
        if not has_more.any() and not has_less.any():
            return []
        edges = self._edges(group)
        if has_more.any():
            apart = _reachable(has_more, edges.giver, edges.taker)
        else:
            apart = _reachable(has_less, edges.taker, edges.giver)
        return [apart, group & ~apart]

    def _shift(self, group: Mask, above: int, below: int, *, only_to_former: bool = False) -> None:
        """Shift leaderships from brokers with more leaders than ``above`` to those below ``below``.

        In each phase along all chains that change the fewest leaders, and of those the shortest;
        with ``only_to_former`` only while some partition gets its former leader back.
        """
        while True:
            has_more = group & (self.count > above)
            has_less = group & (self.count < below)
            if not has_more.any() or not has_less.any():
                return
            edges = self._edges(group)
            weight = edges.cost * len(group) + 1  # a chain has fewer steps than brokers
            distance = _distances(edges, weight, has_more)
            least = int(distance[has_less].min())
            if least >= (0 if only_to_former else _FAR):
                return
            is_shortest = distance[edges.giver] + weight == distance[edges.taker]
            is_end = has_less & (distance == least)
            sources = np.flatnonzero(has_more & (distance == 0)).tolist()
            chains = _Chains(edges, np.flatnonzero(is_shortest), is_end, self.leader, self.count)
            for source in sources:
                chains.shift(source, above, below)

    def _edges(self, group: Mask) -> _Edges:
        brokers = len(self.count)
        lists = []
        for column in self.replicas.T:
            can = (column >= 0) & (column != self.leader) & group[column]
            rows = np.flatnonzero(can & group[self.leader])
            giver, former = self.leader[rows], self.former[rows]
            taker = column[rows].astype(np.int64)
            cost = np.where(former < 0, 0, (taker != former) - (giver != former).astype(np.int64))
            lists.append((rows, (giver * brokers + taker) * 3 + cost + 1))
        rows, key = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        order = np.argsort(key, kind="stable")
        rows, key = rows[order], key[order]
        start = np.flatnonzero(np.diff(key, prepend=-1))
        pair, cost = np.divmod(key[start], 3)
        giver, taker = np.divmod(pair, brokers)
        return _Edges(giver, taker, cost - 1, np.append(start, len(rows)), rows)


def _distances(edges: _Edges, weight: Ints, sources: Mask) -> Ints:
    """Return the least weight of a chain from a source to each broker, by Bellman and Ford."""
    distance = np.where(sources, 0, _FAR)
    for _ in range(len(distance)):
        better = distance.copy()
        is_reached = distance[edges.giver] < _FAR
        through = distance[edges.giver] + weight
        np.minimum.at(better, edges.taker[is_reached], through[is_reached])
        if (better == distance).all():
            break
        distance = better
    return distance


def _reachable(start: Mask, ends: Ints, others: Ints) -> Mask:
    """Return the brokers that edges lead to, from one of their ends to the other."""
    reached, count = start.copy(), 0
    while count != (count := int(reached.sum())):
        reached[others[reached[ends]]] = True
    return reached


class _Chains:
    """Chains over the edges of shortest paths: by distance and then depth, as in Dinic's algorithm.

    Every edge leads farther away from the sources, so no chain goes in a circle.
    """

    def __init__(
        self, edges: _Edges, shortest: Ints, is_end: Mask, leader: Ints, count: Ints
    ) -> None:
        self._edges = edges
        self._is_end = is_end
        self._leader = leader
        self._count = count
        self._open: defaultdict[int, list[int]] = defaultdict(list)  # edges, by giver
        for edge in shortest[::-1].tolist():
            self._open[int(edges.giver[edge])].append(edge)
        self._next_row = dict(zip(shortest.tolist(), edges.start[shortest].tolist(), strict=True))

    def shift(self, source: int, above: int, below: int) -> None:
        """Shift leaderships of a broker with more than ``above`` to ends with fewer than ``below``.

        No two chains have an edge and a row in common.
        """
        while self._count[source] > above and (chain := self._search(source, below)):
            for edge in chain:
                self._leader[self._row_of(edge)] = self._edges.taker[edge]
                self._next_row[edge] += 1
            self._count[source] -= 1
            self._count[self._edges.taker[chain[-1]]] += 1

    def _search(self, source: int, below: int) -> list[int]:
        """Return the edges of a chain; none if there is no chain."""
        chain: list[int] = []
        at = source
        while not (chain and self._is_end[at] and self._count[at] < below):
            open_edges = self._open[at]
            while open_edges and self._row_of(open_edges[-1]) == _NOBODY:
                open_edges.pop()
            if open_edges:
                chain.append(open_edges[-1])
                at = int(self._edges.taker[chain[-1]])
            elif chain:  # nothing leads on from here
                at = int(self._edges.giver[chain.pop()])
                self._open[at].pop()
            else:
                break
        return chain

    def _row_of(self, edge: int) -> int:
        """Return the next row that the giver still leads."""
        giver, end = self._edges.giver[edge], self._edges.start[edge + 1]
        while self._next_row[edge] < end:
            row = int(self._edges.rows[self._next_row[edge]])
            if self._leader[row] == giver:
                return row
            self._next_row[edge] += 1
        return _NOBODY
