"""Rebalances of groups: the phases of joining and of synchronising, and the timers of members.

Mirrors the parts of ``GroupCoordinator`` behind ``DelayedJoin``, ``DelayedSync`` and
``DelayedHeartbeat``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regent.core.coordinator.group.group_metadata import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupMetadata,
    MemberMetadata,
)
from regent.core.coordinator.group.group_metadata_manager import (
    Clock,
    GroupConfig,
    GroupMetadataManager,
)
from regent.core.coordinator.timers import Timers, TimerTask
from regent.core.errors import Errors
from regent.core.protocol.groups import NO_MEMBER_ID
from regent.core.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a member may wait for its first generation: its client may be gone (KAFKA-7610)."""


class GroupRebalances:
    """Changes the states of groups, and answers the requests that wait for that."""

    def __init__(
        self, config: GroupConfig, manager: GroupMetadataManager, clock: Clock, timers: Timers
    ) -> None:
        self._config = config
        self._manager = manager
        self._clock = clock
        self._timers = timers

    def joined(
        self,
        group: GroupMetadata,
        member: MemberMetadata,
        *,
        leader_id: str | None = None,
        skips_assignment: bool = False,
    ) -> JoinGroupResponse:
        """Return the answer of the present generation; ``leader_id``: the leader that is told."""
        told = leader_id or group.leader_id or NO_MEMBER_ID
        return JoinGroupResponse(
            error_code=Errors.NONE,
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=told,
            skip_assignment=skips_assignment,
            members=group.joined_members() if told == member.member_id else (),
        )

    # --- the phase of joining ---

    def maybe_prepare(self, group: GroupMetadata) -> None:
        if group.can_rebalance():
            self.prepare(group)

    def prepare(self, group: GroupMetadata) -> None:
        if group.state is COMPLETING_REBALANCE:
            self.refuse_assignment(group, Errors.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        group.is_initial_join = group.state is EMPTY
        group.transition_to(PREPARING_REBALANCE, self._clock.time_ms())
        if group.is_initial_join:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._wait_for_first_members(
                group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0)
            )
        else:
            self._start_timer(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            self.try_to_complete_join(group)

    def _wait_for_first_members(
        self, group: GroupMetadata, delay_ms: int, remaining_ms: int
    ) -> None:
        """Wait, and longer each time that members have come (KIP-134)."""

        def fire() -> None:
            if group.new_member_added and remaining_ms > 0:
                group.new_member_added = False
                next_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
                self._wait_for_first_members(group, next_ms, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join(group)

        self._start_timer(group, delay_ms, fire)

    def try_to_complete_join(self, group: GroupMetadata) -> None:
        is_joining = group.state is PREPARING_REBALANCE and not group.is_initial_join
        if is_joining and group.has_all_joined:
            self._complete_join(group)

    def _complete_join(self, group: GroupMetadata) -> None:
        """Begin the next generation with the members that have joined."""
        self.stop_timer(group)
        group.is_initial_join = False
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():  # only static ones, all away
            self._start_timer(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return
        group.begin_generation(self._clock.time_ms())
        if not group.members:
            self._manager.store(group, {}, lambda _error: None)
            return
        for member in list(group.members.values()):
            group.answer_join(member, self.joined(group, member))
            member.is_new = False
            self.restart_session(group, member)
            group.pending_sync.add(member.member_id)
        generation_id = group.generation_id
        self._start_timer(
            group,
            group.rebalance_timeout_ms,
            lambda: self._remove_unsynchronised(group, generation_id),
        )

    def refuse_assignment(self, group: GroupMetadata, error: Errors) -> None:
        for member in group.members.values():
            member.assignment = b""
            if group.answer_sync(member, SyncGroupResponse(error_code=error)):
                self.restart_session(group, member)

    def on_synchronised(self, group: GroupMetadata, member: MemberMetadata) -> None:
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.stop_timer(group)

    def _remove_unsynchronised(self, group: GroupMetadata, generation_id: int) -> None:
        """Members did not ask for their assignment in time: go on without them (KAFKA-12890)."""
        is_current = group.state in (COMPLETING_REBALANCE, STABLE)
        if is_current and group.generation_id == generation_id and group.pending_sync:
            for member_id in list(group.pending_sync):
                self.drop(group, group.members[member_id])
            self.maybe_prepare(group)

    # --- members that go ---

    def restart_session(self, group: GroupMetadata, member: MemberMetadata) -> None:
        """Let the session of a member begin again; a new member has longer."""
        if member.session is None:
            member.session = self._timers.new(lambda: self._on_session_expired(group, member))
        duration_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        member.session.start(self._clock.monotonic_ms() + duration_ms)

    def _on_session_expired(self, group: GroupMetadata, member: MemberMetadata) -> None:
        """A member is silent. One that waits for an answer need not say anything."""
        is_waiting = member.awaiting_join is not None or member.awaiting_sync is not None
        if group.members.get(member.member_id) is member and (member.is_new or not is_waiting):
            self.remove_member(group, member)

    def remove_member(self, group: GroupMetadata, member: MemberMetadata) -> None:
        self.drop(group, member)
        if group.state in (STABLE, COMPLETING_REBALANCE):
            self.prepare(group)
        else:
            self.try_to_complete_join(group)

    def drop(self, group: GroupMetadata, member: MemberMetadata) -> None:
        unknown = Errors.UNKNOWN_MEMBER_ID
        group.answer_join(member, JoinGroupResponse(error_code=unknown, member_id=NO_MEMBER_ID))
        group.answer_sync(member, SyncGroupResponse(error_code=unknown))  # Kafka never answers it
        group.remove(member.member_id)

    def forget_pending_member(self, group: GroupMetadata, member_id: str) -> None:
        timer = group.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self.try_to_complete_join(group)

    def _start_timer(self, group: GroupMetadata, after_ms: int, fire: Callable[[], None]) -> None:
        self.stop_timer(group)
        timer: TimerTask = self._timers.new(fire)
        group.rebalance = timer
        timer.start(self._clock.monotonic_ms() + after_ms)

    def stop_timer(self, group: GroupMetadata) -> None:
        if group.rebalance is not None:
            group.rebalance.cancel()
            group.rebalance = None
