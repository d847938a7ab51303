"""Pure functions that decide which replicas are in sync and which records are committed.

Mirrors the ISR logic of ``kafka.cluster.Partition`` and its ``PartitionState``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.replication.replica import Replica


def maximal_isr(
    committed: tuple[BrokerId, ...], proposed: tuple[BrokerId, ...] | None
) -> tuple[BrokerId, ...]:
    """Return every replica that may be in the ISR while a proposal is in flight.

    An expansion may be committed before the leader knows, so the new member counts at once; a
    member to be removed counts until its removal is known.
    """
    return tuple(dict.fromkeys((*committed, *(proposed or ()))))


def out_of_sync_members(
    isr: tuple[BrokerId, ...],
    leader: BrokerId,
    followers: Mapping[BrokerId, Replica],
    log_end_offset: int,
    now_ms: int,
    max_lag_ms: int,
) -> tuple[BrokerId, ...]:
    """Return the members of the ISR that are out of sync or no longer assigned."""
    return tuple(
        member
        for member in isr
        if member != leader
        and (
            (follower := followers.get(member)) is None  # KAFKA-9672
            or is_out_of_sync(follower, log_end_offset, now_ms, max_lag_ms)
        )
    )


def is_out_of_sync(follower: Replica, log_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether a follower lacks records and was last caught up longer ago than the limit."""
    return (
        follower.log_end_offset != log_end_offset and now_ms - follower.caught_up_ms() > max_lag_ms
    )


def has_reached_isr(follower: Replica, high_watermark: int, leader_epoch_start_offset: int) -> bool:
    """Whether a follower has all committed records, and all of earlier epochs (KAFKA-7128)."""
    return follower.log_end_offset >= max(high_watermark, leader_epoch_start_offset)


def high_watermark_candidate(log_end_offset: int, followers: Iterable[Replica]) -> int:
    """Return the offset up to which the leader and all of ``followers`` have the records."""
    return min([log_end_offset, *(follower.log_end_offset for follower in followers)])


def is_under_replicated(isr: tuple[BrokerId, ...], assignment: ReplicaAssignment) -> bool:
    """Whether replicas are missing from the ISR, apart from those being added."""
    return len(isr) < len(assignment.origin_replicas)
