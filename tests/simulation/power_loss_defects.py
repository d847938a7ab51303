"""Defects in the handling of replicas that may have lost records: they test the simulation.

Each is a function that breaks one protection while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.controller.context import ControllerContext
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.model import NO_SUSPECTS
from regent.core.replication.suspect_replicas import SuspectTracker
from tests.support.memory_logs import MemoryLogs


def suspect_replicas_elected() -> Any:
    """The controller does not check which replicas are suspect."""
    return patch.object(ControllerContext, "suspect_end", lambda *replica: None)


def restarted_leaders_kept() -> Any:
    """A new controller keeps a restarted leader in the same leader epoch."""
    return patch.object(PartitionStateMachine, "settle_restarted_replicas", lambda self: None)


def losses_not_registered() -> Any:
    """A broker registers without the list of its suspect replicas."""
    return patch.object(MemoryLogs, "suspects", lambda self: NO_SUSPECTS)


def losses_forgotten_at_the_first_request() -> Any:
    """A replica counts as sound after any control request."""

    def mark_sound(self: SuspectTracker, name: Any, row: Any) -> None:
        self.mark_sound(name)

    return patch.object(SuspectTracker, "on_leadership", mark_sound)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    suspect_replicas_elected: 66,
    restarted_leaders_kept: 91,
    losses_not_registered: 16,
    losses_forgotten_at_the_first_request: 297,
}
