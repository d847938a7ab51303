"""Plans that replace the replicas of certain brokers: decommission, and one broker for another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from regent.jobs.planning.fill import level, place
from regent.jobs.planning.model import VACANT, Layout, Slot


def decommission(layout: Layout, leaving: Collection[int], seed: int) -> None:
    """Spread the replicas of ``leaving`` brokers over the others.

    Raises:
        InfeasibleError
    """
    takers = [b for b in range(layout.brokers.usable) if b not in leaving]
    Random(seed).shuffle(takers)
    place(layout, _vacate(layout, leaving), takers)
    level(layout, takers)


def replace(layout: Layout, leaving: Sequence[int], to: Sequence[int]) -> None:
    """Put each of the brokers ``to`` into the slots of its counterpart in ``leaving``.

    A slot goes to another of ``to`` if the counterpart has the partition already or is full, or if
    a rack would be lost.

    Raises:
        InfeasibleError
    """
    counterpart = dict(zip(leaving, to, strict=True))
    open_slots = []
    for slot in _vacate(layout, leaving):
        taker = counterpart[layout.rows.replicas[slot[0]][slot[1]]]
        if layout.has_room(taker) and layout.fits(slot, taker):
            layout.put(slot, taker)
        else:
            open_slots.append(slot)
    place(layout, open_slots, to)


def _vacate(layout: Layout, leaving: Collection[int]) -> list[Slot]:
    leaving = frozenset(leaving)
    slots = [
        (row, position)
        for row, replicas in enumerate(layout.replicas)
        for position, broker in enumerate(replicas)
        if broker in leaving
    ]
    for slot in slots:
        layout.put(slot, VACANT)
    return slots
