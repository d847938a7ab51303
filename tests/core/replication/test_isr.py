"""Membership in the ISR, by offsets and times only."""

from __future__ import annotations

import pytest

from regent.core.model import ReplicaAssignment
from regent.core.replication.partition import (
    NEVER_MS,
    Replica,
    has_reached_isr,
    high_watermark_candidate,
    is_out_of_sync,
    is_under_replicated,
    maximal_isr,
    out_of_sync_members,
)

LAG_MS = 100


def follower(*, in_isr: bool = True, leader_end: int = 20) -> Replica:
    """Return the leader's state of a follower when the leadership begins at time 0."""
    replica = Replica()
    replica.on_leader_epoch(leader_end, 0, is_in_isr=in_isr)
    return replica


def fetch(replica: Replica, offset: int, now_ms: int, leader_end: int = 20) -> bool:
    return replica.on_fetch(offset, 0, 100, leader_end, now_ms)


def test_a_follower_that_does_not_fetch_is_out_of_sync_after_the_limit() -> None:  # ISR-02
    replica = follower()
    assert not is_out_of_sync(replica, 20, 100, LAG_MS)
    assert is_out_of_sync(replica, 20, 101, LAG_MS)


def test_a_slow_follower_is_in_sync_again_when_it_reaches_the_log_end() -> None:  # ISR-03
    replica = follower()
    fetch(replica, 5, 0)
    fetch(replica, 15, 75)
    assert is_out_of_sync(replica, 20, 150, LAG_MS)
    fetch(replica, 20, 150)
    assert not is_out_of_sync(replica, 20, 150, LAG_MS)


def test_a_follower_at_the_log_end_need_not_fetch() -> None:  # ISR-04, ISR-09
    replica = follower()
    fetch(replica, 20, 0)
    assert not is_out_of_sync(replica, 20, 10**9, LAG_MS)


def test_a_follower_beyond_the_log_end_that_does_not_fetch_is_out_of_sync() -> None:
    replica = follower()
    fetch(replica, 25, 0)
    assert is_out_of_sync(replica, 20, 101, LAG_MS)


def test_a_follower_at_the_previous_log_end_was_caught_up_at_the_previous_fetch() -> None:  # ISR-08
    replica = follower(leader_end=5)
    fetch(replica, 5, 5_000, leader_end=10)
    fetch(replica, 10, 10_000, leader_end=15)
    assert replica.last_caught_up_ms == 5_000
    fetch(replica, 12, 11_000, leader_end=20)
    assert replica.last_caught_up_ms == 5_000


def test_only_a_changed_position_is_reported() -> None:
    replica = follower()
    assert fetch(replica, 3, 1)
    assert not fetch(replica, 3, 2)
    assert fetch(replica, 2, 3), "a follower that truncated"


def test_a_new_follower_is_not_caught_up_at_time_zero() -> None:
    replica = follower(in_isr=False)
    assert replica.last_caught_up_ms == NEVER_MS
    assert is_out_of_sync(replica, 20, 1, LAG_MS)


def test_the_leader_stays_and_an_unassigned_member_leaves_at_once() -> None:  # KAFKA-9672
    followers = {2: follower(), 3: follower()}
    fetch(followers[3], 20, 0)
    gone = out_of_sync_members((4, 1, 2, 3), 1, followers, 20, 50, LAG_MS)
    assert gone == (4,)
    assert out_of_sync_members((4, 1, 2, 3), 1, followers, 20, 101, LAG_MS) == (4, 2)


@pytest.mark.parametrize(
    ("end", "high_watermark", "epoch_start", "reached"),
    [(5, 5, 5, True), (4, 5, 0, False), (5, 0, 6, False), (-1, 0, 0, False)],
)
def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch(
    end: int, high_watermark: int, epoch_start: int, reached: bool
) -> None:  # KAFKA-7128
    replica = Replica(log_end_offset=end)
    assert has_reached_isr(replica, high_watermark, epoch_start) is reached


def test_the_maximal_isr_has_added_and_removed_members() -> None:  # ISR-05, ISR-07
    assert maximal_isr((1, 2), None) == (1, 2)
    assert maximal_isr((1, 2), (1, 2, 3)) == (1, 2, 3)
    assert maximal_isr((1, 2), (1,)) == (1, 2)


def test_the_slowest_member_decides_the_high_watermark() -> None:
    followers = [Replica(log_end_offset=7), Replica(log_end_offset=9)]
    assert high_watermark_candidate(8, followers) == 7
    assert high_watermark_candidate(8, []) == 8


@pytest.mark.parametrize(
    ("isr", "replicas", "adding", "removing", "expected"),
    [
        ((0, 1, 2), (0, 1, 2), (), (), False),
        ((0, 1), (0, 1, 2), (), (), True),
        ((0, 1, 2), (0, 1, 2), (), (1,), False),
        ((1, 2), (1, 2), (0,), (), False),
        ((2, 3, 4), (0, 1, 2), (3, 4, 5), (), False),
        ((0, 1), (0, 1, 2, 3), (3,), (), True),
    ],
)
def test_replicas_being_added_do_not_make_a_partition_under_replicated(  # ISR-15
    isr: tuple[int, ...],
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    expected: bool,
) -> None:
    assert is_under_replicated(isr, ReplicaAssignment(replicas, adding, removing)) is expected
