"""Defects of the group coordinator and of what it stands on: they test the simulation.

Each is a function that breaks one rule while the returned context lasts. Three are left out that
hundreds of histories do not meet: appends without a check of the term, epochs that are kept when a
topic is deleted and created again, and partitions that are not read again when they could not be
read. Unit tests have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_metadata import STABLE, GroupMetadata
from regent.core.coordinator.group.group_metadata_manager import GroupMetadataManager
from regent.core.coordinator.group.group_offsets import CommittedOffset, GroupOffsets
from regent.core.coordinator.group.group_rebalances import GroupRebalances
from regent.core.errors import Errors
from regent.core.records import NO_RECORDS
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.replica_manager import ReplicaManager

# --- members and generations ----------------------------------------------------------------------


def empty_groups_keep_their_generation() -> Any:
    """A group whose last member is gone stays in its generation."""
    begin = GroupMetadata.begin_generation

    def unless_empty(self: GroupMetadata, now_ms: int) -> None:
        begin(self, now_ms)
        self.generation_id -= not self.members

    return patch.object(GroupMetadata, "begin_generation", unless_empty)


def static_members_removed_by_rebalances() -> Any:
    """A static member that does not join again in time is removed."""
    complete = GroupRebalances._complete_join

    def without_absent_ones(self: GroupRebalances, group: GroupMetadata) -> None:
        for member in list(group.members.values()):
            if member.awaiting_join is None:
                group.remove(member.member_id)
        complete(self, group)

    return patch.object(GroupRebalances, "_complete_join", without_absent_ones)


def sessions_end_while_members_join() -> Any:
    """A member is silent while its JoinGroup waits, and is removed."""

    def at_once(self: GroupRebalances, group: GroupMetadata, member: Any) -> None:
        if member.member_id in group.members:
            self.remove_member(group, member)

    return patch.object(GroupRebalances, "_on_session_expired", at_once)


def silent_members_stay() -> Any:
    """A member that is silent is not removed."""
    return patch.object(GroupRebalances, "_on_session_expired", lambda self, group, member: None)


def pending_members_not_awaited() -> Any:
    """A rebalance ends without the members that only have an id."""

    def all_known(self: GroupMetadata) -> bool:
        return len(self.members) == self.awaiting_join_count

    return patch.object(GroupMetadata, "has_all_joined", property(all_known))


def rejoins_of_leaders_ignored() -> Any:
    """A leader that joins again, because its topic was expanded, gets the answer that it had."""
    join = GroupCoordinator._join_with_id

    def as_a_follower(self: GroupCoordinator, group: Any, request: Any, respond: Any) -> None:
        member = group.members.get(request.member_id)
        is_same = member is not None and member.protocols == request.protocols
        if is_same and group.state is STABLE:
            respond(self._rebalances.joined(group, member))
        else:
            join(self, group, request, respond)

    return patch.object(GroupCoordinator, "_join_with_id", as_a_follower)


def members_of_any_generation() -> Any:
    """A member of an earlier generation may commit."""

    def of_any(self: Any, group: Any, member_id: str, instance_id: Any, _: int) -> Errors:
        problem: Errors = group.member_problem(member_id, instance_id)
        return problem

    return patch.object(GroupCoordinator, "_generation_problem", of_any)


# --- what is stored -------------------------------------------------------------------------------


def assignments_told_before_they_are_stored() -> Any:
    """SyncGroup is answered before the record of the group is replicated."""
    store = GroupMetadataManager.store

    def later(self: GroupMetadataManager, group: Any, assignments: Any, respond: Any) -> None:
        store(self, group, assignments, lambda error: None)
        respond(Errors.NONE)

    return patch.object(GroupMetadataManager, "store", later)


def assignments_stored_again() -> Any:
    """A leader that sends other assignments in the same generation replaces them in the log."""
    never = property(lambda self: -2, lambda self, value: None)
    return patch.object(GroupMetadata, "assigned_generation_id", never, create=True)


def commits_answered_before_they_are_stored() -> Any:
    """A commit is answered before its record is replicated."""
    commit = GroupMetadataManager.commit

    def at_once(self: GroupMetadataManager, group: Any, request: Any, respond: Any) -> None:
        commit(self, group, request, lambda errors: None)
        respond(dict.fromkeys(request.offsets, Errors.NONE))

    return patch.object(GroupMetadataManager, "commit", at_once)


def commits_counted_before_they_are_stored() -> Any:
    """A position is returned before its record is replicated."""
    stage = GroupOffsets.stage

    def and_count(self: GroupOffsets, offsets: Any, producer_id: int | None = None) -> None:
        stage(self, offsets, producer_id)
        for name, value in offsets.items() if producer_id is None else ():
            self.committed[name] = CommittedOffset(-1, value, -1)

    def is_stable(self: GroupOffsets, topic_partition: Any) -> bool:
        return False

    return patch.multiple(GroupOffsets, stage=and_count, is_unstable=is_stable)


# --- leaderships ----------------------------------------------------------------------------------


def loaded_to_the_high_watermark() -> Any:
    """A new coordinator reads only what it knows to be committed."""
    read = ReplicaManager.read_in_term

    def below(self: ReplicaManager, name: Any, term: int, offset: int, max_bytes: int) -> Any:
        part = read(self, name, term, offset, 1)  # a batch
        led = self.partitions.get(name)
        is_below = led is not None and offset < led.high_watermark
        return part if is_below else part._replace(records=NO_RECORDS)

    return patch.object(ReplicaManager, "read_in_term", below)


def leaderships_not_reported() -> Any:
    """The coordinator does not learn that its broker leads."""
    return patch.object(ReplicaManager, "observe_leaderships", lambda self, observer: None)


def ends_of_leaderships_not_reported() -> Any:
    """The coordinator does not learn that its broker leads no more."""
    take = LeaderPartitions.take_changes

    def but_ends(self: LeaderPartitions) -> Any:
        return [leadership for leadership in take(self) if leadership.term is not None]

    return patch.object(LeaderPartitions, "take_changes", but_ends)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    empty_groups_keep_their_generation: 126,
    static_members_removed_by_rebalances: 338,
    sessions_end_while_members_join: 137,
    silent_members_stay: 2,
    pending_members_not_awaited: 137,
    rejoins_of_leaders_ignored: 2,
    members_of_any_generation: 836,
    assignments_told_before_they_are_stored: 40,
    assignments_stored_again: 1921,
    commits_answered_before_they_are_stored: 2,
    commits_counted_before_they_are_stored: 527,
    loaded_to_the_high_watermark: 331,
    leaderships_not_reported: 2,
    ends_of_leaderships_not_reported: 232,
}
