"""The metrics of a broker's coordinators: of groups and of transactions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from regent.actors.coordinator_log import Load
from regent.broker.metrics.exposition import Family, counter, gauge
from regent.broker.metrics.recent import WINDOW_S, Recent
from regent.core.coordinator.group.group_metadata import GroupState
from regent.core.coordinator.group.group_metadata_manager import GroupMetadataManager
from regent.core.coordinator.transaction.transaction_marker_manager import TransactionMarkerManager

_MANAGER: Final = "kafka_coordinator_group_groupmetadatamanager_"
_OF_GROUPS: Final = "kafka_server_group_coordinator_metrics_"
_OF_TRANSACTIONS: Final = "kafka_server_transaction_coordinator_metrics_"
_MARKERS: Final = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"


class GroupMetrics:
    """Groups by their states, their rebalances, and their positions."""

    def __init__(self, groups: GroupMetadataManager, loads: deque[Load]) -> None:
        self._groups = groups
        self._loads = loads
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        groups = self._groups
        counts = groups.count_by_state()
        yield gauge(_MANAGER + "numgroups", "groups", counts.total())
        for state in GroupState:
            yield gauge(
                f"{_MANAGER}numgroups{state.value.lower()}",
                f"groups in the state {state.value}",
                counts[state.value],
            )
        yield gauge(_MANAGER + "numoffsets", "positions of groups", groups.position_count())
        for name, meaning, count in (
            ("offset_commit", "positions committed", groups.commits),
            ("offset_expiration", "positions expired", groups.expirations),
            ("offset_deletion", "positions deleted by clients", groups.deletions),
            ("group_completed_rebalance", "rebalances completed", groups.completed_rebalances),
        ):
            yield counter(f"{_OF_GROUPS}{name}_count", meaning, count)
            yield gauge(
                f"{_OF_GROUPS}{name}_rate",
                f"{meaning} in a second, in the last minute",
                self._recent.rate(name, count),
            )
        yield from _load_times(_OF_GROUPS, self._loads)


class TransactionMetrics:
    """Markers that wait, and how long it takes to become a coordinator."""

    def __init__(self, markers: TransactionMarkerManager, loads: deque[Load]) -> None:
        self._markers = markers
        self._loads = loads

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield gauge(
            _MARKERS + "unknowndestinationqueuesize",
            "markers that wait for a leader",
            self._markers.unknown_destination_count,
        )
        yield gauge(
            _MARKERS + "logappendretryqueuesize",
            "ends of transactions that the log has refused so far",
            self._markers.refused_append_count,
        )
        yield from _load_times(_OF_TRANSACTIONS, self._loads)


def _load_times(prefix: str, loads: deque[Load]) -> Iterable[Family]:
    """Yield how long partitions took to be read in the last minute; NaN: none was read."""
    since_s = time.monotonic() - WINDOW_S
    # A coordinator appends on its thread. Without the GIL ``list`` of a deque is not atomic.
    took_ms = [load.took_ms for load in loads.copy() if load.ended_s >= since_s]
    average = sum(took_ms) / len(took_ms) if took_ms else float("nan")
    for name, meaning, value in (
        ("max", "longest", max(took_ms, default=float("nan"))),
        ("avg", "average", average),
    ):
        yield gauge(
            f"{prefix}partition_load_time_{name}",
            f"{meaning} time to read a partition, in milliseconds, in the last minute",
            value,
        )
