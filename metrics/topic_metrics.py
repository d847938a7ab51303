"""The metrics of what clients ask of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PlacementCounts(Protocol):
    """How often new topics were placed."""

    placements: int
    fallbacks: int


class TopicRequestCounts(Protocol):
    """``broker.topic_service.BrokerTopicService``, as far as it is counted."""

    @property
    def placement(self) -> PlacementCounts:
        """The placements for clients."""
        ...

    @property
    def pending_count(self) -> int:
        """How many requests wait."""
        ...


class TopicMetrics(Collector):
    """How many requests wait, and how often new topics were placed without the service."""

    def __init__(self, topics: TopicRequestCounts) -> None:
        self._topics = topics

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, as of now."""
        yield GaugeMetricFamily(
            "kafka_server_DelayedOperationPurgatory_topic_PurgatorySize",
            "requests about topics that are not answered yet",
            value=self._topics.pending_count,
        )
        placement = self._topics.placement
        for name, meaning, count in (
            ("placements", "placements of topics for clients", placement.placements),
            ("placement_fallbacks", "those without the placement service", placement.fallbacks),
        ):
            yield CounterMetricFamily(f"regent_topic_{name}", meaning, value=count)
