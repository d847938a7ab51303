"""The group coordinator: requests of members in, answers and records out.

A rebalance has two phases. Members join: the phase ends when all have joined, or when the slowest
has had its time, and a generation begins. Then the leader sends an assignment for each member,
which is stored before anybody is told. A member that is silent for its session timeout is removed.

It is used on one thread only. It has no clock: ``run_timers`` must be called when ``next_timer_ms``
has come. Mirrors ``kafka.coordinator.group.GroupCoordinator``, the classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from regent.core.coordinator.group.group_loading import LoadedGroup
from regent.core.coordinator.group.group_metadata import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupMetadata,
    MemberMetadata,
    RespondToJoin,
    RespondToSync,
    size_of,
)
from regent.core.coordinator.group.group_metadata_manager import (
    Clock,
    GroupConfig,
    GroupLog,
    GroupMetadataManager,
)
from regent.core.coordinator.group.group_rebalances import GroupRebalances
from regent.core.coordinator.timers import Timers
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_MEMBER_ID,
    CommitOffsets,
    CompleteTransactions,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    ListGroups,
    SyncGroup,
)
from regent.core.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)

LOAD_RETRY_MS: Final = 5_000
"""When a partition that could not be read is read again."""

RespondToCommit = Callable[[Mapping[TopicPartition, Errors]], None]


class GroupCoordinator:
    """Answers the requests of groups whose partition this broker leads."""

    def __init__(
        self,
        config: GroupConfig,
        log: GroupLog,
        clock: Clock,
        *,
        partition_of: Callable[[str], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        """``partition_of`` returns the partition of a group.

        ``new_member_id`` returns an id that begins with its argument, and that no other has.
        """
        self.manager = GroupMetadataManager(config, log, clock, partition_of)
        self._config = config
        self._clock = clock
        self._timers = Timers()
        self._rebalances = GroupRebalances(config, self.manager, clock, self._timers)
        self._new_member_id = new_member_id

    # --- life cycle ---

    def start(self) -> None:
        """Answer requests from now on."""
        self.manager.is_active = True

    def stop(self) -> None:
        """Refuse requests from now on, and those that wait."""
        self.manager.is_active = False
        for partition in {group.partition for group in self.manager.groups.values()}:
            self.on_resigned(partition, None)

    @property
    def next_timer_ms(self) -> int | None:
        """When ``run_timers`` must be called, by the monotonic clock; None: no timer runs."""
        return self._timers.next_ms

    def run_timers(self) -> None:
        """Do what is due."""
        self._timers.run(self._clock.monotonic_ms())

    def on_loaded(
        self, partition: int, term: int, groups: Mapping[str, LoadedGroup] | None
    ) -> None:
        """A partition was read; None: it could not be.

        Then it is read again after some time: until then no other broker coordinates its groups.
        Kafka goes on with what it could read.
        """
        if groups is None and self.manager.is_awaited(partition, term):
            timer = self._timers.new(lambda: self.manager.load_again(partition, term))
            timer.start(self._clock.monotonic_ms() + LOAD_RETRY_MS)
        for group in self.manager.on_loaded(partition, term, groups):
            for member in group.members.values():
                self._rebalances.restart_session(group, member)
            if len(group.members) > self._config.group_max_size:
                self._rebalances.prepare(group)

    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """This broker leads a partition of ``__consumer_offsets``."""
        self._unload(self.manager.on_elected(partition, epoch, term))

    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """This broker does not lead a partition any more; None: its replica was deleted."""
        self._unload(self.manager.on_resigned(partition, epoch))

    def _unload(self, groups: Iterable[GroupMetadata]) -> None:
        for group in groups:
            group.transition_to(DEAD, self._clock.time_ms())
            self._rebalances.stop_timer(group)
            for timer in group.pending_members.values():
                timer.cancel()
            for member in group.members.values():
                if member.session is not None:
                    member.session.cancel()
                error = Errors.NOT_COORDINATOR
                group.answer_join(
                    member, JoinGroupResponse(error_code=error, member_id=member.member_id)
                )
                group.answer_sync(member, SyncGroupResponse(error_code=error))

    def handle(  # noqa: C901  one match over every request
        self, request: object, respond: Callable[[Any], None]
    ) -> None:
        """Call ``respond`` with the answer to a request, now or later."""
        manager = self.manager
        match request:
            case JoinGroup():
                self.join(request, respond)
            case SyncGroup():
                self.sync(request, respond)
            case Heartbeat():
                respond(self.heartbeat(request))
            case LeaveGroup(group_id, members):
                respond(self.leave(group_id, members))
            case CommitOffsets():
                self.commit(request, respond)
            case FetchOffsets(group_id, partitions, require_stable):
                respond(manager.fetch(group_id, partitions, require_stable=require_stable))
            case DeleteOffsets(group_id, wanted):
                manager.delete_offsets(group_id, wanted, respond)
            case DescribeGroup(group_id):
                respond(self.describe(group_id))
            case ListGroups(states, types):
                respond(manager.list_groups(states, types))
            case DeleteGroup(group_id):
                manager.delete_group(group_id, respond)
            case CompleteTransactions(transactions):
                respond(
                    tuple(
                        manager.complete_transaction(
                            partition, producer_id, marker_offset, is_commit=is_commit
                        )
                        for partition, producer_id, marker_offset, is_commit in transactions
                    )
                )
            case _:
                raise TypeError(f"{request!r} is no request to a group coordinator")

    # --- JoinGroup ---

    def join(self, request: JoinGroup, respond: RespondToJoin) -> None:
        """Take up a member, and answer when its generation begins."""
        group, error = self._group_to_join(request)
        if group is None or error is not Errors.NONE:
            respond(JoinGroupResponse(error_code=error, member_id=request.member_id))
            return
        if not self._has_room(group, request):
            self._remove_refused(group, request.member_id)
            respond(
                JoinGroupResponse(error_code=Errors.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID)
            )
        elif group.state is DEAD:
            respond(
                JoinGroupResponse(
                    error_code=Errors.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id
                )
            )
        elif not group.supports_protocols(
            request.protocol_type, [name for name, _ in request.protocols]
        ):
            respond(
                JoinGroupResponse(
                    error_code=Errors.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id
                )
            )
        elif request.member_id == NO_MEMBER_ID:
            self._join_without_id(group, request, respond)
        else:
            self._join_with_id(group, request, respond)
        self._rebalances.try_to_complete_join(group)

    def _group_to_join(self, request: JoinGroup) -> tuple[GroupMetadata | None, Errors]:
        config = self._config
        error = self.manager.problem(request.group_id)
        if error is not Errors.NONE:
            return None, error
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return None, Errors.INVALID_SESSION_TIMEOUT
        if request.member_id == NO_MEMBER_ID:
            return self.manager.get_or_create(request.group_id), Errors.NONE
        group = self.manager.groups.get(request.group_id)
        return group, Errors.UNKNOWN_MEMBER_ID if group is None else Errors.NONE

    def _has_room(self, group: GroupMetadata, request: JoinGroup) -> bool:
        """Whether the group may have this member: of too many, the last to join again must go."""
        static_id = group.static_members.get(request.group_instance_id or "")
        former = group.members.get(static_id or request.member_id)
        told_before = 0 if former is None else size_of(former.protocols)
        if not self.manager.has_room(group, size_of(request.protocols) - told_before):
            return False
        member = group.members.get(request.member_id)
        if group.state is PREPARING_REBALANCE:
            is_waiting = member is not None and member.awaiting_join is not None
            return is_waiting or group.awaiting_join_count < self._config.group_max_size
        if group.state in (COMPLETING_REBALANCE, STABLE):
            return member is not None or len(group.members) < self._config.group_max_size
        return True

    def _remove_refused(self, group: GroupMetadata, member_id: str) -> None:
        """A member must go: the others have its partitions next. Kafka only forgets it."""
        member = group.members.get(member_id)
        if member is not None:
            self._rebalances.remove_member(group, member)
        self._rebalances.forget_pending_member(group, member_id)

    def _join_without_id(
        self, group: GroupMetadata, request: JoinGroup, respond: RespondToJoin
    ) -> None:
        instance_id = request.group_instance_id
        prefix = request.client_id if instance_id is None else instance_id
        member_id = self._new_member_id(prefix)
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static_member(group, member_id, request, respond)
        elif instance_id is None and request.requires_member_id:
            timer = self._timers.new(
                lambda: self._rebalances.forget_pending_member(group, member_id)
            )
            group.pending_members[member_id] = timer
            timer.start(self._clock.monotonic_ms() + request.session_timeout_ms)
            respond(JoinGroupResponse(error_code=Errors.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add_member(group, member_id, request, respond)

    def _join_with_id(
        self, group: GroupMetadata, request: JoinGroup, respond: RespondToJoin
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.group_instance_id is None:
                group.pending_members.pop(member_id).cancel()
                self._add_member(group, member_id, request, respond)
            else:  # Kafka throws an IllegalStateException
                respond(JoinGroupResponse(error_code=Errors.UNKNOWN_MEMBER_ID, member_id=member_id))
            return
        error = group.member_problem(member_id, request.group_instance_id)
        if error is Errors.NONE and group.state is EMPTY:
            error = Errors.UNKNOWN_MEMBER_ID
        if error is not Errors.NONE:
            respond(JoinGroupResponse(error_code=error, member_id=member_id))
            return
        member = group.members[member_id]
        is_leader, is_same = member_id == group.leader_id, member.protocols == request.protocols
        may_stay = group.state is COMPLETING_REBALANCE or (group.state is STABLE and not is_leader)
        if is_same and may_stay:  # the answer to its earlier request was lost
            respond(self._rebalances.joined(group, member))
        else:
            self._update_member(group, member, request, respond)
            self._rebalances.maybe_prepare(group)

    def _add_member(
        self, group: GroupMetadata, member_id: str, request: JoinGroup, respond: RespondToJoin
    ) -> None:
        member = MemberMetadata(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        if group.state is PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        group.add(member, request.protocol_type, respond)
        self._rebalances.restart_session(group, member)
        self._rebalances.maybe_prepare(group)

    def _update_member(
        self,
        group: GroupMetadata,
        member: MemberMetadata,
        request: JoinGroup,
        respond: RespondToJoin,
    ) -> None:
        # A request that waits came on a connection that is gone, or its client gave it up.
        group.answer_join(
            member,
            JoinGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS, member_id=member.member_id),
        )
        group.park_join(member, respond)
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )

    def _replace_static_member(
        self, group: GroupMetadata, new_id: str, request: JoinGroup, respond: RespondToJoin
    ) -> None:
        """A static member came back: fence its former self, and keep its assignment if possible."""
        assert request.group_instance_id is not None
        old_id = group.static_members[request.group_instance_id]
        old_leader_id = group.leader_id
        member = group.members[old_id]
        fenced = Errors.FENCED_INSTANCE_ID
        group.answer_join(member, JoinGroupResponse(error_code=fenced, member_id=old_id))
        group.answer_sync(member, SyncGroupResponse(error_code=fenced))
        group.replace(old_id, new_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update_member(group, member, request, respond)
        self._rebalances.restart_session(group, member)
        if group.state is COMPLETING_REBALANCE:
            self._rebalances.prepare(group)  # KAFKA-9801
        if group.state is not STABLE:
            return
        if group.select_protocol() != group.protocol_name:
            self._rebalances.prepare(group)
            return
        generation_id = group.generation_id

        def stored(error: Errors) -> None:
            is_waiting = group.members.get(new_id) is member and member.awaiting_join is not None
            is_same = group.state is STABLE and group.generation_id == generation_id
            if not (is_waiting and is_same):
                return  # it was answered, or takes part in a rebalance
            if error is Errors.NONE:
                tells_members = request.can_skip_assignment and group.leader_id == new_id
                # Below version 9 a restarted leader must not believe that it leads.
                leader_id = group.leader_id if request.can_skip_assignment else old_leader_id
                result = self._rebalances.joined(
                    group, member, leader_id=leader_id, skips_assignment=tells_members
                )
            else:
                group.replace(new_id, old_id)
                group.update(member, *before)
                told = self._rebalances.joined(group, member, leader_id=old_leader_id)
                result = replace(told, error_code=error, member_id=NO_MEMBER_ID, members=())
            # Its session may have ended while it waited: in Kafka it does not begin again.
            self._rebalances.restart_session(group, member)
            group.answer_join(member, result)

        assignments = {m.member_id: m.assignment for m in group.members.values()}
        self.manager.store(group, assignments, stored)  # KAFKA-10284

    # --- SyncGroup ---

    def sync(self, request: SyncGroup, respond: RespondToSync) -> None:
        """Answer with the assignment of a member, when its leader's is stored."""
        error = self.manager.problem(request.group_id)
        if error is Errors.COORDINATOR_LOAD_IN_PROGRESS:
            error = Errors.REBALANCE_IN_PROGRESS  # the member joins again, and waits there
        group = self.manager.groups.get(request.group_id)
        has_protocol = None not in (request.protocol_type, request.protocol_name)
        if request.needs_protocol and not has_protocol:
            error = Errors.INCONSISTENT_GROUP_PROTOCOL
        if error is Errors.NONE:
            error = self._sync_problem(group, request)
        if error is not Errors.NONE or group is None:
            respond(SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        if group.state is STABLE:
            respond(self._synchronised(group, member))
            self._rebalances.restart_session(group, member)
            self._rebalances.on_synchronised(group, member)
            return
        group.answer_sync(member, SyncGroupResponse(error_code=Errors.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = respond
        self._rebalances.on_synchronised(group, member)
        is_first = group.assigned_generation_id != group.generation_id
        if member.member_id == group.leader_id and is_first:
            self._store_assignments(group, request.assignments)

    def _sync_problem(self, group: GroupMetadata | None, request: SyncGroup) -> Errors:
        if group is None:
            return Errors.UNKNOWN_MEMBER_ID
        if group.state is DEAD:
            return Errors.COORDINATOR_NOT_AVAILABLE
        error = self._generation_problem(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        if error is not Errors.NONE:
            return error
        is_other_type = request.protocol_type not in (None, group.protocol_type)
        if is_other_type or request.protocol_name not in (None, group.protocol_name):
            return Errors.INCONSISTENT_GROUP_PROTOCOL
        if group.state is EMPTY:
            return Errors.UNKNOWN_MEMBER_ID
        is_preparing = group.state is PREPARING_REBALANCE
        return Errors.REBALANCE_IN_PROGRESS if is_preparing else Errors.NONE

    def _store_assignments(self, group: GroupMetadata, assignments: Mapping[str, bytes]) -> None:
        """Store the first assignment of a generation, which members are told when it is stored.

        Kafka stores also those that a leader sends later: members are not told, but after a
        failover they have them.
        """
        complete = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        generation_id = group.assigned_generation_id = group.generation_id
        self.manager.completed_rebalances += 1

        def stored(error: Errors) -> None:
            is_current = group.state is COMPLETING_REBALANCE
            if not is_current or group.generation_id != generation_id:
                return  # their requests were answered when the next rebalance began
            if error is not Errors.NONE:
                self._rebalances.refuse_assignment(group, error)
                self._rebalances.maybe_prepare(group)
                return
            group.transition_to(STABLE, self._clock.time_ms())
            for member in list(group.members.values()):
                member.assignment = complete.get(member.member_id, b"")
                if group.answer_sync(member, self._synchronised(group, member)):
                    self._rebalances.restart_session(group, member)

        self.manager.store(group, complete, stored)

    def _synchronised(self, group: GroupMetadata, member: MemberMetadata) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=Errors.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=member.assignment,
        )

    # --- Heartbeat and LeaveGroup ---

    def heartbeat(self, request: Heartbeat) -> Errors:
        """Prolong the session of a member."""
        error = self.manager.problem(request.group_id)
        if error is Errors.COORDINATOR_LOAD_IN_PROGRESS:
            return Errors.NONE  # its session begins again when the group is loaded
        if error is not Errors.NONE:
            return error
        group = self.manager.groups.get(request.group_id)
        if group is None:
            return Errors.UNKNOWN_MEMBER_ID
        if group.state is DEAD:
            return Errors.COORDINATOR_NOT_AVAILABLE
        error = self._generation_problem(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        if error is Errors.NONE and group.state is EMPTY:
            error = Errors.UNKNOWN_MEMBER_ID
        if error is not Errors.NONE:
            return error
        self._rebalances.restart_session(group, group.members[request.member_id])
        is_preparing = group.state is PREPARING_REBALANCE
        return Errors.REBALANCE_IN_PROGRESS if is_preparing else Errors.NONE

    def leave(self, group_id: str, members: Collection[LeavingMember]) -> LeaveGroupResult:
        """Remove members at their own request, or at that of an operator."""
        error = self.manager.problem(group_id)
        if error is not Errors.NONE:
            return LeaveGroupResult(error)
        group = self.manager.groups.get(group_id)
        if group is None:
            gone = tuple((member, Errors.UNKNOWN_MEMBER_ID) for member in members)
            return LeaveGroupResult(Errors.NONE, gone)
        if group.state is DEAD:
            return LeaveGroupResult(Errors.COORDINATOR_NOT_AVAILABLE)
        left = tuple((member, self._leave(group, member)) for member in members)
        return LeaveGroupResult(Errors.NONE, left)

    def _leave(self, group: GroupMetadata, leaving: LeavingMember) -> Errors:
        member_id, instance_id = leaving
        if member_id == NO_MEMBER_ID and instance_id is not None:
            member_id = group.static_members.get(instance_id, NO_MEMBER_ID)
        if member_id in group.pending_members:
            self._rebalances.forget_pending_member(group, member_id)
            self._rebalances.try_to_complete_join(group)
            return Errors.NONE
        error = group.member_problem(member_id, instance_id)
        if error is Errors.NONE:
            self._rebalances.remove_member(group, group.members[member_id])
        return error

    def _generation_problem(
        self,
        group: GroupMetadata,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
    ) -> Errors:
        error = group.member_problem(member_id, group_instance_id)
        if error is Errors.NONE and generation_id != group.generation_id:
            return Errors.ILLEGAL_GENERATION
        return error

    # --- positions ---

    def commit(self, request: CommitOffsets, respond: RespondToCommit) -> None:
        """Store positions, if the member that commits them may."""
        is_transactional = request.producer is not None
        error = self.manager.problem(request.group_id, may_be_empty=not is_transactional)
        group = None
        if error is Errors.NONE:
            group = self.manager.groups.get(request.group_id)
            if group is None and (is_transactional or request.generation_id < 0):
                group = self.manager.get_or_create(request.group_id)
            error = self._commit_problem(group, request)
        if error is Errors.COORDINATOR_LOAD_IN_PROGRESS and not request.knows_loading:
            error = Errors.COORDINATOR_NOT_AVAILABLE
        if error is not Errors.NONE or group is None:
            respond(dict.fromkeys(request.offsets, error))
            return
        member = group.members.get(request.member_id)
        if member is not None and not is_transactional:
            self._rebalances.restart_session(group, member)
        self.manager.commit(group, request, respond)

    def _commit_problem(self, group: GroupMetadata | None, request: CommitOffsets) -> Errors:
        if group is None:
            return Errors.ILLEGAL_GENERATION
        if group.state is DEAD:
            return Errors.COORDINATOR_NOT_AVAILABLE
        generation_id, instance_id = request.generation_id, request.group_instance_id
        if generation_id < 0 and group.state is EMPTY:
            return Errors.NONE
        is_transactional = request.producer is not None
        is_of_member = generation_id >= 0 or request.member_id or instance_id is not None
        if not is_of_member:
            return Errors.NONE if is_transactional else Errors.UNKNOWN_MEMBER_ID
        error = self._generation_problem(group, request.member_id, instance_id, generation_id)
        if error is Errors.NONE and group.state is COMPLETING_REBALANCE and not is_transactional:
            return Errors.REBALANCE_IN_PROGRESS
        return error

    # --- tools ---

    def describe(self, group_id: str) -> DescribedGroup:
        """Return a group; a group that does not exist is in the state Dead."""
        error = self.manager.problem(group_id, may_be_empty=True)
        if error is not Errors.NONE:
            return DescribedGroup(error_code=error, group_id=group_id)
        group = self.manager.groups.get(group_id)
        if group is None:
            return DescribedGroup(error_code=Errors.NONE, group_id=group_id, group_state=DEAD.value)
        is_stable, name = group.state is STABLE, group.protocol_name or ""
        members = tuple(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        )
        return DescribedGroup(
            error_code=Errors.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=name if is_stable else "",
            members=members,
        )
