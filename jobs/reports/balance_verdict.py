"""What is wrong with an assignment, and which commands mend it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.admin.wording import how_many, number_range
from regent.jobs.assignment_source import ZOOKEEPER
from regent.jobs.reports.balance import Balance
from regent.jobs.reports.page import shown
from regent.jobs.reports.replica_arrays import ReplicaArrays
from regent.jobs.reports.verdict import (
    CLUSTER,
    OVERLOAD,
    SPARK,
    UNDERLOAD,
    Problem,
    Remedy,
    Verdict,
    command_line,
    named,
    several,
)

_PLAN: Final = ("assignment", "brokers", *CLUSTER, *SPARK)
_TOPICS: Final = 10  # in a command
_NAMED: Final = 3  # in a sentence
_Options = Mapping[str, Any]


class Exposed(NamedTuple):
    """Partitions that one failure loses, and some of their topics."""

    partitions: int
    topics: Sequence[str]


class AtRisk(NamedTuple):
    """The partitions with one replica, and others with all replicas in one rack."""

    single: Exposed
    together: Exposed


def exposed(balance: Balance, arrays: ReplicaArrays, frame: DataFrame) -> AtRisk:
    """Find the partitions that one failure loses; asks Spark for their topics."""
    of_broker, lost = balance.racks.of_broker, balance.lost_with_rack
    only = arrays.by_factor.get(1, np.empty((0, 1), np.int32))
    together = int(lost.sum()) - int((of_broker[only] >= 0).sum())
    if len(balance.racks.names) < 2:
        together = 0  # there is no other rack
    members = (balance.broker_ids[of_broker == rack].tolist() for rack in np.flatnonzero(lost))
    inside = [f"forall(replicas, b -> b IN ({','.join(map(str, ids))}))" for ids in members]
    return AtRisk(
        Exposed(len(only), _topics(frame, "size(replicas) = 1") if len(only) else []),
        Exposed(
            together,
            _topics(frame, f"size(replicas) > 1 AND ({' OR '.join(inside)})") if together else [],
        ),
    )


def _topics(frame: DataFrame, condition: str) -> list[str]:
    rows = frame.filter(condition).groupBy("topic").count()
    worst = rows.orderBy(F.desc("count"), "topic").limit(_TOPICS + 1).toArrow()
    return [str(name) for name in worst["topic"].to_pylist()]


def balance_verdict(
    balance: Balance, arrays: ReplicaArrays, at_risk: AtRisk, options: _Options
) -> Verdict:
    """Judge an assignment."""
    problems = [
        *_with_one_replica(arrays, at_risk.single, options),
        *_in_one_rack(balance, arrays, at_risk.together, options),
        *_unlisted(balance, options),
        *_uneven(balance, options),
    ]
    return Verdict(problems, balance_in_words(balance))


def balance_in_words(balance: Balance) -> str:
    """Say how even replicas are, and how many brokers may fail without a loss."""
    replicas = balance.loads["replicas"]
    range_ = number_range(int(replicas.min()), int(replicas.max()))
    safe = sum(point.probability == 0 for point in balance.loss)
    survivors = [f"any {how_many(safe, 'broker', 'brokers')}"] * bool(safe)
    if len(balance.racks.names) > 1 and not balance.lost_with_rack.any():
        survivors.append("any one rack")
    words = f"Replicas are spread evenly: each broker holds {range_}"
    can_fail = f", and {', or '.join(survivors)} can fail without a loss" if survivors else ""
    return f"{words}{can_fail}."


# --- losses ---------------------------------------------------------------------------------------


def _with_one_replica(arrays: ReplicaArrays, single: Exposed, options: _Options) -> list[Problem]:
    if not single.partitions:
        return []
    others = {len(replicas): f for f, replicas in arrays.by_factor.items() if f > 1}
    factor = others[max(others)] if others else min(3, arrays.brokers)
    purpose = "To give them more replicas"
    remedies = _change_factor(purpose, factor, single.topics, options) if factor > 1 else []
    has = how_many(single.partitions, "partition has", "partitions have")
    are_lost = "is lost" if single.partitions == 1 else "are lost"
    return [
        Problem(
            f"{has} only one replica and {are_lost} when its broker fails"
            f" ({_some(single.topics)}).",
            remedies,
        )
    ]


def _in_one_rack(
    balance: Balance, arrays: ReplicaArrays, together: Exposed, options: _Options
) -> list[Problem]:
    if not together.partitions:
        return []
    lost, factor = balance.lost_with_rack, max(arrays.by_factor) + 1
    order = np.argsort(-lost, kind="stable").tolist()
    racks = [balance.racks.names[rack] for rack in order if lost[rack]]
    purpose = (
        "To add a replica in another rack"
        f" (later --factor {factor - 1} removes one from the doubled rack)"
    )
    has = how_many(together.partitions, "partition has", "partitions have")
    return [
        Problem(
            f"{has} all replicas in one rack and would be lost with it"
            f" (racks {named(racks)}; {_some(together.topics)}).",
            _change_factor(purpose, factor, together.topics, options, "racks-plan")
            if factor <= arrays.brokers
            else [],
        )
    ]


def _change_factor(
    purpose: str, factor: int, topics: Sequence[str], options: _Options, target: str | None = None
) -> list[Remedy]:
    words = " ".join(f"--topics {shlex.quote(topic)}" for topic in topics[:_TOPICS])
    return plan_remedies(purpose, f"replication-factor --factor {factor} {words}", options, target)


def _some(topics: Sequence[str]) -> str:
    """Return the names of a few topics; ``topics`` may not have all."""
    few = named(topics[:_NAMED])
    return f"topics such as {few}" if len(topics) > _NAMED else f"topics {few}"


def _unlisted(balance: Balance, options: _Options) -> list[Problem]:
    """Name the brokers whose replicas are out of reach."""
    unlisted = balance.unlisted
    if not unlisted:
        return []
    held = int(balance.loads["replicas"][np.isin(balance.broker_ids, unlisted)].sum())
    leaving = ",".join(map(str, unlisted))
    plan = plan_remedies(
        "To give their replicas to others", f"decommission --from {leaving}", options
    )
    return [
        Problem(
            f"{missing_brokers(unlisted, options)}, and"
            f" {how_many(held, 'replica is', 'replicas are')} there.",
            [*start_remedies("If they only stopped, start them again", unlisted, options), *plan],
        )
    ]


# --- evenness -------------------------------------------------------------------------------------


def named_brokers(balance: Balance) -> dict[str, Any]:
    """Return all brokers that the verdict is about as JSON values, the worst first."""

    def rows(positions: Sequence[int]) -> list[dict[str, Any]]:
        ids, held, fair = balance.broker_ids, balance.loads["replicas"], balance.fair
        return [
            {"broker": int(ids[b]), "replicas": int(held[b]), "fair_share": float(fair[b])}
            for b in positions
        ]

    return {
        "overloaded": rows(beyond(balance.of_fair_share)),
        "underloaded": rows(_below(balance.of_fair_share)),
        "not_listed": balance.unlisted,
    }


def beyond(shares: NDArray[np.float64]) -> list[int]:
    """Return where a load is far above its share, the farthest first."""
    order = np.argsort(-shares, kind="stable")
    found: list[int] = order[shares[order] > OVERLOAD].tolist()
    return found


def _below(shares: NDArray[np.float64]) -> list[int]:
    order = np.argsort(shares, kind="stable")
    found: list[int] = order[shares[order] < UNDERLOAD].tolist()
    return found


def _uneven(balance: Balance, options: _Options) -> list[Problem]:
    """Name the brokers with far more or fewer replicas than their share, or too many leaders.

    What preferred leaders do not lead is the subject of the report about leaders.
    """
    bytes_ = _beyond_average(balance, "bytes")
    has_sizes = bool(bytes_) and options["assignment"] == ZOOKEEPER
    goal = f"rebalance{' --sizes cluster' if has_sizes else ''}"
    plan = plan_remedies("To even them out", goal, options)
    problems = [
        *_uneven_replicas(balance, plan),
        *_beyond_average(balance, "preferred leaders", plan),
    ]
    if problems:
        return problems + bytes_
    line = command_line("jobs report leaders", options, *_PLAN)
    mend = Remedy("To see what mends the leaders", line)
    return [
        *(problem._replace(remedies=plan if has_sizes else ()) for problem in bytes_),
        *_beyond_average(balance, "leaders", [mend]),
    ]


def _uneven_replicas(balance: Balance, plan: Sequence[Remedy]) -> list[Problem]:
    ids, held = balance.broker_ids, balance.loads["replicas"]
    parts = [
        f"{how_many(len(found), 'holds', 'hold')} {words}"
        f" ({named([f'broker {ids[b]}: {held[b]:,}' for b in found])})"
        for found, words in (
            (beyond(balance.of_fair_share), f"more than {OVERLOAD} times"),
            (_below(balance.of_fair_share), f"less than {UNDERLOAD} times"),
        )
        if found
    ]
    if not parts:
        return []
    fair = balance.fair[~np.isnan(balance.fair)]
    range_ = number_range(round(float(fair.min())), round(float(fair.max())))
    return [
        Problem(
            f"Of {len(ids):,} brokers, {', and '.join(parts)} their fair share of"
            f" replicas, which is {range_}.",
            plan,
        )
    ]


def _beyond_average(balance: Balance, load: str, remedies: Sequence[Remedy] = ()) -> list[Problem]:
    values, ids = balance.loads.get(load, np.zeros(1, np.int64)), balance.broker_ids
    mean = float(values.mean())
    return several(
        [f"broker {ids[b]}: {values[b]:,}" for b in beyond(values / (mean or 1.0))],
        "broker has",
        "brokers have",
        f"more than {OVERLOAD} times the average number of {load}, {shown(mean)}",
        remedies,
    )


# --- remedies -------------------------------------------------------------------------------------


def missing_brokers(broker_ids: Sequence[int], options: _Options) -> str:
    """Say that brokers with replicas cannot be used."""
    where = "registered" if options["assignment"] == ZOOKEEPER else "in --brokers"
    names = named([str(broker_id) for broker_id in broker_ids])
    return (
        f"Broker {names} is not {where}"
        if len(broker_ids) == 1
        else f"Brokers {names} are not {where}"
    )


def start_remedies(purpose: str, broker_ids: Sequence[int], options: _Options) -> list[Remedy]:
    """Return a command that starts brokers, if they are of a cluster on this machine."""
    if options["assignment"] != ZOOKEEPER or options["zookeeper"]:
        return []
    words = f"brokers start {' '.join(map(str, broker_ids[:_TOPICS]))}"
    return [Remedy(purpose, command_line(words, options, *CLUSTER))]


def plan_remedies(
    purpose: str, goal: str, options: _Options, target: str | None = None
) -> list[Remedy]:
    """Return a command that plans for ``goal``, and in a running cluster one that executes it.

    ``target`` is the directory of the plan; None: it has the name of the goal.
    """
    is_running = options["assignment"] == ZOOKEEPER
    given = dict(options)
    if given["brokers"] is None:
        given["brokers"] = ZOOKEEPER if is_running else "brokers.json"
        if not is_running:
            purpose += ", once brokers.json lists the brokers to use, such as [0, 1, 2]"
    target = target or f"{goal.split()[0]}-plan"
    line = command_line(f"jobs plan {goal} --out {target}", given, *_PLAN)
    execute = command_line(f"jobs plan execute {target}", given, *CLUSTER)
    return [Remedy(purpose, line), *[Remedy("Then, to carry it out", execute)] * is_running]
