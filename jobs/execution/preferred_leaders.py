"""Elects the preferred leaders of a plan's partitions.

After a move, the former leader leads on if it is still a replica. The controller's own rebalance
comes only every five minutes, and only for brokers with many such partitions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from regent.admin.controller_ref import ControllerRef, batches
from regent.core.errors import Errors
from regent.core.model import LeaderIsrAndControllerEpoch, TopicPartition
from regent.core.protocol.controller import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.jobs.execution.planned_move import PlannedMove
from regent.zk.stores.admin_store import ZkAdminStore

_ANSWER_S: Final = 30.0
_ROWS_AT_ONCE: Final = 1_000  # so that clients do not lose all their leaders at once


def elect_preferred(
    admin: ZkAdminStore, controller: ControllerRef, moves: Sequence[PlannedMove]
) -> int:
    """Elect the first replicas of targets that are in sync and do not lead; return how many.

    Raises ``ControllerError``.
    """
    elected = 0
    for few in batches(moves, _ROWS_AT_ONCE):
        wanted = _not_led_by_preferred(admin, few)
        if wanted:
            answer = controller.ask_until_answered(
                ElectLeadersRequest(ElectionType.PREFERRED, wanted),
                ElectLeadersResponse,
                deadline=time.monotonic() + _ANSWER_S,
            )
            elected += sum(row.error_code is Errors.NONE for row in answer.partitions)
    return elected


def _not_led_by_preferred(
    admin: ZkAdminStore, moves: Sequence[PlannedMove]
) -> tuple[TopicPartition, ...]:
    states = admin.read_partition_states([move.partition for move in moves])
    wanted = []
    for move in moves:
        state = states.get(move.partition)
        if isinstance(state, LeaderIsrAndControllerEpoch):
            leadership, preferred = state.leader_and_isr, move.target[0]
            if leadership.leader != preferred and preferred in leadership.isr:
                wanted.append(move.partition)
    return tuple(wanted)
