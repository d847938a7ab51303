"""Fills vacant slots, each with the least loaded broker that is allowed.

In order of priority: never two replicas of a partition on a host; no broker beyond its capacity;
racks that hold no replica of the partition first, and never fewer racks than before; least loaded.

Choosing brokers replica by replica can fail: a later replica finds its only possible broker full,
or the last replicas fit on no broker that needs them. Then a full broker makes room: it moves one
of its replicas to another broker, which may have to do the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from regent.jobs.planning.model import UNLIMITED, InfeasibleError, Layout, Mask, Slot, named

_FULL: Final = 2**62
_MAX_CHECKS: Final = 300_000  # of one slot on one broker, in all searches of a planner


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
    if not stuck:
        return
    original = layout.racks_needed
    layout.racks_needed = np.maximum(original, layout.racks_in(layout.after))
    chains = Chains(layout, takers, layout.new_replicas())
    for slot in stuck:
        if not chains.place(slot, layout.brokers.capacities):
            layout.racks_needed = original  # racks that rows have gained may go
            if not chains.place(slot, layout.brokers.capacities):
                raise InfeasibleError(_why_not(layout, slot, takers))


def level(layout: Layout, takers: Sequence[int]) -> None:
    """Move replicas that move anyway from the fullest brokers to others.

    The choices were made one by one: an earlier one may have taken the only broker for a later one.
    """
    load, capacities = layout.load, layout.brokers.capacities
    if max(load[b] for b in takers) - min(load[b] for b in takers) <= 1:
        return
    layout.racks_needed = np.maximum(layout.racks_needed, layout.racks_in(layout.after))
    is_new = layout.new_replicas()
    chains = Chains(layout, takers, is_new)
    receivers = np.unique(layout.after[is_new]).tolist()
    while receivers:
        least = min(load[b] for b in takers if load[b] < capacities[b] or b in receivers)
        receivers = [b for b in receivers if load[b] >= least + 2]
        if receivers:
            fullest = max(receivers, key=lambda b: (load[b], -b))
            if not chains.move(fullest, [min(c, load[fullest] - 1) for c in capacities]):
                receivers.remove(fullest)


class LeastLoaded:
    """Finds the broker for one more replica.

    Brokers are compared by load minus ``offset``, equal ones by their sequence in ``brokers``;
    those at ``limit`` are not found. A choice looks at all brokers in an array: some microseconds
    for thousands of them.
    """

    def __init__(
        self,
        layout: Layout,
        brokers: Sequence[int],
        limit: Sequence[int],
        offset: Sequence[int] | None = None,
    ) -> None:
        self._layout = layout
        self._place = {broker: place for place, broker in enumerate(brokers)}
        self._limit = limit
        self._offset = offset or [0] * len(layout.load)
        racks = np.array(layout.racks)
        self._of_rack = {rack: np.flatnonzero(racks == rack) for rack in set(layout.racks)}
        self._worth = np.full(len(racks), _FULL)  # the smallest is the best
        for broker in brokers:
            self._update(broker)

    def put(self, slot: Slot, broker: int) -> None:
        """Put a broker into a slot, in place of the present one."""
        present = int(self._layout.after[slot])
        self._layout.put(slot, broker)
        self._update(present)
        self._update(broker)

    def excess(self, broker: int) -> int:
        """Return a broker's load beyond its offset."""
        return self._layout.load[broker] - self._offset[broker]

    def best(self, slot: Slot, *, in_new_rack: bool = False) -> int | None:
        """Return the least loaded broker that may hold a slot.

        With ``in_new_rack`` one in a rack without a replica of the row comes first.
        """
        racks, are_closed = self._layout.racks_beside(slot)
        found = self._outside(slot, racks) if in_new_rack or are_closed else None
        return self._outside(slot, ()) if found is None and not are_closed else found

    def _update(self, broker: int) -> None:
        if broker in self._place:
            worth = self.excess(broker) * len(self._place) + self._place[broker]
            is_full = self._layout.load[broker] >= self._limit[broker]
            self._worth[broker] = _FULL if is_full else worth

    def _outside(self, slot: Slot, racks: Collection[int]) -> int | None:
        worth = self._worth.copy()
        worth[self._layout.after[slot[0]]] = _FULL
        if self._layout.brokers.hosts:
            worth[np.isin(self._layout.hosts, self._layout.hosts_beside(slot))] = _FULL
        for rack in racks:
            worth[self._of_rack[rack]] = _FULL
        broker = int(worth.argmin())
        return None if worth[broker] == _FULL else broker


class Chains:
    """Searches shortest chains of moves, breadth first: over slots that move anyway, or over all.

    A broker has room while its load is below its limit in ``limits``.
    """

    def __init__(self, layout: Layout, brokers: Collection[int], among: Mask | None = None) -> None:
        self._layout = layout
        self._brokers = brokers
        self._among = among
        self._slots_on: dict[int, dict[Slot, None]] = {}
        self._checks_left = _MAX_CHECKS

    def place(self, slot: Slot, limits: Sequence[int]) -> bool:
        """Fill a vacant slot; return whether it was possible."""
        return self._search(None, [slot], limits)

    def move(self, donor: int, limits: Sequence[int]) -> bool:
        """Take a replica away from a broker; return whether it was possible."""
        return self._search(donor, self._slots_of(donor), limits)

    def _search(self, start: int | None, slots: Iterable[Slot], limits: Sequence[int]) -> bool:
        origin: dict[int, tuple[int | None, Slot]] = {}  # who gives a broker which slot
        waiting = deque([(start, slots)])
        while waiting:
            giver, slots = waiting.popleft()
            for slot in slots:
                for taker in self._brokers:
                    if taker in origin or taker == start:
                        continue
                    self._checks_left -= 1
                    if self._checks_left < 0:
                        return False
                    if not self._layout.fits(slot, taker):
                        continue
                    origin[taker] = giver, slot
                    if self._layout.load[taker] >= limits[taker]:
                        waiting.append((taker, self._slots_of(taker)))
                    elif self._carry_out(origin, taker):
                        return True
                    else:
                        del origin[taker]
        return False

    def _slots_of(self, broker: int) -> dict[Slot, None]:
        if broker not in self._slots_on:
            slots = self._layout.slots_on([broker], self._among)
            self._slots_on[broker] = dict.fromkeys(slots)
        return self._slots_on[broker]

    def _carry_out(self, origin: Mapping[int, tuple[int | None, Slot]], last: int | None) -> bool:
        steps: list[tuple[int, int | None, Slot]] = []
        while last is not None and last in origin:
            giver, slot = origin[last]
            steps.append((last, giver, slot))
            last = giver
        if len({slot[0] for _, _, slot in steps}) != len(steps):
            return False  # each step was checked against the row before the other steps
        for taker, giver, slot in steps:
            if giver is not None:
                del self._slots_of(giver)[slot]
            self._slots_of(taker)[slot] = None
            self._layout.put(slot, taker)
        return True


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
    replicas, name = layout.replicas_of(row), f"{layout.topics[row]}-{layout.numbers[row]}"
    others = [broker for broker in takers if broker not in replicas]
    if not others:
        return (
            f"{name}: {layout.factors[row]} replicas need as many brokers, and there are no"
            f" others than {_named(layout, replicas)} (plan replication-factor makes them fewer)"
        )
    beside = layout.hosts_beside(slot)
    if all(layout.hosts[broker] in beside for broker in others):
        return f"hosts: {name} has a replica on the host of each broker that can take another one"
    fitting = [broker for broker in others if layout.fits(slot, broker)]
    if not fitting:
        return (
            f"racks: {name} has replicas in {layout.racks_needed[row]} racks, and no broker of"
            f" another rack can take a replica (--no-rack-aware ignores racks)"
        )
    full = [b for b in fitting if layout.brokers.capacities[b] < UNLIMITED]
    return f"capacity: the brokers that could take a replica of {name} are full" + (
        f" ({_named(layout, full)})" if full else ""
    )


def _named(layout: Layout, brokers: Sequence[int]) -> str:
    return named([layout.brokers.ids[broker] for broker in brokers])
