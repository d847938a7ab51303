"""The analysis of the event journals as one page of plots and tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import nan
from typing import Final

from regent.core.controller.effects import MAX_NAMED_CHANGES
from regent.jobs.reports.charts import (
    DATES,
    Draw,
    Line,
    dates,
    height_of,
    lines,
    show_dates,
    stacks,
)
from regent.jobs.reports.event_tables import Row, event_tables, moment
from regent.jobs.reports.event_verdict import in_words
from regent.jobs.reports.page import BAD, GOOD, INK, Axes, Page

_PHASES: Final = {
    "waited in the queue": ("noticed_ms", "elected_ms"),
    "elected leaders, told brokers": ("elected_ms", "announced_ms"),
    "until all answered": ("announced_ms", "updated_ms"),
}
_LEAST_MS: Final = 0.001  # the resolution of the journal: the start of a logarithmic axis
_MOST_TERMS: Final = 40
_LABELLED_TERMS: Final = 25
_NOTICEABLE_MS: Final = 100.0  # a wait from which on a plot says more than its length
_FEW: Final = 3  # intervals, of which all are drawn


def add_events(page: Page, report: Row) -> None:
    """Add the result of ``event_analysis.analyse_events``."""
    overview, latencies, terms, churn, flapping, brokers, minutes, slowest = event_tables(report)
    _introduce(page, report)
    page.heading("Active controllers")
    _add_terms(page, report["terms"][-_MOST_TERMS:])
    page.text(
        "Without a controller: from when the former one resigned until this one was elected. When a"
        " controller failed is not known, so the time since its last event is an upper limit (≤)."
        " Failover: from when this one noticed that there was none until all brokers had answered."
    )
    page.table(terms)
    page.heading("How busy they were")
    interval = in_words(report["bucket_ms"])
    page.figure(
        _rate(report),
        f"Events that the controllers handled each second, on average of {interval}",
    )
    longest = max(row["queue_ms"]["max"] for row in report["over_time"])
    if longest > _NOTICEABLE_MS:
        page.figure(_waits(report), "How long events waited in the controller's queue")
    else:
        page.text(f"No event waited longer than {in_words(longest)} in the controller's queue.")
    page.text(
        f"The first event was at {moment(report['first_ms'])} and the last at"
        f" {moment(report['last_ms'])}: their minutes are not whole."
    )
    page.table(minutes)
    page.heading("How long events took")
    page.table(latencies)
    page.table(slowest)
    page.heading("Partitions")
    page.text(
        "Each election of a leader begins a leader epoch: the epochs passed also show the elections"
        " that the journals do not name."
    )
    page.table(churn)
    page.table(flapping)
    page.heading("Brokers")
    page.text(
        "Answered after failover: since the new controller had sent its requests to all brokers."
        " Gone: how often the broker failed or stopped."
    )
    page.table(brokers)
    page.heading("Journals")
    page.table(overview)


def _introduce(page: Page, report: Row) -> None:
    page.text(
        f"Events from {moment(report['first_ms'])} to {moment(report['last_ms'])}, in UTC,"
        " by the clocks of the brokers' machines."
    )
    if unnamed := report["unnamed_changes"]:
        page.text(
            f"A journal names at most {MAX_NAMED_CHANGES} changes of an event and only counts the"
            f" others, here {unnamed:,} of {report['named_changes'] + unnamed:,}. So leaders and"
            " ISRs may have changed more often than the tables of partitions and brokers count."
        )


def _add_terms(page: Page, rows: Sequence[Row]) -> None:
    if not rows:
        return
    page.figure(
        partial(_draw_terms, rows),
        "Which broker was the controller, and when: from the first event of a term to the last."
        " Numbers are controller epochs, which count the terms. Red: the controller failed. A pale"
        " part with a cross: it failed in this time, after its last event and before the next"
        " controller noticed that it was gone.",
        height_in=height_of({row["broker_id"] for row in rows}),
    )
    failovers = [row for row in rows if row["failover_ms"] is not None]
    if failovers:
        names = [f"epoch {row['controller_epoch']}, broker {row['broker_id']}" for row in failovers]
        page.figure(
            stacks(names, {name: _spans(failovers, *ends) for name, ends in _PHASES.items()}, "ms"),
            "How long failovers took, from when the new controller noticed that there was none"
            " until all brokers had answered it. The time that nobody noticed before is not in it.",
            height_in=height_of(failovers),
        )


def _spans(rows: Sequence[Row], begin: str, end: str) -> list[float]:
    return [max(0.0, row[end] - row[begin]) for row in rows]


def event_facts(report: Row) -> dict[str, object]:
    """Return the main results."""
    failovers = [row["failover_ms"] for row in report["terms"] if row["failover_ms"] is not None]
    longest_wait = max(row["queue_ms"]["max"] for row in report["latencies"])
    return {
        "events": report["events"],
        "terms of controllers": len(report["terms"]),
        "brokers": len(report["brokers"]),
        "longest without a controller": _longest_vacancy(report["terms"]),
        "longest failover": in_words(max(failovers)) if failovers else None,
        "longest wait": in_words(longest_wait),
        "unreadable lines": sum(report["unreadable_lines"].values()),
    }


def _longest_vacancy(terms: Sequence[Row]) -> str | None:
    known = max((row["vacant_ms"] or 0.0 for row in terms), default=0.0)
    at_most = max((row["vacant_at_most_ms"] or 0.0 for row in terms), default=0.0)
    if at_most > known:
        return f"≤ {in_words(at_most)}"
    return in_words(known) if known else None


def _draw_terms(rows: Sequence[Row], axes: Axes) -> None:
    brokers = sorted({row["broker_id"] for row in rows})
    for row in rows:
        begin, end = dates([row["first_ms"], row["last_ms"]])
        level = brokers.index(row["broker_id"])
        bar = partial(axes.barh, level, height=0.6, color=BAD if row["has_failed"] else GOOD)
        bar(end - begin, left=begin)
        if row["has_failed"]:
            [missed] = dates([row["missed_ms"] or row["last_ms"]])
            bar(missed - end, left=end, alpha=0.3)
            axes.plot(missed, level, "x", color=INK, markersize=8, markeredgewidth=2)
        if len(rows) <= _LABELLED_TERMS:
            axes.text(begin, level + 0.34, str(row["controller_epoch"]), fontsize=8, va="bottom")
    axes.set_yticks(range(len(brokers)), [f"broker {broker}" for broker in brokers])
    axes.set_ylim(-0.6, len(brokers) - 0.2)
    axes.grid(visible=False, axis="y")
    show_dates(axes)


def _rate(report: Row) -> Draw:
    seconds = report["bucket_ms"] / 1000
    buckets = {row["start_ms"]: row["events"] / seconds for row in report["over_time"]}
    moments = _moments(report)
    if len(moments) > _FEW:
        moments = moments[1:-1]  # the journals begin and end within an interval
    rates = [buckets.get(ms, 0.0) for ms in moments]
    area = ([0.0] * len(rates), rates)
    return lines([Line("", dates(moments), rates, band=area)], "", "events a second", x_scale=DATES)


def _waits(report: Row) -> Draw:
    buckets = {row["start_ms"]: row["queue_ms"] for row in report["over_time"]}
    moments = _moments(report)
    series = [
        Line(
            label,
            dates(moments),
            [max(buckets[ms][name], _LEAST_MS) if ms in buckets else nan for ms in moments],
            ".-",
        )
        for name, label in (("p50", "median"), ("p99", "99th percentile"), ("max", "maximum"))
    ]
    return lines(series, "", "ms", x_scale=DATES, y_scale="log")


def _moments(report: Row) -> range:
    """Return the starts of all buckets, also empty ones."""
    starts = [row["start_ms"] for row in report["over_time"]]
    return range(starts[0], starts[-1] + 1, report["bucket_ms"])
