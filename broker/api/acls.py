"""DescribeAcls, CreateAcls and DeleteAcls, versions 0 to 3.

Without an authorizer each is answered with SECURITY_DISABLED, in the words of Kafka. Mirrors
``kafka.server.AclApis``; who may use them is in ``authorization``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeAlias, TypeVar

from regent.core.errors import ApiError, Errors
from regent.core.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from regent.core.security.acl_cache import AclCache
from regent.core.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
_Refuse: TypeAlias = Callable[[KafkaRequest], object]
_Handle: TypeAlias = Callable[[AclCache, KafkaRequest], KafkaAnswer]

_NOT_DESCRIBED: Final = "No Authorizer is configured on the broker"
_NOT_CHANGED: Final = "No Authorizer is configured."
_UNKNOWN: Final = ApiError(
    Errors.INVALID_REQUEST, "a type, pattern, operation or permission has no such number"
)


def acl_apis(acls: AclCache | None = None, executor: Executor | None = None) -> Sequence[KafkaApi]:
    """Return the APIs; ``acls`` None: there is no authorizer. ``executor`` waits for ZooKeeper."""

    def api(key: KafkaApiKey, refuse: _Refuse, handle: _Handle) -> KafkaApi:
        async def run(request: KafkaRequest) -> KafkaAnswer:
            if acls is None:
                return answer(refuse(request), request)
            call = partial(handle, acls, request)
            return await asyncio.get_running_loop().run_in_executor(executor, call)

        return KafkaApi(key, 0, 3, run)

    return [
        api(KafkaApiKey.DESCRIBE_ACLS, _no_description, _describe),
        api(KafkaApiKey.CREATE_ACLS, _no_creation, _create),
        api(KafkaApiKey.DELETE_ACLS, _no_deletion, _delete),
    ]


def _no_description(request: KafkaRequest) -> DescribeAclsResponse:
    decode(DescribeAclsRequest, request)
    return DescribeAclsResponse(error_code=Errors.SECURITY_DISABLED, error_message=_NOT_DESCRIBED)


def _no_creation(request: KafkaRequest) -> CreateAclsResponse:
    creations = decode(CreateAclsRequest, request).creations
    refused = AclCreationResult(error_code=Errors.SECURITY_DISABLED, error_message=_NOT_CHANGED)
    return CreateAclsResponse(results=(refused,) * len(creations))


def _no_deletion(request: KafkaRequest) -> DeleteAclsResponse:
    filters = decode(DeleteAclsRequest, request).filters
    refused = DeleteAclsFilterResult(
        error_code=Errors.SECURITY_DISABLED, error_message=_NOT_CHANGED
    )
    return DeleteAclsResponse(filter_results=(refused,) * len(filters))


def _describe(acls: AclCache, request: KafkaRequest) -> KafkaAnswer:
    wanted = _filter_of(decode(DescribeAclsRequest, request))
    if wanted is None:
        code, message = _UNKNOWN
        return answer(DescribeAclsResponse(error_code=code, error_message=message), request)
    entries: dict[ResourcePattern, list[AccessControlEntry]] = {}
    for pattern, entry in acls.find(wanted):
        entries.setdefault(pattern, []).append(entry)
    resources = (
        DescribeAclsResource(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            pattern_type=pattern.pattern_type,
            acls=tuple(AclDescription(**entry._asdict()) for entry in found),
        )
        for pattern, found in sorted(entries.items())
    )
    response = DescribeAclsResponse(error_code=Errors.NONE, resources=tuple(resources))
    return answer(response, request)


def _create(acls: AclCache, request: KafkaRequest) -> KafkaAnswer:
    wanted = [_binding(row) for row in decode(CreateAclsRequest, request).creations]
    outcomes = _in_order(wanted, acls.create, _UNKNOWN)
    results = (
        AclCreationResult(error_code=code, error_message=message or None)
        for code, message in outcomes
    )
    return answer(CreateAclsResponse(results=tuple(results)), request)


def _delete(acls: AclCache, request: KafkaRequest) -> KafkaAnswer:
    wanted = [_filter_of(row) for row in decode(DeleteAclsRequest, request).filters]
    results = []
    for found in _in_order(wanted, acls.delete, None):
        if found is None:
            code, message = _UNKNOWN
            results.append(DeleteAclsFilterResult(error_code=code, error_message=message))
        else:
            matching = tuple(_deleted(binding, error) for binding, error in found)
            results.append(
                DeleteAclsFilterResult(
                    error_code=Errors.NONE, error_message=None, matching_acls=matching
                )
            )
    return answer(DeleteAclsResponse(filter_results=tuple(results)), request)


def _in_order(
    wanted: Sequence[T | None], call: Callable[[Sequence[T]], Iterable[A]], missing: B
) -> list[A | B]:
    """Return what ``call`` does with those that are not None; for these it is ``missing``."""
    results = iter(call([one for one in wanted if one is not None]))
    return [missing if one is None else next(results) for one in wanted]


def _binding(row: AclCreation) -> AclBinding | None:
    """Return what is to be created; None: it has numbers that mean nothing."""
    try:
        return AclBinding(
            ResourcePattern(
                ResourceType(row.resource_type),
                row.resource_name,
                PatternType(row.resource_pattern_type),
            ),
            AccessControlEntry(
                row.principal,
                row.host,
                AclOperation(row.operation),
                AclPermissionType(row.permission_type),
            ),
        )
    except ValueError:
        return None


def _filter_of(row: DescribeAclsRequest | DeleteAclsFilter) -> AclBindingFilter | None:
    """Return what is meant; None: it has numbers that mean nothing."""
    try:
        return AclBindingFilter(
            ResourceType(row.resource_type_filter),
            row.resource_name_filter,
            PatternType(row.pattern_type_filter),
            row.principal_filter,
            row.host_filter,
            AclOperation(row.operation),
            AclPermissionType(row.permission_type),
        )
    except ValueError:
        return None


def _deleted(binding: AclBinding, error: ApiError) -> DeleteAclsMatchingAcl:
    pattern, entry = binding
    return DeleteAclsMatchingAcl(
        error_code=error.error_code,
        error_message=error.message or None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        **entry._asdict(),
    )
