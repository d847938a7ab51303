"""What was wrong according to the journals of the controllers, and where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from regent.admin.wording import how_many
from regent.jobs.reports.event_tables import moment
from regent.jobs.reports.verdict import (
    CLUSTER,
    Problem,
    Remedy,
    Verdict,
    command_line,
    named,
    several,
)

Row = Mapping[str, Any]

_SLOW_MS: Final = 1000
"""A failover, a wait or a broker's answers from which on are slow."""
_SLOWER_MS: Final = 100
_SLOWER_TIMES: Final = 3
"""A broker's answers are slow, too, at so many times those of the others, if at least so long."""
_FLAPS: Final = 5


def event_verdict(report: Row, options: Mapping[str, Any]) -> Verdict:
    """Judge the result of ``event_analysis.analyse_events``."""

    def remedy(purpose: str, words: str) -> list[Remedy]:
        """Return a command for the running cluster; none for other journals."""
        line = command_line(words, {**options, "zookeeper": None}, *CLUSTER)
        return [] if options["journals"] else [Remedy(purpose, line)]

    since = str(moment(report["first_ms"])).replace(" ", "T")
    read = remedy("To read the events themselves", f"events --since {since}")
    lacking = remedy(
        "To see which partitions lack replicas now",
        "topics describe --under-replicated-partitions",
    )
    answering = remedy("To see whether all brokers answer now", "status")
    problems = [
        *several(
            [_term(row) for row in report["terms"] if row["has_failed"]],
            *("controller", "controllers", "failed without resigning"),
            read,
        ),
        *_slow_terms(report, "vacant_ms", "time", "times", "there was no controller for", read),
        *_without_leaders(report, lacking),
        *_slow_terms(report, "failover_ms", "failover", "failovers", "took", read),
        *_waits(report, read),
        *_slow_brokers(report, answering),
        *_flapping(report, lacking),
        *_unreadable(report),
    ]
    failovers = [row["failover_ms"] for row in report["terms"] if row["failover_ms"] is not None]
    longest = f", {in_words(max(failovers))} at the longest" if failovers else ""
    fine = (
        f"Nothing unusual: {how_many(report['events'], 'event', 'events')} in"
        f" {how_many(len(report['terms']), 'term of a controller', 'terms of controllers')};"
        f" {how_many(len(failovers), 'failover', 'failovers')}{longest}."
    )
    return Verdict(problems, fine)


def in_words(ms: float) -> str:
    """Return a duration with its unit."""
    return f"{ms / 1000:,.3g} s" if ms >= _SLOW_MS else f"{ms:,.3g} ms"


def _term(row: Row) -> str:
    return f"broker {row['broker_id']} in epoch {row['controller_epoch']}"


def _slow_terms(
    report: Row, field: str, one: str, many: str, what: str, remedies: Sequence[Remedy]
) -> list[Problem]:
    slow = sorted(((row[field] or 0, _term(row)) for row in report["terms"]), reverse=True)
    names = [f"{term}: {in_words(ms)}" for ms, term in slow if ms > _SLOW_MS]
    return several(names, one, many, f"{what} more than {in_words(_SLOW_MS)}", remedies)


def _waits(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    wait, event = max((row["queue_ms"]["max"], row["event"]) for row in report["latencies"])
    if wait <= _SLOW_MS:
        return []
    return [
        Problem(
            f"Events waited up to {in_words(wait)} in the queue of the controller ({event}).",
            remedies,
        )
    ]


def _slow_brokers(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
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
            names.append(
                f"broker {broker_id}: {in_words(ms)} against {in_words(usual)} of the others"
            )
    rest = "slowly: 5 of 100 answers take longer than this"
    return several(names, "broker answers", "brokers answer", rest, remedies)


def _without_leaders(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    names = [
        f"{row['topic']}-{row['partition']}: {how_many(row['times_leaderless'], 'time', 'times')}"
        for row in report["leader_churn"]
        if row["times_leaderless"]
    ]
    return _some("Partitions had no leader for a time", names, remedies)


def _flapping(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    names = [
        f"{row['topic']}-{row['partition']}: {row['isr_shrinks']:,} times"
        for row in report["isr_flapping"]
        if row["isr_shrinks"] >= _FLAPS
    ]
    sentence = "Replicas fell behind and left the ISR (the replicas in sync) again and again"
    return _some(sentence, names, remedies)


def _some(sentence: str, names: Sequence[str], remedies: Sequence[Remedy]) -> list[Problem]:
    """Return a problem whose ``names`` are not what is counted, or not all there are."""
    return [Problem(f"{sentence} ({named(names)}).", remedies)] if names else []


def _unreadable(report: Row) -> list[Problem]:
    unreadable = report["unreadable_lines"]
    count = how_many(sum(unreadable.values()), "line of the journals", "lines of the journals")
    return _some(f"{count} could not be read", [*unreadable], [])
