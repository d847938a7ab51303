"""What clients have written and read, by topic. Mirrors ``kafka.server.BrokerTopicStats``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Protocol

from regent.core.errors import Errors


@dataclass(slots=True)
class TopicStats:
    """Counters since the start: the requests count once for each partition."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    total_produce_requests: int = 0
    total_fetch_requests: int = 0
    failed_produce_requests: int = 0
    failed_fetch_requests: int = 0


class _Answered(Protocol):
    @property
    def error_code(self) -> Errors:
        """The error of a partition."""
        ...


class ResponseErrors:
    """How many partitions in responses had each error, and how many responses had none.

    Mirrors ``errorsPerSec`` of ``kafka.network.RequestMetrics``. Not thread-safe, except to read
    ``without_error`` and a copy of ``by_code``.
    """

    def __init__(self) -> None:
        self.without_error = 0
        self.by_code: Counter[Errors] = Counter()

    def count(self, rows: Iterable[_Answered]) -> None:
        """Count the partitions of one response."""
        failed = [row.error_code for row in rows if row.error_code is not Errors.NONE]
        if failed:
            self.by_code.update(failed)
        else:
            self.without_error += 1


class BrokerTopicStats:
    """The counters of each topic with a partition here, and of all topics ever. Not thread-safe."""

    def __init__(self) -> None:
        self.produce_errors = ResponseErrors()
        self.fetch_errors = ResponseErrors()
        self._topics: dict[str, TopicStats] = {}
        self._others = TopicStats()  # topics that have no partition here any more

    def of(self, topic: str) -> TopicStats:
        """Return the counters of a topic."""
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = TopicStats()
        return stats

    def by_topic(self) -> dict[str, TopicStats]:
        """Return a copy of the map; the values go on counting. Thread-safe."""
        return self._topics.copy()

    def all_topics(self) -> TopicStats:
        """Return the sums. Thread-safe."""
        return _sum((self._others, *self._topics.copy().values()))

    def keep_only(self, topics: Collection[str]) -> None:
        """Forget the other topics; they remain in the sums."""
        for topic in self._topics.keys() - set(topics):
            self._others = _sum((self._others, self._topics.pop(topic)))


def _sum(topics: Collection[TopicStats]) -> TopicStats:
    return TopicStats(*(sum(map(attrgetter(f.name), topics)) for f in fields(TopicStats)))
