"""The analysis of the controllers' events: Spark counts, the driver gets a few rows.

A journal names the first few changes of an event and counts the others, so results about partitions
and ISRs are about the *named* changes. Times are wall clocks of the brokers' machines; a term has
one broker and so one clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame

from regent.core.model import BrokerId

Rows = list[dict[str, Any]]
Updated = Mapping[int, dict[BrokerId, float]]
"""By controller epoch and broker: the time of its first answer to a LeaderAndIsr.

The first one in a term names everything the broker hosts. Brokers that started during the term, and
were told later, are not in it.
"""

PERCENTILES: Final = ("p50", "p95", "p99", "max")
_SHARES: Final = (0.5, 0.95, 0.99, 1.0)
_START: Final = "Startup"  # the trigger of an election of which no controller was the cause
_COUNTED: Final = (
    *("events", "terms", "answers", "isr_proposals", "isr_left", "isr_joined"),
    *("started", "failed", "shutdowns", "troubles"),
)
RESTLESS: Final = 5
"""So often must an ISR shrink or a broker fail to do it again and again."""
_CHURN: Final = ("topic", "partition", "leader_changes", "times_leaderless", "leader_epochs")
_FLAPPING: Final = ("topic", "partition", "isr_shrinks", "isr_expands")
_ELECTION: Final = (
    *("trigger", "noticed_ms", "vacant_ms", "elected_ms", "announced_ms", "updated_ms"),
    *("brokers_updated", "takeover_ms", "failover_ms", "changes"),
)
_MINUTE_MS: Final = 60_000
_MAX_BUCKETS: Final = 120
_LEAST_BUCKET_MS: Final = 100

# --- what Spark counts ----------------------------------------------------------------------------

_TERMS: Final = """
SELECT controller_epoch, broker_id, count(*) AS events, min(ts_ms) AS first_ms,
  max(ts_ms) AS last_event_ms, max(ts_ms + handling_ms) AS last_ms, sum(change_count) AS changes,
  sum(named_changes) AS named_changes
FROM {events} GROUP BY ALL ORDER BY controller_epoch"""

_ELECTIONS: Final = """
SELECT elected, resigned, ts_ms, event, queue_ms, handling_ms, change_count AS changes
FROM {events} WHERE elected IS NOT NULL OR resigned IS NOT NULL"""

_KINDS: Final = """
SELECT event, count(*) AS count, approx_percentile(handling_ms, {shares}) AS handling_ms,
  approx_percentile(queue_ms, {shares}) AS queue_ms
FROM {events} GROUP BY event ORDER BY count DESC, event"""

# What each broker did, and what happened to it.
_BROKERS: Final = """
SELECT broker AS broker_id, approx_percentile(answered_ms, {shares}) AS answered_ms,
  count_if(event IN ('LeaderAndIsrResponseReceived', 'UpdateMetadataResponseReceived',
    'TopicDeletionStopReplicaResponseReceived')) AS answers,
  count_if(event = 'AlterPartitionReceived') AS isr_proposals,
  count_if(event = 'ControlledShutdown') AS shutdowns,
  count_if(event IN ('ControlledShutdownAbandoned', 'ChannelOverflowed', 'BrokerUnusable',
    'ControlRequestFailed')) AS troubles
FROM {events} WHERE broker IS NOT NULL GROUP BY broker"""

_HAPPENED: Final = """
SELECT controller_epoch, did, broker, count(*) AS times, min(at_ms) AS first_ms
FROM (
  SELECT controller_epoch, ts_ms - queue_ms AS at_ms, 'told' AS did, broker FROM {events}
    WHERE event = 'LeaderAndIsrResponseReceived' AND broker IS NOT NULL UNION ALL
  SELECT controller_epoch, ts_ms, 'started', explode(started) FROM {events} UNION ALL
  SELECT controller_epoch, ts_ms, 'failed', explode(failed) FROM {events} UNION ALL
  SELECT controller_epoch, ts_ms, 'isr_left', explode(array_except(p.isr_before, p.isr))
    FROM {events} LATERAL VIEW explode(partitions) AS p UNION ALL
  SELECT controller_epoch, ts_ms, 'isr_joined', explode(array_except(p.isr, p.isr_before))
    FROM {events} LATERAL VIEW explode(partitions) AS p)
GROUP BY controller_epoch, did, broker"""

_PARTITIONS: Final = """
SELECT p.topic, p.partition, count_if(p.leader <> p.leader_before) AS leader_changes,
  count_if(p.leader <> p.leader_before AND p.leader = -1) AS times_leaderless,
  count_if(size(array_except(p.isr_before, p.isr)) > 0) AS isr_shrinks,
  count_if(size(array_except(p.isr, p.isr_before)) > 0) AS isr_expands,
  max(p.leader_epoch) - min(p.leader_epoch) AS leader_epochs
FROM {events} LATERAL VIEW explode(partitions) AS p
GROUP BY p.topic, p.partition ORDER BY p.topic, p.partition"""

_IN_TIME: Final = """
SELECT ts_ms DIV {length} * {length} AS start_ms, count(*) AS events,
  sum(change_count) AS changes, sum(handling_ms) AS handling_ms, {wait}
FROM {events} GROUP BY ts_ms DIV {length} ORDER BY {order}"""

_SLOWEST: Final = """
SELECT ts_ms, broker_id, controller_epoch, event, cause, queue_ms, handling_ms,
  change_count AS changes
FROM {events} ORDER BY handling_ms DESC, ts_ms, broker_id LIMIT {top}"""


def _counted(query: str, events: DataFrame, **parts: Any) -> Rows:
    """Return the rows of a query, durations in whole microseconds, distributions by percentile."""
    texts = {"shares": f"array{_SHARES}, 10000", "events": "{events}"} | parts
    found = events.sparkSession.sql(query.format(**texts), events=events).toArrow().to_pylist()
    return [{name: _to_us(value) for name, value in row.items()} for row in found]


def _to_us(value: Any) -> Any:
    """Round a float to three digits: milliseconds to microseconds."""
    if isinstance(value, list):
        return dict(zip(PERCENTILES, map(_to_us, value), strict=True))
    return round(value, 3) if isinstance(value, float) else value


def analyse_events(events: DataFrame, *, top: int) -> dict[str, Any]:
    """Analyse events, at least one; of partitions, minutes and single events return the ``top``.

    Times end in ``_ms``: moments since the epoch, or durations; distributions are {p50, p95, p99,
    max}, by a share of events that is a ten-thousandth wrong at most.
    """
    groups = _counted(_TERMS, events)
    happened = _counted(_HAPPENED, events)
    named_changes, changes = (sum(row[n] for row in groups) for n in ("named_changes", "changes"))
    first_ms, last_ms = min(r["first_ms"] for r in groups), max(r["last_event_ms"] for r in groups)
    partitions = _counted(_PARTITIONS, events)
    updated = _updated(happened)
    terms = _terms(groups, _counted(_ELECTIONS, events), updated)
    changed = [row for row in partitions if row["leader_changes"]]
    leaderless = [row for row in partitions if row["times_leaderless"]]
    flapping = [row for row in partitions if row["isr_shrinks"] or row["isr_expands"]]
    return {
        "events": sum(row["events"] for row in groups),
        "first_ms": first_ms,
        "last_ms": last_ms,
        "brokers": sorted({row["broker_id"] for row in groups}),
        "named_changes": named_changes,
        "unnamed_changes": changes - named_changes,
        "latencies": _counted(_KINDS, events),
        "terms": terms,
        "leader_churn": _worst(changed, ("leader_changes", "leader_epochs"), _CHURN)[:top],
        "leaderless_partitions": len(leaderless),
        "leaderless": _worst(leaderless, ("times_leaderless", "leader_changes"), _CHURN)[:top],
        "restless_isrs": sum(row["isr_shrinks"] >= RESTLESS for row in partitions),
        "isr_flapping": _worst(flapping, ("isr_shrinks", "isr_expands"), _FLAPPING)[:top],
        "slowest_brokers": _slowest_brokers(
            groups, _counted(_BROKERS, events), happened, terms, updated
        ),
        **_over_time(events, first_ms, last_ms, top),
        "slowest_events": _counted(_SLOWEST, events, top=top),
    }


def _over_time(events: DataFrame, first_ms: int, last_ms: int, top: int) -> dict[str, Any]:
    """Return what was handled in the busiest minutes, and in buckets from the first event on."""
    bucket_ms = _LEAST_BUCKET_MS
    while last_ms // bucket_ms - first_ms // bucket_ms >= _MAX_BUCKETS:
        bucket_ms *= 2
    wait, order = "max(queue_ms) AS longest_wait_ms", f"events DESC, start_ms LIMIT {top}"
    minutes = _counted(_IN_TIME, events, length=_MINUTE_MS, wait=wait, order=order)
    wait = f"approx_percentile(queue_ms, array{_SHARES}, 10000) AS queue_ms"
    buckets = _counted(_IN_TIME, events, length=bucket_ms, wait=wait, order="start_ms")
    return {"busiest_minutes": minutes, "bucket_ms": bucket_ms, "over_time": buckets}


# --- terms ----------------------------------------------------------------------------------------


def _terms(groups: Rows, elections: Rows, updated: Updated) -> Rows:
    """Return one row a term, sorted by epoch, with the phases of its failover.

    An election is a failover if there was a controller before: not when the cluster starts.
    ``vacant_ms`` is the time without a controller before: from when the former one resigned until
    this one was elected. If the former one failed, its last event is all that is known of it:
    ``vacant_at_most_ms`` counts from there. ``has_failed``: the controller did not resign, and
    another one was elected, which noticed it at ``missed_ms``. Unknown values, such as an election
    before the journals begin, are None.
    """
    elected = {row["elected"]: row for row in elections if row["elected"]}
    resigned_ms = {row["resigned"]: row["ts_ms"] for row in elections if row["resigned"]}
    by_epoch: defaultdict[int, Rows] = defaultdict(list)
    for row in groups:
        by_epoch[row["controller_epoch"]].append(row)
    last = max(by_epoch, default=0)
    terms: Rows = [
        {
            "controller_epoch": epoch,
            "broker_id": rows[0]["broker_id"],
            **_election(elected.get(epoch), updated[epoch], resigned_ms.get(epoch - 1)),
            "vacant_at_most_ms": None,
            "events": sum(row["events"] for row in rows),
            "first_ms": min(row["first_ms"] for row in rows),
            "last_ms": max(row["last_ms"] for row in rows),
            "resigned_ms": resigned_ms.get(epoch),
            "has_failed": epoch not in resigned_ms and epoch != last,
            "missed_ms": None,
        }
        for epoch, rows in sorted(by_epoch.items())
        if epoch
    ]
    for former, term in pairwise(terms):
        is_next = former["controller_epoch"] + 1 == term["controller_epoch"]
        if former["has_failed"] and is_next and term["elected_ms"] is not None:
            former["missed_ms"] = max(term["noticed_ms"], former["last_ms"])
            term["vacant_at_most_ms"] = _to_us(max(0.0, term["elected_ms"] - former["last_ms"]))
    return terms


def _election(
    row: Mapping[str, Any] | None, updated: Mapping[BrokerId, float], resigned_ms: int | None
) -> dict[str, Any]:
    """Return what is known of an election; ``resigned_ms``: when the controller before resigned."""
    if row is None:
        return dict.fromkeys(_ELECTION)
    elected_ms, handling_ms = row["ts_ms"], row["handling_ms"]
    noticed_ms = elected_ms - row["queue_ms"]
    is_failover = row["elected"] > 1 and row["event"] != _START
    updated_ms = max(updated.values(), default=None)
    vacant_ms = failover_ms = None
    # A paused controller resigns after the next election.
    if is_failover and resigned_ms is not None and resigned_ms <= elected_ms:
        vacant_ms = elected_ms - min(noticed_ms, resigned_ms)
    if is_failover and updated_ms is not None:
        failover_ms = updated_ms - noticed_ms
    return {
        "trigger": row["event"],
        "noticed_ms": _to_us(noticed_ms),
        "vacant_ms": _to_us(vacant_ms),
        "elected_ms": elected_ms,
        "announced_ms": _to_us(elected_ms + handling_ms),
        "updated_ms": updated_ms,
        "brokers_updated": len(updated),
        "takeover_ms": handling_ms,
        "failover_ms": _to_us(failover_ms),
        "changes": row["changes"] - 1,  # one is the election
    }


def _updated(happened: Rows) -> Updated:
    found: defaultdict[int, dict[BrokerId, float]] = defaultdict(dict)
    for row in happened:
        if row["did"] == "told":
            found[row["controller_epoch"]][row["broker"]] = row["first_ms"]
    for row in happened:
        updated, broker_id = found[row["controller_epoch"]], row["broker"]
        if row["did"] == "started" and row["first_ms"] <= updated.get(broker_id, -1):
            del updated[broker_id]
    return found


# --- brokers --------------------------------------------------------------------------------------


def _slowest_brokers(
    groups: Rows, of_brokers: Rows, happened: Rows, terms: Rows, updated: Updated
) -> Rows:
    """Return one row a broker, the slowest to answer controllers first.

    ``answered_ms`` counts from when a request was first sent, ``updated_after_ms`` from when the
    new controller of a failover had sent to every broker; None if unknown.
    """
    times = Counter((row["broker_id"], "terms") for row in terms if row["elected_ms"] is not None)
    for row in groups:
        times[row["broker_id"], "events"] += row["events"]
    for row in happened:
        times[row["broker"], row["did"]] += row["times"]
    told = {row["broker_id"]: row for row in of_brokers}
    waited: defaultdict[BrokerId, list[float]] = defaultdict(list)
    for term in terms:
        if term["failover_ms"] is not None:
            for broker_id, ms in updated[term["controller_epoch"]].items():
                waited[broker_id].append(max(0.0, ms - term["announced_ms"]))
    rows: Rows = [
        {
            "broker_id": broker_id,
            **{did: times[broker_id, did] for did in _COUNTED},
            "answered_ms": None,
            **told.get(broker_id, {}),
            "failovers": len(waited[broker_id]),
            "updated_after_ms": _percentiles(waited[broker_id]),
        }
        for broker_id in {broker_id for broker_id, _ in times} | told.keys()
    ]
    return sorted(rows, key=_slowness, reverse=True)


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.quantile(values, _SHARES, method="inverted_cdf")
    return dict(zip(PERCENTILES, map(_to_us, found.tolist()), strict=True))


def _slowness(row: Mapping[str, Any]) -> tuple[float, float, int]:
    answered_ms, updated_after_ms = row["answered_ms"], row["updated_after_ms"]
    return (
        answered_ms["p95"] if answered_ms else -1.0,
        updated_after_ms["p50"] if updated_after_ms else -1.0,
        -row["broker_id"],
    )


def _worst(partitions: Rows, by: Sequence[str], names: Sequence[str]) -> Rows:
    """Return some fields of all rows, those with the highest values of ``by`` first."""
    ordered = sorted(partitions, key=lambda row: [-row[name] for name in by])
    return [{name: row[name] for name in names} for row in ordered]
