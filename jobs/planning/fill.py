"""Fills vacant slots, each with the least loaded broker that is allowed.

In order of priority: never two replicas of a partition on a broker; no broker beyond its capacity;
racks that hold no replica of the partition first, and never fewer racks than before; least loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from regent.jobs.planning.chains import Chains
from regent.jobs.planning.least_loaded import LeastLoaded
from regent.jobs.planning.model import UNLIMITED, InfeasibleError, Layout, Slot, named


def place(layout: Layout, slots: Sequence[Slot], takers: Sequence[int]) -> None:
    """Put one of ``takers`` into each of the vacant ``slots``; the first of equal ones.

    Raises:
        InfeasibleError: naming the first partition that cannot be given its replicas, and why.
    """
    _check_room(layout, len(slots), takers)
    queue = LeastLoaded(layout, takers, layout.brokers.capacities)
    stuck = []
    for slot in slots:
        broker = queue.best(slot, in_new_rack=True)
        if broker is None:
            stuck.append(slot)
        else:
            queue.put(slot, broker)
    if stuck:
        _place_by_chains(layout, stuck, takers)


def _place_by_chains(layout: Layout, stuck: Sequence[Slot], takers: Sequence[int]) -> None:
    layout.keep_racks()
    chains = Chains(layout, takers, layout.new_replicas())
    for slot in stuck:
        if chains.place(slot, layout.has_room):
            continue
        layout.let_racks_go()
        if not chains.place(slot, layout.has_room):
            raise InfeasibleError(_why_not(layout, slot, takers))


def level(layout: Layout, takers: Sequence[int]) -> None:
    """Move replicas that move anyway from the fullest brokers to others.

    The choices were made one by one: an earlier one may have taken the only broker for a later one.
    """
    load, capacities = layout.load, layout.brokers.capacities
    if not takers or max(load[b] for b in takers) - min(load[b] for b in takers) <= 1:
        return
    layout.keep_racks()
    chains = Chains(layout, takers, layout.new_replicas())
    receivers = np.unique(layout.after[layout.new_replicas()]).tolist()
    while receivers:
        least = min(load[b] for b in takers if load[b] < capacities[b] or b in receivers)
        receivers = [b for b in receivers if load[b] >= least + 2]
        if not receivers:
            return
        fullest = max(receivers, key=lambda b: (load[b], -b))
        if not chains.move(fullest, _below(load, capacities, load[fullest] - 1)):
            receivers.remove(fullest)


def _below(load: list[int], capacities: Sequence[int], limit: int) -> Callable[[int], bool]:
    return lambda broker: load[broker] < min(capacities[broker], limit)


# --- why not --------------------------------------------------------------------------------------


def _check_room(layout: Layout, needed: int, takers: Sequence[int]) -> None:
    capacities = layout.brokers.capacities
    room = sum(max(0, capacities[b] - layout.load[b]) for b in takers)
    if needed > room:
        raise InfeasibleError(
            f"capacity: {needed} replicas are to be placed, and the brokers that may take them"
            f" ({_named(layout, takers)}) have room for {room}"
        )


def _why_not(layout: Layout, slot: Slot, takers: Sequence[int]) -> str:
    row = slot[0]
    replicas, name = layout.replicas_of(row), layout.name(row)
    others = [broker for broker in takers if broker not in replicas]
    if not others:
        return (
            f"{name}: {layout.factor_of(row)} replicas need as many brokers, and there are no"
            f" others than {_named(layout, replicas)}"
        )
    fitting = [broker for broker in others if layout.fits(slot, broker)]
    if not fitting:
        return (
            f"racks: {name} has replicas in {layout.racks_needed(row)} racks, and no broker of"
            f" another rack can take a replica (--no-rack-aware ignores racks)"
        )
    full = [b for b in fitting if layout.brokers.capacities[b] < UNLIMITED]
    return f"capacity: the brokers that could take a replica of {name} are full" + (
        f" ({_named(layout, full)})" if full else ""
    )


def _named(layout: Layout, brokers: Sequence[int]) -> str:
    return named([layout.brokers.ids[broker] for broker in brokers])
