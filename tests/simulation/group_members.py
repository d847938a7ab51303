"""Consumers of groups: each joins, takes its partitions, commits positions and goes on for ever.

They do as the Java client does. A consumer may stall as a whole, die, or come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.groups import (
    NO_GENERATION,
    NO_MEMBER_ID,
    CommitOffsets,
    FetchOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
)
from regent.core.protocol.messages.groups import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from tests.simulation.coordinators import Coordinators
from tests.simulation.network import Exchange

TOPIC = "consumed"
TICK_MS = 250
SESSION_TIMEOUTS_MS = (1_000, 2_000, 3_000)
REBALANCE_TIMEOUTS_MS = (1_500, 3_000)
PATIENCE_MS = 7_000  # of a request that may wait
COMMIT_PROBABILITY = 0.25


def consumed(partition: int) -> TopicPartition:
    """Return a partition that is consumed. Nothing is stored there."""
    return TopicPartition(TOPIC, partition)


@dataclass(slots=True)
class ConsumedTopic:
    """What all consumers of a group know: how many partitions there are, and numbers of commits.

    ``is_busy``: positions are committed now and then.
    """

    group_id: str
    partitions: int = 3
    is_busy: bool = True
    commits: int = 0

    def next_position(self) -> OffsetAndMetadata:
        """Return a position that no other commit has."""
        self.commits += 1
        return OffsetAndMetadata(self.commits, metadata=f"<{self.group_id} {self.commits}>")


@dataclass(slots=True, eq=False)
class Consumer:
    """One process. ``is_stable``: it has its assignment and heartbeats."""

    number: int
    topic: ConsumedTopic
    coordinators: Coordinators
    note: Callable[..., None]
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[SupportedProtocol, ...]
    requires_member_id: bool
    can_skip_assignment: bool
    is_paused: bool = False
    is_dead: bool = False
    is_stable: bool = False
    member_id: str = NO_MEMBER_ID
    generation_id: int = NO_GENERATION
    leads: int | None = None  # how many partitions it has assigned as a leader
    assigned: tuple[int, ...] = ()
    _coordinator: BrokerId | None = None
    _waiting: Exchange | None = None
    _joined: JoinGroupResponse | None = None

    # --- a peer of the network ---

    def receive(self, exchange: Exchange) -> None:
        """Fail: a consumer serves no requests."""
        raise AssertionError("a consumer serves no requests")

    # --- time ---

    def tick(self) -> None:
        """Do what is due, again and again until it dies."""
        if self.is_dead:
            return
        cluster = self.coordinators.cluster
        cluster.time.schedule(self, TICK_MS, self.tick)
        waiting = self._waiting
        if waiting is not None and not waiting.is_over:
            is_gone = waiting.endpoint not in cluster.network.listeners
            if not is_gone and cluster.now_ms - waiting.sent_ms < PATIENCE_MS:
                return
            waiting.give_up()
            self._coordinator = None
        self._go_on()

    def _go_on(self) -> None:
        dice = self.coordinators.dice
        if self.is_stable and self.leads not in (None, self.topic.partitions):
            self.is_stable = False  # the topic was expanded: the leader starts a rebalance
        if not self.is_stable:
            if self._joined is None:
                self._join()
            else:
                self._synchronise(self._joined)
        elif self.topic.is_busy and self.assigned and dice.random() < COMMIT_PROBABILITY:
            self.commit()
        else:
            heartbeat = Heartbeat(
                self.topic.group_id, self.member_id, self.generation_id, self.instance_id
            )
            self._ask(heartbeat, self._on_error)

    def _ask(self, request: GroupRequest[Any], on_answer: Callable[[Any], None]) -> None:
        if self._coordinator is None:
            self._coordinator = self.coordinators.find(self.topic.group_id)
        if self._coordinator not in self.coordinators.cluster.brokers:
            self._coordinator = None
            return
        self._waiting = self.coordinators.ask(self, self._coordinator, request, on_answer)

    def repeat(self) -> None:
        """Send the last request again, as if its answer was lost; a leader assigns again."""
        waiting, network = self._waiting, self.coordinators.cluster.network
        if waiting is None or waiting.endpoint not in network.listeners:
            return
        waiting.give_up()
        if self._joined is not None:
            self._synchronise(self._joined)
        else:
            self._waiting = network.ask(self, waiting.endpoint, waiting.request, waiting.on_answer)

    # --- joining ---

    def rejoin(self) -> None:
        """Join again, although nothing has changed."""
        self.is_stable, self._joined = False, None

    def _join(self) -> None:
        request = JoinGroup(
            self.topic.group_id,
            self.member_id,
            self.instance_id,
            f"consumer{self.number}",
            "/127.0.0.1",
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            "consumer",
            self.protocols,
            requires_member_id=self.requires_member_id,
            can_skip_assignment=self.can_skip_assignment,
        )
        self._ask(request, self._on_joined)

    def _on_joined(self, result: JoinGroupResponse) -> None:
        if result.error_code is Errors.NONE:
            self.member_id, self.generation_id = result.member_id, result.generation_id
            self._joined = result
            self._synchronise(result)
        elif result.error_code is Errors.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
            self._join()
        else:
            self._on_error(Errors(result.error_code))

    def _synchronise(self, joined: JoinGroupResponse) -> None:
        assignments: Mapping[str, bytes] = {}
        self.leads = None
        if joined.leader == self.member_id:
            self.leads = self.topic.partitions
            if not joined.skip_assignment:
                assignments = _assign(
                    joined.members, self.topic.partitions, self.coordinators.dice.randrange(3)
                )
        request = SyncGroup(
            self.topic.group_id,
            joined.generation_id,
            self.member_id,
            self.instance_id,
            joined.protocol_type,
            joined.protocol_name,
            assignments,
        )
        self._ask(request, self._on_synchronised)

    def _on_synchronised(self, result: SyncGroupResponse) -> None:
        self._joined = None
        if result.error_code is not Errors.NONE:
            self._on_error(Errors(result.error_code))
            return
        self.is_stable = True
        self.assigned = partitions_of(result.assignment)
        if self.assigned:
            self.fetch()

    # --- positions ---

    def commit(self) -> None:
        """Commit a position of each partition."""
        offsets = {consumed(number): self.topic.next_position() for number in self.assigned}
        request = CommitOffsets(
            self.topic.group_id, offsets, self.member_id, self.generation_id, self.instance_id
        )

        def on_answer(errors: Mapping[TopicPartition, Errors]) -> None:
            for error in set(errors.values()):
                self._on_error(error)

        self._ask(request, on_answer)

    def fetch(self) -> None:
        """Ask where to continue."""
        partitions = tuple(consumed(number) for number in self.assigned)
        request = FetchOffsets(self.topic.group_id, partitions, require_stable=True)
        self._ask(request, lambda result: self._on_error(Errors(result.error_code)))

    # --- the end ---

    def leave(self) -> None:
        """Leave, without waiting for the answer."""
        leaving = LeavingMember(self.member_id, self.instance_id)
        self._ask(LeaveGroup(self.topic.group_id, (leaving,)), lambda result: None)
        self.is_dead = True

    def _on_error(self, error: Errors) -> None:
        if error is Errors.NONE:
            return
        self.note("  consumer %d: %s", self.number, error.name)
        if error is Errors.FENCED_INSTANCE_ID:
            self.is_dead = True
        elif error is Errors.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation_id = NO_MEMBER_ID, NO_GENERATION
            self.rejoin()
        elif error in (
            Errors.NOT_COORDINATOR,
            Errors.COORDINATOR_NOT_AVAILABLE,
        ):
            self._coordinator = None
        elif error in (Errors.REBALANCE_IN_PROGRESS, Errors.ILLEGAL_GENERATION):
            self.rejoin()


def _assign(
    members: tuple[JoinGroupResponseMember, ...], partitions: int, shift: int
) -> Mapping[str, bytes]:
    """Return the partitions of each member; ``shift`` makes other assignments."""
    ids = sorted(member.member_id for member in members)
    return {
        member_id: b",".join(
            b"%d" % p for p in range(partitions) if (p + shift) % len(ids) == index
        )
        for index, member_id in enumerate(ids)
    }


def partitions_of(assignment: bytes) -> tuple[int, ...]:
    """Return the partitions in an assignment."""
    return tuple(map(int, assignment.split(b","))) if assignment else ()
