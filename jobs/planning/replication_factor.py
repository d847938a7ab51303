"""Plans that give partitions more or fewer replicas."""

from __future__ import annotations

from random import Random

from regent.jobs.planning.fill import level, place
from regent.jobs.planning.model import NO_RACK, VACANT, InfeasibleError, Layout, Slot


def change_factor(layout: Layout, factor: int, seed: int) -> None:
    """Add or drop replicas until every row has ``factor``.

    New replicas are appended. Replicas on unusable brokers are dropped first, then those in a rack
    with another replica, then those on the fullest broker; the preferred leader stays.

    Raises:
        InfeasibleError
    """
    usable = layout.brokers.usable
    if factor > usable:
        raise InfeasibleError(
            f"brokers: replication factor {factor} needs as many brokers, and there are {usable}"
        )
    slots: list[Slot] = []
    for row, replicas in enumerate(layout.replicas):
        while len(replicas) > factor:
            _drop(layout, row)
        while len(replicas) < factor:
            slots.append((row, len(replicas)))
            replicas.append(VACANT)
    takers = list(range(usable))
    Random(seed).shuffle(takers)
    place(layout, slots, takers)
    level(layout, takers)


def _drop(layout: Layout, row: int) -> None:
    replicas = layout.replicas[row]
    usable, racks = layout.brokers.usable, layout.brokers.racks

    def worth(position: int) -> tuple[bool, bool, bool, int, int]:
        broker = replicas[position]
        rack = racks[broker]
        is_only_one = all(racks[b] != rack for b in replicas if b != broker) and rack != NO_RACK
        is_live = broker < usable
        return (is_live, position == 0, is_only_one, -layout.load[broker], -position)

    position = min(range(len(replicas)), key=worth)
    layout.put((row, position), VACANT)
    del replicas[position]
