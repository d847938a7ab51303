"""Terms and brokers, from the results of the queries of ``jobs.reports.event_analysis``.

They have few rows, for which Python is faster than another query of Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from regent.core.model import BrokerId

Rows = list[dict[str, Any]]

PERCENTILES: Final = ("p50", "p95", "p99", "max")
_SHARES: Final = (50, 95, 99, 100)
_BROKER: Final = re.compile(r"\bbroker (\d+)")
_BROKERS: Final = re.compile(r"brokers \[([\d, ]+)\]: (started|failed)")
_COUNTED: Final = (
    *("events", "terms", "answers", "isr_proposals", "isr_left", "isr_joined"),
    *("started", "failed", "shutdowns", "troubles"),
)


class BrokerMentions:
    """How often each broker is named, and its first response in each controller epoch."""

    def __init__(self, by_broker: Rows, causes: Rows, comings_and_goings: Rows) -> None:
        self.times: dict[BrokerId, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTED, 0))
        self.updated_ms: dict[int, dict[BrokerId, float]] = defaultdict(dict)
        """By controller epoch and broker: the time of its first answer to a LeaderAndIsr.

        The first one in a term names everything the broker hosts. Brokers that started during the
        term, and were told later, are not in it.
        """
        for row in by_broker:
            self.times[row["broker_id"]]["events"] = row["events"]
        for row in causes:
            self._add_cause(row)
        for row in comings_and_goings:
            self._add_coming_or_going(row)

    def _add_cause(self, row: dict[str, Any]) -> None:
        found = _BROKER.search(row["cause"])
        assert found is not None, "the query asks for it"
        broker_id = int(found[1])
        self.times[broker_id][_kind(row["event"], row["cause"])] += row["times"]
        if row["event"] == "LeaderAndIsrResponseReceived" and row["controller_epoch"]:
            self.updated_ms[row["controller_epoch"]][broker_id] = row["first_ms"]

    def _add_coming_or_going(self, row: dict[str, Any]) -> None:
        found = _BROKERS.fullmatch(row["sentence"])
        if found is None:
            return
        did = found[2]
        for broker_id in map(int, found[1].split(", ")):
            self.times[broker_id][did] += row["times"]
            updated = self.updated_ms[row["controller_epoch"]]
            if did == "started" and row["first_ms"] <= updated.get(broker_id, -1):
                del updated[broker_id]


def _kind(event: str, cause: str) -> str:
    if cause.startswith("answer of "):
        return "answers"
    return {"AlterPartitionReceived": "isr_proposals", "ControlledShutdown": "shutdowns"}.get(
        event, "troubles"
    )


def terms_of_controllers(terms: Rows, last_heard: Rows, mentions: BrokerMentions) -> Rows:
    """Return one row a term, sorted by epoch, with the phases of its failover.

    Unknown values, such as an election before the journals begin, are None.
    """
    heard = {row["controller_epoch"]: row["previous_heard_ms"] for row in last_heard}
    by_epoch = {term["controller_epoch"]: term for term in terms}
    return [
        _term(
            term,
            by_epoch.get(epoch - 1, {}),
            heard.get(epoch),
            mentions.updated_ms[epoch].values(),
        )
        for epoch, term in by_epoch.items()
    ]


def _term(
    term: dict[str, Any],
    previous: dict[str, Any],
    previous_heard_ms: float | None,
    updated: Collection[float],
) -> dict[str, Any]:
    row = {
        "controller_epoch": term["controller_epoch"],
        "broker_id": term["broker_id"],
        "previous_broker_id": previous.get("broker_id"),
        "previous_heard_ms": to_us(previous_heard_ms),
        "previous_resigned_ms": previous.get("resigned_ms"),
        **dict.fromkeys(_OF_AN_ELECTION),
        **{name: to_us(term[name]) for name in ("events", "first_ms", "last_ms", "resigned_ms")},
    }
    election = term["election"]
    if election is None:
        return row
    elected_ms = election["elected_ms"]
    noticed_ms = elected_ms - election["queue_ms"]
    row |= {
        "trigger": election["trigger"],
        "noticed_ms": to_us(noticed_ms),
        "elected_ms": elected_ms,
        "announced_ms": to_us(elected_ms + election["handling_ms"]),
        "takeover_ms": election["handling_ms"],
        "changes": election["changes"],
        "brokers_updated": len(updated),
    }
    if previous_heard_ms is not None:
        row["silence_ms"] = to_us(max(0.0, elected_ms - previous_heard_ms))
    if updated:
        row["updated_ms"] = to_us(max(updated))
        row["failover_ms"] = to_us(max(updated) - noticed_ms)
    return row


_OF_AN_ELECTION: Final = (
    *("trigger", "noticed_ms", "elected_ms", "announced_ms", "updated_ms", "brokers_updated"),
    *("silence_ms", "takeover_ms", "failover_ms", "changes"),
)


def slowest_brokers(
    terms: Rows, isr_changes: Rows, answers: Rows, mentions: BrokerMentions
) -> Rows:
    """Return one row a broker, the slowest to answer controllers first.

    ``answered_ms`` counts from when a request was first sent, ``updated_after_ms`` from when a new
    controller had sent to every broker; None if unknown.
    """
    times = mentions.times
    announced: dict[int, float] = {}
    for term in terms:
        election = term["election"]
        if election is not None:
            times[term["broker_id"]]["terms"] += 1
            announced[term["controller_epoch"]] = election["elected_ms"] + election["handling_ms"]
    for row in isr_changes:
        times[row["broker_id"]] |= {name: row[name] for name in ("isr_left", "isr_joined")}
    waited: dict[BrokerId, list[float]] = defaultdict(list)
    for epoch, announced_ms in announced.items():
        for broker_id, updated_ms in mentions.updated_ms[epoch].items():
            waited[broker_id].append(max(0.0, updated_ms - announced_ms))
    answered = {row["broker_id"]: row["answered_ms"] for row in answers}
    rows = [
        {
            "broker_id": broker_id,
            **times[broker_id],
            "answered_ms": answered.get(broker_id),
            "failovers": len(waited[broker_id]),
            "updated_after_ms": _percentiles(waited[broker_id]),
        }
        for broker_id in sorted(times)
    ]
    return sorted(rows, key=_slowness, reverse=True)


def _slowness(row: dict[str, Any]) -> tuple[float, float, int]:
    answered_ms, updated_after_ms = row["answered_ms"], row["updated_after_ms"]
    return (
        answered_ms["p95"] if answered_ms else -1.0,
        updated_after_ms["p50"] if updated_after_ms else -1.0,
        -row["broker_id"],
    )


def _percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return dict(zip(PERCENTILES, map(to_us, np.percentile(values, _SHARES).tolist()), strict=True))


def to_us(value: Any) -> Any:
    """Round a float to three digits: milliseconds to microseconds."""
    return round(value, 3) if isinstance(value, float) else value
