"""The moves that have not begun, in sequence, and which of them may begin now.

A broker takes part in a limited number of moves at a time: it receives a replica, gives one up, or
sends the data. All brokers together make a limited number of moves. The preferred leader counts as
the sender, because it usually leads. A move that exceeds a limit alone begins when its brokers do
nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from regent.core.model import BrokerId, TopicPartition
from regent.jobs.execution.plan_progress import PlannedMove


def roles(before: Sequence[BrokerId], after: Sequence[BrokerId]) -> dict[BrokerId, int]:
    """Return the number of moves of each broker in one change; none for another sequence."""
    parts = {broker: 1 for broker in before if broker not in after}
    added = [broker for broker in after if broker not in before]
    if added:
        parts.update(dict.fromkeys(added, 1))
        parts[before[0]] = len(added)
    return parts


def replicas_moved(before: Sequence[BrokerId], after: Sequence[BrokerId]) -> int:
    """Return the number of replicas that are moved, added or removed."""
    return max(len(before), len(after)) - len(set(before).intersection(after))


class _Place(NamedTuple):
    """Where moves wait: for the start of a dead broker, or for room on a busy one."""

    broker: BrokerId
    is_dead: bool


class MoveQueue:
    """Moves that wait, each at one of its brokers that is busy or dead; the first has precedence.

    A move is looked at again only when that broker has room. So a choice does not cost more when
    many moves wait for a busy or a dead broker.
    """

    def __init__(
        self,
        moves: Iterable[PlannedMove],
        in_flight: Collection[TopicPartition],
        per_broker: int,
        total: int,
    ) -> None:
        self._per_broker = per_broker
        self._total = total
        self._moves = list(moves)
        self._number = {move.partition: n for n, move in enumerate(self._moves)}
        # Heaps of numbers of moves, by the place where they wait; at None, nothing was in the way.
        waiting = [n for partition, n in self._number.items() if partition not in in_flight]
        self._waiting: dict[_Place | None, list[int]] = {None: waiting}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put_back(self, move: PlannedMove) -> None:
        """Let a move that was taken wait again, at its former place."""
        heappush(self._waiting.setdefault(None, []), self._number[move.partition])

    def waiting_for_dead(self) -> dict[BrokerId, list[PlannedMove]]:
        """Return moves that wait for a broker that was dead at the last choice."""
        return {
            place.broker: [self._moves[number] for number in numbers]
            for place, numbers in self._waiting.items()
            if place is not None and place.is_dead and numbers
        }

    def take(
        self, busy: Mapping[BrokerId, int], moving: int, live: Collection[BrokerId], most: int
    ) -> list[PlannedMove]:
        """Take at most ``most`` moves that may begin now.

        ``busy`` and ``moving`` are the moves in flight, by broker and in total. A broker that is
        not ``live`` cannot receive.
        """
        used = Counter(busy)
        heads = [
            (heappop(numbers), at)
            for at, numbers in self._waiting.items()
            if numbers and self._may_have_room(at, used, live)
        ]
        heapify(heads)
        taken: list[PlannedMove] = []
        while heads and len(taken) < most:
            number, at = heads[0]
            move = self._moves[number]
            count = replicas_moved(move.before, move.target)
            if count and moving and moving + count > self._total:
                break
            heappop(heads)
            obstacle = self._first_obstacle(move, used, live)
            if obstacle is None:
                used.update(roles(move.before, move.target))
                moving += count
                taken.append(move)
            else:
                heappush(self._waiting.setdefault(obstacle, []), number)
            is_stuck = obstacle is not None and obstacle == at
            if self._waiting[at] and not is_stuck and self._may_have_room(at, used, live):
                heappush(heads, (heappop(self._waiting[at]), at))
        for number, at in heads:
            heappush(self._waiting[at], number)
        return taken

    def _may_have_room(
        self, at: _Place | None, used: Mapping[BrokerId, int], live: Collection[BrokerId]
    ) -> bool:
        if at is None:
            return True
        return at.broker in live if at.is_dead else used.get(at.broker, 0) < self._per_broker

    def _first_obstacle(
        self, move: PlannedMove, used: Mapping[BrokerId, int], live: Collection[BrokerId]
    ) -> _Place | None:
        """Return where a move must wait; None if it may begin."""
        for broker in move.target:
            if broker not in move.before and broker not in live:
                return _Place(broker, is_dead=True)
        for broker, count in roles(move.before, move.target).items():
            held = used.get(broker, 0)
            if held and held + count > self._per_broker:
                return _Place(broker, is_dead=False)
        return None
