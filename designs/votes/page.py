"""The comparison on a page: sentences, the table, and a plot of latencies."""

from __future__ import annotations

from typing import Final

from regent.designs.votes.comparison import VotesComparison
from regent.designs.votes.table import votes_table
from regent.jobs.reports.charts import Draw, Line, lines
from regent.jobs.reports.page import Page, Table

_DRAWN: Final = ("majority vote", "ISR", "leaderless")  # the others commit as the ISR does


def add_votes(page: Page, comparison: VotesComparison) -> None:
    """Add the section."""
    times = comparison.times
    page.heading("Votes, in-sync replicas, or no leader")
    page.text(
        "How many replicas survive a number of deaths, and what does a commit, or a death, cost?"
        " Cells with two numbers are computed / simulated: order statistics and means of pauses,"
        f" and actors in virtual time (seed {comparison.seed})."
    )
    page.text(
        f"The model: a message travels for {times.trip_ms:g} ms; a replica appends a record in"
        f" {times.append_ms:g} ms on average, exponentially distributed; the leader appends first."
        f" A replica counts as dead after {times.silence_ms / 1000:g} s without a sign of life, in"
        " all schemes; voters wait up to twice as long, so that few stand for election at once."
        f" A replica that lacks a record for {times.lag_ms / 1000:g} s leaves the ISR. One that is"
        " only slow stays, and all commits wait for it. Waits are averages of records written in"
        " the moment of the event. Both times are Kafka's defaults; on a machine that still runs,"
        " the crash of a Regent broker is noticed in milliseconds."
    )
    page.text(
        "While a replica is out of the ISR, one death less is survived: the last member"
        " acknowledges alone, as with Kafka's default min.insync.replicas of 1, and an unclean"
        " election loses what it acknowledged. After one death too many the voters that are left"
        " may have all records, but cannot know it: they wait."
    )
    header, *rows = votes_table(comparison)
    caption = (
        "Replicas die one by one, each in the moment of an acknowledgement, while a producer"
        " writes; then they come back with their disks."
    )
    page.table(Table(caption, header, rows))
    page.figure(
        _p99(comparison),
        "99 of 100 records are acknowledged within this time. Lines are computed, points simulated."
        f" Solid: all replicas are healthy; dashed: one is {times.slow_factor:g} times slower.",
        height_in=3.6,
    )


def _p99(comparison: VotesComparison) -> Draw:
    series = []
    for number, name in enumerate(_DRAWN):
        points = [point for point in comparison.p99 if point.scheme == name]
        [row] = [row for row in comparison.schemes if row.scheme.name == name]
        failures, colour = [point.failures for point in points], f"C{number}"
        series.append(Line(name, failures, [p.healthy_ms for p in points], "-", colour))
        series.append(Line("", failures, [p.one_slow_ms for p in points], "--", colour))
        simulated = (latency.p99_ms.simulated for latency in (row.healthy, row.one_slow))
        known = [ms for ms in simulated if ms is not None]
        series.append(Line("", [comparison.failures] * len(known), known, "o", colour))
    return lines(series, "deaths survived", "ms", y_scale="log")
