"""The analysis of the event journals as one page of plots and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Final, NamedTuple

from regent.jobs.reports.event_tables import event_tables, moment
from regent.jobs.reports.output import Table
from regent.jobs.reports.page import INK, MUTED, Axes, Page

Row = Mapping[str, Any]

_LEAST_MS: Final = 0.001  # the resolution of the journal: the start of a logarithmic axis
_MOST_TERMS: Final = 40
_MOST_BARS: Final = 40
_LABELLED_TERMS: Final = 25
_BAR_IN: Final = 0.3
_UNITS: Final = ((1000, "seconds"), (60_000, "minutes"), (3_600_000, "hours"), (86_400_000, "days"))


class _Clock(NamedTuple):
    """Counts time from the first event, in a unit with readable numbers."""

    start_ms: int
    unit_ms: int
    unit: str

    @classmethod
    def of(cls, report: Row) -> _Clock:
        start_ms, span_ms = report["first_ms"], report["last_ms"] - report["first_ms"]
        fitting = [unit for unit in _UNITS if unit[0] * 3 <= span_ms]
        return cls(start_ms, *(fitting or _UNITS)[-1 if fitting else 0])

    def __call__(self, ms: float) -> float:
        return (ms - self.start_ms) / self.unit_ms

    @property
    def label(self) -> str:
        return f"{self.unit} since {moment(self.start_ms)}"


def write_page(report: Row, path: Path) -> None:
    """Write the result of ``event_analysis.analyse_events``. Raises OSError."""
    clock = _Clock.of(report)
    page = Page("The controllers' events")
    overview, latencies, terms, churn, flapping, brokers, minutes, slowest = event_tables(report)
    page.facts(_facts(report))
    page.text(
        "A journal names the first few changes of an event and counts the others: partitions and"
        " ISRs are those of the named ones. Times are wall clocks of the brokers' machines."
    )
    page.heading("Active controllers")
    _add_terms(page, report["terms"][-_MOST_TERMS:], clock)
    _add_table(page, terms)
    page.heading("How busy they were")
    page.figure(partial(_draw_rate, report, clock), "Events handled per second")
    page.figure(partial(_draw_queue, report, clock), "How long events waited")
    _add_table(page, minutes)
    page.heading("How long events took")
    kinds = [row["event"] for row in report["latencies"]]
    for name, what in (("handling_ms", "Handling"), ("queue_ms", "Waiting")):
        _add_percentiles(page, kinds, [row[name] for row in report["latencies"]], what)
    _add_table(page, latencies)
    _add_table(page, slowest)
    page.heading("Partitions")
    _add_bars(page, report["leader_churn"], {"leader_changes": "leader changes"}, churn.caption)
    _add_table(page, churn)
    counts = {"isr_shrinks": "shrinks", "isr_expands": "expands"}
    _add_bars(page, report["isr_flapping"], counts, flapping.caption)
    _add_table(page, flapping)
    page.heading("Brokers")
    answers = [row for row in report["slowest_brokers"] if row["answered_ms"]]
    if answers:
        names = [f"broker {row['broker_id']}" for row in answers]
        _add_percentiles(page, names, [row["answered_ms"] for row in answers], "Until an answer")
    _add_table(page, brokers)
    page.heading("Journals")
    _add_table(page, overview)
    page.write(path)


def _add_table(page: Page, table: Table) -> None:
    page.table(table.headers, table.rows, table.caption)


def _add_terms(page: Page, rows: Sequence[Row], clock: _Clock) -> None:
    if not rows:
        return
    page.figure(
        partial(_draw_terms, rows, clock),
        "Terms of the controllers, each with its epoch: from the first event to the last",
        height_in=_height({row["broker_id"] for row in rows}),
    )
    elected = [row for row in rows if row["elected_ms"] is not None]
    if elected:
        page.figure(
            partial(_draw_failovers, elected),
            "Failovers, from when the new controller noticed that there was none",
            height_in=_height(elected),
        )


def _add_percentiles(page: Page, names: Sequence[str], rows: Sequence[Row], what: str) -> None:
    page.figure(
        partial(_draw_percentiles, names[:_MOST_BARS], rows[:_MOST_BARS]),
        f"{what}: median, 95th and 99th percentile, maximum",
        height_in=_height(rows[:_MOST_BARS]),
    )


def _facts(report: Row) -> list[tuple[str, object]]:
    failovers = [row["failover_ms"] for row in report["terms"] if row["failover_ms"] is not None]
    return [
        ("events", report["events"]),
        ("terms", len(report["terms"])),
        ("brokers", len(report["brokers"])),
        ("longest failover, ms", max(failovers, default=None)),
        ("longest wait, ms", max(row["queue_ms"]["max"] for row in report["latencies"])),
        ("unreadable lines", sum(report["unreadable_lines"].values())),
    ]


def _height(bars: Sequence[object] | set[Any]) -> float:
    return 0.9 + _BAR_IN * max(len(bars), 2)


def _draw_terms(rows: Sequence[Row], clock: _Clock, axes: Axes) -> None:
    brokers = sorted({row["broker_id"] for row in rows})
    for row in rows:
        begin, end = clock(row["first_ms"]), clock(row["last_ms"])
        level = brokers.index(row["broker_id"])
        axes.barh(level, end - begin, left=begin, height=0.6, color=f"C{level % 6}")
        if len(rows) <= _LABELLED_TERMS:
            axes.text(begin, level + 0.34, str(row["controller_epoch"]), fontsize=8, va="bottom")
    axes.set_yticks(range(len(brokers)), [f"broker {broker}" for broker in brokers])
    axes.set_ylim(-0.6, len(brokers) - 0.2)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(clock.label)


def _draw_failovers(rows: Sequence[Row], axes: Axes) -> None:
    names = [f"epoch {row['controller_epoch']}, broker {row['broker_id']}" for row in rows]
    begins = [0.0] * len(rows)
    for name, begin, end in (
        ("waited", "noticed_ms", "elected_ms"),
        ("read, elected leaders, updated every broker", "elected_ms", "announced_ms"),
        ("until all responded", "announced_ms", "updated_ms"),
    ):
        spans = [max(0.0, row[end] - row[begin]) if row[end] is not None else 0.0 for row in rows]
        axes.barh(names, spans, left=begins, height=0.6, label=name)
        begins = [a + b for a, b in zip(begins, spans, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ms")
    _add_legend(axes)


def _draw_rate(report: Row, clock: _Clock, axes: Axes) -> None:
    seconds = report["bucket_ms"] / 1000
    buckets = {row["start_ms"]: row["events"] / seconds for row in report["over_time"]}
    moments = _moments(report)
    rates = [buckets.get(ms, 0.0) for ms in moments]
    axes.fill_between([clock(ms) for ms in moments], rates, step="post", alpha=0.35)
    axes.step([clock(ms) for ms in moments], rates, where="post")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(clock.label)
    axes.set_ylabel("events a second")


def _draw_queue(report: Row, clock: _Clock, axes: Axes) -> None:
    buckets = {row["start_ms"]: row["queue_ms"] for row in report["over_time"]}
    moments = _moments(report)
    for name, label in (("p50", "median"), ("p99", "99th percentile"), ("max", "maximum")):
        waits = [max(buckets[ms][name], _LEAST_MS) if ms in buckets else nan for ms in moments]
        axes.plot([clock(ms) for ms in moments], waits, label=label, marker=".", markersize=4)
    axes.set_yscale("log")
    axes.set_xlabel(clock.label)
    axes.set_ylabel("ms")
    _add_legend(axes)


def _moments(report: Row) -> range:
    """Return the starts of all buckets, also empty ones, and the end of the last."""
    starts = [row["start_ms"] for row in report["over_time"]]
    return range(starts[0], starts[-1] + report["bucket_ms"] + 1, report["bucket_ms"])


def _draw_percentiles(names: Sequence[str], rows: Sequence[Row], axes: Axes) -> None:
    levels = range(len(rows))
    values = {
        key: [max(row[key], _LEAST_MS) for row in rows] for key in ("p50", "p95", "p99", "max")
    }
    axes.hlines(levels, values["p50"], values["max"], color=MUTED, linewidth=1)
    for (key, xs), marker in zip(values.items(), "oDs|", strict=True):
        colour = INK if key == "max" else None
        axes.plot(xs, levels, marker, label=key, markersize=5, color=colour)
    axes.set_yticks(levels, names)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    _add_legend(axes)


def _add_bars(page: Page, rows: Sequence[Row], names: Mapping[str, str], caption: str) -> None:
    if rows:
        page.figure(partial(_draw_bars, rows, names), caption, height_in=_height(rows))


def _draw_bars(rows: Sequence[Row], names: Mapping[str, str], axes: Axes) -> None:
    partitions = [f"{row['topic']}-{row['partition']}" for row in rows]
    begins = [0] * len(rows)
    for name, label in names.items():
        counts = [row[name] for row in rows]
        axes.barh(partitions, counts, left=begins, height=0.6, label=label)
        begins = [a + b for a, b in zip(begins, counts, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times")
    if len(names) > 1:
        _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    """Add a legend above the plot, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, borderaxespad=0.2)
