"""Requests of the members of groups, and their answers, as values. Times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.coordinator import CoordinatorRequest
from regent.core.protocol.messages.groups import (
    DescribedGroup,
    JoinGroupResponse,
    ListGroupsResponse,
    SyncGroupResponse,
)

A = TypeVar("A")

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1


class GroupRequest(CoordinatorRequest[A]):
    """A request to a group coordinator."""

    __slots__ = ()


class SupportedProtocol(NamedTuple):
    """An assignor that a member supports, and what the member tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroup(GroupRequest[JoinGroupResponse]):
    """A member joins, or joins again.

    ``requires_member_id``: a member without an id gets one and joins again (KIP-394).
    ``can_skip_assignment``: a leader that returns is told so (KIP-814).
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[SupportedProtocol, ...]
    requires_member_id: bool = True
    can_skip_assignment: bool = True

    def refused(self, error: Errors) -> JoinGroupResponse:
        """See ``CoordinatorRequest.refused``."""
        return JoinGroupResponse(error_code=error, member_id=self.member_id)


@dataclass(frozen=True, slots=True)
class SyncGroup(GroupRequest[SyncGroupResponse]):
    """A member asks for its assignment; the leader's request has those of all members.

    ``needs_protocol``: a request without the protocol's type and name is refused.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    needs_protocol: bool = False

    def refused(self, error: Errors) -> SyncGroupResponse:
        """See ``CoordinatorRequest.refused``."""
        return SyncGroupResponse(error_code=error)


@dataclass(frozen=True, slots=True)
class Heartbeat(GroupRequest[Errors]):
    """A member lives."""

    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None

    def refused(self, error: Errors) -> Errors:
        """See ``CoordinatorRequest.refused``."""
        return error


class LeavingMember(NamedTuple):
    """A member that leaves, or a static member that an operator removes by its instance id."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup(GroupRequest["LeaveGroupResult"]):
    """Members leave."""

    group_id: str
    members: tuple[LeavingMember, ...]

    def refused(self, error: Errors) -> LeaveGroupResult:
        """See ``CoordinatorRequest.refused``."""
        return LeaveGroupResult(error)


@dataclass(frozen=True, slots=True)
class LeaveGroupResult:
    """The answer to LeaveGroup; an error for each member if ``error_code`` is NONE."""

    error_code: Errors
    members: tuple[tuple[LeavingMember, Errors], ...] = ()


class OffsetAndMetadata(NamedTuple):
    """A position of a group; ``expire_timestamp_ms`` only if the client asked for a retention."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP


class ProducerIdAndEpoch(NamedTuple):
    """A producer with a transaction."""

    producer_id: int
    producer_epoch: int


class VerifiedProducer(NamedTuple):
    """A producer that commits positions in its transaction.

    ``guard``: under which the partition of the group was verified to be part of the transaction
    (KIP-890); None: it was not.
    """

    producer_id: int
    producer_epoch: int
    guard: int | None = None


@dataclass(frozen=True, slots=True)
class CommitOffsets(GroupRequest[Mapping[TopicPartition, Errors]]):
    """A group commits positions. ``producer``: as part of its transaction.

    ``knows_loading``: the client knows COORDINATOR_LOAD_IN_PROGRESS in answers to such commits.
    """

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER_ID
    generation_id: int = NO_GENERATION
    group_instance_id: str | None = None
    producer: VerifiedProducer | None = None
    knows_loading: bool = True

    def refused(self, error: Errors) -> Mapping[TopicPartition, Errors]:
        """See ``CoordinatorRequest.refused``."""
        return dict.fromkeys(self.offsets, error)


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is in a partition of ``__consumer_offsets``."""

    partition: int
    producer_id: int
    marker_offset: int
    is_commit: bool


@dataclass(frozen=True, slots=True)
class CompleteTransactions(GroupRequest[tuple[Errors, ...]]):
    """Positions that were committed in transactions take effect, or are dropped.

    With an error, which is for one transaction, it is to be asked again.
    """

    transactions: tuple[CompletedTransaction, ...]

    def refused(self, error: Errors) -> tuple[Errors, ...]:
        """See ``CoordinatorRequest.refused``."""
        return (error,) * len(self.transactions)


class FetchedOffset(NamedTuple):
    """A position of a group, or -1 if there is none."""

    error_code: Errors
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class FetchOffsets(GroupRequest["FetchOffsetsResult"]):
    """Where does a group continue? ``partitions`` None: everywhere.

    ``require_stable``: positions that may change soon are refused (KIP-447).
    """

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = False

    def refused(self, error: Errors) -> FetchOffsetsResult:
        """See ``CoordinatorRequest.refused``."""
        return FetchOffsetsResult(error)


@dataclass(frozen=True, slots=True)
class FetchOffsetsResult:
    """The positions of a group."""

    error_code: Errors
    offsets: Mapping[TopicPartition, FetchedOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteOffsets(GroupRequest["DeleteOffsetsResult"]):
    """Delete positions of topics that a group does not consume."""

    group_id: str
    partitions: tuple[TopicPartition, ...]

    def refused(self, error: Errors) -> DeleteOffsetsResult:
        """See ``CoordinatorRequest.refused``."""
        return DeleteOffsetsResult(error)


@dataclass(frozen=True, slots=True)
class DeleteOffsetsResult:
    """The answer to OffsetDelete; an error for each partition if ``error_code`` is NONE."""

    error_code: Errors
    partitions: Mapping[TopicPartition, Errors] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DescribeGroup(GroupRequest[DescribedGroup]):
    """What is a group doing?"""

    group_id: str

    def refused(self, error: Errors) -> DescribedGroup:
        """See ``CoordinatorRequest.refused``."""
        return DescribedGroup(error_code=error, group_id=self.group_id)


@dataclass(frozen=True, slots=True)
class ListGroups(GroupRequest[ListGroupsResponse]):
    """Which groups are here, in one of ``states`` and of one of ``types``? Empty: all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def refused(self, error: Errors) -> ListGroupsResponse:
        """See ``CoordinatorRequest.refused``."""
        return ListGroupsResponse(error_code=error)


@dataclass(frozen=True, slots=True)
class DeleteGroup(GroupRequest[Errors]):
    """Delete a group without members."""

    group_id: str

    def refused(self, error: Errors) -> Errors:
        """See ``CoordinatorRequest.refused``."""
        return error
