"""The model of planners: brokers by index, and a layout of replicas that a plan changes.

Brokers are indexes from 0: first those that may be used, sorted by id, then those that take no new
replicas, then those that only appear in the assignment. A *slot* is a place in the replicas of a
row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow

from regent.client.moves import Move
from regent.core.errors import RegentError
from regent.core.model import BrokerId, TopicPartition

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


def named(broker_ids: Sequence[BrokerId | str]) -> str:
    """Return the first few ids or names, for messages."""
    names = [str(broker_id) for broker_id in broker_ids[:_MOST_NAMED]]
    return ", ".join([*names, "…"] if len(broker_ids) > _MOST_NAMED else names)


def distinct_racks(racks: Replicas) -> Ints:
    """Return the number of racks in each row; ``NO_RACK`` is none."""
    distinct: Ints = (np.diff(np.sort(racks, axis=1), axis=1, prepend=NO_RACK) != 0).sum(axis=1)
    return distinct


class InfeasibleError(RegentError):
    """No plan can reach the goal; the message names the constraint."""


class NotImprovingError(RegentError):
    """The goal is not reached, and no plan would come nearer to it."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers by index, and their loads in the whole assignment.

    The first ``usable`` ones may get replicas. The next ``no_takers`` keep theirs; they are alive
    as well. ``racks`` are numbers from 0, all equal when racks are ignored; ``NO_RACK`` for brokers
    that are not listed.
    """

    ids: Sequence[BrokerId]
    usable: int
    racks: Sequence[int]
    capacities: Sequence[int]
    replicas: Sequence[int]
    leaders: Sequence[int]  # preferred: first in the list of replicas
    hosts: Sequence[int] = ()  # numbers from 0; empty if each broker has a host of its own
    no_takers: int = 0

    @property
    def live(self) -> int:
        """The number of brokers that are listed: the first ones."""
        return self.usable + self.no_takers

    def indexes(self, broker_ids: Iterable[BrokerId]) -> list[int]:
        """Return the indexes of brokers that are listed or hold replicas."""
        index = {broker_id: number for number, broker_id in enumerate(self.ids)}
        return [index[broker_id] for broker_id in broker_ids]


@dataclass(slots=True)
class Layout:
    """The partitions that may move, sorted, with their replicas before and after the plan.

    They are arrays, in which each row has room for as many replicas as the widest. A row is to have
    as many as ``factors`` says, in no fewer racks than ``racks_needed``. ``load`` is the
    number of replicas of each broker after the plan; it, ``racks`` and ``hosts`` have one more
    entry at the end, which ``VACANT`` is the index of.
    """

    brokers: Brokers
    topics: pyarrow.ChunkedArray
    numbers: npt.NDArray[np.int32]
    before: Replicas
    sizes: Ints  # in bytes; 0 where they are not known
    after: Replicas = field(init=False)
    load: list[int] = field(init=False)
    racks: list[int] = field(init=False)
    hosts: Ints = field(init=False)
    factors: Ints = field(init=False)
    racks_needed: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.after = self.before.copy()
        self.load = [*self.brokers.replicas, 0]
        self.racks = [*self.brokers.racks, NO_RACK]
        hosts = self.brokers.hosts or range(len(self.brokers.ids))
        self.hosts = np.array([*hosts, VACANT], np.int64)
        self.factors = (self.before != VACANT).sum(axis=1)
        self.racks_needed = self.racks_in(self.before)

    def set_factor(self, factor: int) -> None:
        """Let every row have so many slots at least; new ones are vacant."""
        self.factors = np.full(len(self.before), factor)
        wider = ((0, 0), (0, max(0, factor - self.before.shape[1])))
        self.before = np.pad(self.before, wider, constant_values=VACANT)
        self.after = np.pad(self.after, wider, constant_values=VACANT)

    def put(self, slot: Slot, broker: int) -> None:
        """Put a broker into a slot, in place of the present one."""
        self.load[int(self.after[slot])] -= 1
        self.load[broker] += 1
        self.after[slot] = broker

    def replicas_of(self, row: int) -> list[int]:
        """Return the brokers of a row."""
        return [broker for broker in self.after[row].tolist() if broker != VACANT]

    def racks_beside(self, slot: Slot) -> tuple[set[int], bool]:
        """Return the known racks of the other replicas of a row, and whether they are closed.

        The row would have too few racks if a broker of a closed one got the slot.
        """
        row, position = slot
        replicas = enumerate(self.after[row].tolist())
        others = [b for i, b in replicas if i != position and b != VACANT]
        racks = {self.racks[b] for b in others} - {NO_RACK}
        vacant = self.factors[row] - 1 - len(others)
        return racks, bool(len(racks) + vacant < self.racks_needed[row])

    def hosts_beside(self, slot: Slot) -> Ints:
        """Return the hosts of the other replicas of a row."""
        row, position = slot
        beside = self.hosts[self.after[row]]
        beside[position] = VACANT
        known: Ints = beside[beside != VACANT]
        return known

    def racks_in(self, replicas: Replicas) -> Ints:
        """Return the number of known racks of each row."""
        return distinct_racks(np.array(self.racks, np.int32)[replicas])

    def fits(self, slot: Slot, broker: int) -> bool:
        """Return whether a broker may hold a slot: no other replica on its host, no rack lost."""
        if broker in self.after[slot[0]]:
            return False
        if self.brokers.hosts and self.hosts[broker] in self.hosts_beside(slot):
            return False
        racks, are_closed = self.racks_beside(slot)
        return not (are_closed and self.racks[broker] in racks)

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
            is_new &= self.after != column[:, np.newaxis]
        return is_new

    def bytes_held(self, replicas: Replicas) -> Ints:
        """Return the bytes of each broker."""
        held = np.zeros(len(self.load), np.int64)
        np.add.at(held, replicas, self.sizes[:, np.newaxis])
        return held[:-1]

    def changes(self) -> Iterator[Move]:
        """Yield the changes, in the sequence of the rows."""
        rows = self.changed_rows()
        ids = np.array([*self.brokers.ids, VACANT])
        columns = (
            self.topics.take(pyarrow.array(rows)).to_pylist(),
            *(values[rows].tolist() for values in (self.numbers, self.sizes)),
            *(ids[replicas[rows]].tolist() for replicas in (self.before, self.after)),
        )
        for topic, number, size, *replicas in zip(*columns, strict=True):
            was, becomes = (tuple(b for b in row if b != VACANT) for row in replicas)
            yield Move(TopicPartition(topic, number), was, becomes, size)
