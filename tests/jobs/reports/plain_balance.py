"""The balance of an assignment by plain counts, to judge and to compare with Spark's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.selection import hosts_of
from regent.jobs.reports.balance import Balance, Counts, Found, Leaders
from regent.jobs.reports.measure import _fair_shares, _racks


class Row(NamedTuple):
    """A partition; ``leader`` and ``isr`` None: unknown."""

    topic: str
    partition: int
    replicas: Sequence[int]
    leader: int | None = None
    isr: Sequence[int] | None = None
    adding_replicas: Sequence[int] | None = None
    min_isr: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def plain_balance(rows: Sequence[Row], listed: Sequence[PlannedBroker] = ()) -> Balance:
    """Measure an assignment as ``measure`` does."""
    known = [row for row in rows if row.leader is not None]
    led = {row.leader for row in known if row.leader is not None} - {-1}
    held = Counter(b for row in rows for b in row.replicas)
    takers = [b for b in listed if not b.no_replicas]
    ids = sorted({*held, *led, *(b.broker_id for b in takers)})
    listed = [b for b in listed if b.broker_id in ids]
    racks = _racks(ids, listed)
    rack = dict(zip(ids, racks.of_broker.tolist(), strict=True))
    lost = np.zeros(len(racks.names), np.int64)
    together = []
    taken = {rack[b.broker_id] for b in takers or listed} - {-1}
    hosts = hosts_of(listed, ids)
    host = dict(zip(ids, hosts or [-1] * len(ids), strict=True))
    housing = {host[b.broker_id] for b in takers} - {-1}
    shapes = []
    for row in rows:
        inside = {rack[b] for b in row.replicas}
        near = [b for b in row.replicas if rack[b] in taken]
        shape = {"known": len(near), "spread": len(inside & taken), "count": 1}
        on = [host[b] for b in row.replicas if host[b] in housing]
        shapes.append(shape | {"housed": len(on), "apart": len({*on})})
        if len(inside) == 1 and inside != {-1}:
            lost[inside.pop()] += 1
            together += [row] if len(row.replicas) > 1 and len(racks.names) > 1 else []

    def column(brokers: Iterable[int]) -> Counts:
        counts = Counter(brokers)
        return np.array([counts[b] for b in ids], np.int64)

    loads = {"replicas": column(held.elements())}
    loads["preferred leaders"] = column(row.replicas[0] for row in rows)
    leaders = None
    if known:
        loads["leaders"] = column(row.leader for row in known if row.leader is not None)
        others = [row for row in known if row.leader != row.replicas[0]]
        in_sync = [r for r in others if r.isr is None or r.replicas[0] in r.isr]
        leaders = Leaders(
            column(row.replicas[0] for row in known),
            column(row.replicas[0] for row in others),
            column(row.replicas[0] for row in in_sync if row.leader != -1),
            loads["leaders"],
            sum(row.leader == -1 for row in known),
            len(rows) - len(known),
        )
    missing = [
        {*row.replicas} - {*row.isr} - {*(row.adding_replicas or ())}
        for row in rows
        if row.isr is not None
    ]
    return Balance(
        np.array(ids, np.int64),
        loads,
        _fair_shares(ids, loads["replicas"], (racks, hosts), takers, shapes),
        racks,
        Counter(len(row.replicas) for row in rows),
        lost,
        leaders,
        _states(rows),
        column(b for behind in missing for b in behind),
        _topics(row for row in rows if len(row.replicas) == 1),
        _topics(together),
        frozenset(b.broker_id for b in listed if b.no_replicas),
        min(len(row.replicas if row.isr is None else row.isr) for row in rows),
    )


def _states(rows: Iterable[Row]) -> dict[str, Found]:
    found: dict[str, list[str]] = {"leaderless": [], "under_min_isr": [], "under_replicated": []}
    for row in sorted(rows, key=lambda row: (row.topic, row.partition)):
        if row.leader == -1:
            found["leaderless"].append(row.name)
        if row.isr is None:
            continue
        needed = min(row.min_isr or 0, len(row.replicas))
        if row.leader != -1 and len(row.isr) < needed:
            found["under_min_isr"].append(row.name)
        if len(row.isr) < len(row.replicas) - len(row.adding_replicas or ()):
            found["under_replicated"].append(row.name)
    return {state: Found(len(names), names[:10]) for state, names in found.items()}


def _topics(rows: Iterable[Row]) -> Found:
    counts = Counter(row.topic for row in rows)
    most = sorted(counts, key=lambda topic: (-counts[topic], topic))
    return Found(counts.total(), most[:100], len(counts)) if counts else Found()
