"""Makes a plan from an assignment: the steps that all goals share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.jobs.assignment_source import AssignmentSource, assignment_frame, check_counted
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.command import InputError
from regent.jobs.planning.byte_balance import ByteBalance
from regent.jobs.planning.execution_sequence import in_sequence
from regent.jobs.planning.goals import ALL_ROWS, Goal, Planned
from regent.jobs.planning.leader_plan import choose_leaders
from regent.jobs.planning.model import Change, Layout, NotImprovingError, Partitions, named
from regent.jobs.planning.plan_files import write_plan
from regent.jobs.planning.selection import Survey, survey, topic_condition

_LEAST_EXTRA_MOVES: Final = 100
_UNEVEN: Final = 1.1  # ratio of the largest and the smallest rack, in brokers


@dataclass(frozen=True, slots=True)
class Request:
    """The goal, the cluster and the limits of a plan; patterns are globs."""

    goal: Goal
    source: AssignmentSource
    brokers: Sequence[PlannedBroker]
    is_rack_aware: bool
    topics: Sequence[str]
    exclude: Sequence[str]
    balances_leaders: bool
    sizes: pyarrow.Table | None
    bytes_tolerance: float
    max_extra_moves: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Changes in the sequence of their execution, and their sum."""

    changes: Sequence[Change]
    summary: dict[str, Any]

    def write(self, directory: Path) -> None:
        """Write it into an empty directory. Raises OSError."""
        write_plan(directory, self.changes, self.summary)


def make_plan(spark: SparkSession, request: Request) -> PlacementPlan:
    """Make a plan; the same request gives the same plan.

    Raises:
        InputError: the assignment, a broker or a pattern is wrong
        InfeasibleError, NotImprovingError, ReassignmentInProgressError
    """
    where = request.source.where
    frame = assignment_frame(spark, request.source, refuse_moving=True)
    can_move = topic_condition(request.topics, request.exclude)
    found = survey(frame, can_move, request.brokers, is_rack_aware=request.is_rack_aware)
    check_counted(frame, where, found.partitions, found.unsound)
    if not found.movable_partitions:
        raise InputError(f"{where}: --topics and --exclude leave no topic")
    draft = _draft(found, request)
    left, layout = request.goal.left_brokers(found), draft.layout
    balance = _balance_bytes(found, draft, request) if layout.held_bytes is not None else None
    led = choose_leaders(
        layout,
        draft.partitions,
        left,
        evenly=request.balances_leaders,
        keeps_places=draft.planned.keeps_places,
    )
    changes = in_sequence([*layout.changes(), *led.reordered])
    if draft.excuse is not None and not changes:
        raise draft.excuse
    summary = {
        "partitions": found.partitions,
        "partitions_changed": len(changes),
        "moves": sum(change.moves for change in changes),
        "lower_bound": draft.planned.lower_bound,
        "reordered": sum(not change.moves for change in changes),
        "brokers": found.brokers.usable,
        "rack_aware": request.is_rack_aware,
        **_spreads(found, layout, led.counts, left),
        **({} if balance is None else _bytes(balance, changes, found)),
        "racks_gained": _racks_gained(layout),
        "warnings": _warnings(layout, draft, request),
    }
    return PlacementPlan(changes, summary)


class _Draft(NamedTuple):
    """What a goal has planned; ``excuse``: why that is nothing."""

    partitions: Partitions
    layout: Layout
    planned: Planned
    excuse: NotImprovingError | None = None


def _draft(found: Survey, request: Request) -> _Draft:
    every = request.balances_leaders or request.sizes is not None
    try:
        condition = request.goal.concerns(found, request.seed)
        partitions = found.load(condition, request.sizes, every=every)
        layout = _layout(found, partitions, request)
        return _Draft(partitions, layout, request.goal.plan(found, layout, request.seed))
    except NotImprovingError as error:
        if not every:
            raise
        can_swap = request.sizes is not None and found.movable_partitions <= ALL_ROWS
        partitions = found.load(F.lit(can_swap), request.sizes, every=True)
        return _Draft(partitions, _layout(found, partitions, request), Planned(0), error)


def _layout(found: Survey, partitions: Partitions, request: Request) -> Layout:
    if request.sizes is None:
        return Layout(found.brokers, partitions.rows)
    held = partitions.bytes_of(len(found.brokers.ids))
    return Layout(found.brokers, partitions.rows, held)


def _balance_bytes(found: Survey, draft: _Draft, request: Request) -> ByteBalance:
    layout = draft.layout
    assert layout.held_bytes is not None
    spare = request.max_extra_moves
    if spare is None:
        moves = sum(change.moves for change in layout.changes())
        spare = max(_LEAST_EXTRA_MOVES, moves // 10)
    takers = request.goal.takers(found)
    left = request.goal.left_brokers(found)
    balance = ByteBalance(layout, left, takers, request.bytes_tolerance, spare)
    if takers:
        balance.run()
    return balance


def _bytes(balance: ByteBalance, changes: Sequence[Change], found: Survey) -> dict[str, Any]:
    assert balance.layout.held_bytes is not None
    before, after = balance.layout.held_bytes.tolist(), balance.now.tolist()
    usable = range(found.brokers.usable)
    return {
        "bytes_per_broker": _before_and_after(before, after, usable, balance.left),
        "bytes_moved": sum(change.bytes * len(change.added) for change in changes),
    }


def _spreads(
    found: Survey, layout: Layout, led: Sequence[int], left: Collection[int]
) -> dict[str, Any]:
    usable = range(found.brokers.usable)
    replicas = _before_and_after(found.brokers.replicas, layout.load, usable, left)
    leaders = _before_and_after(found.brokers.leaders, led, usable, left)
    return {"replicas_per_broker": replicas, "leaders_per_broker": leaders}


def _before_and_after(
    before: Sequence[int], after: Sequence[int], usable: Collection[int], left: Collection[int]
) -> dict[str, Any]:
    return {
        "before": _spread([before[b] for b in usable]),
        "after": _spread([after[b] for b in left]),
    }


def _spread(loads: Sequence[int]) -> dict[str, float]:
    """Return the extremes, and the coefficient of variation: deviation by mean."""
    values = np.array(loads)
    mean = float(values.mean())
    deviation = float(values.std()) / mean if mean else 0.0
    return {
        "min": int(values.min()),
        "max": int(values.max()),
        "mean": round(mean, 3),
        "cv": round(deviation, 5),
    }


def _racks_gained(layout: Layout) -> int:
    """Count the partitions with more racks than before, and not more replicas."""
    gained = 0
    for row in layout.changed_rows():
        before, after = layout.rows.replicas[row], layout.replicas[row]
        gained += len(before) >= len(after) and layout.racks_before(row) < len(
            layout.racks_of(after)
        )
    return gained


# --- warnings -------------------------------------------------------------------------------------


def _warnings(layout: Layout, draft: _Draft, request: Request) -> list[str]:
    warnings = []
    unknown = int((draft.partitions.sizes == 0).sum())
    if request.sizes is not None and unknown:
        warnings.append(f"{unknown} partitions have no size in --sizes, or size 0")
    planned = draft.planned
    if planned.left:
        warnings.append(
            f"{planned.left} replicas stay on brokers with too many: every broker that could take"
            " them holds the partition already, or the partition would lose a rack"
        )
    brokers = layout.brokers
    unlisted = range(brokers.usable, len(brokers.ids))
    dead = [brokers.ids[b] for b in unlisted if layout.load[b]]
    if dead:
        warnings.append(
            f"brokers that are not listed hold replicas: {named(dead)}"
            f" (decommission --from {dead[0]} moves them)"
        )
    if not request.is_rack_aware and any(broker.rack is not None for broker in request.brokers):
        warnings.append("racks were ignored")
    sizes = Counter(broker.rack for broker in request.brokers)
    if request.is_rack_aware and min(sizes.values()) * _UNEVEN < max(sizes.values()):
        smallest = min(sizes, key=lambda rack: (sizes[rack], rack))
        warnings.append(
            f"racks are uneven, from {min(sizes.values())} brokers (rack {smallest}) to"
            f" {max(sizes.values())}: brokers of small racks hold more replicas (KAFKA-3438)"
        )
    return warnings
