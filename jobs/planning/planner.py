"""Makes a plan from an assignment: the steps that all goals share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from regent.client.moves import Move, roles
from regent.core.model import BrokerId
from regent.jobs.assignment_source import AssignmentSource, assignment_frame
from regent.jobs.brokers_file import PlannedBroker, takers_of
from regent.jobs.planning.byte_balance import ByteBalance
from regent.jobs.planning.goals import Goal, Planned, reasons_beside
from regent.jobs.planning.leadership import choose_leaders
from regent.jobs.planning.model import VACANT, Ints, Layout, NotImprovingError, named
from regent.jobs.planning.partition_sizes import Sizes
from regent.jobs.planning.selection import (
    broker_loads,
    check_memory,
    is_chosen,
    load_layout,
    topic_condition,
)

_LEAST_EXTRA_MOVES: Final = 100
_UNEVEN: Final = 1.1  # ratio of the largest and the smallest rack, in brokers


class Request(NamedTuple):
    """The goal, the cluster, and the options of ``jobs plan``; patterns are globs.

    ``rack_aware`` needs the rack of each broker that takes replicas.
    """

    goal: Goal
    source: AssignmentSource
    brokers: Sequence[PlannedBroker]
    rack_aware: bool
    topics: Sequence[str]
    exclude: Sequence[str]
    leaders: bool
    sizes: Sizes | None
    bytes_tolerance: float
    max_extra_moves: int | None
    seed: int


def make_plan(spark: SparkSession, request: Request) -> tuple[Sequence[Move], dict[str, Any]]:
    """Return the changes, in the sequence of their execution, and their sum.

    The same request gives the same plan.

    Raises:
        InputError: the assignment, a broker or a pattern is wrong
        InfeasibleError, NotImprovingError, ReassignmentInProgressError
    """
    frame = assignment_frame(spark, request.source)
    brokers = broker_loads(frame, request.source, request.brokers, is_rack_aware=request.rack_aware)
    check_memory(sum(brokers.replicas))
    can_move = topic_condition(request.topics, request.exclude)
    where, factor = request.source.where, request.goal.new_factor
    layout = load_layout(frame, where, can_move, brokers, request.sizes, factor)
    return plan_layout(layout, request)


def plan_layout(layout: Layout, request: Request) -> tuple[Sequence[Move], dict[str, Any]]:
    """Return the changes of the partitions that may move, as ``make_plan`` does.

    Raises InputError, InfeasibleError, NotImprovingError.
    """
    goal, brokers = request.goal, layout.brokers
    excuse = None
    try:
        planned = goal.plan(layout, request.seed)
    except NotImprovingError as error:
        planned, excuse = Planned(0), error.with_traceback(None)
    left = goal.left_brokers(brokers)
    _balance_bytes(layout, left, request)
    leaders = choose_leaders(layout, left, evenly=request.leaders, keeps_places=goal.keeps_places)
    changes = _in_sequence(list(layout.changes()))
    if excuse is not None and not changes:
        raise excuse
    loads: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        "replicas_per_broker": (brokers.replicas, layout.load),
        "leaders_per_broker": (brokers.leaders, leaders),
    }
    summary: dict[str, Any] = {
        "partitions": sum(brokers.leaders),
        "nothing_to_do": None if changes else planned.is_reached,
        "partitions_changed": len(changes),
        "moves": sum(len(change.added) for change in changes),
        "lower_bound": planned.lower_bound,
        "removals": sum(change.removed for change in changes),
        "reordered": sum(not change.replicas_changed for change in changes),
        "brokers": brokers.usable,
        "rack_aware": request.rack_aware,
    }
    if request.sizes is not None:
        before, after = layout.bytes_held(layout.before), layout.bytes_held(layout.after)
        loads["bytes_per_broker"] = (before.tolist(), after.tolist())
        summary["bytes_moved"] = sum(change.bytes * len(change.added) for change in changes)
    for name, (held, becomes) in loads.items():
        usable = held[: brokers.usable]
        summary[name] = {"before": _spread(usable), "after": _spread([becomes[b] for b in left])}
    summary["racks_gained"] = _racks_gained(layout)
    summary["warnings"] = _warnings(layout, planned, request, left)
    return changes, summary


def _in_sequence(changes: Sequence[Move]) -> list[Move]:
    """Return the changes in the sequence of their execution; equal ones stay as they are.

    Those of the busiest brokers come first, because these brokers need the longest; of those the
    largest partitions. Changes that only reorder replicas, which cost nothing, come last.
    """
    busy: Counter[BrokerId] = Counter()
    for change in changes:
        for broker in roles(change.before, change.target):
            busy[broker] += change.bytes + 1

    def weight(change: Move) -> tuple[int, int]:
        partners = roles(change.before, change.target)
        return max((busy[broker] for broker in partners), default=0), change.bytes

    return sorted(changes, key=weight, reverse=True)


def _balance_bytes(layout: Layout, left: Collection[int], request: Request) -> None:
    """Make the bytes of brokers more even, if sizes are known."""
    goal, spare = request.goal, request.max_extra_moves
    if request.sizes is None or goal.keeps_places:
        return
    if spare is None:
        spare = max(_LEAST_EXTRA_MOVES, int(layout.new_replicas().sum()) // 10)
    takers = goal.takers(layout.brokers)
    layout.racks_needed = np.maximum(layout.racks_needed, layout.racks_in(layout.after))
    ByteBalance(layout, left, takers, request.bytes_tolerance, spare).run()


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
    before, after = layout.before, layout.after
    has_gained = layout.racks_in(before) < layout.racks_in(after)
    has_grown = (before == VACANT).sum(axis=1) > (after == VACANT).sum(axis=1)
    return int((has_gained & ~has_grown).sum())


# --- warnings -------------------------------------------------------------------------------------


def _warnings(layout: Layout, planned: Planned, request: Request, left: Sequence[int]) -> list[str]:
    warnings = [] if request.sizes is None else _warnings_of_bytes(layout, request, left)
    if planned.left:
        warnings.append(
            f"{planned.left} replicas stay on brokers with too many: every broker that could take"
            f" them holds the partition already{reasons_beside(layout.brokers)}"
        )
    brokers = layout.brokers
    for which, indexes in (
        ("brokers that are not listed", range(brokers.live, len(brokers.ids))),
        ("brokers with no_replicas", range(brokers.usable, brokers.live)),
    ):
        if holding := [brokers.ids[b] for b in indexes if layout.load[b]]:
            warnings.append(
                f"{which} hold replicas: {named(holding)}"
                f" (decommission --from {holding[0]} moves them)"
            )
    takers = takers_of(request.brokers)
    if not request.rack_aware and any(broker.rack is not None for broker in takers):
        warnings.append("racks were ignored")
    if planned.full_hosts:
        name_of = {broker.broker_id: str(broker.node_host) for broker in takers}
        hosts = [name_of[brokers.ids[host]] for host in planned.full_hosts]
        which, whose = ("host {} has", "its") if len(hosts) == 1 else ("hosts {} have", "their")
        warnings.append(
            f"{which.format(named(hosts))} a replica of each partition, and can have no other:"
            f" {whose} brokers hold fewer than the rest"
        )
    sizes = Counter(broker.rack for broker in takers)
    if request.rack_aware and min(sizes.values()) * _UNEVEN < max(sizes.values()):
        smallest = min(sizes, key=lambda rack: (sizes[rack], rack))
        warnings.append(
            f"racks are uneven, from {min(sizes.values())} brokers (rack {smallest}) to"
            f" {max(sizes.values())}: brokers of small racks hold more replicas (KAFKA-3438)"
        )
    return warnings


def _warnings_of_bytes(layout: Layout, request: Request, left: Sequence[int]) -> list[str]:
    """Return what the sizes lack, and what the plan does not reach with them."""
    warnings = []
    unknown = int((layout.sizes == 0).sum())
    if unknown:
        warnings.append(f"{unknown} partitions have no size in --sizes, or size 0")
    assert request.sizes is not None
    if strange := _not_in(layout, request):
        warnings.append(f"{strange} partitions of --sizes are not in the assignment")
    if repeated := request.sizes.repeated:
        warnings.append(f"{repeated} partitions are in --sizes more than once: the largest counts")
    before, after = (
        _shares(layout.bytes_held(replicas)[left]) for replicas in (layout.before, layout.after)
    )
    is_too_full = after.max() - 1 > request.bytes_tolerance  # matters more than one too empty
    worst = int(after.argmax() if is_too_full else after.argmin())
    if abs(after[worst] - 1) > request.bytes_tolerance:
        reason = "raise --max-extra-moves, or the tolerance"
        if len(request.goal.takers(layout.brokers)) < len(left):
            reason = "only the new brokers get replicas; plan a rebalance afterwards"
        warnings.append(
            f"--bytes-tolerance {request.bytes_tolerance:g} is not met: broker"
            f" {layout.brokers.ids[left[worst]]} will have {after[worst]:.2f} times the mean bytes"
            f" ({reason})"
        )
    if after.max() > before.max():
        warnings.append(
            f"the fullest broker will have {after.max():.2f} times the mean bytes, and has"
            f" {before.max():.2f} times now: no plan was found that is even in both"
        )
    return warnings


def _not_in(layout: Layout, request: Request) -> int:
    """Count the partitions with a size, of the topics that may move, that do not exist."""
    assert request.sizes is not None
    table = request.sizes.table
    topics = table["topic"].unique().to_pylist()
    chosen = [t for t in topics if is_chosen(t, request.topics, request.exclude)]
    wanted = table.filter(pc.is_in(table["topic"], pyarrow.array(chosen, pyarrow.string())))
    known = pyarrow.table({"topic": layout.topics, "partition": layout.numbers})
    return len(wanted.join(known, ["topic", "partition"], join_type="left anti"))


def _shares(loads: Ints) -> npt.NDArray[np.floating]:
    """Return loads as multiples of their mean; of no load each is 1."""
    total = int(loads.sum())
    return loads / (total / len(loads)) if total else np.ones(len(loads))
