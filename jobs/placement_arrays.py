"""The placement of many partitions: any range of rows, by the rule of ``replica_placer``.

A *row* is a partition; rows are counted from 0 in the order of (topic, partition).
``PlacementArrays`` has some numbers for each topic, and the rule. With them a task of Spark places
any range of rows. Where the rule is arithmetic it takes arrays. Else rows with the same index and
shift, within a cycle of the rule, have the same replicas, and the rule is asked once for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow
from numpy.typing import NDArray

from regent.core.placement.replica_placer import ReplicaRule, check, first_indexes, runs
from regent.core.protocol.placement import PlaceTopicsRequest

Positions: TypeAlias = NDArray[np.int32]
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlacementArrays:
    """What is needed to place any range of rows.

    The arrays from ``topics`` on have an entry for each topic. ``begins`` has the first row of each
    topic, and at its end the number of all rows.
    """

    broker_ids: Positions
    rule: ReplicaRule
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

    def place(self, low: int, high: int) -> pyarrow.RecordBatch:
        """Place the rows from ``low`` to before ``high``: return (topic, partition, replicas)."""
        chosen, sizes, offsets = self._topics_of(low, high)
        bounds, positions = self._placed(chosen, sizes, offsets)
        topics = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        partitions = (offsets + np.repeat(self.first_partitions[chosen], sizes)).astype(np.int32)
        return pyarrow.record_batch(
            {
                "topic": pyarrow.DictionaryArray.from_arrays(topics, self.topics[chosen]),
                "partition": partitions,
                "replicas": pyarrow.ListArray.from_arrays(bounds, self.broker_ids[positions]),
            }
        )

    def loads(self, low: int, high: int) -> tuple[Numbers, Numbers]:
        """Count the replicas and the leaderships in these rows: an entry for each broker."""
        bounds, positions = self._placed(*self._topics_of(low, high))
        brokers = len(self.broker_ids)
        leaders = positions[bounds[:-1]]
        return np.bincount(positions, minlength=brokers), np.bincount(leaders, minlength=brokers)

    def _topics_of(self, low: int, high: int) -> tuple[slice, Numbers, Numbers]:
        """Return the topics of these rows, the rows of each, and each row's number in its topic."""
        chosen = slice(
            np.searchsorted(self.begins, low, side="right") - 1, np.searchsorted(self.begins, high)
        )
        begins = self.begins[chosen]
        sizes = np.diff(np.append(begins, high).clip(low))
        return chosen, sizes, np.arange(low, high) - np.repeat(begins, sizes)

    def _placed(
        self, chosen: slice, sizes: Numbers, offsets: Numbers
    ) -> tuple[Positions, Positions]:
        indexes = offsets + np.repeat(self.indexes[chosen], sizes)
        return self._replicas(
            indexes + np.repeat(self.starts[chosen], sizes),
            indexes // len(self.broker_ids) + np.repeat(self.shifts[chosen], sizes),
            np.repeat(self.factors[chosen], sizes),
        )

    def _replicas(
        self, first: Numbers, shift: Numbers, factors: Numbers
    ) -> tuple[Positions, Positions]:
        """Return where the replicas of each row begin, at last where they end, and the replicas.

        Replicas are positions: indexes into ``broker_ids``.
        """
        bounds = np.concatenate([[0], np.cumsum(factors)])
        positions = np.empty(bounds[-1], np.int32)
        for factor in np.flatnonzero(np.bincount(factors)).tolist():
            rows = np.flatnonzero(factors == factor)
            places = bounds[rows][:, np.newaxis] + np.arange(factor)
            positions[places] = self._positions(first[rows], shift[rows], factor)
        return bounds.astype(np.int32), positions

    def _positions(self, first: Numbers, shift: Numbers, factor: int) -> Positions:
        """Return a row of positions for each partition."""
        found: Positions
        columns = self.rule.indexes(first, shift, factor)
        if columns is not None:
            order = np.searchsorted(self.broker_ids, self.rule.brokers).astype(np.int32)
            found = order[np.column_stack(columns)]
            return found
        indexes, shifts = self.rule.cycle(factor)
        keys, which = np.unique(first % indexes * shifts + shift % shifts, return_inverse=True)
        replicas = [self.rule.replicas(k // shifts, k % shifts, factor) for k in keys.tolist()]
        found = np.searchsorted(self.broker_ids, replicas).astype(np.int32)[which]
        return found


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
    rule = ReplicaRule.of(request)
    return PlacementArrays(
        ids, rule, texts, begins, first_partitions, factors, indexes, starts, shifts
    )
