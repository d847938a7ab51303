"""The metrics of a broker's coordinators: of groups and of transactions."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from regent.actors.coordinator_log import Load
from regent.broker.metrics.metric_table import (
    Family,
    Metric,
    MetricTable,
    counter,
    gauge,
    rate,
)
from regent.broker.metrics.recent import WINDOW_S, Recent
from regent.core.coordinator.group.group_metadata import GroupState
from regent.core.coordinator.group.group_metadata_manager import GroupMetadataManager
from regent.core.coordinator.transaction.transaction_marker_manager import TransactionMarkerManager

_NAN: Final = float("nan")


def _counted(
    name: str, meaning: str, read: str | Callable[[GroupMetadataManager], float], details: str = ""
) -> tuple[Metric[GroupMetadataManager], Metric[GroupMetadataManager]]:
    return (
        counter(f"{name}-count", meaning, read, details=details),
        rate(f"{name}-rate", f"{meaning} in a second, in the last minute", read),
    )


def _loads(partitions_of: str) -> tuple[Metric[list[float]], ...]:
    """Return how long partitions took to be read; in milliseconds."""
    meaning = "time to read a partition, in milliseconds, in the last minute"
    details = f"of `{partitions_of}`; in Kafka in the last 30 s. NaN: none was read"
    return (
        gauge(
            "partition-load-time-max",
            f"longest {meaning}",
            lambda took_ms: max(took_ms, default=_NAN),
            details=details,
        ),
        gauge(
            "partition-load-time-avg",
            f"average {meaning}",
            lambda took_ms: sum(took_ms) / len(took_ms) if took_ms else _NAN,
            details=details,
        ),
    )


def _in_state(state: GroupState) -> Metric[Counter[str]]:
    name = state.value
    return gauge(f"NumGroups{name}", f"groups in the state {name}", lambda counts: counts[name])


STATES: Final = MetricTable[Counter[str]](
    "kafka.coordinator.group:type=GroupMetadataManager,name=",
    gauge("NumGroups", "groups", lambda counts: counts.total()),
    *map(_in_state, GroupState),
)
POSITIONS: Final = MetricTable[GroupMetadataManager](
    "kafka.coordinator.group:type=GroupMetadataManager,name=",
    gauge("NumOffsets", "positions of groups", lambda groups: groups.position_count()),
)
GROUPS: Final = MetricTable[GroupMetadataManager](
    "kafka.server:type=group-coordinator-metrics",
    *_counted("offset-commit", "positions committed", "commits"),
    *_counted("offset-expiration", "positions expired", "expirations"),
    *_counted(
        "offset-deletion", "positions deleted by clients", "deletions", details="with OffsetDelete"
    ),
    *_counted(
        "group-completed-rebalance",
        "rebalances completed",
        "completed_rebalances",
        details="their leaders have sent the assignments",
    ),
)
GROUP_LOADS: Final = MetricTable[list[float]](
    "kafka.server:type=group-coordinator-metrics",
    *_loads("__consumer_offsets"),
)
MARKERS: Final = MetricTable[TransactionMarkerManager](
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=",
    gauge(
        "UnknownDestinationQueueSize", "markers that wait for a leader", "unknown_destination_count"
    ),
    gauge(
        "LogAppendRetryQueueSize",
        "ends of transactions that the log has refused so far",
        "refused_append_count",
        details="they are tried again",
    ),
)
TRANSACTION_LOADS: Final = MetricTable[list[float]](
    "kafka.server:type=transaction-coordinator-metrics",
    *_loads("__transaction_state"),
)


class GroupMetrics:
    """Groups by their states, their rebalances, and their positions."""

    def __init__(self, groups: GroupMetadataManager, loads: deque[Load]) -> None:
        self._groups = groups
        self._loads = loads
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield from STATES.of(self._groups.count_by_state(), self._recent)
        yield from POSITIONS.of(self._groups, self._recent)
        yield from GROUPS.of(self._groups, self._recent)
        yield from GROUP_LOADS.of(_load_times_ms(self._loads), self._recent)


class TransactionMetrics:
    """Markers that wait, and how long it takes to become a coordinator."""

    def __init__(self, markers: TransactionMarkerManager, loads: deque[Load]) -> None:
        self._markers = markers
        self._loads = loads
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield from MARKERS.of(self._markers, self._recent)
        yield from TRANSACTION_LOADS.of(_load_times_ms(self._loads), self._recent)


def _load_times_ms(loads: deque[Load]) -> list[float]:
    """Return how long the partitions that were read in the last minute took."""
    since_s = time.monotonic() - WINDOW_S
    # A coordinator appends on its thread. Without the GIL ``list`` of a deque is not atomic.
    return [load.took_ms for load in loads.copy() if load.ended_s >= since_s]
