"""Defects in what leaders know of followers and of themselves: they test the simulation.

Each is a function that breaks one branch while the returned context lasts. Two are left out:
answers of an older version that a leader takes over, and conflicts that it does not. A leader has
one proposal at a time and sends it again unchanged: only requests that no leader sends lead here
to either. Unit tests have them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias
from unittest.mock import patch

from regent.core.controller import partition_change
from regent.core.controller.partition_change import AlterIsr
from regent.core.errors import Errors
from regent.core.model import LeaderRecoveryState
from regent.core.replication.follower_fetches import FollowerFetches
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.partition import Partition
from regent.core.replication.produce import DelayedProduce, Produce
from tests.support.memory_logs import MemoryLog

Defect: TypeAlias = Callable[[], Any]


def positions_kept_by_who_leads_again() -> Any:
    """Who follows keeps what it knew of followers, and goes by it when it leads again."""
    make = Partition.make_follower

    def and_remember(self: Partition, state: Any) -> None:
        followers = self.followers
        make(self, state)
        self.followers = followers

    return patch.object(Partition, "make_follower", and_remember)


def epochs_begin_unnoted() -> Any:
    """A leader does not note where its epoch begins before it has records of it (KAFKA-7415)."""
    return patch.object(MemoryLog, "assign_epoch", lambda self, leader_epoch: None)


def watermarks_stay_beyond_truncated_logs() -> Any:
    """What a follower drops stays committed in its mind (KAFKA-9491)."""
    return patch.object(Partition, "on_truncation", lambda self: None)


def members_proposed_without_their_lives() -> Any:
    """A leader does not say in which life it saw those it proposes (KIP-903)."""
    propose = LeaderPartitions._propose

    def of_any_life(self: LeaderPartitions, partition: Partition, isr: Any) -> None:
        lives = {r: follower.broker_epoch for r, follower in partition.followers.items()}
        for follower in partition.followers.values():
            follower.broker_epoch = -1
        propose(self, partition, isr)
        for replica, broker_epoch in lives.items():
            partition.followers[replica].broker_epoch = broker_epoch

    return patch.object(LeaderPartitions, "_propose", of_any_life)


def too_few_in_sync_append_all_the_same() -> Any:
    """``acks=all`` is appended though fewer are in sync than it needs."""
    append = Produce._append

    def with_any(self: Produce, partition: Any, batches: Any, now_ms: int) -> Any:
        with patch.object(Partition, "min_isr", 1):
            return append(self, partition, batches, now_ms)

    return patch.object(Produce, "_append", with_any)


def deposed_leaders_acknowledge() -> Any:
    """Who does not lead any more acknowledges what it appended."""
    outcome = DelayedProduce._outcome

    def all_the_same(self: DelayedProduce, awaited: Any) -> Any:
        error = outcome(self, awaited)
        is_there = awaited.partition.log is not None
        if error is Errors.NOT_LEADER_OR_FOLLOWER and is_there:
            return Errors.NONE
        return error

    return patch.object(DelayedProduce, "_outcome", all_the_same)


def fetches_of_earlier_lives_count() -> Any:
    """A leader does not ask which life of a follower fetches (KIP-903)."""
    return patch.object(FollowerFetches, "_is_of_earlier_life", lambda self, request: False)


def leaders_let_others_in_before_they_recover() -> Any:
    """A leader that nobody in sync stands behind lets followers in before it has said so."""
    expand = LeaderPartitions._expand_isr

    def whether_or_not(self: LeaderPartitions, partition: Partition, replica: int) -> None:
        state = partition.leader_recovery_state
        partition.leader_recovery_state = LeaderRecoveryState.RECOVERED
        expand(self, partition, replica)
        partition.leader_recovery_state = state

    stack = ExitStack()
    stack.enter_context(patch.object(LeaderPartitions, "_propose_recovered", lambda *_: None))
    stack.enter_context(patch.object(LeaderPartitions, "_expand_isr", whether_or_not))
    return stack


def recovering_leaders_believed() -> Any:
    """A controller accepts any recovery state that a leader proposes (KIP-704)."""
    is_valid = partition_change._is_valid_isr

    def in_any_state(now: Any, replicas: Any, proposed: AlterIsr) -> bool:
        recovered = replace(proposed, leader_recovery_state=LeaderRecoveryState.RECOVERED)
        return is_valid(now, replicas, recovered)

    return patch.object(partition_change, "_is_valid_isr", in_any_state)


LEADER_DEFECTS: tuple[Defect, ...] = (
    positions_kept_by_who_leads_again,
    epochs_begin_unnoted,
    watermarks_stay_beyond_truncated_logs,
    members_proposed_without_their_lives,
    too_few_in_sync_append_all_the_same,
    deposed_leaders_acknowledge,
    fetches_of_earlier_lives_count,
    leaders_let_others_in_before_they_recover,
    recovering_leaders_believed,
)

SEARCH_LEADERS_FROM: dict[Defect, int] = {
    fetches_of_earlier_lives_count: 112,
    recovering_leaders_believed: 139,
}
