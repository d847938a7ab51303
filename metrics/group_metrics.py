"""The metrics of a broker's group coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from regent.core.coordinator.group.group_metadata import GroupState
from regent.core.coordinator.group.group_metadata_manager import GroupMetadataManager
from regent.metrics.exposition import Family, counter, gauge
from regent.metrics.recent import Recent

_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
_COMMITS = "kafka_server_group_coordinator_metrics_offset_commit_"


class GroupMetrics:
    """Groups by their states, and the positions that they commit."""

    def __init__(self, groups: GroupMetadataManager) -> None:
        self._groups = groups
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        counts = self._groups.count_by_state()
        yield gauge(_MANAGER + "numgroups", "groups", counts.total())
        for state in GroupState:
            yield gauge(
                f"{_MANAGER}numgroups{state.value.lower()}",
                f"groups in the state {state.value}",
                counts[state.value],
            )
        positions = self._groups.position_count()
        yield gauge(_MANAGER + "numoffsets", "positions of groups", positions)
        commits = self._groups.commits
        yield counter(_COMMITS + "count", "positions committed", commits)
        yield gauge(
            _COMMITS + "rate",
            "positions committed in a second, in the last minute",
            self._recent.rate("commits", commits),
        )
