"""The state of one group."""

from __future__ import annotations

from regent.core.coordinator.group.group_metadata import GroupMetadata, GroupState


def test_after_the_highest_generation_that_fits_the_wire_comes_the_first() -> None:
    group = GroupMetadata("g", 0, 0)
    group.generation_id = 2**31 - 2
    found = []
    for now_ms in range(3):
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        group.begin_generation(now_ms)
        found.append(group.generation_id)
    assert found == [2**31 - 1, 1, 2]
