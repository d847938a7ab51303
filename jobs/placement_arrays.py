"""Placement by numpy: the strategies of ``core.placement.replica_placer`` for many partitions.

A *row* is a partition; rows are counted from 0 in the order of (topic, partition).
``PlacementArrays`` has some numbers for each topic, and the rule of the strategy. With them a task
of Spark places any range of rows. ``replica_placer`` is the reference: the tests compare.

Brokers are *positions*, indexes into the ascending broker ids. A rule gets two numbers for each
row: ``first``, which is its index plus the start, and ``shift``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow
from numpy.typing import NDArray

from regent.core.model import BrokerId
from regent.core.placement.copysets import Copyset, Hosts
from regent.core.placement.replica_placer import (
    Strategy,
    broker_order,
    check,
    copyset_rotas,
    first_indexes,
    hosts_in_use,
    place_rack_aware,
    racks_in_use,
    runs,
)
from regent.core.protocol.placement import PlaceTopicsRequest

Positions: TypeAlias = NDArray[np.int32]
Numbers: TypeAlias = NDArray[np.int64]
Rule: TypeAlias = Callable[[Numbers, Numbers, int], Positions]
"""Returns the replicas for ``first``, ``shift`` and a replication factor: a row for each row."""


class Loads(NamedTuple):
    """The replicas and leaders of each broker, in the order of the broker ids."""

    replicas: Numbers
    leaders: Numbers


@dataclass(frozen=True, slots=True)
class PlacementArrays:
    """What is needed to place any range of rows.

    The arrays from ``topics`` on have an entry for each topic. ``begins`` has the first row of each
    topic, and at its end the number of all rows.
    """

    broker_ids: Positions
    rule: Rule
    topics: pyarrow.StringArray
    begins: Numbers
    first_partitions: Numbers
    factors: Numbers
    indexes: Numbers  # of the first partition
    starts: Numbers
    shifts: Numbers  # of index 0

    @property
    def rows(self) -> int:
        """The number of partitions."""
        return int(self.begins[-1])

    @property
    def widest(self) -> int:
        """The largest replication factor."""
        return int(self.factors.max(initial=1))

    def place(self, low: int, high: int) -> tuple[pyarrow.RecordBatch, Loads]:
        """Place the rows from ``low`` to before ``high``: return (topic, partition, replicas)."""
        chosen = slice(
            np.searchsorted(self.begins, low, side="right") - 1, np.searchsorted(self.begins, high)
        )
        begins = self.begins[chosen]
        sizes = np.diff(np.append(begins, high).clip(low))
        offsets = np.arange(low, high) - np.repeat(begins, sizes)
        indexes = offsets + np.repeat(self.indexes[chosen], sizes)
        bounds, positions = self._replicas(
            indexes + np.repeat(self.starts[chosen], sizes),
            indexes // len(self.broker_ids) + np.repeat(self.shifts[chosen], sizes),
            np.repeat(self.factors[chosen], sizes),
        )
        topics = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        partitions = (offsets + np.repeat(self.first_partitions[chosen], sizes)).astype(np.int32)
        rows = pyarrow.record_batch(
            {
                "topic": pyarrow.DictionaryArray.from_arrays(topics, self.topics[chosen]),
                "partition": partitions,
                "replicas": pyarrow.ListArray.from_arrays(bounds, self.broker_ids[positions]),
            }
        )
        brokers = len(self.broker_ids)
        leaders = np.bincount(positions[bounds[:-1]], minlength=brokers)
        return rows, Loads(np.bincount(positions, minlength=brokers), leaders)

    def _replicas(
        self, first: Numbers, shift: Numbers, factors: Numbers
    ) -> tuple[Positions, Positions]:
        """Return where the replicas of each row begin, at last where they end, and the replicas."""
        bounds = np.concatenate([[0], np.cumsum(factors)])
        positions = np.empty(bounds[-1], np.int32)
        for factor in np.flatnonzero(np.bincount(factors)).tolist():
            rows = np.flatnonzero(factors == factor)
            places = bounds[rows][:, np.newaxis] + np.arange(factor)
            positions[places] = self.rule(first[rows], shift[rows], factor)
        return bounds.astype(np.int32), positions


def placement_arrays(request: PlaceTopicsRequest) -> PlacementArrays:
    """Return the arrays of a request.

    Raises:
        PlacementError: the request cannot be satisfied.
    """
    check(request)
    ids = np.array(sorted(broker.broker_id for broker in request.brokers), np.int32)
    topics = [
        # The shift grows at each multiple of n after the first index of the run, but not at 0.
        (*spec, index, run.start, run.shift - (max(run.first_index, 1) - 1) // len(ids))
        for run in runs(request)
        for spec, index in first_indexes(request, run)
    ]
    names, *columns = zip(*topics, strict=True) if topics else [()] * 7
    sizes, factors, first_partitions, indexes, starts, shifts = (
        np.array(column, np.int64) for column in columns
    )
    begins = np.concatenate([[0], np.cumsum(sizes)])
    texts = pyarrow.array(names, pyarrow.string())
    rule = _rule(request, ids)
    return PlacementArrays(
        ids, rule, texts, begins, first_partitions, factors, indexes, starts, shifts
    )


# --- the rules ------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """The brokers in their rack-alternated sequence, and their racks as numbers.

    ``next_racks`` has for each broker the first one of each new rack, from that broker on.
    """

    order: Positions
    rack_of: Numbers
    next_racks: Positions


def _rule(request: PlaceTopicsRequest, ids: Positions) -> Rule:
    if request.strategy == Strategy.COPYSET:
        rotas = copyset_rotas(request)
        return partial(copysets, {f: _positions(ids, rota) for f, rota in rotas.items()})
    if hosts_in_use(request):
        return partial(apart, SharedHosts.of(request), ids)
    if request.strategy == Strategy.RING:
        return partial(ring, len(ids))
    racks = racks_in_use(request)
    if not racks:
        return partial(shifted, len(ids))
    order = broker_order(request)
    rack_of = np.unique([racks[broker] for broker in order], return_inverse=True)[1]
    widest = max((topic.replication_factor for topic in request.topics), default=1)
    walk = Walk(_positions(ids, order), rack_of, _next_racks(rack_of.tolist(), widest))
    return partial(rack_aware, walk)


class SharedHosts(NamedTuple):
    """The brokers in their order, their racks and hosts; ``step`` is 0 for ``ring``, else 1."""

    order: Sequence[BrokerId]
    racks: Mapping[BrokerId, Hashable]
    hosts: Hosts
    step: int

    @classmethod
    def of(cls, request: PlaceTopicsRequest) -> SharedHosts:
        """Return what the rule of a request with shared hosts needs."""
        hosts = hosts_in_use(request)
        step = int(request.strategy != Strategy.RING)
        return cls(broker_order(request), racks_in_use(request) or hosts, hosts, step)


def apart(
    on: SharedHosts, ids: Positions, first: Numbers, shift: Numbers, factor: int
) -> Positions:
    """Return replicas on different hosts, where brokers share some.

    The replicas depend on ``first`` modulo n and on ``shift`` modulo n - 1 only, so the reference
    is asked once for each such pair.
    """
    n = len(on.order)
    pairs, rows = np.unique((first % n) * n + shift * on.step % max(n - 1, 1), return_inverse=True)
    replicas = [
        place_rack_aware(on.order, on.racks, pair // n, factor, pair % n, on.hosts)
        for pair in pairs.tolist()
    ]
    return _positions(ids, replicas)[rows]


def _positions(ids: Positions, brokers: Sequence[BrokerId] | Sequence[Copyset]) -> Positions:
    return np.searchsorted(ids, brokers).astype(np.int32)


def ring(n: int, first: Numbers, _: Numbers, factor: int) -> Positions:
    """Return neighbours on a ring of ``n`` brokers."""
    neighbours = np.arange(n + factor - 1, dtype=np.int32) % n
    return np.lib.stride_tricks.sliding_window_view(neighbours, factor)[first % n]


def copysets(rotas: Mapping[int, Positions], first: Numbers, _: Numbers, factor: int) -> Positions:
    """Return the entries of the list for the replication factor, in turn."""
    rota = rotas[factor]
    return rota[first % len(rota)]


def shifted(n: int, first: Numbers, shift: Numbers, factor: int) -> Positions:
    """Return followers at a distance that grows: Kafka's strategy without racks."""
    replicas = np.empty((len(first), factor), np.int32)
    replicas[:, 0] = leaders = first % n
    for follower in range(factor - 1):
        replicas[:, follower + 1] = (leaders + 1 + (shift + follower) % (n - 1)) % n
    return replicas


def rack_aware(walk: Walk, first: Numbers, shift: Numbers, factor: int) -> Positions:
    """Walk over the brokers as Kafka's strategy with racks does.

    The walk begins ``1 + (shift * racks) mod (n - 1)`` after the first replica. While racks have no
    replica it takes the first broker of each new rack. When every rack has a replica it takes the
    next brokers that have none.
    """
    n, racks = len(walk.order), int(walk.rack_of.max()) + 1
    leaders = first % n
    begins = (leaders + 1 + shift * racks % max(n - 1, 1)) % n
    nearest = walk.next_racks[begins]
    replicas = np.empty((len(first), factor), np.int32)
    replicas[:, 0] = leaders
    is_after = np.zeros(len(first), bool)  # after the broker in the rack of the leader
    for follower in range(1, min(factor, racks)):
        candidates = nearest[:, follower - 1]
        is_after |= walk.rack_of[candidates] == walk.rack_of[leaders]
        replicas[:, follower] = np.where(is_after, nearest[:, follower], candidates)
    if factor > racks:
        _walk_on(replicas, racks, replicas[:, racks - 1] if racks > 1 else begins - 1, n)
    return walk.order[replicas]


def _walk_on(replicas: Positions, done: int, last: Numbers | Positions, n: int) -> None:
    """Complete the replicas after the first ``done``: the next brokers after ``last``."""
    factor = replicas.shape[1]
    candidates = (last[:, np.newaxis] + np.arange(1, factor + 1)) % n
    is_chosen = (candidates[:, :, np.newaxis] == replicas[:, np.newaxis, :done]).any(axis=2)
    free = np.argsort(is_chosen, axis=1, kind="stable")[:, : factor - done]
    replicas[:, done:] = np.take_along_axis(candidates, free, axis=1)


def _next_racks(rack_of: Sequence[int], width: int) -> Positions:
    """See ``Walk``: at most ``width`` brokers for each."""
    nearest: list[list[BrokerId]] = [[] for _ in rack_of]
    following: list[int] = []
    for position in reversed([*range(len(rack_of)), *range(len(rack_of))]):
        others = (other for other in following if rack_of[other] != rack_of[position])
        nearest[position] = following = [position, *others][:width]
    return np.array(nearest, np.int32)
