"""Check the groups: members and generations, assignments, positions, answers. G1–G12.

G1: members of a generation hold different partitions. G2: one leader in a generation, told of its
members. G3: generations only grow. G4 and G5: what is answered is stored, and stays. G6: nothing
else is returned. G7 and G9: only members of the generation change something. G8: each request is
answered once, in time. G10: members go if they are silent, and only for a reason. G11: counts are
right. G12: a coordinator knows what the log says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from regent.core.coordinator.group.group_metadata import (
    COMPLETING_REBALANCE,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    GroupMetadata,
    GroupState,
    MemberMetadata,
)
from regent.core.coordinator.group.group_records import (
    GroupKey,
    Key,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_MEMBER_ID,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    FetchOffsetsResult,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetAndMetadata,
    SyncGroup,
)
from regent.core.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from regent.core.replication.partition import Role
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from tests.simulation.cluster import Cluster
from tests.simulation.group_members import partitions_of
from tests.simulation.group_server import GroupObserver, GroupServer, GroupWorld
from tests.simulation.invariants import Invariants
from tests.simulation.transactional_producers import APPLICATION
from tests.support.record_batches import CONTROL_MASK, TRANSACTIONAL_MASK, records_of
from tests.support.record_checks import headers_of
from tests.support.transactions_in_memory import marker_of

UNKNOWN_OUTCOMES = {Errors.REQUEST_TIMED_OUT, Errors.COORDINATOR_NOT_AVAILABLE}
"""The errors of writes that may be in the log nevertheless."""

_Newest: TypeAlias = dict[Key, StoredGroup | OffsetAndMetadata]


class Position(NamedTuple):
    """The place of a record."""

    offset: int
    key: Key
    value: StoredGroup | OffsetAndMetadata | None


@dataclass(slots=True)
class Before:
    """A group before a message; ``parked``: members with a request that waits."""

    group: GroupMetadata
    state: GroupState
    generation_id: int
    members: dict[str, MemberMetadata]
    instances: dict[str, str | None]
    parked: frozenset[str]
    pending: frozenset[str]


@dataclass(slots=True)
class Phase:
    """The phase in which a group is: since when, and how long it may last."""

    state: GroupState
    generation_id: int
    since_ms: int
    limit_ms: int
    is_initial: bool


@dataclass(slots=True)
class Seen:
    """What happened in the coordinator of one process.

    ``heard``: when a member last did anything. ``renewed``: when its session last began for sure.
    """

    before: dict[str, Before] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    heard: dict[tuple[str, str], int] = field(default_factory=dict)
    renewed: dict[tuple[str, str], int] = field(default_factory=dict)
    request: GroupRequest[Any] | None = None
    timers_fired: bool = False
    loaded_to: dict[int, int] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)  # groups with writes whose outcome is unknown
    leaders: dict[tuple[GroupMetadata, int], str] = field(default_factory=dict)


class Told(NamedTuple):
    """A member's assignment, as it was told."""

    member_id: str
    instance_id: str | None
    partitions: tuple[int, ...]


class GroupHistory(GroupObserver):
    """Observes coordinators; raises ``AssertionError`` in the message that breaks a guarantee."""

    def __init__(self, cluster: Cluster, world: GroupWorld, invariants: Invariants) -> None:
        self._cluster = cluster
        self._world = world
        self._leaderships = invariants.history
        self._records = invariants.records
        self._seen: dict[GroupServer, Seen] = {}
        self._topic_id = ""
        self._parsed: dict[bytes, list[Position]] = {}
        self._told: dict[tuple[str, int], list[Told]] = {}
        self._synchronised: dict[str, int] = {}  # the last generation with an answered SyncGroup
        self._floors: dict[tuple[str, TopicPartition], int] = {}
        self._commits: dict[str, CommitOffsets] = {}  # by their metadata

    # --- the log ---

    def _positions(self, server: GroupServer, name: TopicPartition) -> list[Position]:
        """Return the records in a log of a broker."""
        log = server.broker.disk.get(name)
        return [] if log is None else [p for b in log.batches for p in self._parse(b.data)]

    def _parse(self, data: bytes) -> list[Position]:
        found = self._parsed.get(data)
        if found is None:
            ((_, header),) = headers_of(data)
            found = self._parsed[data] = [
                Position(r.offset, key, _decode(key, r.value))
                for r in (() if header.attributes & CONTROL_MASK else records_of(data))
                if r.key is not None and (key := decode_key(r.key)) is not None
            ]
        return found

    def _is_excused(self, name: TopicPartition) -> bool:
        """Whether records that were acknowledged may be lost."""
        self._leaderships.check()
        topic_id = self._leaderships.topic_id(name.topic)
        if self._topic_id != topic_id:  # all is forgotten with a deleted topic
            self._topic_id = topic_id
            for memory in (self._told, self._synchronised, self._floors):
                memory.clear()
        known = self._records.latest(name)
        return known is None or known.is_tainted or bool(known.unclean_epochs)

    def _name(self, group_id: str) -> TopicPartition:
        return TopicPartition(GROUP_METADATA_TOPIC, self._world.partition_of(group_id))

    def _is_leader(self, server: GroupServer, name: TopicPartition) -> bool:
        """Whether a broker leads in the present leader epoch."""
        self._is_excused(name)
        now = self._leaderships.current.get(name)
        led = server.broker.replica_manager.partitions.get(name)
        return (
            now is not None
            and led is not None
            and led.role is Role.LEADER
            and (now.leader, now.leader_epoch) == (server.broker.broker_id, led.leader_epoch)
        )

    def _committed(self, server: GroupServer, name: TopicPartition) -> list[Position]:
        """Return the committed records, which a leader has or had."""
        self._records.on_acted(server.broker)
        known = self._records.latest(name)
        batches = () if known is None else sorted(known.committed.values())
        return [position for batch in batches for position in self._parse(batch.data)]

    # --- messages ---

    def before(self, server: GroupServer) -> None:
        """Store the groups before a message."""
        seen = self._seen.setdefault(server, Seen())
        seen.request, seen.timers_fired = None, False
        seen.before = {
            group_id: Before(
                group,
                group.state,
                group.generation_id,
                dict(group.members),
                {m.member_id: m.group_instance_id for m in group.members.values()},
                frozenset(m.member_id for m in group.members.values() if _is_parked(m)),
                frozenset(group.pending_members),
            )
            for group_id, group in server.machine.manager.groups.items()
        }

    def after(self, server: GroupServer) -> None:
        """Check what a message changed."""
        seen, now_ms = self._seen[server], server.broker.now_ms
        groups = server.machine.manager.groups
        for group_id, group in groups.items():
            before = seen.before.get(group_id)
            if before is not None and before.group is not group:
                before = None
            _check_counts(group)
            if before is not None:
                self._check_generation(server, seen, before, group)
                self._check_members(server, seen, before, group)
            known = {} if before is None else before.members
            for member_id in group.members.keys() - known.keys():
                seen.heard[group_id, member_id] = seen.renewed[group_id, member_id] = now_ms
            self._note_phase(server, seen, group)
        if seen.timers_fired:
            self._check_silence(server, seen)

    def _note_phase(self, server: GroupServer, seen: Seen, group: GroupMetadata) -> None:
        phase = seen.phases.get(group.group_id)
        now = (group.state, group.generation_id)
        if phase is None or (phase.state, phase.generation_id) != now:
            limit_ms = group.rebalance_timeout_ms
            is_timed = group.state in (STABLE, COMPLETING_REBALANCE) and phase is not None
            if is_timed and phase is not None and phase.generation_id == group.generation_id:
                phase.state = group.state  # the timer goes on
                return
            seen.phases[group.group_id] = Phase(
                *now, server.broker.now_ms, limit_ms, group.is_initial_join
            )

    def _check_generation(
        self, server: GroupServer, seen: Seen, before: Before, group: GroupMetadata
    ) -> None:
        if group.generation_id == before.generation_id:
            return
        where = f"broker {server.broker.broker_id}: {group.group_id}: {group.generation_id}"
        assert group.generation_id == before.generation_id + 1, f"NextGeneration: {where}"
        for member_id in group.members:
            renewed = seen.heard[group.group_id, member_id] = server.broker.now_ms
            seen.renewed[group.group_id, member_id] = renewed
        phase = seen.phases.get(group.group_id)
        if phase is not None and phase.state is PREPARING_REBALANCE and not phase.is_initial:
            is_over = server.broker.now_ms - phase.since_ms >= phase.limit_ms
            pending = before.pending & group.pending_members.keys()
            assert is_over or not pending, f"PendingMembersAreAwaited: {where}: {pending}"
            absent = group.members.keys() & (before.members.keys() - before.parked)
            absent -= {getattr(seen.request, "member_id", None)}
            assert is_over or not absent, f"MembersAreAwaited: {where}: {absent}"
        name = self._name(group.group_id)
        if self._is_leader(server, name) and not self._is_excused(name):
            known = self._synchronised.get(group.group_id, -1)
            assert group.generation_id > known, f"GenerationsGrow: {where}, after {known}"

    def _check_members(
        self, server: GroupServer, seen: Seen, before: Before, group: GroupMetadata
    ) -> None:
        """Members go for a reason."""
        for member_id in before.members.keys() - group.members.keys():
            instance_id = before.instances[member_id]
            if instance_id is not None and instance_id in group.static_members:
                continue  # it has another id
            reasons = self._reasons(server, seen, before, group, member_id)
            where = f"broker {server.broker.broker_id}: {group.group_id}: {member_id}"
            assert any(reasons), f"MembersGoForAReason: {where}, at {seen.request}"

    def _reasons(
        self,
        server: GroupServer,
        seen: Seen,
        before: Before,
        group: GroupMetadata,
        member_id: str,
    ) -> Iterator[bool]:
        now_ms, request, instance_id = (
            server.broker.now_ms,
            seen.request,
            before.instances[member_id],
        )
        is_parked = member_id in before.parked
        if isinstance(request, LeaveGroup):
            yield any(
                left == member_id or (left == NO_MEMBER_ID and instance in (instance_id,))
                for left, instance in request.members
            )
        silent_ms = now_ms - seen.renewed.get((group.group_id, member_id), 0)
        yield not is_parked and silent_ms >= before.members[member_id].session_timeout_ms
        phase = seen.phases[group.group_id]
        is_over = now_ms - phase.since_ms >= phase.limit_ms or phase.is_initial
        is_joining = phase.state is PREPARING_REBALANCE
        yield is_joining and is_over and not is_parked and instance_id is None
        yield not is_joining and is_over and member_id in before.members  # it did not synchronise

    # --- requests ---

    def on_request(self, server: GroupServer, request: GroupRequest[Any]) -> object:
        """Store what the answer is compared with."""
        seen, now_ms = self._seen[server], server.broker.now_ms
        seen.request = request
        group_id = getattr(request, "group_id", "")
        name = self._name(group_id)
        if isinstance(request, JoinGroup | SyncGroup | Heartbeat | CommitOffsets):
            seen.heard[group_id, request.member_id] = now_ms
        if isinstance(request, CommitOffsets):
            for value in request.offsets.values():
                self._commits[value.metadata] = request
        # The order of the application's positions is that of their records, or of markers.
        is_ordered = group_id != APPLICATION
        if isinstance(request, FetchOffsets) and is_ordered and self._is_leader(server, name):
            wanted = request.partitions
            if wanted is None:
                wanted = tuple(tp for known, tp in self._floors if known == group_id)
            return {tp: self._floors.get((group_id, tp), -1) for tp in wanted}
        return None

    def on_answer(
        self, server: GroupServer, request: GroupRequest[Any], context: object, result: Any
    ) -> None:
        """Check an answer."""
        match request:
            case JoinGroup():
                self._on_joined(server, request, result)
            case SyncGroup():
                self._on_synchronised(server, request, result)
            case Heartbeat():
                if result in (Errors.NONE, Errors.REBALANCE_IN_PROGRESS):
                    self._check_generation_of(server, request)
                    self._renew(server, request.group_id, request.member_id)
            case CommitOffsets():
                self._on_committed(server, request, result)
            case FetchOffsets() if isinstance(context, dict):
                self._on_fetched(server, request, context, result)
            case DeleteOffsets() if result.error_code in UNKNOWN_OUTCOMES:
                self._seen[server].doubtful.add(request.group_id)
            case DeleteGroup() if result in UNKNOWN_OUTCOMES:
                self._seen[server].doubtful.add(request.group_id)
            case _:
                pass

    def _check_generation_of(self, server: GroupServer, request: Heartbeat) -> None:
        group = server.machine.manager.groups.get(request.group_id)
        is_present = group is None or group.generation_id == request.generation_id
        assert is_present, f"ZombiesAreFenced: broker {server.broker.broker_id}: {request}"

    def _renew(self, server: GroupServer, group_id: str, member_id: str) -> None:
        seen = self._seen[server]
        group = server.machine.manager.groups.get(group_id)
        if group is not None and member_id in group.members:
            seen.renewed[group_id, member_id] = server.broker.now_ms
            seen.heard[group_id, member_id] = server.broker.now_ms

    def _on_joined(
        self, server: GroupServer, request: JoinGroup, result: JoinGroupResponse
    ) -> None:
        seen = self._seen[server]
        seen.heard[request.group_id, result.member_id] = server.broker.now_ms
        if result.error_code is not Errors.NONE:
            return
        group = server.machine.manager.groups[request.group_id]
        where = f"broker {server.broker.broker_id}: {request}: {result}"
        is_leader = result.member_id == result.leader
        assert bool(result.members) is is_leader, f"OnlyLeadersAreTold: {where}"
        if is_leader:
            told = {member.member_id for member in result.members}
            assert told == group.members.keys(), f"LeadersAreToldAll: {where}"
            assert group.leader_id == result.member_id, f"OneLeader: {where}"
        member = group.members[result.member_id]
        if is_leader and result.generation_id == group.generation_id:
            who = member.group_instance_id or member.member_id
            leader = seen.leaders.setdefault((group, result.generation_id), who)
            assert leader == who, f"OneLeader: {where}, after {leader}"

    def _on_synchronised(
        self, server: GroupServer, request: SyncGroup, result: SyncGroupResponse
    ) -> None:
        seen, group_id = self._seen[server], request.group_id
        seen.heard[group_id, request.member_id] = server.broker.now_ms
        if result.error_code is not Errors.NONE:
            return
        self._renew(server, group_id, request.member_id)
        group = server.machine.manager.groups[group_id]
        name, where = self._name(group_id), f"broker {server.broker.broker_id}: {request}: {result}"
        instance_id = group.members[request.member_id].group_instance_id
        if self._is_excused(name):
            return
        stored = self._assignments(server, name, group_id, request.generation_id)
        is_stored = (request.member_id, result.assignment) in stored
        if not is_stored and self._seen[server].loaded_to.get(name.partition, 0) > max(
            (position.offset for position in self._committed(server, name)), default=-1
        ):
            return  # it is loaded, but not committed yet
        assert is_stored, f"AssignmentsAreStored: {where}, not {stored}"
        told = Told(request.member_id, instance_id, partitions_of(result.assignment))
        others = self._told.setdefault((group_id, request.generation_id), [])
        for other in others:
            is_same = told.member_id == other.member_id
            is_same |= instance_id is not None and instance_id == other.instance_id
            both = set(told.partitions) & set(other.partitions)
            assert is_same or not both, f"OneOwner: {where}: {other}"
        others.append(told)
        if self._is_leader(server, name):
            known = self._synchronised.get(group_id, -1)
            self._synchronised[group_id] = max(known, request.generation_id)

    def _assignments(
        self, server: GroupServer, name: TopicPartition, group_id: str, generation_id: int
    ) -> set[tuple[str, bytes]]:
        """Return the assignments in the committed records of a generation."""
        return {
            (member.member_id, member.assignment)
            for _, key, value in self._committed(server, name)
            if key == GroupKey(group_id)
            if isinstance(value, StoredGroup) and value.generation_id == generation_id
            for member in value.members
        }

    # --- positions ---

    def _on_committed(
        self, server: GroupServer, request: CommitOffsets, errors: Mapping[TopicPartition, Errors]
    ) -> None:
        name = self._name(request.group_id)
        if not UNKNOWN_OUTCOMES.isdisjoint(errors.values()):
            self._seen[server].doubtful.add(request.group_id)
        if set(errors.values()) != {Errors.NONE} or self._is_excused(name):
            return
        for tp, value in request.offsets.items():
            key = OffsetKey(request.group_id, tp)
            found = [
                offset
                for offset, known, stored in self._committed(server, name)
                if known == key and _metadata(stored) == value.metadata
            ]
            assert found, f"CommitsAreStored: broker {server.broker.broker_id}: {request}"
            if request.group_id == APPLICATION:
                continue
            floor = self._floors.get((request.group_id, tp), -1)
            self._floors[request.group_id, tp] = max(floor, found[-1])

    def _on_fetched(
        self,
        server: GroupServer,
        request: FetchOffsets,
        floors: Mapping[TopicPartition, int],
        result: FetchOffsetsResult,
    ) -> None:
        name = self._name(request.group_id)
        if result.error_code is not Errors.NONE or self._is_excused(name):
            return
        if not self._is_leader(server, name):
            return
        for tp in floors.keys() | result.offsets.keys():
            fetched = result.offsets.get(tp, FetchedOffset(Errors.NONE))
            floor = floors.get(tp, -1)
            if fetched.error_code is Errors.NONE:
                self._check_fetched(server, OffsetKey(request.group_id, tp), floor, fetched)

    def _check_fetched(
        self, server: GroupServer, key: OffsetKey, floor: int, fetched: FetchedOffset
    ) -> None:
        name = self._name(key.group_id)
        wanted = fetched.metadata if fetched.offset >= 0 else None
        found = [
            offset
            for offset, known, stored in self._positions(server, name)
            if known == key and _metadata(stored) == wanted
        ]
        last = found[-1] if found else -1
        where = f"broker {server.broker.broker_id}: {key}: {fetched}, after {floor}"
        assert last >= floor, f"PositionsStay: {where}"
        high_watermark = server.broker.replica_manager.partitions[name].high_watermark
        loaded = self._seen[server].loaded_to.get(name.partition, 0)
        is_stored = any(floor <= offset < max(loaded, high_watermark) for offset in found)
        is_nothing = wanted is None and floor < 0
        assert is_stored or is_nothing, f"OnlyStoredPositions: {where}"
        committed = [offset for offset in found if offset < high_watermark]
        known_floor = self._floors.get((key.group_id, key.topic_partition), -1)
        self._floors[key.group_id, key.topic_partition] = max(known_floor, *committed, -1)

    # --- timers, appends, loads ---

    def on_timers(self, server: GroupServer) -> None:
        """Timers that were due have fired."""
        self._seen[server].timers_fired = True

    def _check_silence(self, server: GroupServer, seen: Seen) -> None:
        now_ms = server.broker.now_ms
        for group_id, group in server.machine.manager.groups.items():
            for member_id, member in group.members.items():
                silent_ms = now_ms - seen.heard.get((group_id, member_id), now_ms)
                is_gone = silent_ms > member.session_timeout_ms and not _is_parked(member)
                where = f"broker {server.broker.broker_id}: {group_id}: {member_id}"
                assert not is_gone, f"SilentMembersGo: {where}, silent for {silent_ms} ms"

    def on_appended(self, server: GroupServer, name: TopicPartition, term: int) -> None:
        """What is written follows what was written."""
        led = server.broker.replica_manager.partitions[name]
        where = f"broker {server.broker.broker_id} appends to {name}"
        assert led.leading_since == term, f"AppendedInItsTerm: {where}: {term}, {led}"
        log = server.broker.disk.get(name)
        assert log is not None
        first = log.batches[-1].base_offset
        generations: dict[str, StoredGroup] = {}
        for offset, key, value in self._positions(server, name):
            before = generations.get(key.group_id)
            if isinstance(key, GroupKey):
                if offset >= first and isinstance(value, StoredGroup) and before is not None:
                    is_later = value.generation_id > before.generation_id
                    is_later |= _is_same_generation(before, value)
                    assert is_later, f"GenerationsGrow: {where}: {value}, after {before}"
                if isinstance(value, StoredGroup):
                    generations[key.group_id] = value
                else:
                    generations.pop(key.group_id, None)
                    self._on_deleted(key.group_id, is_new=offset >= first)
            elif offset >= first and isinstance(value, OffsetAndMetadata) and before is not None:
                commit = self._commits[value.metadata]
                is_zombie = -1 < commit.generation_id < before.generation_id
                assert not is_zombie, f"ZombiesAreFenced: {where}: {commit}, in {before}"

    def _is_unsure(self, server: GroupServer, key: Key) -> bool:
        """Whether a write was not answered with success, and may be in the log."""
        group = server.machine.manager.groups.get(key.group_id)
        is_gone = group is None or group.state is EMPTY
        is_doubtful = key.group_id in self._seen[server].doubtful
        return is_doubtful or (is_gone and isinstance(key, GroupKey))

    def _on_deleted(self, group_id: str, *, is_new: bool) -> None:
        if is_new:
            self._synchronised.pop(group_id, None)
            for told in [key for key in self._told if key[0] == group_id]:
                del self._told[told]

    def on_loaded(self, server: GroupServer, partition: int, term: int, end: int) -> None:
        """A coordinator that has read a partition knows what the log says."""
        seen = self._seen[server]
        name = TopicPartition(GROUP_METADATA_TOPIC, partition)
        led = server.broker.replica_manager.partitions.get(name)
        if led is not None and led.role is Role.LEADER and led.leading_since == term:
            self.check_memory(server, partition, end)
        seen.loaded_to[partition] = end
        seen.doubtful = {g for g in seen.doubtful if self._world.partition_of(g) != partition}
        for group in server.machine.manager.groups.values():
            if group.partition == partition:
                seen.phases.pop(group.group_id, None)
                for member_id in group.members:
                    seen.heard[group.group_id, member_id] = server.broker.now_ms
                    seen.renewed[group.group_id, member_id] = server.broker.now_ms

    def _newest(self, server: GroupServer, name: TopicPartition, end: int | None) -> _Newest:
        """Return what counts in a log of a broker: of transactions, what is committed."""
        log = server.broker.disk.get(name)
        newest: dict[Key, Position] = {}
        open_: dict[int, dict[Key, Position]] = {}  # by producer id
        for batch in log.batches if log is not None else ():
            if end is not None and batch.base_offset >= end:
                break
            ((_, header),) = headers_of(batch.data)
            marker = marker_of(batch.data) if header.attributes & CONTROL_MASK else None
            if marker is not None:
                for key, position in open_.pop(header.producer_id, {}).items():
                    is_later = key not in newest or newest[key].offset < position.offset
                    if marker[0] and is_later:
                        newest[key] = position
            is_open = header.attributes & TRANSACTIONAL_MASK
            target = open_.setdefault(header.producer_id, {}) if is_open else newest
            for position in self._parse(batch.data):
                target.pop(position.key, None)
                if position.value is not None:
                    target[position.key] = position
        return {key: p.value for key, p in newest.items() if p.value is not None}

    def check_memory(self, server: GroupServer, partition: int, end: int | None = None) -> None:
        """Check that a coordinator, at rest or after it read a log, knows what the log says.

        ``end``: where it ended to read; None: all.
        """
        name = TopicPartition(GROUP_METADATA_TOPIC, partition)
        newest = self._newest(server, name, end)
        known: dict[Key, tuple[object, ...]] = {}
        for group in server.machine.manager.groups.values():
            if group.partition != partition:
                continue
            if group.generation_id > 0 and group.state is not EMPTY:
                known[GroupKey(group.group_id)] = _shown(group)
            for tp, committed in group.offsets.committed.items():
                known[OffsetKey(group.group_id, tp)] = committed.value
        wanted: dict[Key, tuple[object, ...]] = {
            key: _shown_stored(value) if isinstance(value, StoredGroup) else value
            for key, value in newest.items()
        }
        for key in [key for key in {**known, **wanted} if self._is_unsure(server, key)]:
            known.pop(key, None)
            wanted.pop(key, None)
        where = f"broker {server.broker.broker_id}: {name}"
        assert known == wanted, f"MemoryIsLog: {where}: {known}, not {wanted}"


def _shown(group: GroupMetadata) -> tuple[object, ...]:
    members = sorted((m.member_id, m.assignment) for m in group.members.values())
    return group.generation_id, group.leader_id, tuple(members)


def _shown_stored(stored: StoredGroup) -> tuple[object, ...]:
    members = sorted((m.member_id, m.assignment) for m in stored.members)
    return stored.generation_id, stored.leader_id, tuple(members)


def _is_same_generation(before: StoredGroup, after: StoredGroup) -> bool:
    """Whether a record only gives a static member its new id, or repeats the other."""

    def places(stored: StoredGroup) -> list[tuple[str, bytes]]:
        return sorted((m.group_instance_id or m.member_id, m.assignment) for m in stored.members)

    is_same = before.generation_id == after.generation_id
    return is_same and bool(after.members) and places(before) == places(after)


def _is_parked(member: MemberMetadata) -> bool:
    return member.awaiting_join is not None or member.awaiting_sync is not None


def _decode(key: Key, value: bytes | None) -> StoredGroup | OffsetAndMetadata | None:
    if value is None:
        return None
    return decode_group(value) if isinstance(key, GroupKey) else decode_offset(value)


def _metadata(stored: StoredGroup | OffsetAndMetadata | None) -> str | None:
    return stored.metadata if isinstance(stored, OffsetAndMetadata) else None


def _check_counts(group: GroupMetadata) -> None:
    """Counts equal what is counted."""
    members = group.members.values()
    waiting = sum(member.awaiting_join is not None for member in members)
    assert group.awaiting_join_count == waiting, f"Counts: {group.group_id}: {waiting} wait"
    names: dict[str, int] = {}
    for member in members:
        for name in {name for name, _ in member.protocols}:
            names[name] = names.get(name, 0) + 1
    supported = {name: count for name, count in group._supported.items() if count}
    assert supported == names, f"Counts: {group.group_id}: {supported}, not {names}"
    static = {m.group_instance_id: m.member_id for m in members if m.group_instance_id is not None}
    assert group.static_members == static, f"Counts: {group.group_id}: {group.static_members}"
    assert group.pending_sync <= group.members.keys(), f"Counts: {group.pending_sync}"
    is_led = group.leader_id in group.members or not group.members
    assert is_led, f"Counts: {group.group_id} has the leader {group.leader_id}"
