"""What was wrong according to the journals of the controllers, and where to look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from regent.client.wording import how_many
from regent.jobs.reports.event_analysis import RESTLESS
from regent.jobs.reports.event_tables import Row, moment
from regent.jobs.reports.verdict import (
    CLUSTER,
    Problem,
    Remedy,
    Verdict,
    command_line,
    named,
    several,
)

_SLOW_MS: Final = 1000
"""A failover, a wait or a broker's answers from which on are slow."""
_SLOWER_MS: Final = 100
_WHERE: Final = "HOST:PORT"
_SLOWER_TIMES: Final = 3
"""A broker's answers are slow, too, at so many times those of the others, if at least so long."""


def event_verdict(report: Row, options: Mapping[str, Any]) -> Verdict:
    """Judge the result of ``event_analysis.analyse_events``.

    The journals may be of another cluster, so each problem names the log that may tell why.
    """

    def remedy(purpose: str, words: str) -> list[Remedy]:
        """Return a command for the cluster of the journals."""
        where = _WHERE if options["journals"] else None
        if where:
            purpose += f", where {where} is the ZooKeeper of the journals' cluster"
        return [Remedy(purpose, command_line(words, {**options, "zookeeper": where}, *CLUSTER))]

    since = str(moment(report["first_ms"])).replace(" ", "T")
    read = remedy("To read the events themselves", f"events --since {since}")
    lacking = remedy(
        "To see which partitions lack replicas now",
        "topics describe --under-replicated-partitions",
    )
    answering = remedy("To see whether all brokers answer now", "status")
    failing = _failing_brokers(report, answering)
    problems = [
        *_failed_controllers(report, read),
        *failing,
        *_slow_terms(report, "vacant_ms", "time", "times", "there was no controller for", read),
        *_without_leaders(report, lacking, has_reason=bool(failing)),
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


def _failed_controllers(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    failed = [row for row in report["terms"] if row["has_failed"]]
    names = [_term(row) for row in failed]
    vacant_ms = max((row["vacant_at_most_ms"] or 0.0 for row in report["terms"]), default=0.0)
    until_next = f" Then there was no controller for up to {in_words(vacant_ms)}." * (vacant_ms > 0)
    logs = [_log(row["broker_id"], f"after {_at(row['last_ms'], report)}") for row in failed]
    rest, more = "failed without resigning", until_next + _look_into(logs)
    return several(names, "controller", "controllers", rest, remedies, more=more)


def _failing_brokers(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    """Name the brokers that failed often: those that stop in an orderly way do not count."""
    times = {
        row["broker_id"]: row["failed"] - row["shutdowns"] for row in report["slowest_brokers"]
    }
    worst = sorted((b for b in times if times[b] >= RESTLESS), key=lambda b: (-times[b], b))
    start, end = (_at(report[name], report) for name in ("first_ms", "last_ms"))
    names = [f"broker {b}: {times[b]:,} times" for b in worst]
    rest = f"failed again and again from {start} to {end}"
    more = _look_into(map(_log, worst[:1]))
    return several(names, "broker", "brokers", rest, remedies, more=more)


def _slow_terms(
    report: Row, field: str, one: str, many: str, what: str, remedies: Sequence[Remedy]
) -> list[Problem]:
    slow = [row for row in report["terms"] if (row[field] or 0) > _SLOW_MS]
    slow.sort(key=lambda row: -row[field])
    names = [f"{_term(row)}: {in_words(row[field])}" for row in slow]
    logs = [_log(row["broker_id"], f"around {_at(row['elected_ms'], report)}") for row in slow[:1]]
    rest = f"{what} more than {in_words(_SLOW_MS)}"
    return several(names, one, many, rest, remedies, more=_look_into(logs))


def _waits(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    wait, event = max((row["queue_ms"]["max"], row["event"]) for row in report["latencies"])
    if wait <= _SLOW_MS:
        return []
    worst = max(report["over_time"], key=lambda row: row["queue_ms"]["max"])
    start, end = worst["start_ms"], worst["start_ms"] + report["bucket_ms"]
    first, last = _at(start, report), _at(end, report)
    when = f"around {first}" if first == last else f"from {first} to {last}"
    active = {
        row["broker_id"]
        for row in report["terms"]
        if row["first_ms"] <= end and start <= row["last_ms"]
    }
    sentence = f"Events waited up to {in_words(wait)} in the queue of the controller ({event})."
    logs = [_log(broker_id, when) for broker_id in sorted(active)]
    return [Problem(sentence + _look_into(logs), remedies)]


def _slow_brokers(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    answers = {
        row["broker_id"]: row["answered_ms"]["p95"]
        for row in report["slowest_brokers"]
        if row["answered_ms"]
    }
    names, logs = [], []
    for broker_id, ms in answers.items():
        others = [other for b, other in answers.items() if b != broker_id]
        usual = median(others) if others else ms
        if ms > _SLOW_MS or ms > max(_SLOWER_MS, _SLOWER_TIMES * usual):
            names.append(
                f"broker {broker_id}: {in_words(ms)} against {in_words(usual)} of the others"
            )
            logs.append(_log(broker_id))
    rest = "slowly: 5 of 100 answers take longer than this"
    more = _look_into(logs)
    return several(names, "broker answers", "brokers answer", rest, remedies, more=more)


def _without_leaders(report: Row, remedies: Sequence[Remedy], *, has_reason: bool) -> list[Problem]:
    """``has_reason``: another problem names the brokers that failed."""
    names = [
        f"{row['topic']}-{row['partition']}: {how_many(row['times_leaderless'], 'time', 'times')}"
        for row in report["leaderless"]
    ]
    more = "" if has_reason else _most_often(report, "failed", "failed")
    total = report["leaderless_partitions"]
    return _partitions(report, names, "had no leader for a time", total, remedies, more)


def _flapping(report: Row, remedies: Sequence[Remedy]) -> list[Problem]:
    names = [
        f"{row['topic']}-{row['partition']}: {row['isr_shrinks']:,} times"
        for row in report["isr_flapping"]
        if row["isr_shrinks"] >= RESTLESS
    ]
    rest = "lost replicas from the ISR (the replicas in sync) again and again"
    more = _most_often(report, "isr_left", "left ISRs")
    return _partitions(report, names, rest, report["restless_isrs"], remedies, more)


def _partitions(
    report: Row, names: Sequence[str], rest: str, total: int, remedies: Sequence[Remedy], more: str
) -> list[Problem]:
    """Say that there may be more partitions, if the journals do not name all changes."""
    has_unnamed = bool(report["unnamed_changes"])
    words = ("partition", "partitions", rest)
    return several(names, *words, remedies, total=total, may_be_more=has_unnamed, more=more)


def _unreadable(report: Row) -> list[Problem]:
    unreadable = report["unreadable_lines"]
    if not unreadable:
        return []
    count = how_many(sum(unreadable.values()), "line of the journals", "lines of the journals")
    return [Problem(f"{count} could not be read ({named([*unreadable])}).")]


# --- where to look --------------------------------------------------------------------------------


def _at(ms: float, report: Row) -> str:
    """Return a moment without its date if all events are of one day."""
    day, last_day = (str(moment(report[name]))[:10] for name in ("first_ms", "last_ms"))
    return str(moment(ms))[:19].removeprefix(f"{day} " if day == last_day else "")


def _log(broker_id: int, when: str = "") -> str:
    return f"broker-{broker_id}/broker.log {when}".rstrip()


def _most_often(report: Row, field: str, did: str) -> str:
    """Name the broker that did something most often, and its log."""
    worst = max(report["slowest_brokers"], key=lambda row: row[field], default={field: 0})
    if not worst[field]:
        return ""
    broker_id = worst["broker_id"]
    return f" Broker {broker_id} {did} most often.{_look_into([_log(broker_id)])}"


def _look_into(logs: Iterable[str]) -> str:
    found = [*dict.fromkeys(logs)]
    return f" Look for the reason in {named(found)}." if found else ""
