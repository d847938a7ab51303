"""The sequence in which the changes of a plan are executed.

The changes of the busiest brokers come first, because these brokers need the longest; of those the
largest partitions. Changes that only reorder replicas, which cost nothing, come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from regent.core.model import BrokerId
from regent.jobs.execution.planned_move import PlannedMove, roles


def in_sequence(changes: Iterable[PlannedMove]) -> list[PlannedMove]:
    """Return the changes in the sequence of their execution; equal ones stay as they are."""
    changes = list(changes)
    busy: Counter[BrokerId] = Counter()
    for change in changes:
        for broker in roles(change.before, change.target):
            busy[broker] += change.bytes + 1

    def weight(change: PlannedMove) -> tuple[int, int]:
        partners = roles(change.before, change.target)
        return max((busy[broker] for broker in partners), default=0), change.bytes

    return sorted(changes, key=weight, reverse=True)
