"""An assignment as arrays: four bytes for each replica, so that ten million partitions fit.

Brokers are *positions* from here on, indexes into the ascending broker ids. A *copyset* is the set
of brokers that hold a partition: when all of its brokers fail, the partition is lost (Cidon et al.,
"Copysets: Reducing the Frequency of Data Loss in Cloud Storage", USENIX ATC 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

Positions: TypeAlias = NDArray[np.int32]
Counts: TypeAlias = NDArray[np.int64]

_BLOCK: Final = 1 << 23  # cells of a broker-by-broker matrix that are processed at a time


@dataclass(frozen=True, slots=True)
class ReplicaArrays:
    """The replicas of all partitions, by broker.

    ``broker_ids`` is ascending. ``by_factor`` has for each replication factor an array of the shape
    (partitions, factor), the preferred leader first.
    """

    broker_ids: Counts
    by_factor: Mapping[int, Positions]

    @property
    def brokers(self) -> int:
        """The number of brokers, with or without replicas."""
        return len(self.broker_ids)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return sum(len(replicas) for replicas in self.by_factor.values())

    def replicas_per_broker(self) -> Counts:
        """Count the replicas of each broker."""
        return _counted([replicas.ravel() for replicas in self.by_factor.values()], self.brokers)

    def preferred_per_broker(self) -> Counts:
        """Count the partitions each broker is the preferred leader of."""
        return _counted([replicas[:, 0] for replicas in self.by_factor.values()], self.brokers)


class Copysets(NamedTuple):
    """The distinct copysets of one replication factor, in lexicographical order.

    ``members`` has the shape (copysets, factor), each row ascending; ``partitions`` counts the
    partitions that are on exactly these brokers.
    """

    members: Positions
    partitions: Counts


def replica_arrays(replicas: pyarrow.ChunkedArray, broker_ids: Sequence[int]) -> ReplicaArrays:
    """Convert a column of lists of broker ids, none of them null or empty.

    Brokers with replicas that are not in ``broker_ids`` are added.
    """
    lists = replicas.combine_chunks()
    values = lists.flatten().to_numpy()
    sizes = pyarrow.compute.list_value_length(lists).to_numpy()
    known = np.union1d(np.array(broker_ids, np.int64), pyarrow.compute.unique(lists.flatten()))
    found = positions(known, values)
    factors = np.unique(sizes)
    if len(factors) == 1:
        return ReplicaArrays(known, {int(factors[0]): found.reshape(-1, int(factors[0]))})
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    return ReplicaArrays(
        known,
        {int(f): found[starts[sizes == f][:, np.newaxis] + np.arange(f)] for f in factors},
    )


def positions(broker_ids: Counts, values: NDArray[np.integer]) -> Positions:
    """Return the positions of ``values`` in ``broker_ids``, which has them all."""
    known, wanted = (pyarrow.array(ids, pyarrow.int32()) for ids in (broker_ids, values))
    found: Positions = pyarrow.compute.index_in(wanted, value_set=known).to_numpy()
    return found


def copysets(replicas: Positions, brokers: int) -> Copysets:
    """Return the distinct copysets of partitions of one replication factor."""
    members = np.sort(replicas, axis=1)
    key = members[:, 0].astype(np.int64)
    limit = brokers  # above every key
    for column in range(1, members.shape[1]):
        if limit * brokers >= 2**63:
            # Continue with the rank, which has the same sequence as the key.
            distinct, key = np.unique(key, return_inverse=True)
            limit = len(distinct)
        key = key * brokers + members[:, column]
        limit *= brokers
    _, first, partitions = np.unique(key, return_index=True, return_counts=True)
    return Copysets(members[first], partitions)


def scatter_widths(sets: Sequence[Copysets], brokers: int) -> Counts:
    """Count for each broker the others with which it shares partitions."""
    pairs = [
        (members[:, one], members[:, other])
        for members, _ in sets
        for one in range(members.shape[1])
        for other in range(members.shape[1])
        if one != other
    ]
    return np.concatenate([(rows > 0).sum(axis=1) for _, rows in pair_counts(pairs, brokers)])


def pair_counts(
    pairs: Sequence[tuple[Positions, Positions]], brokers: int
) -> Iterator[tuple[int, Counts]]:
    """Count how often each broker is paired with each other, some rows of that matrix at a time.

    Yields the first row's position and the rows, each ``brokers`` long.
    """
    step = max(1, _BLOCK // brokers)
    for low in range(0, brokers, step):
        high = min(brokers, low + step)
        cells = np.zeros((high - low) * brokers, np.int64)
        for one, other in pairs:
            chosen = np.flatnonzero((one >= low) & (one < high))
            cell = (one[chosen] - np.int64(low)) * brokers + other[chosen]
            cells += np.bincount(cell, minlength=len(cells))
        yield low, cells.reshape(high - low, brokers)


def _counted(columns: Sequence[Positions], brokers: int) -> Counts:
    total = np.zeros(brokers, np.int64)
    for column in columns:
        total += np.bincount(column, minlength=brokers)
    return total
