"""What was wrong according to the journals of the controllers, and where to look."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from regent.jobs.reports.event_tables import moment
from regent.jobs.reports.verdict import CLUSTER, Remedy, Verdict, command_line, counted, listed

Row = Mapping[str, Any]

_SLOW_MS: Final = 1000
"""A failover, a wait or a broker's answers from which on are slow."""
_SLOWER_MS: Final = 100
_SLOWER_TIMES: Final = 3
"""A broker's answers are slow, too, at so many times those of the others, if at least so long."""
_FLAPS: Final = 5


def event_verdict(report: Row, options: Mapping[str, Any]) -> Verdict:
    """Judge the result of ``event_analysis.analyse_events``."""
    slow_brokers, partitions = _slow_brokers(report), _partitions(report)
    problems = [*_controllers(report), *slow_brokers, *partitions, *_unreadable(report)]
    remedies = []
    if not options["journals"]:
        where = {**options, "zookeeper": None}
        if partitions:
            words = "topics describe --under-replicated-partitions"
            line = command_line(words, where, *CLUSTER)
            remedies.append(Remedy("To see which partitions lack replicas now", line))
        if slow_brokers:
            line = command_line("status", where, *CLUSTER)
            remedies.append(Remedy("To see whether all brokers answer now", line))
        if problems:
            since = str(moment(report["first_ms"])).replace(" ", "T")
            line = command_line(f"events --since {since}", where, *CLUSTER)
            remedies.append(Remedy("To read the events themselves", line))
    failovers = [row["failover_ms"] for row in report["terms"] if row["failover_ms"] is not None]
    longest = f", {in_words(max(failovers))} at the longest" if failovers else ""
    fine = (
        f"Nothing unusual: {counted(report['events'], 'event', 'events')} in"
        f" {counted(len(report['terms']), 'term of a controller', 'terms of controllers')};"
        f" {counted(len(failovers), 'failover', 'failovers')}{longest}."
    )
    return Verdict(problems, fine, remedies)


def in_words(ms: float) -> str:
    """Return a duration with its unit."""
    return f"{ms / 1000:,.3g} s" if ms >= _SLOW_MS else f"{ms:,.3g} ms"


def _controllers(report: Row) -> list[str]:
    terms = report["terms"]
    failed = [_term(row) for row in terms if row["has_failed"]]
    found = []
    if failed:
        count = counted(len(failed), "controller", "controllers")
        found.append(f"{count} failed without resigning ({listed(failed)}).")
    for field, one, many in (
        ("vacant_ms", "time there was no controller for", "times there was no controller for"),
        ("failover_ms", "failover took", "failovers took"),
    ):
        slow = sorted(((row[field] or 0, _term(row)) for row in terms), reverse=True)
        names = [f"{term}: {in_words(ms)}" for ms, term in slow if ms > _SLOW_MS]
        if names:
            count = counted(len(names), one, many)
            found.append(f"{count} more than {in_words(_SLOW_MS)} ({listed(names)}).")
    waits = [(row["queue_ms"]["max"], row["event"]) for row in report["latencies"]]
    wait, event = max(waits)
    if wait > _SLOW_MS:
        found.append(
            f"Events waited up to {in_words(wait)} in the queue of the controller ({event})."
        )
    return found


def _term(row: Row) -> str:
    return f"broker {row['broker_id']} in epoch {row['controller_epoch']}"


def _slow_brokers(report: Row) -> list[str]:
    answers = {
        row["broker_id"]: row["answered_ms"]["p95"]
        for row in report["slowest_brokers"]
        if row["answered_ms"]
    }
    names = []
    for broker_id, ms in answers.items():
        others = [other for b, other in answers.items() if b != broker_id]
        usual = median(others) if others else ms
        if ms > _SLOW_MS or ms > max(_SLOWER_MS, _SLOWER_TIMES * usual):
            names.append(f"broker {broker_id}: {in_words(ms)}, the others {in_words(usual)}")
    answer = counted(len(names), "broker answers", "brokers answer")
    return [f"{answer} slowly; 95 of 100 answers take up to this long: {listed(names)}."] * bool(
        names
    )


def _partitions(report: Row) -> list[str]:
    leaderless = [
        f"{row['topic']}-{row['partition']} {counted(row['times_leaderless'], 'time', 'times')}"
        for row in report["leader_churn"]
        if row["times_leaderless"]
    ]
    flapping = [
        f"{row['topic']}-{row['partition']} {row['isr_shrinks']:,} times"
        for row in report["isr_flapping"]
        if row["isr_shrinks"] >= _FLAPS
    ]
    found = []
    if leaderless:
        found.append(f"Partitions had no leader for a time ({listed(leaderless)}).")
    if flapping:
        found.append(
            f"Replicas fell behind and left the ISR (the replicas in sync) again and again"
            f" ({listed(flapping)})."
        )
    return found


def _unreadable(report: Row) -> list[str]:
    unreadable = report["unreadable_lines"]
    lines = sum(unreadable.values())
    count = counted(lines, "line of the journals", "lines of the journals")
    return [f"{count} could not be read ({listed([*unreadable])})."] * bool(lines)
