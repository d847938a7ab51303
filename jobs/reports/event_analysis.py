"""The analysis of the table of the controllers' events.

Each query reads few columns of the table once. Its groups are few, so Python makes the rest.
Percentiles are of sketches (KLL): exact up to some thousands of values, then within 0.1 % of rank.

A journal names the first few changes of an event and counts the others, so results about partitions
and ISRs are about the *named* changes. Times are wall clocks of the brokers' machines; a term has
one broker and so one clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.jobs.reports.event_terms import (
    Groups,
    Rows,
    distribution,
    slowest_brokers,
    terms_of_controllers,
    to_us,
)

_SKETCH: Final = 4000  # values that it keeps at least
_MINUTE_MS: Final = 60_000
_MAX_BUCKETS: Final = 120  # Spark would sort the events for more groups with percentiles
_LEAST_BUCKET_MS: Final = 100

_GROUPS: Final = (
    "count(*) AS events",
    "min(ts_ms) AS first_ms",
    "max(ts_ms) AS last_ms",
    "max(ts_ms + handling_ms) AS handled_ms",
    "min(ts_ms - queue_ms) AS arrived_ms",
    "sum(named_changes) AS named_changes",
    "sum(change_count) AS changes",
)
_LEADERSHIP: Final = (
    "count(*) AS times",
    "count_if(leader <> leader_before) AS leader_changes",
    "count_if(leader = -1 AND leader_before <> -1) AS times_leaderless",
    "min(leader_epoch) AS first_epoch",
    "max(leader_epoch) AS last_epoch",
)
_PARTITION: Final = (
    "sum(leader_changes) AS leader_changes",
    "sum(times_leaderless) AS times_leaderless",
    "coalesce(max(last_epoch) - min(first_epoch), 0) AS leader_epochs",
    "sum(IF(size(isr_left) > 0, times, 0)) AS isr_shrinks",
    "sum(IF(size(isr_joined) > 0, times, 0)) AS isr_expands",
)


def analyse_events(events: DataFrame, *, top: int) -> dict[str, Any]:
    """Analyse events; of partitions, minutes and single events return the ``top`` first.

    ``events`` are those of ``event_journals``; without any the result is empty. Times end in
    ``_ms``: moments since the epoch, or durations; distributions are {p50, p95, p99, max}.
    """
    rows = _rows(_grouped(events, ("broker_id", "controller_epoch", "event", "broker"), _GROUPS))
    if not rows:
        return {}
    first_ms = min(row["first_ms"] for row in rows)
    last_ms = max(row["last_ms"] for row in rows)
    bucket_ms = max(_LEAST_BUCKET_MS, (last_ms - first_ms) // (_MAX_BUCKETS - 2) + 1)
    groups = Groups(rows, _rows(_elections(events)), _rows(_comings_and_goings(events)))
    answers = _grouped(
        events.filter("answered_ms IS NOT NULL"), ("broker",), (_percentiles("answered_ms"),)
    )
    named_changes, changes = (sum(row[n] for row in rows) for n in ("named_changes", "changes"))
    return {
        "events": sum(row["events"] for row in rows),
        "first_ms": first_ms,
        "last_ms": last_ms,
        "brokers": sorted({row["broker_id"] for row in rows}),
        "named_changes": named_changes,
        "unnamed_changes": changes - named_changes,
        "latencies": _rows(_latencies(events)),
        "terms": terms_of_controllers(groups),
        **_partitions(events, groups, top),
        "slowest_brokers": slowest_brokers(groups, _rows(answers)),
        "busiest_minutes": _rows(_busiest_minutes(events, top)),
        "slowest_events": _rows(_slowest(events, top)),
        "bucket_ms": bucket_ms,
        "over_time": _rows(_over_time(events, bucket_ms)),
    }


def _latencies(events: DataFrame) -> DataFrame:
    latencies = ("count(*) AS count", _percentiles("handling_ms"), _percentiles("queue_ms"))
    return _grouped(events, ("event",), latencies).orderBy(F.desc("count"), "event")


def _elections(events: DataFrame) -> DataFrame:
    """Return the events with which terms begin or end."""
    columns = ("elected", "resigned", "broker_id", "ts_ms", "event", "queue_ms", "handling_ms")
    ends = events.filter("elected IS NOT NULL OR resigned IS NOT NULL")
    return ends.selectExpr(*columns, "change_count - 1 AS changes")


def _comings_and_goings(events: DataFrame) -> DataFrame:
    both = events.selectExpr("controller_epoch", "ts_ms", _brokers_that("started", "failed"))
    keys = ("controller_epoch", "broker", "did")
    return _grouped(both, keys, ("count(*) AS times", "min(ts_ms) AS first_ms"))


def _in_buckets(events: DataFrame, bucket_ms: int, *waits: str) -> DataFrame:
    start = F.expr(f"ts_ms - ts_ms % {bucket_ms}").alias("start_ms")
    sums = ("count(*) AS events", "sum(change_count) AS changes", "sum(handling_ms) AS handling_ms")
    return events.groupBy(start).agg(*map(F.expr, (*sums, *waits)))


def _over_time(events: DataFrame, bucket_ms: int) -> DataFrame:
    return _in_buckets(events, bucket_ms, _percentiles("queue_ms")).orderBy("start_ms")


def _busiest_minutes(events: DataFrame, top: int) -> DataFrame:
    minutes = _in_buckets(events, _MINUTE_MS, "max(queue_ms) AS longest_wait_ms")
    return minutes.orderBy(F.desc("events"), "start_ms").limit(top)


def _slowest(events: DataFrame, top: int) -> DataFrame:
    columns = ("ts_ms", "broker_id", "controller_epoch", "event", "cause", "queue_ms")
    events = events.select(*columns, "handling_ms", F.col("change_count").alias("changes"))
    return events.orderBy(F.desc("handling_ms"), "ts_ms", "broker_id").limit(top)


def _partitions(events: DataFrame, groups: Groups, top: int) -> dict[str, Rows]:
    """Count the changes of partitions, and in ``groups`` those of brokers in ISRs."""
    name = ("topic", "partition")
    by_change = events.selectExpr("inline(partitions)").selectExpr(
        "*",
        "array_except(isr_before, isr) AS isr_left",
        "array_except(isr, isr_before) AS isr_joined",
    )
    changes = _grouped(by_change, (*name, "isr_left", "isr_joined"), _LEADERSHIP)
    changes.persist(StorageLevel.DISK_ONLY)
    members = changes.selectExpr("times", _brokers_that("isr_left", "isr_joined"))
    groups.add_times(_rows(_grouped(members, ("broker", "did"), ("sum(times) AS times",))))
    partitions = _grouped(changes, name, _PARTITION)
    churn = partitions.drop("isr_shrinks", "isr_expands").filter("leader_changes > 0")
    churn = churn.orderBy(F.desc("leader_changes"), F.desc("leader_epochs"), *name)
    flapping = partitions.select(*name, "isr_shrinks", "isr_expands")
    flapping = flapping.filter("isr_shrinks + isr_expands > 0")
    flapping = flapping.orderBy(F.expr("isr_shrinks + isr_expands").desc(), *name)
    found = {
        "leader_churn": _rows(churn.limit(top)),
        "isr_flapping": _rows(flapping.limit(top)),
    }
    changes.unpersist()
    return found


def _brokers_that(*did: str) -> str:
    """Return the SQL of rows (broker, did) for the brokers in the lists with these names."""
    lists = (
        f"transform(coalesce({name}, array()), b -> struct(b AS broker, '{name}' AS did))"
        for name in did
    )
    return f"inline(concat({', '.join(lists)}))"


def _grouped(frame: DataFrame, keys: Sequence[str], results: Sequence[str]) -> DataFrame:
    return frame.groupBy(*keys).agg(*map(F.expr, results))


def _percentiles(column: str) -> str:
    sketch = f"kll_sketch_agg_double({column}, {_SKETCH})"
    return f"kll_sketch_get_quantile_double({sketch}, array(0.5D, 0.95D, 0.99D, 1D)) AS {column}"


def _rows(frame: DataFrame) -> Rows:
    return [
        {
            name: distribution(value) if isinstance(value, list) else to_us(value)
            for name, value in row.items()
        }
        for row in frame.toArrow().to_pylist()
    ]
