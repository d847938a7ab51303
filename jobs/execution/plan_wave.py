"""One wave of a plan: the states of its moves, which can begin, and what the others wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from regent.admin.controller_ref import ControllerRef, batches, refusal
from regent.admin.wording import listed
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
)
from regent.jobs.execution.plan_progress import MoveState, Obstacle, PlannedMove
from regent.jobs.execution.plan_survey import Standing, read_obstacles, survey
from regent.zk.stores.admin_store import ZkAdminStore

_SUBMIT_S: Final = 10.0  # then look for the controller again, because it may have moved
_ROWS_PER_REQUEST: Final = 1_000  # so that no request keeps the controller busy for long


class Wave:
    """The moves of a wave; those in ``open`` are neither at their targets nor given up.

    ``standings`` are the states when the execution began: moves that were complete then are done.
    """

    def __init__(self, number: int, standings: Sequence[Standing]) -> None:
        self.number = number
        self.reached_before = 0
        self.moved = 0
        self.changed: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        """Partitions that others have reassigned since, and their replicas."""
        self.refused: dict[TopicPartition, str] = {}
        """Partitions that the plan cannot move, with the reasons."""
        self.open: dict[TopicPartition, PlannedMove] = {}
        self._obstacles: dict[TopicPartition, Obstacle] = {}
        self._postponed: dict[TopicPartition, str] = {}  # refused temporarily, with the reasons
        for standing in standings:
            if standing.state is MoveState.REACHED:
                self.reached_before += 1
            elif not self._is_set_aside(standing):
                self.open[standing.move.partition] = standing.move
        self.size = len(self.open)
        """The number of open partitions at the start."""

    def step(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        """Read the states of the open moves, and submit those that can begin."""
        standings = survey(admin, list(self.open.values()))
        self._obstacles = read_obstacles(admin, standings)
        self._postponed.clear()
        ready: list[PlannedMove] = []
        for standing in standings:
            partition = standing.move.partition
            if self._is_set_aside(standing):
                del self.open[partition]
            elif partition in self._obstacles:
                continue
            elif standing.state is MoveState.REACHED:
                self.moved += 1
                del self.open[partition]
            else:
                ready.append(standing.move)
        for first in range(0, len(ready), _ROWS_PER_REQUEST):
            self._submit(ready[first : first + _ROWS_PER_REQUEST], controller)

    def waits(self, *, only_stuck: bool = False) -> str:
        """Return what open moves wait for; ``only_stuck``: those that need an operator."""
        by_reason: dict[str, list[TopicPartition]] = {}
        for partition in sorted(self.open):
            obstacle = self._obstacles.get(partition)
            if partition in self._postponed:
                reason = f"not begun: {self._postponed[partition]}"
            elif only_stuck and not (obstacle and obstacle.is_stuck):
                continue
            else:
                reason = obstacle.reason if obstacle else "just begun"
            by_reason.setdefault(reason, []).append(partition)
        return "; ".join(f"{reason} ({listed(of)})" for reason, of in sorted(by_reason.items()))

    def _is_set_aside(self, standing: Standing) -> bool:
        partition = standing.move.partition
        if standing.state is MoveState.CHANGED:
            self.changed[partition] = standing.replicas
        elif standing.state is MoveState.GONE:
            self.refused[partition] = standing.problem
        else:
            return False
        return True

    def _submit(self, moves: Sequence[PlannedMove], controller: ControllerRef) -> None:
        """Submit moves to the controller; a repeated submission has no further effect.

        A move refused for a temporary reason (a broker has just died, no replica can replace the
        leader now) is submitted again at the next step.
        """
        for batch in batches(moves):
            self._submit_batch(batch, controller)

    def _submit_batch(self, moves: Sequence[PlannedMove], controller: ControllerRef) -> None:
        request = AlterPartitionReassignmentsRequest(
            tuple(ReassignablePartition(*move.partition, move.target) for move in moves)
        )
        answer = controller.ask(
            request,
            AlterPartitionReassignmentsResponse,
            deadline=time.monotonic() + _SUBMIT_S,
            limit_s=_SUBMIT_S,
        )
        if answer is None:
            self._postponed |= {move.partition: controller.failure for move in moves}
            return
        for row in answer.partitions:
            partition = TopicPartition(row.topic, row.partition)
            if row.error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION:
                self.refused[partition] = refusal(row)
                self.open.pop(partition, None)
            elif row.error_code is not Errors.NONE:
                self._postponed[partition] = refusal(row)
