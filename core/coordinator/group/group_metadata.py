"""A group and its members: what the coordinator knows of them, without requests and records.

Mirrors ``kafka.coordinator.group.GroupMetadata`` and ``MemberMetadata``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from regent.core.coordinator.group.consumer_protocol import CONSUMER, subscribed_topics
from regent.core.coordinator.group.group_offsets import GroupOffsets
from regent.core.coordinator.timers import TimerTask
from regent.core.errors import Errors
from regent.core.protocol.groups import SupportedProtocol
from regent.core.protocol.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)


class GroupState(Enum):
    """The states of a group, by the names that tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = GroupState.EMPTY
PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

_MAX_GENERATION: Final = 2**31 - 1  # Kafka's is an int32

PREDECESSORS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE}),
    PREPARING_REBALANCE: frozenset({STABLE, COMPLETING_REBALANCE, EMPTY}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
    DEAD: frozenset(GroupState),
}
"""The states before each state."""

RespondToJoin = Callable[[JoinGroupResponse], None]
RespondToSync = Callable[[SyncGroupResponse], None]


def size_of(protocols: Iterable[SupportedProtocol]) -> int:
    """Return how many bytes a member told about its protocols."""
    return sum(len(name) + len(data) for name, data in protocols)


class MemberMetadata:
    """A member of a group.

    ``is_new``: its first JoinGroup is not answered yet. ``session`` removes it when it fires.
    ``awaiting_join`` and ``awaiting_sync`` answer its request that waits.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[SupportedProtocol, ...],
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = b""
        self.is_new = False
        self.session: TimerTask | None = None
        self.awaiting_join: RespondToJoin | None = None
        self.awaiting_sync: RespondToSync | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return what the member told about a protocol; empty if it does not support it."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """Return the candidate that the member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)


class GroupMetadata:
    """A group. It changes only on its coordinator's thread."""

    def __init__(self, group_id: str, partition: int, now_ms: int) -> None:
        self.group_id = group_id
        self.partition = partition
        """The partition of ``__consumer_offsets`` that has its records."""
        self.state = EMPTY
        self.state_timestamp_ms: int | None = now_ms
        """Since when it has its state; None: an old record does not say."""
        self.generation_id = 0
        self.protocol_type: str | None = None
        """None: the group has only stored offsets."""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, MemberMetadata] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by group instance id."""
        self.pending_members: dict[str, TimerTask] = {}
        """Ids that were given to members that have not joined with them yet (KIP-394)."""
        self.pending_sync: set[str] = set()
        """Members that have not asked for their assignment in this generation."""
        self.assigned_generation_id = -1
        """The last generation whose leader has sent its assignment."""
        self.rebalance: TimerTask | None = None
        """Ends the phase of joining, or the one of synchronising."""
        self.is_initial_join = False
        """Whether the phase of joining lasts until its timer fires, even if all have joined."""
        self.new_member_added = False
        self.awaiting_join_count = 0
        self.subscribed_topics: frozenset[str] | None = None
        """None: unknown, or not a group of consumers."""
        self.offsets = GroupOffsets()
        self._supported: Counter[str] = Counter()
        self.protocol_bytes = 0
        """The size of what the members told about their protocols."""

    # --- states ---

    def can_rebalance(self) -> bool:
        """Whether a rebalance can begin."""
        return self.state in PREDECESSORS[PREPARING_REBALANCE]

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state."""
        if self.state not in PREDECESSORS[state]:
            raise AssertionError(f"group {self.group_id} goes from {self.state} to {state}")
        self.state = state
        self.state_timestamp_ms = now_ms

    # --- members ---

    def add(self, member: MemberMetadata, protocol_type: str, respond: RespondToJoin) -> None:
        """Add a member whose JoinGroup waits."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._insert(member)
        member.awaiting_join = respond
        self.awaiting_join_count += 1
        self.pending_members.pop(member.member_id, None)

    def load(self, members: Iterable[MemberMetadata]) -> None:
        """Add the members of a stored group."""
        for member in members:
            self._insert(member)

    def _insert(self, member: MemberMetadata) -> None:
        self.members[member.member_id] = member
        self._supported.update({name for name, _ in member.protocols})
        self.protocol_bytes += size_of(member.protocols)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Forget a member, which waits for nothing; another becomes the leader if it led."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._supported.subtract({name for name, _ in member.protocols})
            self.protocol_bytes -= size_of(member.protocols)
            self.awaiting_join_count -= member.awaiting_join is not None
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
            if member.session is not None:
                member.session.cancel()
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_sync.discard(member_id)

    def update(
        self,
        member: MemberMetadata,
        protocols: tuple[SupportedProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Change what a member supports, and its timeouts."""
        self._supported.subtract({name for name, _ in member.protocols})
        self.protocol_bytes += size_of(protocols) - size_of(member.protocols)
        member.protocols = protocols
        self._supported.update({name for name, _ in protocols})
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace(self, old_id: str, new_id: str) -> MemberMetadata:
        """Give a static member that came back a new id; its place in the group stays."""
        members = {}
        for member_id, member in self.members.items():
            members[new_id if member_id == old_id else member_id] = member
        self.members = members
        member = members[new_id]
        member.member_id = new_id
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def park_join(self, member: MemberMetadata, respond: RespondToJoin) -> None:
        """Let the JoinGroup of a member wait."""
        self.awaiting_join_count += member.awaiting_join is None
        member.awaiting_join = respond

    def answer_join(self, member: MemberMetadata, result: JoinGroupResponse) -> bool:
        """Answer the JoinGroup of a member that waits; return whether there is one."""
        respond, member.awaiting_join = member.awaiting_join, None
        if respond is not None:
            self.awaiting_join_count -= 1
            respond(result)
        return respond is not None

    def answer_sync(self, member: MemberMetadata, result: SyncGroupResponse) -> bool:
        """Answer the SyncGroup of a member that waits; return whether there is one."""
        respond, member.awaiting_sync = member.awaiting_sync, None
        if respond is not None:
            respond(result)
        return respond is not None

    def member_problem(self, member_id: str, group_instance_id: str | None) -> Errors:
        """Return why a request is not from a present member; NONE: it is."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is not None and known != member_id:
                return Errors.FENCED_INSTANCE_ID
            if known is None:
                return Errors.UNKNOWN_MEMBER_ID
        return Errors.NONE if member_id in self.members else Errors.UNKNOWN_MEMBER_ID

    @property
    def has_all_joined(self) -> bool:
        """Whether all members wait for the new generation, also those that only have an id."""
        return len(self.members) == self.awaiting_join_count and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member needs to join again."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Let a member lead that has joined; return false if none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None:
            return False
        if leader.awaiting_join is None:
            joined = (m.member_id for m in self.members.values() if m.awaiting_join is not None)
            first = next(joined, None)
            if first is None:
                return False
            self.leader_id = first
        return True

    # --- protocols and generations ---

    def supports_protocols(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member with these protocols may join."""
        if self.state is EMPTY:
            return protocol_type != "" and any(True for _ in protocols)
        is_same_type = self.protocol_type == protocol_type
        return is_same_type and any(
            self._supported[name] == len(self.members) for name in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all support.

        Of several, the one that the leader prefers: Kafka leaves this to the order of a hash map.
        """
        size = len(self.members)
        candidates = frozenset(name for name, count in self._supported.items() if count == size)
        votes = Counter(member.vote(candidates) for member in self.members.values())
        most = max(votes.values())
        best = frozenset(name for name, count in votes.items() if count == most)
        leader = self.members.get(self.leader_id or "") or next(iter(self.members.values()))
        return leader.vote(best)

    def begin_generation(self, now_ms: int) -> None:
        """Begin the next generation, after the phase of joining."""
        self.generation_id = self.generation_id + 1 if self.generation_id < _MAX_GENERATION else 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(EMPTY, now_ms)
        self.compute_subscribed_topics()
        self.pending_sync.clear()

    def compute_subscribed_topics(self) -> None:
        """Read the topics that the members want, if they are consumers."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER:
            return
        topics: set[str] = set()
        for member in self.members.values():
            wanted = subscribed_topics(member.metadata(self.protocol_name))
            if wanted is None:
                return
            topics.update(wanted)
        self.subscribed_topics = frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume a topic: also if it is not known what they consume."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def joined_members(self) -> tuple[JoinGroupResponseMember, ...]:
        """Return the members as the leader is told of them."""
        name = self.protocol_name
        return tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(name),
            )
            for member in self.members.values()
        )
