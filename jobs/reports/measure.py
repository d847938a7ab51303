"""Measures an assignment: Spark counts, and the driver gets sums of brokers and a few names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import NO_LEADER
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.fair_share import Groups, fair_share, group_limits, nested
from regent.jobs.planning.selection import hosts_of
from regent.jobs.reports.balance import (
    Balance,
    Counts,
    Found,
    Leaders,
    Racks,
    Shares,
)

_UNKNOWN: Final = -2
_NAMED_PARTITIONS: Final = 10
_NAMED_TOPICS: Final = 100

_HELD: Final = """
SELECT broker, count(*) AS replicas, count_if(position = 0) AS preferred,
  count_if(NOT array_contains(isr, broker)
           AND NOT coalesce(array_contains(adding_replicas, broker), false)) AS out_of_sync
FROM {assignment} LATERAL VIEW posexplode(replicas) AS position, broker
GROUP BY broker"""

# The broker -2 has the partitions whose leader is unknown, and -1 leads those without a leader.
_LED: Final = """
SELECT broker, sum(preferred) AS preferred, sum(not_led) AS not_led, sum(electable) AS electable,
  sum(leading) AS leading
FROM (SELECT replicas[0] AS first, leader,
        coalesce(array_contains(isr, replicas[0]), true) AS may_lead, count(*) AS n
      FROM {assignment} GROUP BY ALL)
LATERAL VIEW stack(2,
  if(leader IS NULL, -2, first), n, if(leader = first, 0L, n),
  if(leader = first OR leader < 0 OR NOT may_lead, 0L, n), 0L,
  coalesce(leader, -2), 0L, 0L, 0L, n) AS broker, preferred, not_led, electable, leading
GROUP BY broker"""

# ``known`` replicas are in a rack that can take some, and ``housed`` ones on such a host, if any is
# shared; ``rack`` is -1 unless one rack has all.
_IN_RACKS: Final = """
SELECT topic, factor, array_size(known) AS known, array_size(array_distinct(known)) AS spread,
  array_size(hosts) AS housed, array_size(array_distinct(hosts)) AS apart,
  if(factor > 0 AND array_min(racks) = array_max(racks), racks[0], -1) AS rack
FROM (SELECT topic, array_size(replicas) AS factor, racks, KNOWN AS known, HOSTS AS hosts
      FROM (SELECT topic, replicas, transform(replicas, b -> RACK_OF[b % {modulus}]) AS racks
            FROM {assignment}))"""

_STATES: Final = {
    "leaderless": "leader = -1",
    "under_min_isr": "NOT leader <=> -1 AND array_size(isr) < min_isr"
    " AND array_size(isr) < array_size(replicas)",
    "under_replicated": "array_size(isr)"
    " < array_size(replicas) - coalesce(array_size(adding_replicas), 0)",
}

_SHAPE: Final = ("factor", "known", "spread", "housed", "apart", "rack")
_FEWEST: Final = "min(coalesce(array_size(isr), array_size(replicas)))"


def measure(
    spark: SparkSession,
    frame: DataFrame,
    listed: Sequence[PlannedBroker] = (),
) -> Balance:
    """Measure a valid ``assignment_frame``; ``listed`` brokers may hold no replica.

    Those that take none count only if they have some.
    """
    held = _by_broker(spark, _HELD, frame)
    led = _by_broker(spark, _LED, frame)
    unknown, leaderless = (led.pop(b, {}).get("leading", 0) for b in (_UNKNOWN, NO_LEADER))
    takers = [b for b in listed if not b.no_replicas]
    ids = sorted({*held, *led, *(b.broker_id for b in takers)})
    listed = [b for b in listed if b.broker_id in ids]

    def column(rows: Mapping[int, Mapping[str, int]], name: str) -> Counts:
        return np.array([rows.get(b, {}).get(name, 0) for b in ids], np.int64)

    loads = {"replicas": column(held, "replicas")}
    loads["preferred leaders"] = column(held, "preferred")
    partitions = int(loads["preferred leaders"].sum())
    leaders = None
    if partitions > unknown:
        loads["leaders"] = column(led, "leading")
        preferred, not_led = column(led, "preferred"), column(led, "not_led")
        of_leaders = preferred, not_led, column(led, "electable"), loads["leaders"]
        leaders = Leaders(*of_leaders, leaderless, unknown)
    racks = _racks(ids, listed)
    hosts = hosts_of(listed, ids)
    in_racks = _in_racks(spark, frame, ids, (racks, hosts), takers or listed)
    shapes = in_racks.drop("topic").groupBy(*_SHAPE).count().toArrow().to_pylist()
    factors, lost = _by_factor_and_rack(shapes, len(racks.names))
    has_together = len(racks.names) > 1 and bool(lost.any())
    return Balance(
        np.array(ids, np.int64),
        loads,
        _fair_shares(ids, loads["replicas"], (racks, hosts), takers, shapes),
        racks,
        factors,
        lost,
        leaders,
        _states(frame),
        column(held, "out_of_sync"),
        _topics(in_racks, "factor = 1") if factors[1] else Found(),
        _topics(in_racks, "factor > 1 AND rack >= 0") if has_together else Found(),
        frozenset(b.broker_id for b in listed if b.no_replicas),
        frame.agg(F.expr(_FEWEST)).toArrow()[0].to_pylist()[0],
    )


def _by_factor_and_rack(
    shapes: Sequence[Mapping[str, int]], racks: int
) -> tuple[Counter[int], Counts]:
    """Count partitions by replication factor, and for each rack those that are lost with it."""
    factors, lost = Counter[int](), np.zeros(racks, np.int64)
    for shape in shapes:
        factors[shape["factor"]] += shape["count"]
        if shape["rack"] >= 0:
            lost[shape["rack"]] += shape["count"]
    return factors, lost


def _by_broker(spark: SparkSession, query: str, frame: DataFrame) -> dict[int, dict[str, int]]:
    rows = spark.sql(query, assignment=frame).toArrow().to_pylist()
    return {row.pop("broker"): row for row in rows}


def _states(frame: DataFrame) -> dict[str, Found]:
    """Count the partitions in each bad state, and name the first ones."""
    totals = frame.agg(*(F.count_if(F.expr(sql)).alias(name) for name, sql in _STATES.items()))
    found = {}
    for name, total in totals.toArrow().to_pylist()[0].items():
        names = []
        if total:
            some = frame.filter(_STATES[name]).select("topic", "partition")
            first = some.orderBy("topic", "partition").limit(_NAMED_PARTITIONS).toArrow()
            names = [f"{row['topic']}-{row['partition']}" for row in first.to_pylist()]
        found[name] = Found(total, names)
    return found


def _topics(in_racks: DataFrame, condition: str) -> Found:
    """Count the partitions, and name the topics that have the most of them."""
    by_topic = in_racks.filter(condition).groupBy("topic").count()
    [totals] = by_topic.agg(F.sum("count").alias("n"), F.count("*").alias("topics")).collect()
    most = by_topic.orderBy(F.desc("count"), "topic").limit(_NAMED_TOPICS).toArrow()
    return Found(totals["n"] or 0, most["topic"].to_pylist(), totals["topics"])


# --- racks ----------------------------------------------------------------------------------------


def _racks(ids: Sequence[int], listed: Sequence[PlannedBroker]) -> Racks:
    """Number the racks, sorted by name."""
    rack_by_id = {broker.broker_id: broker.rack for broker in listed}
    names = tuple(sorted({rack for rack in rack_by_id.values() if rack is not None}))
    number: dict[str | None, int] = {rack: position for position, rack in enumerate(names)}
    return Racks(names, np.array([number.get(rack_by_id.get(b), -1) for b in ids], np.int32))


def _in_racks(
    spark: SparkSession,
    frame: DataFrame,
    ids: Sequence[int],
    groups: tuple[Racks, Sequence[int]],
    takers: Sequence[PlannedBroker],
) -> DataFrame:
    """Return topic, factor, and in which racks the replicas are, of each partition."""
    modulus = next(m for m in count(len(ids)) if len({b % m for b in ids}) == len(ids))

    def places(numbers: Sequence[int]) -> list[int]:
        found = [-1] * modulus
        for broker_id, number in zip(ids, numbers, strict=True):
            found[broker_id % modulus] = number
        return found

    def of_takers(name: str, numbers: Sequence[int]) -> str:
        taken = {numbers[broker.broker_id % modulus] for broker in takers}
        for number in {-1, *numbers} - (taken - {-1}):
            name = f"array_remove({name}, {number})"
        return name

    racks, hosts = places(groups[0].of_broker.tolist()), places(groups[1] or [-1] * len(ids))
    on_hosts = f"transform(replicas, b -> {_array(hosts)}[b % {modulus}])"
    query = _IN_RACKS.replace("RACK_OF", _array(racks)).replace("KNOWN", of_takers("racks", racks))
    query = query.replace("HOSTS", of_takers(on_hosts, hosts) if groups[1] else "array()")
    return spark.sql(query, assignment=frame, modulus=modulus)


def _array(numbers: Sequence[int]) -> str:
    return f"array({','.join(map(str, numbers))})"


def _fair_shares(
    ids: Sequence[int],
    replicas: Counts,
    groups: tuple[Racks, Sequence[int]],
    listed: Sequence[PlannedBroker],
    shapes: Sequence[Mapping[str, int]],
) -> Shares:
    """Return the fair share of replicas of each broker, as ``regent jobs plan rebalance`` has it.

    Brokers that are not ``listed`` have none (NaN), unless no broker is listed. Racks count if all
    listed brokers have one, and hosts if some brokers share one.
    """
    racks, hosts = groups
    by_id = {broker.broker_id: broker for broker in listed}
    usable = [position for position, b in enumerate(ids) if not listed or b in by_id]
    held = int(replicas[usable].sum())
    found = (by_id.get(ids[position]) for position in usable)
    most = [held if b is None or b.capacity is None else b.capacity for b in found]

    def limited(of_broker: Sequence[int], held: str, spread: str) -> Groups:
        counts, beside = Counter[tuple[int, int]](), Counter[int]()
        for position in {*range(len(ids))} - {*usable}:
            beside[of_broker[position]] -= int(replicas[position])
        for shape in shapes:
            counts[shape[held], shape[spread]] += shape["count"]
        of_usable = [of_broker[position] for position in usable]
        return Groups(of_usable, group_limits(counts, of_usable, beside))

    tiers = []
    if (racks.of_broker[usable] >= 0).all():
        tiers.append(limited(racks.of_broker.tolist(), "known", "spread"))
    if hosts:
        tiers.append(limited(hosts, "housed", "apart"))
    tiers = nested([tier for tier in tiers if len(tier.limits) > 1])
    shares = np.full(len(ids), np.nan)
    low_and_high = fair_share([0] * len(usable), most, tiers, held)
    shares[usable] = np.mean(low_and_high, axis=0)
    return shares
