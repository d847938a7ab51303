"""A group coordinator of one partition, its log and its clock, for tests that play its clients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_metadata import GroupMetadata
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    Clock,
    GroupConfig,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import Record
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    CommitOffsets,
    DeleteOffsets,
    DeleteOffsetsResult,
    FetchedOffset,
    FetchOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from tests.support.world import NO_DELAY

A = TypeVar("A")

NAME = TopicPartition("orders", 0)
SESSION_MS = 10_000
NOTHING: Final[Mapping[str, bytes]] = {}


class Log:
    """A log whose appends are answered by the test."""

    def __init__(self) -> None:
        self.appends: list[tuple[Sequence[Record], RespondToAppend]] = []
        self.loads: list[tuple[int, int]] = []

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        self.appends.append((records, respond))

    def load(self, partition: int, term: int) -> None:
        self.loads.append((partition, term))


class GroupBroker:
    """A coordinator of one partition, its log and its clock."""

    def __init__(self, config: GroupConfig = NO_DELAY) -> None:
        self.log, self.now_ms = Log(), 0
        self._answered = 0
        numbers = itertools.count()
        self.coordinator = GroupCoordinator(
            config,
            self.log,
            Clock(lambda: self.now_ms, lambda: self.now_ms),
            partition_of=lambda group_id: 0,
            new_member_id=lambda prefix: f"{prefix}-{next(numbers)}",
        )
        self.coordinator.start()

    def lead(self, epoch: int = 0) -> None:
        self.coordinator.manager.on_elected(0, epoch, epoch)
        self.coordinator.on_loaded(0, epoch, {})

    @property
    def group(self) -> GroupMetadata:
        return self.coordinator.manager.groups["g"]

    def ask(self, request: GroupRequest[A]) -> list[A]:
        """Return the answers, to which those that come later are added."""
        answers: list[A] = []
        self.coordinator.handle(request, answers.append)
        self.coordinator.run_timers()
        return answers

    def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.coordinator.run_timers()

    def replicate(self) -> None:
        """Answer the appends since the last call: they are replicated."""
        appends, self._answered = self.log.appends[self._answered :], len(self.log.appends)
        for offset, (_, respond) in enumerate(appends, self._answered - len(appends)):
            respond(Errors.NONE, offset)

    def commit(self, offset: int, producer: VerifiedProducer | None = None) -> list[Errors]:
        answers: list[Errors] = []
        request = CommitOffsets("g", {NAME: OffsetAndMetadata(offset)}, producer=producer)
        self.coordinator.handle(request, lambda errors: answers.extend(errors.values()))
        return answers

    def delete_offsets(self) -> list[DeleteOffsetsResult]:
        return self.ask(DeleteOffsets("g", (NAME,)))

    def fetch(self) -> FetchedOffset:
        (answer,) = self.ask(FetchOffsets("g", (NAME,)))
        (offset,) = answer.offsets.values()
        return offset

    def ask_to_join(
        self,
        instance_id: str | None = None,
        *,
        member_id: str = "",
        metadata: bytes = b"",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = SESSION_MS,
        protocols: Sequence[str] = ("range",),
        requires_member_id: bool = False,
    ) -> list[JoinGroupResponse]:
        request = JoinGroup(
            "g",
            member_id,
            instance_id,
            "c",
            "/h",
            session_ms,
            rebalance_ms,
            "consumer",
            tuple(SupportedProtocol(name, metadata) for name in protocols),
            requires_member_id=requires_member_id,
        )
        return self.ask(request)

    def join(self, instance_id: str | None = None, metadata: bytes = b"") -> JoinGroupResponse:
        (answer,) = self.ask_to_join(instance_id, metadata=metadata)
        return answer

    def sync(
        self,
        joined: JoinGroupResponse,
        assignments: Mapping[str, bytes] = NOTHING,
        instance_id: str | None = None,
    ) -> list[SyncGroupResponse]:
        generation, member_id = joined.generation_id, joined.member_id
        return self.ask(SyncGroup("g", generation, member_id, instance_id, assignments=assignments))

    def beat(self, joined: JoinGroupResponse) -> Errors:
        (error,) = self.ask(Heartbeat("g", joined.member_id, joined.generation_id))
        return error

    def join_and_leave(self) -> None:
        member = LeavingMember(self.join().member_id)
        self.coordinator.handle(LeaveGroup("g", (member,)), lambda result: None)
        self.coordinator.run_timers()
