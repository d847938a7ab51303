"""The analysis of the controllers' events, from the tables of ``jobs.reports.event_parts``.

The driver has these tables in memory; they have few rows. A journal names the first few changes of
an event and counts the others, so results about partitions and ISRs are about the *named* changes.
Times are wall clocks of the brokers' machines; a term has one broker and so one clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from regent.core.model import BrokerId
from regent.jobs.reports.event_parts import Parts, bucket_of, merged
from regent.jobs.reports.event_terms import (
    Groups,
    Rows,
    distribution,
    slowest_brokers,
    terms_of_controllers,
    to_us,
)

_SHARES: Final = np.array((0.5, 0.95, 0.99, 1.0))


def analyse_events(parts: Sequence[Parts], *, top: int) -> dict[str, Any]:
    """Analyse events; of partitions, minutes and single events return the ``top`` first.

    Without any part the result is empty. Times end in ``_ms``: moments since the epoch, or
    durations; distributions are {p50, p95, p99, max}.
    """
    if not parts:
        return {}
    whole = merged(parts, top)
    rows = _rows(whole["groups"])
    groups = Groups(rows, _elections(whole), _rows(whole["comings"]))
    named_changes, changes = (sum(row[n] for row in rows) for n in ("named_changes", "changes"))
    partitions = _partitions(whole["partitions"], groups)
    starts = whole["buckets"]["start_ms"].to_pylist()
    return {
        "events": sum(row["events"] for row in rows),
        "first_ms": min(row["first_ms"] for row in rows),
        "last_ms": max(row["last_ms"] for row in rows),
        "brokers": sorted({row["broker_id"] for row in rows}),
        "named_changes": named_changes,
        "unnamed_changes": changes - named_changes,
        "latencies": _latencies(whole, rows),
        "terms": terms_of_controllers(groups),
        "leader_churn": _churn(partitions)[:top],
        "isr_flapping": _flapping(partitions)[:top],
        "slowest_brokers": slowest_brokers(groups, _distributions(whole["answers"])),
        "busiest_minutes": _busiest_minutes(whole)[:top],
        "slowest_events": _rows(whole["slowest"]),
        "bucket_ms": bucket_of(min(starts), max(starts)),
        "over_time": _over_time(whole),
    }


def _rows(table: pa.Table) -> Rows:
    rows: Rows = table.to_pylist()
    return [{name: to_us(value) for name, value in row.items()} for row in rows]


def _distributions(counted: pa.Table) -> dict[Any, dict[str, float]]:
    """Return the percentiles of each key, from rows of (key, value, times)."""
    if not len(counted):
        return {}
    key, value, times = counted.column_names
    counted = counted.sort_by([(key, "ascending"), (value, "ascending")])
    keys = counted[key].to_numpy(zero_copy_only=False)
    values, ends = counted[value].to_numpy(), np.cumsum(counted[times].to_numpy())
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    found = {}
    for low, high in zip(begins, np.append(begins[1:], len(keys)), strict=True):
        before = ends[low - 1] if low else 0
        ranks = before + np.ceil(_SHARES * (ends[high - 1] - before))
        found[keys[low]] = distribution(values[np.searchsorted(ends, ranks)].tolist())
    return found


def _elections(whole: Parts) -> Rows:
    return [{**row, "changes": row["changes"] - 1} for row in _rows(whole["elections"])]


def _latencies(whole: Parts, groups: Rows) -> Rows:
    counts: Counter[str] = Counter()
    for row in groups:
        counts[row["event"]] += row["events"]
    handling, queueing = _distributions(whole["handling"]), _distributions(whole["queueing"])
    return [
        {"event": e, "count": n, "handling_ms": handling[e], "queue_ms": queueing[e]}
        for e, n in sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    ]


def _over_time(whole: Parts) -> Rows:
    waits = _distributions(whole["waits"])
    rows = sorted(_rows(whole["buckets"]), key=lambda row: row["start_ms"])
    return [{**_in_time(row), "queue_ms": waits[row["start_ms"]]} for row in rows]


def _busiest_minutes(whole: Parts) -> Rows:
    rows = sorted(_rows(whole["minutes"]), key=lambda row: (-row["events"], row["start_ms"]))
    return [{**_in_time(row), "longest_wait_ms": row["longest_wait_ms"]} for row in rows]


def _in_time(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("start_ms", "events", "changes")
    return {**{name: row[name] for name in names}, "handling_ms": row["handling_sum_ms"]}


# --- partitions -----------------------------------------------------------------------------------


def _partitions(changes: pa.Table, groups: Groups) -> Rows:
    """Return one row a partition, and count in ``groups`` the changes of brokers in ISRs."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    epochs: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for row in changes.to_pylist():
        name = row["topic"], row["partition"]
        of_partition = found.setdefault(name, {"topic": name[0], "partition": name[1], **_NOTHING})
        for count in ("leader_changes", "times_leaderless"):
            of_partition[count] += row[count]
        if row["first_epoch"] is not None:
            epochs[name] += (row["first_epoch"], row["last_epoch"])
        before, now = _brokers(row["isr_before"]), _brokers(row["isr"])
        if before is None or now is None:
            continue
        for did, brokers in (("isr_left", before - now), ("isr_joined", now - before)):
            groups.add_times({"broker": b, "did": did, "times": row["times"]} for b in brokers)
        of_partition["isr_shrinks"] += row["times"] if before - now else 0
        of_partition["isr_expands"] += row["times"] if now - before else 0
    for name, known in epochs.items():
        found[name]["leader_epochs"] = max(known) - min(known)
    return [found[name] for name in sorted(found)]


_NOTHING: Final = dict.fromkeys(
    ("leader_changes", "times_leaderless", "leader_epochs", "isr_shrinks", "isr_expands"), 0
)


@cache
def _brokers(text: str | None) -> frozenset[BrokerId] | None:
    if text is None:
        return None
    return frozenset(int(broker) for broker in text.split(",") if broker)


def _churn(partitions: Rows) -> Rows:
    names = ("topic", "partition", "leader_changes", "times_leaderless", "leader_epochs")
    rows = [{name: row[name] for name in names} for row in partitions if row["leader_changes"]]
    return sorted(rows, key=lambda row: (-row["leader_changes"], -row["leader_epochs"]))


def _flapping(partitions: Rows) -> Rows:
    names = ("topic", "partition", "isr_shrinks", "isr_expands")
    rows = [{name: row[name] for name in names} for row in partitions]
    times = [(row["isr_shrinks"] + row["isr_expands"], row) for row in rows]
    return [row for count, row in sorted(times, key=lambda pair: -pair[0]) if count]
