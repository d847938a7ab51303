"""Chains of moves: a full broker makes room by moving one of its replicas to another broker.

Choosing brokers replica by replica can fail: a later replica finds its only possible broker full,
or the last replicas fit on no broker that needs them. A chain solves this. Breadth-first search
over brokers finds a shortest chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from regent.jobs.planning.model import Layout, Mask, Slot

_MAX_CHECKS: Final = 300_000  # of one slot on one broker, in all searches of a planner

_Origin: TypeAlias = tuple[int | None, Slot]
"""The slot that a broker gets, and the broker it comes from; None: the slot is vacant."""


class Chains:
    """Searches chains over some slots: those that move anyway, or all."""

    def __init__(self, layout: Layout, brokers: Collection[int], among: Mask | None = None) -> None:
        self._layout = layout
        self._brokers = brokers
        self._among = among
        self._slots_on: dict[int, dict[Slot, None]] = {}
        self._checks_left = _MAX_CHECKS

    def place(self, slot: Slot, has_room: Callable[[int], bool]) -> list[int]:
        """Fill a vacant slot; return the brokers on the chain, empty if there is none."""
        return self._search([slot], None, has_room)

    def move(self, donor: int, has_room: Callable[[int], bool]) -> list[int]:
        """Take a replica away from a broker; return the brokers on the chain, the donor first."""
        return self._search(self._slots_of(donor), donor, has_room)

    def _search(
        self, slots: Iterable[Slot], start: int | None, has_room: Callable[[int], bool]
    ) -> list[int]:
        origin: dict[int, _Origin] = {}
        waiting: deque[tuple[int | None, Iterable[Slot]]] = deque([(start, slots)])
        while waiting:
            giver, slots = waiting.popleft()
            for slot in slots:
                for taker in self._brokers:
                    if taker in origin or taker == start:
                        continue
                    self._checks_left -= 1
                    if self._checks_left < 0:
                        return []
                    if not self._layout.fits(slot, taker):
                        continue
                    origin[taker] = (giver, slot)
                    if has_room(taker):
                        chain = self._carry_out(origin, taker)
                        if chain:
                            return chain
                        del origin[taker]
                    else:
                        waiting.append((taker, self._slots_of(taker)))
        return []

    def _slots_of(self, broker: int) -> dict[Slot, None]:
        if broker not in self._slots_on:
            slots = self._layout.slots_on([broker], self._among)
            self._slots_on[broker] = dict.fromkeys(slots)
        return self._slots_on[broker]

    def _carry_out(self, origin: dict[int, _Origin], last: int) -> list[int]:
        steps: list[tuple[int, _Origin]] = []
        taker: int | None = last
        while taker is not None and taker in origin:
            steps.append((taker, origin[taker]))
            taker = origin[taker][0]
        rows = [slot[0] for _, (_, slot) in steps]
        if len(set(rows)) != len(rows):
            return []  # each step was checked against the row before the other steps
        for taker, (giver, slot) in steps:
            if giver is not None:
                del self._slots_of(giver)[slot]
            self._slots_of(taker)[slot] = None
            self._layout.put(slot, taker)
        first = steps[-1][1][0]
        chain = [taker for taker, _ in reversed(steps)]
        return chain if first is None else [first, *chain]
