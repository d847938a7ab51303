"""Brokers that are not registered but should be: since when, and why, as far as it is known.

Three can tell: the broker itself, as its last act in ZooKeeper; the process that supervises it on
this machine (``cluster.json``); and the active controller, if it has seen it leave. It also tells
which brokers come and go, and are back before anybody looks.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from regent.client.wording import moment_text
from regent.cluster.cluster_file import BrokerEntry
from regent.core.model import BrokerId
from regent.core.protocol.controller import DescribeControllerResponse
from regent.core.quantities import span_text
from regent.zk.codecs.broker_znodes import BrokerEnd

_SAME_END_MS: Final = 60_000  # between what several say about one end
_DAY_MS: Final = 86_400_000
_OFTEN: Final = 3  # absences in an hour; a restart, and another one, may be wanted
_NOT_TOLD: Final = "only ZooKeeper has the reason, if it said one: ask with --zookeeper"
_UNKNOWN: Final = (
    "it has said no reason: its process was killed, has crashed or stands still, or its machine or"
    " its network has failed"
)


@dataclass(frozen=True, slots=True)
class MissingBroker:
    """``since_ms``: wall clock, None: unknown. ``reason``: a sentence.

    ``is_latest``: it may have been missing before, too.
    """

    broker_id: BrokerId
    since_ms: int | None
    reason: str
    is_latest: bool = False

    def sentence(self) -> str:
        """Return who is missing, since when, and why."""
        since = ""
        if self.since_ms is not None:
            gone_s = max(time.time() - self.since_ms / 1000, 0.0)
            earlier = " or earlier" if self.is_latest else ""
            since = f" since {moment_text(self.since_ms)}{earlier} ({span_text(gone_s)})"
        return f"broker {self.broker_id} not registered{since}: {self.reason}"


@dataclass(frozen=True, slots=True)
class EndsOfBrokers:
    """All that is known about the ends of brokers.

    ``noted`` None: ZooKeeper was not asked. ``elected_ms``: since when there is this controller; 0:
    unknown. It has not seen brokers leave before, for example its predecessor.
    """

    noted: Mapping[BrokerId, BrokerEnd] | None
    supervised: Mapping[BrokerId, BrokerEntry]
    described: DescribeControllerResponse | None
    elected_ms: int = 0

    def of(self, broker_id: BrokerId) -> MissingBroker:
        """Return what is known about one broker that is not registered."""
        seen_ms = self._departed_ms(broker_id)
        entry, end = self.supervised.get(broker_id), (self.noted or {}).get(broker_id)
        killed_ms = entry.ended_ms if entry is not None and entry.ended else None
        newest_ms = max((ms for ms in (seen_ms, killed_ms) if ms is not None), default=0)
        if end is not None and newest_ms - end.at_ms <= _SAME_END_MS:
            return MissingBroker(broker_id, end.at_ms, end.reason)
        if entry is not None and killed_ms is not None:
            how = f"its process {entry.pid} {entry.ended}"
            return MissingBroker(broker_id, killed_ms, how)
        if entry is not None:
            how = (
                f"its process {entry.pid} has not ended, as far as its supervisor knows: it stands"
                " still, or does not reach ZooKeeper"
            )
        else:
            how = _UNKNOWN if self.noted is not None else _NOT_TOLD
        is_latest = seen_ms is None and self.elected_ms > 0
        since_ms = self.elected_ms if is_latest else seen_ms
        return MissingBroker(broker_id, since_ms, how, is_latest=is_latest)

    def recent_failures(self, known: Collection[BrokerId]) -> list[MissingBroker]:
        """Return brokers that failed in the last day, except those that are ``known``."""
        since_ms = time.time() * 1000 - _DAY_MS
        return [
            MissingBroker(broker_id, end.at_ms, end.reason)
            for broker_id, end in sorted((self.noted or {}).items())
            if broker_id not in known and not end.was_asked and end.at_ms > since_ms
        ]

    def _departed_ms(self, broker_id: BrokerId) -> int | None:
        rows = () if self.described is None else self.described.departed
        return next((row.at_ms for row in rows if row.broker_id == broker_id), None)


def restless_brokers(
    described: DescribeControllerResponse | None,
) -> Iterator[tuple[BrokerId, str]]:
    """Yield each broker that comes and goes with its sentence; nothing without a controller."""
    for row in () if described is None else described.returned:
        if row.times >= _OFTEN:
            away = span_text(row.away_ms / 1000)
            yield (
                row.broker_id,
                f"broker {row.broker_id} has left and come back {row.times} times in the last"
                f" hour, last at {moment_text(row.last_ms)} after {away}",
            )


def remedy_of_restless() -> str:
    """Return what to do about a broker that comes and goes."""
    return (
        "unless somebody restarts it, its session with ZooKeeper ends: look at the network and at"
        " the pauses of its machine; its broker.log says when it was connected again"
    )
