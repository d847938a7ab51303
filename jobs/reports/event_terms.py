"""Terms and brokers, from the groups of events of ``jobs.reports.event_analysis``.

They have few rows, for which Python is faster than another query of Spark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from regent.core.model import BrokerId

Rows = list[dict[str, Any]]

PERCENTILES: Final = ("p50", "p95", "p99", "max")
_SHARES: Final = (50, 95, 99, 100)
_COUNTED: Final = (
    *("events", "terms", "answers", "isr_proposals", "isr_left", "isr_joined"),
    *("started", "failed", "shutdowns", "troubles"),
)
_KINDS: Final = {
    "LeaderAndIsrResponseReceived": "answers",
    "UpdateMetadataResponseReceived": "answers",
    "TopicDeletionStopReplicaResponseReceived": "answers",
    "AlterPartitionReceived": "isr_proposals",
    "ControlledShutdown": "shutdowns",
    "ControlledShutdownAbandoned": "troubles",
    "ChannelOverflowed": "troubles",
    "ControlRequestFailed": "troubles",
}
"""What events count for the broker that they are about."""

_OF_AN_ELECTION: Final = (
    *("trigger", "noticed_ms", "vacant_ms", "elected_ms", "announced_ms", "updated_ms"),
    *("brokers_updated", "takeover_ms", "failover_ms", "changes"),
)


class Groups:
    """Groups of events: by controller, term, kind, and the broker that they are about."""

    def __init__(self, rows: Rows, elections: Rows, comings_and_goings: Rows) -> None:
        self.terms: dict[int, Rows] = defaultdict(list)
        self.times: Counter[tuple[BrokerId, str]] = Counter()
        """How often each broker did something, or something happened to it."""
        self.updated_ms: dict[int, dict[BrokerId, float]] = defaultdict(dict)
        """By controller epoch and broker: the time of its first answer to a LeaderAndIsr.

        The first one in a term names everything the broker hosts. Brokers that started during the
        term, and were told later, are not in it.
        """
        self.elections = {row["elected"]: row for row in elections if row["elected"]}
        self.resigned_ms = {row["resigned"]: row["ts_ms"] for row in elections if row["resigned"]}
        self.times.update((row["broker_id"], "terms") for row in self.elections.values())
        for row in rows:
            self._add_group(row)
        self.add_times(comings_and_goings)
        for row in comings_and_goings:
            updated, broker_id = self.updated_ms[row["controller_epoch"]], row["broker"]
            if row["did"] == "started" and row["first_ms"] <= updated.get(broker_id, -1):
                del updated[broker_id]

    def add_times(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add what brokers did some times."""
        for row in rows:
            self.times[row["broker"], row["did"]] += row["times"]

    def _add_group(self, row: dict[str, Any]) -> None:
        epoch, kind, broker_id = row["controller_epoch"], row["event"], row["broker"]
        self.times[row["broker_id"], "events"] += row["events"]
        if epoch:
            self.terms[epoch].append(row)
        if broker_id is not None and kind in _KINDS:
            self.times[broker_id, _KINDS[kind]] += row["events"]
            if epoch and kind == "LeaderAndIsrResponseReceived":
                self.updated_ms[epoch][broker_id] = row["arrived_ms"]


def terms_of_controllers(groups: Groups) -> Rows:
    """Return one row a term, sorted by epoch, with the phases of its failover.

    ``vacant_ms`` is the time without a controller before the election: since the one before
    resigned, or since the new one noticed that ``/controller`` was deleted. ``has_failed``: the
    controller did not resign, and another one was elected. Unknown values, such as an election
    before the journals begin, are None.
    """
    last = max(groups.terms, default=0)
    return [_term(groups, epoch, is_last=epoch == last) for epoch in sorted(groups.terms)]


def _term(groups: Groups, epoch: int, *, is_last: bool) -> dict[str, Any]:
    rows, resigned_ms = groups.terms[epoch], groups.resigned_ms.get(epoch)
    term = {
        "controller_epoch": epoch,
        "broker_id": rows[0]["broker_id"],
        **dict.fromkeys(_OF_AN_ELECTION),
        "events": sum(row["events"] for row in rows),
        "first_ms": min(row["first_ms"] for row in rows),
        "last_ms": to_us(max(row["handled_ms"] for row in rows)),
        "resigned_ms": resigned_ms,
        "has_failed": resigned_ms is None and not is_last,
    }
    election = groups.elections.get(epoch)
    if election is None:
        return term
    elected_ms, updated = election["ts_ms"], groups.updated_ms[epoch].values()
    noticed_ms = elected_ms - election["queue_ms"]
    term |= {
        "trigger": election["event"],
        "noticed_ms": to_us(noticed_ms),
        "elected_ms": elected_ms,
        "announced_ms": to_us(elected_ms + election["handling_ms"]),
        "takeover_ms": election["handling_ms"],
        "changes": election["changes"],
        "brokers_updated": len(updated),
    }
    if epoch > 1:
        # A paused controller resigns after the next election.
        gone_ms = min(noticed_ms, groups.resigned_ms.get(epoch - 1, noticed_ms))
        term["vacant_ms"] = to_us(elected_ms - gone_ms)
    if updated:
        term["updated_ms"] = to_us(max(updated))
        term["failover_ms"] = to_us(max(updated) - noticed_ms)
    return term


def slowest_brokers(groups: Groups, answered: Mapping[BrokerId, dict[str, float]]) -> Rows:
    """Return one row a broker, the slowest to answer controllers first.

    ``answered_ms`` counts from when a request was first sent, ``updated_after_ms`` from when a new
    controller had sent to every broker; None if unknown.
    """
    waited: dict[BrokerId, list[float]] = defaultdict(list)
    for epoch, election in groups.elections.items():
        announced_ms = election["ts_ms"] + election["handling_ms"]
        for broker_id, updated_ms in groups.updated_ms[epoch].items():
            waited[broker_id].append(max(0.0, updated_ms - announced_ms))
    rows = [
        {
            "broker_id": broker_id,
            **{did: groups.times[broker_id, did] for did in _COUNTED},
            "answered_ms": answered.get(broker_id),
            "failovers": len(waited[broker_id]),
            "updated_after_ms": _percentiles(waited[broker_id]),
        }
        for broker_id in {broker_id for broker_id, _ in groups.times}
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
    return distribution(np.percentile(values, _SHARES).tolist()) if values else None


def distribution(values: Iterable[float]) -> dict[str, float]:
    """Return the percentiles, which are in this sequence, by their names."""
    return dict(zip(PERCENTILES, map(to_us, values), strict=True))


def to_us(value: Any) -> Any:
    """Round a float to three digits: milliseconds to microseconds."""
    return round(value, 3) if isinstance(value, float) else value
