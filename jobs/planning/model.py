"""The model of planners: brokers by index, partitions as rows, and a layout that they change.

Brokers are indexes from 0: first those that may be used, sorted by id, then those that only appear
in the assignment. A *slot* is a place in the replicas of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow

from regent.core.errors import RegentError
from regent.core.model import BrokerId

NO_RACK: Final = -1
VACANT: Final = -1
UNLIMITED: Final = 2**62

_MOST_NAMED: Final = 5

Slot: TypeAlias = tuple[int, int]
"""Row and position."""


def named(broker_ids: Sequence[BrokerId]) -> str:
    """Return the first few ids, for messages."""
    names = [str(broker_id) for broker_id in broker_ids[:_MOST_NAMED]]
    return ", ".join([*names, "…"] if len(broker_ids) > _MOST_NAMED else names)


class InfeasibleError(RegentError):
    """No plan can reach the goal; the message names the constraint."""


class NotImprovingError(RegentError):
    """A plan would improve nothing."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers by index, and their loads in the whole assignment.

    The first ``usable`` ones may get replicas. ``racks`` are numbers from 0, all equal when racks
    are ignored; ``NO_RACK`` for brokers that are not listed.
    """

    ids: Sequence[BrokerId]
    usable: int
    racks: Sequence[int]
    capacities: Sequence[int]
    replicas: Sequence[int]
    leaders: Sequence[int]  # preferred: first in the list of replicas


class Rows(NamedTuple):
    """The partitions to plan, sorted; replicas are indexes, sizes 0 when they are not known."""

    topics: list[str]
    partitions: list[int]
    replicas: list[list[int]]
    sizes: list[int]

    def name(self, row: int) -> str:
        """Return the name of a partition."""
        return f"{self.topics[row]}-{self.partitions[row]}"


class Partitions(NamedTuple):
    """The loaded partitions, sorted, as arrays: 30 bytes each; ``planned`` are those to plan.

    ``replicas`` are indexes, a row each, with -1 after the last one.
    """

    topics: pyarrow.ChunkedArray
    numbers: npt.NDArray[np.int32]
    replicas: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    planned: npt.NDArray[np.int64]

    def bytes_of(self, brokers: int) -> npt.NDArray[np.int64]:
        """Return the bytes of each of so many brokers."""
        held = np.zeros(brokers, np.int64)
        for column in self.replicas.T:
            np.add.at(held, column[column >= 0], self.sizes[column >= 0])
        return held

    @property
    def rows(self) -> Rows:
        """The partitions to plan, as lists: a kilobyte each."""
        replicas = [[b for b in row if b >= 0] for row in self.replicas[self.planned].tolist()]
        topics = self.topics.take(pyarrow.array(self.planned)).to_pylist()
        numbers, sizes = self.numbers[self.planned], self.sizes[self.planned]
        return Rows(topics, numbers.tolist(), replicas, sizes.tolist())


class Change(NamedTuple):
    """The change of one partition; broker ids."""

    topic: str
    partition: int
    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]
    bytes: int = 0  # of the partition; 0 when it is not known

    @property
    def added(self) -> list[BrokerId]:
        """The brokers that get a replica."""
        return [broker for broker in self.after if broker not in self.before]

    @property
    def moves(self) -> int:
        """The number of replicas moved, added or removed."""
        kept = len(set(self.before).intersection(self.after))
        return max(len(self.before), len(self.after)) - kept


@dataclass(slots=True)
class Layout:
    """The planned replicas of the rows, and the resulting loads of brokers."""

    brokers: Brokers
    rows: Rows
    held_bytes: npt.NDArray[np.int64] | None = None
    """The bytes of each broker before the plan, if sizes are known."""
    replicas: list[list[int]] = field(init=False)
    load: list[int] = field(init=False)
    _racks_kept: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.replicas = [list(replicas) for replicas in self.rows.replicas]
        self.load = list(self.brokers.replicas)

    def put(self, slot: Slot, broker: int) -> None:
        """Put a broker into a slot, in place of the present one."""
        row, position = slot
        replicas = self.replicas[row]
        if replicas[position] != VACANT:
            self.load[replicas[position]] -= 1
        if broker != VACANT:
            self.load[broker] += 1
        replicas[position] = broker

    def has_room(self, broker: int) -> bool:
        """Return whether a broker may hold one more replica."""
        return self.load[broker] < self.brokers.capacities[broker]

    def racks_of(self, replicas: Collection[int]) -> set[int]:
        """Return the known racks of ``replicas``."""
        racks = self.brokers.racks
        return {racks[b] for b in replicas if b != VACANT and racks[b] != NO_RACK}

    def racks_before(self, row: int) -> int:
        """Return the original number of racks of a row."""
        return len(self.racks_of(self.rows.replicas[row]))

    def keep_racks(self) -> None:
        """Require of later steps to keep the racks that rows have now."""
        for row in self.changed_rows():
            racks = len(self.racks_of(self.replicas[row]))
            self._racks_kept[row] = max(racks, self.racks_before(row))

    def let_racks_go(self) -> None:
        """Require only the original number of racks of each row."""
        self._racks_kept.clear()

    def racks_without(self, slot: Slot) -> set[int]:
        """Return the racks of a row without one slot."""
        row, position = slot
        replicas = self.replicas[row]
        return self.racks_of([b for i, b in enumerate(replicas) if i != position])

    def fits(self, slot: Slot, broker: int) -> bool:
        """Return whether a broker may hold a slot: no other replica there, and no rack lost."""
        row, position = slot
        replicas = self.replicas[row]
        if broker in replicas:
            return False
        racks = self.racks_without(slot) | {self.brokers.racks[broker]}
        open_slots = replicas.count(VACANT) - (replicas[position] == VACANT)
        needed = self._racks_kept.get(row) or self.racks_before(row)
        return len(racks - {NO_RACK}) + open_slots >= needed

    def restore_places(self) -> None:
        """Put replicas that came back to a row, or changed positions, into their original slots."""
        for row in self.changed_rows():
            replicas = self.replicas[row]
            for position, broker in enumerate(self.rows.replicas[row]):
                if broker in replicas:
                    place = replicas.index(broker)
                    replicas[place], replicas[position] = replicas[position], broker

    def changed_rows(self) -> Iterator[int]:
        """Yield the changed rows."""
        for row, (before, after) in enumerate(zip(self.rows.replicas, self.replicas, strict=True)):
            if before != after:
                yield row

    def changed_slots(self) -> Iterator[Slot]:
        """Yield the slots with a broker that had no replica of the row before."""
        for row in self.changed_rows():
            before = self.rows.replicas[row]
            for position, broker in enumerate(self.replicas[row]):
                if broker != VACANT and broker not in before:
                    yield row, position

    def changes(self) -> Iterator[Change]:
        """Yield the changes, in the sequence of the rows."""
        ids, rows = self.brokers.ids, self.rows
        name = ids.__getitem__
        for row in self.changed_rows():
            before = rows.replicas[row]
            yield Change(
                rows.topics[row],
                rows.partitions[row],
                tuple(map(name, before)),
                tuple(map(name, self.replicas[row])),
                rows.sizes[row],
            )
