"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups and DeleteGroups.

Versions as in Kafka 3.9. Mirrors the handlers of ``kafka.server.KafkaApis`` for groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from regent.broker.api.authorized_operations import operations_if
from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.core.errors import Errors
from regent.core.protocol.coordinator import CoordinatorRequest
from regent.core.protocol.groups import (
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    ListGroups,
    SupportedProtocol,
    SyncGroup,
)
from regent.core.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListGroupsRequest,
    SyncGroupRequest,
)
from regent.core.security.acls import AclOperation, ResourceType
from regent.transport.kafka.api import (
    Answering,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    apis_of,
)
from regent.transport.kafka.message_codec import answer, decode

A = TypeVar("A")

_DENIED: Final = Errors.GROUP_AUTHORIZATION_FAILED
_FIRST_WITH_REBALANCE_TIMEOUT: Final = 1
_FIRST_WITH_REQUIRED_MEMBER_ID: Final = 4  # KIP-394
_FIRST_WITH_NULLABLE_PROTOCOL: Final = 7
_FIRST_WITH_SKIPPED_ASSIGNMENT: Final = 9  # KIP-814
_FIRST_SYNC_WITH_PROTOCOL: Final = 5
_FIRST_LEAVE_OF_SEVERAL: Final = 3


def group_apis(requests: CoordinatorRequests) -> Sequence[KafkaApi]:
    """Return the APIs of members and of tools, which ask ``requests``."""
    return apis_of(
        requests,
        [
            (KafkaApiKey.JOIN_GROUP, 9, _join),
            (KafkaApiKey.HEARTBEAT, 4, _heartbeat),
            (KafkaApiKey.LEAVE_GROUP, 5, _leave),
            (KafkaApiKey.SYNC_GROUP, 5, _sync),
            (KafkaApiKey.DESCRIBE_GROUPS, 5, _describe),
            (KafkaApiKey.LIST_GROUPS, 5, _list),
            (KafkaApiKey.DELETE_GROUPS, 2, _delete),
        ],
    )


def _answer_member(
    requests: CoordinatorRequests,
    request: KafkaRequest,
    group_id: str,
    question: CoordinatorRequest[A],
    encode: Callable[[A], KafkaAnswer],
) -> Answering:
    """Answer a member of a group, which must be allowed to read it."""
    if not request.may(AclOperation.READ, ResourceType.GROUP, group_id):
        return requests.given(encode(question.refused(_DENIED)))
    return requests.answer(question, encode)


def _join(requests: CoordinatorRequests, request: KafkaRequest) -> Answering:
    asked, version = decode(JoinGroupRequest, request), request.api_version
    has_timeout = version >= _FIRST_WITH_REBALANCE_TIMEOUT

    def encode(joined: JoinGroupResponse) -> KafkaAnswer:
        if joined.protocol_name is None and version < _FIRST_WITH_NULLABLE_PROTOCOL:
            joined = dataclasses.replace(joined, protocol_name="")
        return answer(joined, request)

    return _answer_member(
        requests,
        request,
        asked.group_id,
        JoinGroup(
            asked.group_id,
            asked.member_id,
            asked.group_instance_id,
            request.client_id or "",
            f"/{request.session.client_host}",  # as Java prints an address
            asked.session_timeout_ms,
            asked.rebalance_timeout_ms if has_timeout else asked.session_timeout_ms,
            asked.protocol_type,
            tuple(SupportedProtocol(row.name, row.metadata) for row in asked.protocols),
            requires_member_id=version >= _FIRST_WITH_REQUIRED_MEMBER_ID,
            can_skip_assignment=version >= _FIRST_WITH_SKIPPED_ASSIGNMENT,
        ),
        encode,
    )


def _sync(requests: CoordinatorRequests, request: KafkaRequest) -> Answering:
    asked = decode(SyncGroupRequest, request)
    return _answer_member(
        requests,
        request,
        asked.group_id,
        SyncGroup(
            asked.group_id,
            asked.generation_id,
            asked.member_id,
            asked.group_instance_id,
            asked.protocol_type,
            asked.protocol_name,
            {row.member_id: row.assignment for row in asked.assignments},
            needs_protocol=request.api_version >= _FIRST_SYNC_WITH_PROTOCOL,
        ),
        lambda synchronised: answer(synchronised, request),
    )


def _heartbeat(requests: CoordinatorRequests, request: KafkaRequest) -> Answering:
    asked = decode(HeartbeatRequest, request)
    return _answer_member(
        requests,
        request,
        asked.group_id,
        Heartbeat(asked.group_id, asked.member_id, asked.generation_id, asked.group_instance_id),
        lambda error: answer(HeartbeatResponse(error_code=error), request),
    )


def _leave(requests: CoordinatorRequests, request: KafkaRequest) -> Answering:
    asked = decode(LeaveGroupRequest, request)
    leaving: tuple[LeavingMember, ...] = (LeavingMember(asked.member_id),)
    is_of_several = request.api_version >= _FIRST_LEAVE_OF_SEVERAL
    if is_of_several:
        leaving = tuple(
            LeavingMember(row.member_id, row.group_instance_id) for row in asked.members
        )

    def encode(left: LeaveGroupResult) -> KafkaAnswer:
        error = left.error_code
        if not is_of_several and error is Errors.NONE:
            ((_, error),) = left.members
        members = tuple(
            LeftMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=member_error,
            )
            for member, member_error in left.members
        )
        return answer(LeaveGroupResponse(error_code=error, members=members), request)

    question = LeaveGroup(asked.group_id, leaving)
    return _answer_member(requests, request, asked.group_id, question, encode)


async def _describe(requests: CoordinatorRequests, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(DescribeGroupsRequest, request)
    denied = request.denied(AclOperation.DESCRIBE, ResourceType.GROUP, asked.groups)
    known = [group_id for group_id in asked.groups if group_id not in denied]
    described = iter(await requests.ask_all(map(DescribeGroup, known)))
    groups = tuple(
        DescribedGroup(error_code=_DENIED, group_id=group_id)
        if group_id in denied
        else dataclasses.replace(
            next(described),
            authorized_operations=operations_if(
                asked.include_authorized_operations, request, ResourceType.GROUP, group_id
            ),
        )
        for group_id in asked.groups
    )
    return answer(DescribeGroupsResponse(groups=groups), request)


async def _list(requests: CoordinatorRequests, request: KafkaRequest) -> KafkaAnswer:
    asked = decode(ListGroupsRequest, request)
    listed = await requests.ask(ListGroups(asked.states_filter, asked.types_filter))
    if not request.may(AclOperation.DESCRIBE, ResourceType.CLUSTER, is_logged=False):
        names = (row.group_id for row in listed.groups)
        denied = request.denied(AclOperation.DESCRIBE, ResourceType.GROUP, names, is_logged=False)
        visible = tuple(row for row in listed.groups if row.group_id not in denied)
        listed = dataclasses.replace(listed, groups=visible)
    return answer(listed, request)


async def _delete(requests: CoordinatorRequests, request: KafkaRequest) -> KafkaAnswer:
    names = tuple(dict.fromkeys(decode(DeleteGroupsRequest, request).groups_names))
    denied = request.denied(AclOperation.DELETE, ResourceType.GROUP, names)
    known = [group_id for group_id in names if group_id not in denied]
    deleted: list[Any] = await requests.ask_all(map(DeleteGroup, known))
    errors = {**dict.fromkeys(denied, _DENIED), **dict(zip(known, deleted, strict=True))}
    results = tuple(
        DeletableGroupResult(group_id=group_id, error_code=errors[group_id]) for group_id in names
    )
    return answer(DeleteGroupsResponse(results=results), request)
