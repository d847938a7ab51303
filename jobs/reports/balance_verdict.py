"""What is wrong with an assignment, and which commands mend it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.jobs.assignment_source import ZOOKEEPER
from regent.jobs.reports.balance import Balance
from regent.jobs.reports.page import shown
from regent.jobs.reports.replica_arrays import ReplicaArrays
from regent.jobs.reports.verdict import (
    CLUSTER,
    OVERLOAD,
    SPARK,
    UNDERLOAD,
    Remedy,
    Verdict,
    command_line,
    counted,
    listed,
    number_range,
)

_PLAN: Final = ("assignment", "brokers", *CLUSTER, *SPARK)
_TOPICS: Final = 10  # that are named


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
    balance: Balance,
    arrays: ReplicaArrays,
    at_risk: AtRisk,
    options: Mapping[str, Any],
) -> Verdict:
    """Judge an assignment."""
    found = _Findings(balance, options)
    found.judge_losses(arrays, at_risk)
    if balance.unlisted:
        found.judge_unlisted(balance.unlisted)
    found.judge_evenness()
    return Verdict(found.problems, balance_in_words(balance), found.remedies)


def named_brokers(balance: Balance) -> dict[str, Any]:
    """Return all brokers that the verdict is about as JSON values, the worst first."""

    def rows(positions: Sequence[int]) -> list[dict[str, Any]]:
        ids, held, fair = balance.broker_ids, balance.loads["replicas"], balance.fair
        return [
            {"broker": int(ids[b]), "replicas": int(held[b]), "fair_share": float(fair[b])}
            for b in positions
        ]

    return {
        "overloaded": rows(_beyond(balance.of_fair_share, is_over=True)),
        "underloaded": rows(_beyond(balance.of_fair_share, is_over=False)),
        "not_listed": balance.unlisted,
    }


def balance_in_words(balance: Balance) -> str:
    """Say how even replicas are, and how many brokers may fail without a loss."""
    replicas = balance.loads["replicas"]
    range_ = number_range(int(replicas.min()), int(replicas.max()))
    safe = sum(point.probability == 0 for point in balance.loss)
    survives = f"any {counted(safe, 'broker', 'brokers')}" if safe else ""
    if len(balance.racks.names) > 1 and not balance.lost_with_rack.any():
        survives += f"{', or' if safe else ''} any one rack"
    words = f"Replicas are spread evenly: each broker holds {range_}"
    return f"{words}, and {survives} can fail without a loss." if survives else f"{words}."


def _beyond(shares: NDArray[np.float64], *, is_over: bool) -> list[int]:
    """Return where a load is far from its share, the farthest first."""
    order = np.argsort(-shares if is_over else shares, kind="stable")
    limits = shares[order] > OVERLOAD if is_over else shares[order] < UNDERLOAD
    found: list[int] = order[limits].tolist()
    return found


class _Findings:
    """Collects what is wrong, and what mends it."""

    def __init__(self, balance: Balance, options: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self.remedies: list[Remedy] = []
        self._balance = balance
        self._options = options
        self._is_running = options["assignment"] == ZOOKEEPER

    def judge_losses(self, arrays: ReplicaArrays, at_risk: AtRisk) -> None:
        """Name the partitions that are lost when one broker or one rack fails."""
        single, together = at_risk
        if single.partitions:
            count = counted(single.partitions, "partition has", "partitions have")
            self.problems.append(
                f"{count} only one replica and {'is' if single.partitions == 1 else 'are'} lost"
                f" when its broker fails (topics {_named(single.topics)})."
            )
            others = {len(r): f for f, r in arrays.by_factor.items() if f > 1}
            factor = others[max(others)] if others else min(3, arrays.brokers)
            if factor > 1:
                self._change_factor("To give them more replicas", factor, single.topics)
        if together.partitions:
            lost = self._balance.lost_with_rack
            worst = [self._balance.racks.names[r] for r in np.argsort(-lost, kind="stable")]
            racks = worst[: int((lost > 0).sum())]
            count = counted(together.partitions, "partition has", "partitions have")
            self.problems.append(
                f"{count} all replicas in one rack and would be lost with it"
                f" ({listed(racks)}; topics {_named(together.topics)})."
            )
            factor = max(arrays.by_factor) + 1
            if factor <= arrays.brokers:
                purpose = (
                    "To add a replica in another rack"
                    f" (later --factor {factor - 1} removes one from the doubled rack)"
                )
                self._change_factor(purpose, factor, together.topics)

    def judge_unlisted(self, unlisted: Sequence[int]) -> None:
        """Name the brokers whose replicas are out of reach."""
        ids = self._balance.broker_ids
        held = int(self._balance.loads["replicas"][np.isin(ids, unlisted)].sum())
        self.problems.append(
            f"{missing_brokers(unlisted, self._options)}, and"
            f" {counted(held, 'replica is', 'replicas are')} there."
        )
        if self._is_running and not self._options["zookeeper"]:
            started = " ".join(map(str, unlisted[:_TOPICS]))
            line = command_line(f"brokers start {started}", self._options, *CLUSTER)
            self.remedies.append(Remedy("If they only stopped, start them again", line))
        leaving = ",".join(map(str, unlisted))
        self._plan("To give their replicas to others", f"decommission --from {leaving}")

    def judge_evenness(self) -> None:
        """Name the brokers with far more or fewer replicas than their share, or too many leaders.

        What preferred leaders do not lead is the subject of the report about leaders.
        """
        loads = self._balance.loads
        problems = [*self._uneven_replicas(), *self._beyond_average("preferred leaders")]
        bytes_ = self._beyond_average("bytes") if "bytes" in loads else []
        self.problems += problems + bytes_
        if problems or (bytes_ and self._is_running):
            sizes = " --sizes cluster" if bytes_ and self._is_running else ""
            self._plan("To even them out", f"rebalance{sizes}")
        leaders = self._beyond_average("leaders") if "leaders" in loads else []
        if leaders and not problems:
            self.problems += leaders
            line = command_line("jobs report leaders", self._options, *_PLAN)
            self.remedies.append(Remedy("To see what mends the leaders", line))

    def _uneven_replicas(self) -> list[str]:
        balance = self._balance
        over, under = (_beyond(balance.of_fair_share, is_over=o) for o in (True, False))
        parts = [
            f"{counted(len(found), holds, hold)} {words} ({listed([self._held(b) for b in found])})"
            for found, holds, hold, words in (
                (over, "holds", "hold", f"more than {OVERLOAD} times"),
                (under, "holds", "hold", f"less than {UNDERLOAD} times"),
            )
            if found
        ]
        fair = balance.fair[~np.isnan(balance.fair)]
        range_ = number_range(round(float(fair.min())), round(float(fair.max())))
        return [
            f"Of {len(balance.broker_ids):,} brokers, {', and '.join(parts)} their fair share of"
            f" replicas, which is {range_}."
        ] * bool(parts)

    def _beyond_average(self, load: str) -> list[str]:
        values, ids = self._balance.loads[load], self._balance.broker_ids
        mean = float(values.mean())
        over = _beyond(values / (mean or 1.0), is_over=True)
        names = [f"broker {ids[b]}: {int(values[b]):,}" for b in over]
        have = counted(len(over), "broker has", "brokers have")
        return [
            f"{have} more than {OVERLOAD} times the average number of {load}, {shown(mean)}"
            f" ({listed(names)})."
        ] * bool(over)

    def _held(self, broker: int) -> str:
        held = int(self._balance.loads["replicas"][broker])
        return f"broker {self._balance.broker_ids[broker]}: {held:,}"

    def _change_factor(self, purpose: str, factor: int, topics: Sequence[str]) -> None:
        named = " ".join(f"--topics {shlex.quote(topic)}" for topic in topics[:_TOPICS])
        self._plan(purpose, f"replication-factor --factor {factor} {named}")

    def _plan(self, purpose: str, goal: str) -> None:
        self.remedies += plan_remedies(purpose, goal, self._options)


def missing_brokers(broker_ids: Sequence[int], options: Mapping[str, Any]) -> str:
    """Say that brokers with replicas cannot be used."""
    where = "registered" if options["assignment"] == ZOOKEEPER else "in --brokers"
    names = listed([str(broker_id) for broker_id in broker_ids])
    return (
        f"Broker {names} is not {where}"
        if len(broker_ids) == 1
        else f"Brokers {names} are not {where}"
    )


def plan_remedies(purpose: str, goal: str, options: Mapping[str, Any]) -> list[Remedy]:
    """Return a command that plans for ``goal``, and in a running cluster one that executes it."""
    is_running = options["assignment"] == ZOOKEEPER
    given = dict(options)
    if given["brokers"] is None:
        given["brokers"] = ZOOKEEPER if is_running else "brokers.json"
        if not is_running:
            purpose += ", once brokers.json lists the brokers to use, such as [0, 1, 2]"
    target = f"{goal.split()[0]}-plan"
    line = command_line(f"jobs plan {goal} --out {target}", given, *_PLAN)
    execute = command_line(f"jobs plan execute {target}", given, *CLUSTER)
    return [Remedy(purpose, line), *[Remedy("Then, to carry it out", execute)] * is_running]


def _named(topics: Sequence[str]) -> str:
    return listed(topics[:_TOPICS]) + (" …" if len(topics) > _TOPICS else "")
