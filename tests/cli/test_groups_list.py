"""The total lag of groups, their rates, and the time until they have read everything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from regent.cli.group_admin import GroupAdmin, ListedGroup
from regent.cli.groups_list import GroupLags, furthest_first
from regent.client import lag_rates
from regent.client.lag_rates import LagPace
from regent.core.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = ListedGroup("g", "Stable", False)


class Positions:
    """A group admin with the positions and ends of the moment."""

    def __init__(self) -> None:
        self.committed_now: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int | None] = {}

    def committed(self, groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
        return dict.fromkeys(groups, self.committed_now)

    def offsets(
        self, partitions: Collection[TopicPartition], _: Any
    ) -> dict[TopicPartition, int | None]:
        return {p: self.ends.get(p) for p in partitions}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(lag_rates, "monotonic", lambda: now[0])
    return now


def test_the_time_to_clear_counts_what_is_written_meanwhile(clock: list[float]) -> None:
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    positions.committed_now, positions.ends = {T0: 10, T1: 0}, {T0: 110, T1: 50}
    (first,) = lags.look([GROUP])
    assert (first.pace.lag, first.pace.read_per_s, first.pace.time_to_clear) == (150, None, None)
    clock[0] += 2
    positions.committed_now, positions.ends = {T0: 70, T1: 0}, {T0: 120, T1: 50}
    (row,) = lags.look([GROUP])
    assert (row.pace.lag, row.pace.read_per_s, row.pace.written_per_s) == (100, 30.0, 5.0)
    assert row.pace.seconds_to_clear == 4.0
    assert row.pace.time_to_clear == "4 s"


def test_a_group_that_falls_behind_never_clears(clock: list[float]) -> None:
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    positions.committed_now, positions.ends = {T0: 10}, {T0: 110}
    lags.look([GROUP])
    clock[0] += 10
    positions.ends = {T0: 200}
    (row,) = lags.look([GROUP])
    assert row.pace.time_to_clear == "never at this rate"


def test_between_two_commits_a_group_is_not_said_to_stand_still(clock: list[float]) -> None:
    """Its members read 20 records a second and commit every five seconds."""
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    shown = []
    for second in range(0, 41, 2):
        clock[0] = float(second)
        positions.committed_now, positions.ends = {T0: second // 5 * 100}, {T0: 1000}
        (row,) = lags.look([GROUP])
        shown.append(row.pace.read_per_s)
    assert shown[:3] == [None, None, None], "it has not committed yet"
    assert all(shown[3:5]), shown
    assert set(shown[5:]) == {20.0}


def test_a_group_without_members_stands_still_at_once(clock: list[float]) -> None:
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    positions.committed_now, positions.ends = {T0: 10}, {T0: 110}
    lags.look([GROUP._replace(state="Empty")])
    clock[0] += 1
    (row,) = lags.look([GROUP._replace(state="Empty")])
    assert row.pace.time_to_clear == "never at this rate"


def test_a_group_that_has_read_everything_is_done_and_one_without_positions_has_no_lag(
    clock: list[float],
) -> None:
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    positions.committed_now, positions.ends = {T0: 10, T1: 3}, {T0: 10, T1: 3}
    lags.look([GROUP])
    clock[0] += 1
    (row,) = lags.look([GROUP])
    assert (row.pace.lag, row.pace.time_to_clear) == (0, "now")
    positions.committed_now = {}
    assert lags.look([GROUP])[0].pace.lag is None


def test_the_lag_is_unknown_while_a_partition_does_not_tell_its_end(clock: list[float]) -> None:
    positions = Positions()
    lags = GroupLags(cast("GroupAdmin", positions))
    positions.committed_now, positions.ends = {T0: 10, T1: 1_000}, {T0: 110, T1: None}
    (row,) = lags.look([GROUP])
    assert row.pace.lag is None
    clock[0] += 10
    positions.ends = {T0: 110, T1: 5_000}
    (row,) = lags.look([GROUP])
    assert (row.pace.lag, row.pace.read_per_s, row.pace.written_per_s) == (4_100, None, None), (
        "not 5,000 / 10 s"
    )
    known = [
        row._replace(group=name, pace=LagPace(lag, None, None))
        for name, lag in (("a", 0), ("b", 7), ("c", None))
    ]
    assert [one.group for one in sorted(known, key=furthest_first)] == ["c", "b", "a"]
