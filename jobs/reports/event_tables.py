"""The analysis of the event journals as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from regent.jobs.reports.event_terms import PERCENTILES
from regent.jobs.reports.output import Table

Row = Mapping[str, Any]


def event_tables(report: Mapping[str, Any]) -> list[Table]:
    """Return the result of ``event_analysis.analyse_events``, the most important table first."""
    return [
        _overview(report),
        _latencies(report["latencies"]),
        _terms(report["terms"]),
        _churn(report["leader_churn"]),
        _flapping(report["isr_flapping"]),
        _brokers(report["slowest_brokers"]),
        _busiest_minutes(report["busiest_minutes"]),
        _slowest_events(report["slowest_events"]),
    ]


def moment(ms: float | None) -> str | None:
    """Return a moment as ``regent events`` shows it: local time, to the millisecond."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # a wrong clock
        return f"{ms} ms"


def _overview(report: Row) -> Table:
    unreadable = report["unreadable_lines"]
    facts = [
        ("journals", report["journals"]),
        ("events", report["events"]),
        ("from", moment(report["first_ms"])),
        ("to", moment(report["last_ms"])),
        ("brokers", ", ".join(map(str, report["brokers"]))),
        ("changes named", report["named_changes"]),
        ("changes only counted", report["unnamed_changes"]),
        ("unreadable lines", sum(unreadable.values())),
        *((f"  in {path}", lines) for path, lines in unreadable.items()),
    ]
    return Table("Journals", ("", ""), [(name, _text(value)) for name, value in facts])


def _latencies(rows: Sequence[Row]) -> Table:
    return Table(
        "How long events took, and waited before (ms)",
        ("event", "count", "p50", "p95", "p99", "max", "waited p50", "p95", "p99", "max"),
        [
            (row["event"], row["count"], *row["handling_ms"].values(), *row["queue_ms"].values())
            for row in rows
        ],
    )


def _terms(rows: Sequence[Row]) -> Table:
    headers = ("epoch", "broker", "elected", "by", "after silence of", "took over in")
    return Table(
        "Terms of the controllers (ms; silence: since the controller before was last heard)",
        (*headers, "all updated in", "brokers", "changes", "events", "resigned"),
        [
            (
                row["controller_epoch"],
                row["broker_id"],
                moment(row["elected_ms"]),
                row["trigger"],
                row["silence_ms"],
                row["takeover_ms"],
                row["failover_ms"],
                row["brokers_updated"],
                row["changes"],
                row["events"],
                moment(row["resigned_ms"]),
            )
            for row in rows
        ],
    )


def _churn(rows: Sequence[Row]) -> Table:
    return Table(
        "Partitions whose leader changed most (of the named changes; leader epochs count all)",
        ("partition", "leader changes", "times leaderless", "leader epochs"),
        [
            (_partition(row), row["leader_changes"], row["times_leaderless"], row["leader_epochs"])
            for row in rows
        ],
    )


def _flapping(rows: Sequence[Row]) -> Table:
    return Table(
        "Partitions whose ISR changed most (of the named changes)",
        ("partition", "shrinks", "expands"),
        [(_partition(row), row["isr_shrinks"], row["isr_expands"]) for row in rows],
    )


def _brokers(rows: Sequence[Row]) -> Table:
    about_it = ("isr_left", "isr_joined", "isr_proposals", "started", "failed")
    counts = ("terms", "events", *about_it, "shutdowns", "troubles")
    answers = ("answers", "answered p50", "p95", "p99", "max")
    updates = ("failovers", "updated p50", "max")
    return Table(
        "Brokers, the slowest to answer first (ms from a request; updated: by a new controller)",
        ("broker", *answers, *updates, *(name.replace("_", " ") for name in counts)),
        [
            (
                row["broker_id"],
                row["answers"],
                *(row["answered_ms"] or dict.fromkeys(PERCENTILES)).values(),
                row["failovers"],
                *_middle_and_most(row["updated_after_ms"]),
                *(row[name] for name in counts),
            )
            for row in rows
        ],
    )


def _busiest_minutes(rows: Sequence[Row]) -> Table:
    return Table(
        "Busiest minutes",
        ("from", "events", "changes", "handling ms", "waited p50", "p99", "max"),
        [
            (
                moment(row["start_ms"]),
                row["events"],
                row["changes"],
                row["handling_ms"],
                row["queue_ms"]["p50"],
                row["queue_ms"]["p99"],
                row["queue_ms"]["max"],
            )
            for row in rows
        ],
    )


def _slowest_events(rows: Sequence[Row]) -> Table:
    return Table(
        "Slowest events",
        ("time", "broker", "epoch", "event", "cause", "ms", "waited", "changes"),
        [
            (
                moment(row["ts_ms"]),
                row["broker_id"],
                row["controller_epoch"],
                row["event"],
                row["cause"],
                row["handling_ms"],
                row["queue_ms"],
                row["changes"],
            )
            for row in rows
        ],
    )


def _partition(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}"


def _middle_and_most(percentiles: Row | None) -> tuple[float | None, float | None]:
    return (percentiles["p50"], percentiles["max"]) if percentiles else (None, None)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
