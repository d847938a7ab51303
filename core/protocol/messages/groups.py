"""FindCoordinator, and the requests of members of groups and of tools for groups."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, Int64, message, since, until

OPERATIONS_NOT_ASKED = -(2**31)


@message
class FindCoordinatorRequest:
    """Which broker coordinates a group (``key_type`` 0) or a transactional id (1)?"""

    key: str = until(3, default="")
    key_type: Int8 = since(1, default=0)
    coordinator_keys: tuple[str, ...] = since(4, default=())


@message
class Coordinator:
    """The coordinator of one key."""

    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None = None


@message
class FindCoordinatorResponse:
    """From version 4 on the coordinators of several keys."""

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16 = until(3, default=0)
    error_message: str | None = since(1, until=3, default=None)
    node_id: Int32 = until(3, default=-1)
    host: str = until(3, default="")
    port: Int32 = until(3, default=-1)
    coordinators: tuple[Coordinator, ...] = since(4, default=())


@message
class JoinGroupRequestProtocol:
    """A protocol that the member supports."""

    name: str
    metadata: bytes


@message
class JoinGroupRequest:
    """A member joins a group."""

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = since(1, default=-1)
    member_id: str
    group_instance_id: str | None = since(5, default=None)
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = since(8, default=None)


@message
class JoinGroupResponseMember:
    """A member, as the leader is told of it."""

    member_id: str
    group_instance_id: str | None = since(5, default=None)
    metadata: bytes


@message
class JoinGroupResponse:
    """The generation of a group; only its leader is told the members.

    Below version 7 ``protocol_name`` must not be null.
    """

    throttle_time_ms: Int32 = since(2, default=0)
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: str | None = since(7, default=None)
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = since(9, default=False)
    member_id: str
    members: tuple[JoinGroupResponseMember, ...] = ()


@message
class SyncGroupRequestAssignment:
    """The assignment of a member."""

    member_id: str
    assignment: bytes


@message
class SyncGroupRequest:
    """A member asks for its assignment; the leader sends those of all."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = since(3, default=None)
    protocol_type: str | None = since(5, default=None)
    protocol_name: str | None = since(5, default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...]


@message
class SyncGroupResponse:
    """The assignment of a member."""

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    protocol_type: str | None = since(5, default=None)
    protocol_name: str | None = since(5, default=None)
    assignment: bytes = b""


@message
class HeartbeatRequest:
    """A member lives."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = since(3, default=None)


@message
class HeartbeatResponse:
    """Whether its generation is the present one."""

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16


@message
class MemberIdentity:
    """A member that leaves."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = since(5, default=None)


@message
class LeaveGroupRequest:
    """A member leaves, or several are removed."""

    group_id: str
    member_id: str = until(2, default="")
    members: tuple[MemberIdentity, ...] = since(3, default=())


@message
class LeftMember:
    """Whether a member has left."""

    member_id: str
    group_instance_id: str | None = None
    error_code: Int16


@message
class LeaveGroupResponse:
    """Which members have left."""

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    members: tuple[LeftMember, ...] = since(3, default=())


@message
class DescribeGroupsRequest:
    """What are these groups doing?"""

    groups: tuple[str, ...]
    include_authorized_operations: bool = since(3, default=False)


@message
class DescribedGroupMember:
    """A member of a group."""

    member_id: str
    group_instance_id: str | None = since(4, default=None)
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@message
class DescribedGroup:
    """A group; ``group_state`` is empty with an error."""

    error_code: Int16
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Int32 = since(3, default=OPERATIONS_NOT_ASKED)


@message
class DescribeGroupsResponse:
    """Groups with their members."""

    throttle_time_ms: Int32 = since(1, default=0)
    groups: tuple[DescribedGroup, ...]


@message
class ListGroupsRequest:
    """Which groups does this broker coordinate?"""

    states_filter: tuple[str, ...] = since(4, default=())
    types_filter: tuple[str, ...] = since(5, default=())


@message
class ListedGroup:
    """A group."""

    group_id: str
    protocol_type: str
    group_state: str = since(4, default="")
    group_type: str = since(5, default="")


@message
class ListGroupsResponse:
    """The groups of this broker; with an error there may be more."""

    throttle_time_ms: Int32 = since(1, default=0)
    error_code: Int16
    groups: tuple[ListedGroup, ...] = ()


@message
class DeleteGroupsRequest:
    """Delete groups without members."""

    groups_names: tuple[str, ...]


@message
class DeletableGroupResult:
    """Whether a group was deleted."""

    group_id: str
    error_code: Int16


@message
class DeleteGroupsResponse:
    """Which groups were deleted."""

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...]


@message
class OffsetCommitRequestPartition:
    """A position; ``commit_timestamp`` -1: now."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(6, default=-1)
    commit_timestamp: Int64 = since(1, until=1, default=-1)
    committed_metadata: str | None


@message
class OffsetCommitRequestTopic:
    """The positions in a topic."""

    name: str
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message
class OffsetCommitRequest:
    """A group stores its positions."""

    group_id: str
    generation_id_or_member_epoch: Int32 = since(1, default=-1)
    member_id: str = since(1, default="")
    group_instance_id: str | None = since(7, default=None)
    retention_time_ms: Int64 = since(2, until=4, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...]


@message
class OffsetCommitResponsePartition:
    """Whether a position was stored."""

    partition_index: Int32
    error_code: Int16


@message
class OffsetCommitResponseTopic:
    """The outcomes of a topic."""

    name: str
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message
class OffsetCommitResponse:
    """Which positions were stored."""

    throttle_time_ms: Int32 = since(3, default=0)
    topics: tuple[OffsetCommitResponseTopic, ...]


@message
class OffsetFetchRequestTopic:
    """The partitions of a topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message
class OffsetFetchRequestGroup:
    """A group; ``topics`` None: all its positions."""

    group_id: str
    member_id: str | None = since(9, default=None)
    member_epoch: Int32 = since(9, default=-1)
    topics: tuple[OffsetFetchRequestTopic, ...] | None


@message
class OffsetFetchRequest:
    """Where does a group, from version 8 on several, continue? ``topics`` None: everywhere."""

    group_id: str = until(7, default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = until(7, default=())
    groups: tuple[OffsetFetchRequestGroup, ...] = since(8, default=())
    require_stable: bool = since(7, default=False)


@message
class OffsetFetchResponsePartition:
    """A position, -1: there is none."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(5, default=-1)
    metadata: str | None
    error_code: Int16


@message
class OffsetFetchResponseTopic:
    """The positions in a topic."""

    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


@message
class OffsetFetchResponseGroup:
    """The positions of a group."""

    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: Int16


@message
class OffsetFetchResponse:
    """The positions of a group, from version 8 on of several."""

    throttle_time_ms: Int32 = since(3, default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = until(7, default=())
    error_code: Int16 = since(2, until=7, default=0)
    groups: tuple[OffsetFetchResponseGroup, ...] = since(8, default=())


@message
class OffsetDeleteRequestPartition:
    """A partition."""

    partition_index: Int32


@message
class OffsetDeleteRequestTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@message
class OffsetDeleteRequest:
    """Delete positions of topics that a group does not consume any more."""

    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


@message
class OffsetDeleteResponsePartition:
    """Whether a position was deleted."""

    partition_index: Int32
    error_code: Int16


@message
class OffsetDeleteResponseTopic:
    """The outcomes of a topic."""

    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@message
class OffsetDeleteResponse:
    """Which positions were deleted. The error comes before the throttle time, only here."""

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
