"""The analysis of the controllers' events, from the tables of ``jobs.reports.event_parts``.

The driver has these tables in memory; they have few rows. A journal names the first few changes of
an event and counts the others, so results about partitions and ISRs are about the *named* changes.
Times are wall clocks of the brokers' machines; a term has one broker and so one clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from regent.core.model import BrokerId
from regent.jobs.reports.event_parts import Parts, bucket_of

Rows = list[dict[str, Any]]
Updated = Mapping[int, dict[BrokerId, float]]
"""By controller epoch and broker: the time of its first answer to a LeaderAndIsr.

The first one in a term names everything the broker hosts. Brokers that started during the term, and
were told later, are not in it.
"""

PERCENTILES: Final = ("p50", "p95", "p99", "max")
_SHARES: Final = (0.5, 0.95, 0.99, 1.0)
_START: Final = "Startup"  # the trigger of an election of which no controller was the cause
_TOLD: Final = "LeaderAndIsrResponseReceived"
_KINDS: Final = {
    _TOLD: "answers",
    "UpdateMetadataResponseReceived": "answers",
    "TopicDeletionStopReplicaResponseReceived": "answers",
    "AlterPartitionReceived": "isr_proposals",
    "ControlledShutdown": "shutdowns",
    "ControlledShutdownAbandoned": "troubles",
    "ChannelOverflowed": "troubles",
    "BrokerUnusable": "troubles",
    "ControlRequestFailed": "troubles",
}
"""What events count for the broker that they are about."""
_COUNTED: Final = (
    *("events", "terms", "answers", "isr_proposals", "isr_left", "isr_joined"),
    *("started", "failed", "shutdowns", "troubles"),
)
_EPOCHS: Final = ("first_epoch", "last_epoch")
RESTLESS: Final = 5
"""So often must an ISR shrink or a broker fail to do it again and again."""
_CHURN: Final = ("topic", "partition", "leader_changes", "times_leaderless", "leader_epochs")
_FLAPPING: Final = ("topic", "partition", "isr_shrinks", "isr_expands")
_SUMS: Final = ("leader_changes", "times_leaderless", "isr_shrinks", "isr_expands")
_ELECTION: Final = (
    *("trigger", "noticed_ms", "vacant_ms", "elected_ms", "announced_ms", "updated_ms"),
    *("brokers_updated", "takeover_ms", "failover_ms", "changes"),
)
_NAMES: Final = {"change_count": "changes", "bucket_ms": "start_ms", "minute_ms": "start_ms"}
"""The names of results, by the columns of the tables."""


def analyse_events(whole: Parts, *, top: int) -> dict[str, Any]:
    """Analyse events; of partitions, minutes and single events return the ``top`` first.

    Times end in ``_ms``: moments since the epoch, or durations; distributions are {p50, p95, p99,
    max}.
    """
    groups = _rows(whole["groups"])
    named_changes, changes = (sum(row[n] for row in groups) for n in ("named_changes", "changes"))
    partitions = _partitions(whole["partitions"])
    updated = _updated(whole)
    terms = _terms(groups, _rows(whole["elections"]), updated)
    changed = [row for row in partitions if row["leader_changes"]]
    leaderless = [row for row in partitions if row["times_leaderless"]]
    flapping = [row for row in partitions if row["isr_shrinks"] or row["isr_expands"]]
    waits = _distributions(whole["waits"])
    buckets = [{**row, "queue_ms": waits[row["start_ms"]]} for row in _rows(whole["buckets"])]
    return {
        "events": sum(row["events"] for row in groups),
        "first_ms": min(row["ts_ms"] for row in groups),
        "last_ms": max(row["last_ms"] for row in groups),
        "brokers": sorted({row["broker_id"] for row in groups}),
        "named_changes": named_changes,
        "unnamed_changes": changes - named_changes,
        "latencies": _latencies(whole, groups),
        "terms": terms,
        "leader_churn": _worst(changed, ("leader_changes", "leader_epochs"), _CHURN)[:top],
        "leaderless_partitions": len(leaderless),
        "leaderless": _worst(leaderless, ("times_leaderless", "leader_changes"), _CHURN)[:top],
        "restless_isrs": sum(row["isr_shrinks"] >= RESTLESS for row in partitions),
        "isr_flapping": _worst(flapping, ("isr_shrinks", "isr_expands"), _FLAPPING)[:top],
        "slowest_brokers": _slowest_brokers(whole, terms, updated),
        "busiest_minutes": sorted(
            _rows(whole["minutes"]), key=lambda row: (-row["events"], row["start_ms"])
        )[:top],
        "slowest_events": _rows(whole["slowest"]),
        "bucket_ms": bucket_of(whole["buckets"]["bucket_ms"]),
        "over_time": sorted(buckets, key=itemgetter("start_ms")),
    }


def _rows(table: pa.Table) -> Rows:
    names = [_NAMES.get(name, name) for name in table.column_names]
    rows: Rows = table.rename_columns(names).to_pylist()
    return [{name: _to_us(value) for name, value in row.items()} for row in rows]


def _to_us(value: Any) -> Any:
    """Round a float to three digits: milliseconds to microseconds."""
    return round(value, 3) if isinstance(value, float) else value


def _distributions(counted: pa.Table) -> dict[Any, dict[str, float]]:
    """Return the percentiles of each key, from rows of (key, first digits, times, value)."""
    key, _, times, value = counted.column_names
    lists = counted.group_by(key).aggregate([(value, "list"), (times, "list")]).to_pylist()
    return {row[key]: _percentiles(row[f"{value}_list"], row[f"{times}_list"]) for row in lists}


def _percentiles(values: Sequence[float], times: Sequence[int] | None = None) -> dict[str, float]:
    """Return the percentiles of values that were seen so many ``times``; None: once."""
    found = np.quantile(values, _SHARES, weights=times, method="inverted_cdf")
    return dict(zip(PERCENTILES, map(_to_us, found.tolist()), strict=True))


def _latencies(whole: Parts, groups: Rows) -> Rows:
    counts = Counter[str]()
    for row in groups:
        counts[row["event"]] += row["events"]
    handling, queueing = _distributions(whole["handling"]), _distributions(whole["queueing"])
    return [
        {"event": e, "count": n, "handling_ms": handling[e], "queue_ms": queueing[e]}
        for e, n in sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    ]


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
            "first_ms": min(row["ts_ms"] for row in rows),
            "last_ms": max(row["handled_ms"] for row in rows),
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


def _updated(whole: Parts) -> Updated:
    found: defaultdict[int, dict[BrokerId, float]] = defaultdict(dict)
    for row in _rows(whole["groups"]):
        if row["event"] == _TOLD and row["broker"] is not None:
            found[row["controller_epoch"]][row["broker"]] = row["arrived_ms"]
    for row in _rows(whole["comings"]):
        updated, broker_id = found[row["controller_epoch"]], row["broker"]
        if row["did"] == "started" and row["ts_ms"] <= updated.get(broker_id, -1):
            del updated[broker_id]
    return found


# --- brokers --------------------------------------------------------------------------------------


def _slowest_brokers(whole: Parts, terms: Rows, updated: Updated) -> Rows:
    """Return one row a broker, the slowest to answer controllers first.

    ``answered_ms`` counts from when a request was first sent, ``updated_after_ms`` from when the
    new controller of a failover had sent to every broker; None if unknown.
    """
    times, answered = _times(whole, terms), _distributions(whole["answers"])
    waited: defaultdict[BrokerId, list[float]] = defaultdict(list)
    for term in terms:
        if term["failover_ms"] is not None:
            for broker_id, ms in updated[term["controller_epoch"]].items():
                waited[broker_id].append(max(0.0, ms - term["announced_ms"]))
    after = {broker_id: _percentiles(values) for broker_id, values in waited.items()}
    rows: Rows = [
        {
            "broker_id": broker_id,
            **{did: times[broker_id, did] for did in _COUNTED},
            "answered_ms": answered.get(broker_id),
            "failovers": len(waited[broker_id]),
            "updated_after_ms": after.get(broker_id),
        }
        for broker_id in {broker_id for broker_id, _ in times}
    ]
    return sorted(rows, key=_slowness, reverse=True)


def _slowness(row: Mapping[str, Any]) -> tuple[float, float, int]:
    answered_ms, updated_after_ms = row["answered_ms"], row["updated_after_ms"]
    return (
        answered_ms["p95"] if answered_ms else -1.0,
        updated_after_ms["p50"] if updated_after_ms else -1.0,
        -row["broker_id"],
    )


def _times(whole: Parts, terms: Rows) -> Counter[tuple[BrokerId, str]]:
    """Count how often each broker did something, or something happened to it."""
    times = Counter((row["broker_id"], "terms") for row in terms if row["elected_ms"] is not None)
    for row in whole["groups"].to_pylist():
        times[row["broker_id"], "events"] += row["events"]
        if row["broker"] is not None and row["event"] in _KINDS:
            times[row["broker"], _KINDS[row["event"]]] += row["events"]
    for row in whole["comings"].to_pylist():
        times[row["broker"], row["did"]] += row["events"]
    for row in whole["partitions"].to_pylist():
        left, joined = _left_and_joined(row["isr_before"], row["isr"])
        for did, brokers in (("isr_left", left), ("isr_joined", joined)):
            for broker_id in brokers:
                times[int(broker_id), did] += row["events"]
    return times


# --- partitions -----------------------------------------------------------------------------------


def _partitions(changes: pa.Table) -> Rows:
    """Return one row a partition, sorted by name."""
    by_name: defaultdict[tuple[str, int], Rows] = defaultdict(list)
    for row in changes.to_pylist():
        left, joined = _left_and_joined(row["isr_before"], row["isr"])
        row["isr_shrinks"] = row["events"] if left else 0
        row["isr_expands"] = row["events"] if joined else 0
        by_name[row["topic"], row["partition"]].append(row)
    return [
        {
            "topic": topic,
            "partition": partition,
            **{name: sum(row[name] for row in rows) for name in _SUMS},
            "leader_epochs": _range(row[name] for row in rows for name in _EPOCHS),
        }
        for (topic, partition), rows in sorted(by_name.items())
    ]


def _range(epochs: Iterable[int | None]) -> int:
    """Return how far epochs are apart; sentences of earlier versions do not tell all of them."""
    known = [epoch for epoch in epochs if epoch is not None]
    return max(known) - min(known) if known else 0


@cache
def _left_and_joined(before: str | None, now: str | None) -> tuple[frozenset[str], frozenset[str]]:
    """Return the brokers that left an ISR and that joined it, from both as texts."""
    if before is None or now is None:
        return frozenset(), frozenset()
    former, present = (frozenset(text.split(",")) - {""} for text in (before, now))
    return former - present, present - former


def _worst(partitions: Rows, by: Sequence[str], names: Sequence[str]) -> Rows:
    """Return some fields of all rows, those with the highest values of ``by`` first."""
    ordered = sorted(partitions, key=lambda row: [-row[name] for name in by])
    return [{name: row[name] for name in names} for row in ordered]
