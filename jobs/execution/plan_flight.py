"""The moves of a plan: those that wait, those in flight, and what became of the others.

Each step reads the moves in flight, and begins others for which their brokers have room. A move is
submitted only if its partition was at the plan's original replicas just before. A process that was
stopped in between reads again, because its view may be outdated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from regent.admin.controller_ref import ControllerRef, refusal
from regent.admin.wording import listed
from regent.core.errors import Errors
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
)
from regent.jobs.execution.move_queue import MoveQueue, replicas_moved, roles
from regent.jobs.execution.plan_progress import MoveState, Obstacle, PlannedMove
from regent.jobs.execution.plan_survey import Standing, read_obstacles, survey
from regent.zk.stores.admin_store import ZkAdminStore

_SUBMIT_S: Final = 10.0  # then look for the controller again, because it may have moved
_FRESH_S: Final = 5.0  # an older view of a partition is read again before a submission
_RETRY_S: Final = 5.0  # until a move that was refused for a temporary reason is submitted again
_ROWS_PER_REQUEST: Final = 1_000  # so that no request keeps the controller busy for long


class Limits(NamedTuple):
    """The most moves in flight of one broker, and of all."""

    per_broker: int
    total: int


class Flight:
    """The moves of a plan, by the states that they had when the execution began.

    ``may_submit`` is asked right before each request. ``cancels``: moves in the other direction
    are cancelled; otherwise they are those of another tool.
    """

    def __init__(
        self,
        standings: Sequence[Standing],
        limits: Limits,
        may_submit: Callable[[], bool],
        *,
        cancels: bool = False,
    ) -> None:
        self.reached_before = 0
        self.moved = 0
        self.changed: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        """Partitions that others have reassigned since, and their replicas."""
        self.refused: dict[TopicPartition, str] = {}
        """Partitions that the plan cannot move, with the reasons."""
        self.in_flight: dict[TopicPartition, PlannedMove] = {}
        self.begun = 0
        self._may_submit = may_submit
        self._obstacles: dict[TopicPartition, Obstacle] = {}
        self._postponed: dict[TopicPartition, tuple[PlannedMove, str, float]] = {}
        self._silence = ""  # why the controller did not answer the last request
        self._cancels = cancels
        left = []
        for standing in self._seen(standings):
            match standing.state:
                case MoveState.REACHED:
                    self.reached_before += 1
                case MoveState.TO_MOVE:
                    left.append(standing.move)
                case MoveState.MOVING | MoveState.MOVING_BACK:
                    left.append(standing.move)
                    self.in_flight[standing.move.partition] = standing.move
                case MoveState.CHANGED | MoveState.GONE:
                    self._set_aside(standing)
        self._queue = MoveQueue(left, self.in_flight, *limits)
        self.open_moves = tuple(left)
        """The moves that were neither complete nor given up at the beginning."""
        self.has_bytes = any(standing.move.bytes for standing in standings)
        self.work = sum(map(self.work_of, left))
        """What is left, in bytes or in moves."""

    @property
    def left(self) -> int:
        """The number of partitions that are neither at their targets nor given up."""
        return len(self._queue) + len(self.in_flight) + len(self._postponed)

    def work_of(self, move: PlannedMove) -> int:
        """Return the bytes that a move copies; if sizes are not known, its replicas."""
        if self.has_bytes:
            return move.bytes * len(set(move.target) - set(move.before))
        return replicas_moved(move.before, move.target)

    def observe(
        self,
        admin: ZkAdminStore,
        controller: ControllerRef,
        ongoing: Mapping[TopicPartition, ReplicaAssignment],
        live: Collection[BrokerId],
    ) -> None:
        """Find out which moves in flight are complete; ``ongoing`` need not be read again."""
        now = time.monotonic()
        standings, unclear = [], []
        for partition, move in self.in_flight.items():
            if partition in ongoing and ongoing[partition].target_replicas == move.target:
                standings.append(Standing(move, MoveState.MOVING))
            else:
                unclear.append(move)
        standings += self._seen(survey(admin, unclear))
        self._obstacles = read_obstacles(admin, standings, live)
        back = []
        for standing in standings:
            match standing.state:
                case MoveState.REACHED if standing.move.partition not in self._obstacles:
                    self.moved += 1
                    self._end(standing.move)
                case MoveState.TO_MOVE:  # the request was lost
                    self._queue.put_back(self.in_flight.pop(standing.move.partition))
                case MoveState.MOVING_BACK:
                    back.append(standing.move)
                case MoveState.CHANGED | MoveState.GONE:
                    self._end(standing.move)
                    self._set_aside(standing)
                case MoveState.REACHED | MoveState.MOVING:
                    pass
        self._submit(back, controller, now, is_cancelled=True)

    def begin(
        self,
        admin: ZkAdminStore,
        controller: ControllerRef,
        ongoing: Mapping[TopicPartition, ReplicaAssignment],
        live: Collection[BrokerId],
    ) -> None:
        """Begin the moves for which there is room beside those in flight and ``ongoing`` ones."""
        now = time.monotonic()
        for move, _, retry_at in list(self._postponed.values()):
            if now >= retry_at:
                del self._postponed[move.partition]
                self._queue.put_back(move)
        pairs = [(m.before, m.target) for m in self.in_flight.values()]
        pairs += [
            (a.origin_replicas, a.target_replicas)
            for partition, a in ongoing.items()
            if partition not in self.in_flight
        ]
        busy: Counter[BrokerId] = Counter()
        for pair in pairs:
            busy.update(roles(*pair))
        moving = sum(replicas_moved(*pair) for pair in pairs)
        chosen = self._queue.take(busy, moving, live, _ROWS_PER_REQUEST)
        ready = []
        for standing in self._seen(survey(admin, chosen)):
            if standing.state is MoveState.TO_MOVE:
                ready.append(standing.move)
            elif standing.state in (MoveState.CHANGED, MoveState.GONE):
                self._count_out(standing.move)
                self._set_aside(standing)
            else:  # another execution of the plan has begun it
                self.in_flight[standing.move.partition] = standing.move
        self._submit(ready, controller, now)

    def _seen(self, standings: Sequence[Standing]) -> Sequence[Standing]:
        if self._cancels:
            return standings
        return [
            s._replace(state=MoveState.CHANGED) if s.state is MoveState.MOVING_BACK else s
            for s in standings
        ]

    def waits(self, *, only_stuck: bool = False) -> str:
        """Return what open moves wait for; ``only_stuck``: those that need an operator."""
        by_reason: dict[str, list[TopicPartition]] = {}
        for partition in self.in_flight:
            obstacle = self._obstacles.get(partition)
            if obstacle is None and self._silence:
                by_reason.setdefault(f"not begun: {self._silence}", []).append(partition)
            elif not only_stuck or (obstacle and obstacle.is_stuck):
                reason = obstacle.reason if obstacle else "just begun"
                by_reason.setdefault(reason, []).append(partition)
        for partition, (_, reason, _) in self._postponed.items():
            by_reason.setdefault(f"not begun: {reason}", []).append(partition)
        for broker, moves in self._queue.waiting_for_dead().items():
            reason = f"waiting for broker {broker}, which is not registered"
            by_reason.setdefault(reason, []).extend(move.partition for move in moves)
        return "; ".join(
            f"{reason} ({listed(sorted(of))})" for reason, of in sorted(by_reason.items())
        )

    def _end(self, move: PlannedMove) -> None:
        del self.in_flight[move.partition]
        self._count_out(move)

    def _count_out(self, move: PlannedMove) -> None:
        self.work -= self.work_of(move)

    def _set_aside(self, standing: Standing) -> None:
        if standing.state is MoveState.CHANGED:
            self.changed[standing.move.partition] = standing.replicas
        else:
            self.refused[standing.move.partition] = standing.problem

    def _submit(
        self,
        moves: Sequence[PlannedMove],
        controller: ControllerRef,
        observed: float,
        *,
        is_cancelled: bool = False,
    ) -> None:
        """Begin moves, or cancel the opposite ones, which were observed at that time.

        A repeated request has no further effect. Without an answer the moves are in flight: the
        next observation shows whether they have begun.
        """
        for first in range(0, len(moves), _ROWS_PER_REQUEST):
            batch = moves[first : first + _ROWS_PER_REQUEST]
            if not self._may_submit() or time.monotonic() - observed > _FRESH_S:
                if not is_cancelled:
                    for move in batch:
                        self._queue.put_back(move)
                continue
            self.in_flight.update((move.partition, move) for move in batch)
            request = AlterPartitionReassignmentsRequest(
                tuple(
                    ReassignablePartition(*move.partition, None if is_cancelled else move.target)
                    for move in batch
                )
            )
            answer = controller.ask(
                request,
                AlterPartitionReassignmentsResponse,
                deadline=time.monotonic() + _SUBMIT_S,
                limit_s=_SUBMIT_S,
            )
            self._silence = controller.failure if answer is None else ""
            if answer is not None and not is_cancelled:
                self._note_refusals(answer)
                self.begun += sum(move.partition in self.in_flight for move in batch)

    def _note_refusals(self, answer: AlterPartitionReassignmentsResponse) -> None:
        """Take refused moves out; after a temporary reason a move is submitted again later.

        Such a reason is that a broker has just died, or no replica can replace the leader now.
        """
        for row in answer.partitions:
            partition = TopicPartition(row.topic, row.partition)
            if row.error_code is Errors.NONE or partition not in self.in_flight:
                continue
            move = self.in_flight.pop(partition)
            if row.error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION:
                self.refused[partition] = refusal(row)
                self._count_out(move)
            else:
                retry_at = time.monotonic() + _RETRY_S
                self._postponed[partition] = (move, refusal(row), retry_at)
