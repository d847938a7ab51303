"""Defects in what leaders know of followers and of themselves: they test the simulation.

Each is a function that breaks one branch while the returned context lasts. Two are left out: a
leader that accepts answers of an older version, and one that ignores conflicts. A leader has one
proposal at a time and repeats it unchanged, so no request of a leader causes either. Unit tests
have them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from regent.core.controller.election import partition_change
from regent.core.controller.election.partition_change import AlterIsr
from regent.core.errors import Errors
from regent.core.model import LeaderRecoveryState
from regent.core.protocol.controller import AlteredPartition
from regent.core.replication.follower_fetches import FollowerFetches
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.partition import Partition
from regent.core.replication.produce import DelayedProduce, Produce
from regent.zk.stores.isr_store import ZkIsrStore
from tests.support.memory_logs import MemoryLog


def positions_kept_by_later_leaders() -> Any:
    """A follower keeps the positions of other followers and uses them when it leads again."""
    make = Partition.make_follower

    def and_remember(self: Partition, state: Any) -> None:
        followers = self.followers
        make(self, state)
        self.followers = followers

    return patch.object(Partition, "make_follower", and_remember)


def epochs_begin_unnoted() -> Any:
    """A leader does not store the start of its epoch before it has records of it (KAFKA-7415)."""
    return patch.object(MemoryLog, "assign_epoch", lambda self, leader_epoch: None)


def watermarks_stay_beyond_truncated_logs() -> Any:
    """A follower keeps its high watermark when it truncates below it (KAFKA-9491)."""
    return patch.object(Partition, "on_truncation", lambda self: None)


def members_proposed_without_broker_epochs() -> Any:
    """A leader proposes members without their broker epochs (KIP-903)."""
    propose = LeaderPartitions._propose

    def of_any_broker_epoch(self: LeaderPartitions, partition: Partition, isr: Any) -> None:
        broker_epochs = {r: follower.broker_epoch for r, follower in partition.followers.items()}
        for follower in partition.followers.values():
            follower.broker_epoch = -1
        propose(self, partition, isr)
        for replica, broker_epoch in broker_epochs.items():
            partition.followers[replica].broker_epoch = broker_epoch

    return patch.object(LeaderPartitions, "_propose", of_any_broker_epoch)


def appends_with_too_few_in_sync() -> Any:
    """``acks=all`` is appended with fewer in-sync replicas than required."""
    append = Produce._append

    def with_any(self: Produce, partition: Any, batches: Any, now_ms: int) -> Any:
        with patch.object(Partition, "min_isr", 1):
            return append(self, partition, batches, now_ms)

    return patch.object(Produce, "_append", with_any)


def deposed_leaders_acknowledge() -> Any:
    """A deposed leader acknowledges what it appended."""
    outcome = DelayedProduce._outcome

    def acknowledge_anyway(self: DelayedProduce, awaited: Any) -> Any:
        error = outcome(self, awaited)
        is_there = awaited.partition.log is not None
        if error is Errors.NOT_LEADER_OR_FOLLOWER and is_there:
            return Errors.NONE
        return error

    return patch.object(DelayedProduce, "_outcome", acknowledge_anyway)


def fetches_of_former_broker_epochs_count() -> Any:
    """A leader does not check the broker epoch of a fetch (KIP-903)."""
    return patch.object(FollowerFetches, "_is_of_earlier_life", lambda self, request: False)


def recovering_leaders_expand_isr() -> Any:
    """A recovering leader adds followers before the controller knows that it recovered."""
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


def any_recovery_state_accepted() -> Any:
    """A controller accepts any recovery state in a proposal (KIP-704)."""
    is_valid = partition_change._is_valid_isr

    def in_any_state(now: Any, replicas: Any, proposed: AlterIsr) -> bool:
        recovered = replace(proposed, leader_recovery_state=LeaderRecoveryState.RECOVERED)
        return is_valid(now, replicas, recovered)

    return patch.object(partition_change, "_is_valid_isr", in_any_state)


def restarted_members_refused_unread() -> Any:
    """A leader that writes ISRs refuses restarted members before it reads the stored state."""
    alter = ZkIsrStore.alter_partitions

    def refusing(self: ZkIsrStore, request: Any, controller_epochs: Any) -> Any:
        others = self._with_members_of_other_epochs(request)
        answer = alter(self, request, controller_epochs)
        refused = [
            AlteredPartition(*row[:2], Errors.INELIGIBLE_REPLICA) if row[:2] in others else row
            for row in answer.partitions
        ]
        return replace(answer, partitions=tuple(refused))

    return patch.object(ZkIsrStore, "alter_partitions", refusing)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    positions_kept_by_later_leaders: 10,
    watermarks_stay_beyond_truncated_logs: 96,
    appends_with_too_few_in_sync: 9,
    deposed_leaders_acknowledge: 4,
    fetches_of_former_broker_epochs_count: 1459,
    recovering_leaders_expand_isr: 4,
    any_recovery_state_accepted: 199,
    restarted_members_refused_unread: 319,
}
