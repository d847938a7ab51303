"""Brokers that answer slowly: by the controller, and by the leaders that they follow.

One hiccup does not make a broker slow, and the more answers are slow the sooner it is named. So a
quiet cluster has none: followers ask each leader twice a second even if nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from regent.config.command_line import program
from regent.core.model import BrokerId
from regent.core.protocol.broker import DescribeMetadataResponse, FollowerPace
from regent.core.protocol.controller import AnswerTimes, DescribeControllerResponse
from regent.core.quantities import span_text
from regent.core.replication.follower_times import SLOW_FETCH_MS

_SLOW_ANSWER_MS: Final = 1_000
_SLOW_ANSWERS: Final = 3  # of a minute, to call a broker slow
_ABSENT_MS: Final = 6_000  # a tenth of a minute, in gaps of which none needs to be long
_SILENT_MS: Final = range(3_000, 60_000)  # later it has left the ISRs, which is said elsewhere


@dataclass(frozen=True, slots=True)
class BrokerPace:
    """How fast a broker is; ``answers`` None: the controller has had no answer in this minute.

    ``followed``: what its leaders say, by their ids.
    """

    broker_id: BrokerId
    answers: AnswerTimes | None
    followed: Mapping[BrokerId, FollowerPace]

    @property
    def slowest_follower(self) -> tuple[BrokerId, FollowerPace] | None:
        """The leader that waits longest for its next fetch, and what that leader says."""
        rows = self.followed.items()
        return max(rows, key=lambda row: max(row[1].slowest_ms, row[1].silent_ms), default=None)

    @property
    def isr_shrinks(self) -> int:
        """How often its leaders have taken it out of an ISR since they started."""
        return sum(pace.isr_shrinks for pace in self.followed.values())

    def warning(self) -> str | None:
        """Return a sentence if it is slow."""
        found = []
        if (
            (row := self.answers)
            and row.slow >= _SLOW_ANSWERS
            and row.slowest_ms >= _SLOW_ANSWER_MS
        ):
            found.append(f"the controller waits {row.slowest_ms / 1000:.1f} s (p99)")
        for leader, pace in sorted(self.followed.items()):
            if pace.slow >= _SLOW_ANSWERS and pace.slowest_ms >= SLOW_FETCH_MS:
                waits = f"{pace.slowest_ms / 1000:.1f} s"
                found.append(f"leader {leader} waits {waits} (p99) for its next fetch")
            elif pace.absent_ms >= _ABSENT_MS:
                absent = span_text(pace.absent_ms / 1000)
                found.append(f"leader {leader} waited {absent} of the last minute for its fetches")
            elif pace.silent_ms in _SILENT_MS:
                silent = span_text(pace.silent_ms / 1000)
                found.append(f"it has not fetched from leader {leader} for {silent}")
        if not found:
            return None
        return f"broker {self.broker_id} answers slowly ({'; '.join(found)})"

    def facts(self) -> dict[str, object]:
        """Return the figures for programs and tables, in milliseconds; None: unknown."""
        slowest = self.slowest_follower
        pace = None if slowest is None else slowest[1]
        return {
            "answer_p50_ms": self.answers and self.answers.median_ms,
            "answer_p99_ms": self.answers and self.answers.slowest_ms,
            "fetch_p50_ms": pace and pace.median_ms,
            "fetch_p99_ms": pace and pace.slowest_ms,
            "fetch_age_ms": pace and pace.silent_ms,
            "isr_shrinks": self.isr_shrinks,
        }


def remedy_of_slow() -> str:
    """Return what to do about a slow broker."""
    return (
        "look at the load, the disk, the memory and the network of its machine;"
        f" `{program()} brokers list -o wide` shows the others, too"
    )


def paces(
    live: Collection[BrokerId],
    described: DescribeControllerResponse | None,
    answers: Mapping[BrokerId, DescribeMetadataResponse],
) -> Iterator[BrokerPace]:
    """Yield the pace of each live broker, by id."""
    told = {} if described is None else {row.broker_id: row for row in described.answer_times}
    followed: dict[BrokerId, dict[BrokerId, FollowerPace]] = defaultdict(dict)
    for leader, answer in answers.items():
        for pace in answer.followers:
            followed[pace.broker_id][leader] = pace
    for broker_id in sorted(live):
        yield BrokerPace(broker_id, told.get(broker_id), followed.get(broker_id, {}))


def slow_brokers(
    live: Collection[BrokerId],
    described: DescribeControllerResponse | None,
    answers: Mapping[BrokerId, DescribeMetadataResponse],
) -> Iterator[tuple[BrokerId, str]]:
    """Yield each slow broker with its sentence."""
    for pace in paces(live, described, answers):
        if (warning := pace.warning()) is not None:
            yield pace.broker_id, warning
