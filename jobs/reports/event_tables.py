"""The analysis of the event journals as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from regent.jobs.reports.event_analysis import PERCENTILES
from regent.jobs.reports.page import Table, shown

Row = Mapping[str, Any]
_Columns = Sequence[tuple[str, str]]  # a header, and the name of the value: "a.b" is b of a

_MOMENTS: Final = ("elected_ms", "start_ms", "ts_ms")


def _same(*names: str) -> _Columns:
    return [(name.replace("_", " "), name) for name in names]


def _spread(name: str, prefix: str) -> _Columns:
    """Return the columns of a distribution; only the first header names what it is of."""
    headers = (f"{prefix} p50", *PERCENTILES[1:])
    return [(h, f"{name}.{p}") for h, p in zip(headers, PERCENTILES, strict=True)]


_LATENCIES: Final = (
    *_same("event", "count"),
    *_spread("handling_ms", "handled in"),
    *_spread("queue_ms", "waited"),
)
_TERMS: Final = (
    ("epoch", "controller_epoch"),
    ("broker", "broker_id"),
    ("elected", "elected_ms"),
    ("trigger", "trigger"),
    ("without a controller", "vacant"),
    ("election handled in", "takeover_ms"),
    ("failover", "failover_ms"),
    ("brokers that answered", "brokers_updated"),
    ("changes at the election", "changes"),
    ("events", "events"),
    ("end", "end"),
)
_CHURN: Final = (
    *_same("partition", "leader_changes"),
    ("times without a leader", "times_leaderless"),
    ("leader epochs passed", "leader_epochs"),
)
_FLAPPING: Final = (
    ("partition", "partition"),
    ("times that replicas left", "isr_shrinks"),
    ("times that replicas returned", "isr_expands"),
)
_BROKERS: Final = (
    *(("broker", "broker_id"), ("answered in p95", "answered_ms.p95")),
    ("answered after failover max", "updated_after_ms.max"),
    *(("gone", "failed"), ("orderly stops", "shutdowns")),
    *(("failed requests", "troubles"), ("left ISRs", "isr_left"), ("terms", "terms")),
)
_MINUTES: Final = (
    ("minute from", "start_ms"),
    *_same("events", "changes"),
    ("handling in total", "handling_ms"),
    ("longest wait", "longest_wait_ms"),
)
_SLOWEST: Final = (
    *(("time", "ts_ms"), ("broker", "broker_id"), ("epoch", "controller_epoch")),
    *(("event", "event"), ("cause", "cause"), ("handled in", "handling_ms")),
    ("waited", "queue_ms"),
    ("changes", "changes"),
)


def event_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the result of ``event_analysis.analyse_events``, the most important table first."""
    terms = [{**row, "vacant": _vacant(row), "end": _end(row)} for row in report["terms"]]
    few = ", of the changes that the journals name" if report["unnamed_changes"] else ""
    churn, flapping = (_named(report[name]) for name in ("leader_churn", "isr_flapping"))
    return [
        _overview(report),
        _table(
            "How long events were handled, and waited before (ms)", _LATENCIES, report["latencies"]
        ),
        _table(
            "Terms of the controllers (times in ms; ≤: since the last event of one that failed)",
            _TERMS,
            terms,
        ),
        _table(f"Partitions whose leader changed most{few}", _CHURN, churn),
        _table(f"Partitions whose ISR shrank most{few}", _FLAPPING, flapping),
        _table(
            "Brokers, the slowest to answer controllers first (times in ms)",
            _BROKERS,
            report["slowest_brokers"],
        ),
        _table(
            "Busiest minutes (times in ms; the first and the last may be in part)",
            _MINUTES,
            report["busiest_minutes"],
        ),
        _table("Slowest events (times in ms)", _SLOWEST, report["slowest_events"]),
    ]


def moment(ms: float | None) -> str | None:
    """Return a moment as ``regent events`` shows it: in UTC, to the millisecond."""
    if ms is None:
        return None
    return (
        datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")
    )


def _table(caption: str, columns: _Columns, rows: Sequence[Row]) -> Table:
    headers = [header for header, _ in columns]
    return Table(caption, headers, [[_cell(row, name) for _, name in columns] for row in rows])


def _cell(row: Row, name: str) -> object:
    value: Any = row
    for part in name.split("."):
        value = None if value is None else value[part]
    return moment(value) if name in _MOMENTS else value


def _named(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "partition": f"{row['topic']}-{row['partition']}"} for row in rows]


def _vacant(term: Row) -> object:
    at_most = term["vacant_at_most_ms"]
    return term["vacant_ms"] if at_most is None else f"≤ {shown(at_most)}"


def _end(term: Row) -> str | None:
    if term["has_failed"]:
        return "failed: it did not resign"
    return f"resigned {moment(term['resigned_ms'])}" if term["resigned_ms"] else None


def _overview(report: Row) -> Table:
    unreadable = report["unreadable_lines"]
    facts = [
        ("journal files", report["journals"]),
        ("events", report["events"]),
        ("from", moment(report["first_ms"])),
        ("to", moment(report["last_ms"])),
        ("time zone", "UTC"),
        ("brokers", ", ".join(map(str, report["brokers"]))),
        ("changes named", report["named_changes"]),
        ("changes only counted", report["unnamed_changes"]),
        ("unreadable lines", sum(unreadable.values())),
        *((f"  in {path}", lines) for path, lines in unreadable.items()),
    ]
    return Table("Journals", ("", ""), facts)
