"""The metrics of the process that would notice this broker's death."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from regent.cluster.guardian import Guardian


class GuardianMetrics(Collector):
    """Whether it runs, and how often it had to be replaced."""

    def __init__(self, guardian: Guardian) -> None:
        self._guardian = guardian

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, as of now."""
        yield GaugeMetricFamily(
            "regent_guardian_up",
            "1: a crash of this broker is seen at once; 0: when its session times out",
            value=int(self._guardian.is_alive),
        )
        yield CounterMetricFamily(
            "regent_guardian_replacements",
            "guardians that died and were replaced",
            value=self._guardian.replacements,
        )
