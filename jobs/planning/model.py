"""The model of planners: brokers by index, and a layout of replicas that a plan changes.

Brokers are indexes from 0: first those that may be used, sorted by id, then those that only appear
in the assignment. A *slot* is a place in the replicas of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow

from regent.core.errors import RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.jobs.execution.planned_move import PlannedMove

NO_RACK: Final = -1
VACANT: Final = -1
UNLIMITED: Final = 2**62

_MOST_NAMED: Final = 5

Slot: TypeAlias = tuple[int, int]
"""Row and position."""

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Replicas: TypeAlias = npt.NDArray[np.int32]
"""The brokers of a row each, with -1 after the last one."""


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

    def indexes(self, broker_ids: Iterable[BrokerId]) -> list[int]:
        """Return the indexes of brokers that are listed or hold replicas."""
        index = {broker_id: number for number, broker_id in enumerate(self.ids)}
        return [index[broker_id] for broker_id in broker_ids]


@dataclass(slots=True)
class Layout:
    """The partitions that may move, sorted, with their replicas before and after the plan.

    They are arrays: 32 bytes for a partition with three replicas, and its topic. ``load`` is the
    number of replicas of each broker after the plan, ``sizes`` are the bytes of partitions.
    """

    brokers: Brokers
    topics: pyarrow.ChunkedArray
    numbers: npt.NDArray[np.int32]
    before: Replicas
    sizes: Ints | None = None
    after: Replicas = field(init=False)
    load: list[int] = field(init=False)
    _factors: npt.NDArray[np.int16] = field(init=False)  # replicas that a row is to have
    _racks_needed: npt.NDArray[np.int16] = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.before.copy()
        self.load = list(self.brokers.replicas)
        self._factors = (self.before != VACANT).sum(axis=1, dtype=np.int16)
        self._racks_needed = self.racks_in(self.before)

    def set_factor(self, factor: int) -> None:
        """Let every row have so many slots at least; new ones are vacant."""
        self._factors = np.full(len(self.before), factor, np.int16)
        missing = max(0, factor - self.before.shape[1])
        wider = ((0, 0), (0, missing))
        self.before = np.pad(self.before, wider, constant_values=VACANT)
        self.after = np.pad(self.after, wider, constant_values=VACANT)

    def put(self, slot: Slot, broker: int) -> None:
        """Put a broker into a slot, in place of the present one."""
        present = int(self.after[slot])
        if present != VACANT:
            self.load[present] -= 1
        if broker != VACANT:
            self.load[broker] += 1
        self.after[slot] = broker

    def has_room(self, broker: int) -> bool:
        """Return whether a broker may hold one more replica."""
        return self.load[broker] < self.brokers.capacities[broker]

    def replicas_of(self, row: int) -> list[int]:
        """Return the brokers of a row."""
        return [broker for broker in self.after[row].tolist() if broker != VACANT]

    def factor_of(self, row: int) -> int:
        """Return the number of replicas that a row is to have."""
        return int(self._factors[row])

    def racks_needed(self, row: int) -> int:
        """Return the number of racks that a row may not fall below."""
        return int(self._racks_needed[row])

    def racks_without(self, slot: Slot) -> set[int]:
        """Return the known racks of a row without one slot."""
        row, position = slot
        racks = self.brokers.racks
        replicas = enumerate(self.after[row].tolist())
        return {racks[b] for i, b in replicas if i != position and b != VACANT} - {NO_RACK}

    def closed_racks(self, slot: Slot) -> set[int]:
        """Return the racks whose brokers may not hold a slot, because the row would lose a rack."""
        row, others = slot[0], self.racks_without(slot)
        vacant = self.factor_of(row) - len(self.replicas_of(row))
        others_vacant = vacant - int(self.after[slot] == VACANT)
        return others if len(others) + others_vacant < self.racks_needed(row) else set()

    def keep_racks(self) -> None:
        """Require of later steps to keep the racks that rows have now."""
        self._racks_needed = np.maximum(self.racks_in(self.before), self.racks_in(self.after))

    def let_racks_go(self) -> None:
        """Require only the original number of racks of each row."""
        self._racks_needed = self.racks_in(self.before)

    def racks_in(self, replicas: Replicas) -> npt.NDArray[np.int16]:
        """Return the number of known racks of each row."""
        racks = np.array([*self.brokers.racks, NO_RACK], np.int32)[replicas]
        racks.sort(axis=1)
        is_next = np.diff(racks, axis=1, prepend=NO_RACK) != 0
        distinct: npt.NDArray[np.int16] = is_next.sum(axis=1, dtype=np.int16)
        return distinct

    def fits(self, slot: Slot, broker: int) -> bool:
        """Return whether a broker may hold a slot: no other replica there, and no rack lost."""
        if broker in self.replicas_of(slot[0]):
            return False
        return self.brokers.racks[broker] not in self.closed_racks(slot)

    def restore_places(self) -> None:
        """Put replicas that came back to a row, or changed positions, into their original slots."""
        for row in self.changed_rows().tolist():
            replicas = self.after[row].tolist()
            for position, broker in enumerate(self.before[row].tolist()):
                if broker in replicas:
                    place = replicas.index(broker)
                    replicas[place], replicas[position] = replicas[position], broker
            self.after[row] = replicas

    def slots_on(self, brokers: Collection[int], among: Mask | None = None) -> list[Slot]:
        """Return the slots of brokers, of those that ``among`` is true for."""
        is_there = np.isin(self.after, list(brokers))
        rows, positions = np.nonzero(is_there if among is None else is_there & among)
        return list(zip(rows.tolist(), positions.tolist(), strict=True))

    def changed_rows(self) -> Ints:
        """Return the changed rows."""
        return np.flatnonzero((self.before != self.after).any(axis=1))

    def new_replicas(self) -> Mask:
        """Return for each slot whether its broker had no replica of the row before."""
        is_new: Mask = self.after != VACANT
        for column in self.before.T:
            is_new &= self.after != column[:, None]
        return is_new

    def bytes_held(self, replicas: Replicas) -> Ints:
        """Return the bytes of each broker."""
        assert self.sizes is not None
        held = np.zeros(len(self.brokers.ids), np.int64)
        for column in replicas.T:
            np.add.at(held, column[column != VACANT], self.sizes[column != VACANT])
        return held

    def name(self, row: int) -> str:
        """Return the name of a partition."""
        return f"{self.topics[row]}-{self.numbers[row]}"

    def changes(self) -> Iterator[PlannedMove]:
        """Yield the changes, in the sequence of the rows."""
        rows = self.changed_rows()
        sizes = np.zeros(len(rows), np.int64) if self.sizes is None else self.sizes[rows]
        ids = self.brokers.ids
        for topic, number, before, after, size in zip(
            self.topics.take(pyarrow.array(rows)).to_pylist(),
            self.numbers[rows].tolist(),
            self.before[rows].tolist(),
            self.after[rows].tolist(),
            sizes.tolist(),
            strict=True,
        ):
            was, becomes = (tuple(ids[b] for b in row if b != VACANT) for row in (before, after))
            yield PlannedMove(TopicPartition(topic, number), was, becomes, size)
