"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message, since

_LITERAL = 3


@message
class DescribeAclsRequest:
    """Asks which ACLs match a filter."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = since(1, default=_LITERAL)
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


@message
class AclDescription:
    """Who may, or may not, do what."""

    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@message
class DescribeAclsResource:
    """The ACLs of a resource."""

    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = since(1, default=_LITERAL)
    acls: tuple[AclDescription, ...]


@message
class DescribeAclsResponse:
    """The ACLs that match."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    resources: tuple[DescribeAclsResource, ...] = ()


@message
class AclCreation:
    """An ACL to create."""

    resource_type: Int8
    resource_name: str
    resource_pattern_type: Int8 = since(1, default=_LITERAL)
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@message
class CreateAclsRequest:
    """Creates ACLs."""

    creations: tuple[AclCreation, ...]


@message
class AclCreationResult:
    """The outcome for one ACL."""

    error_code: Int16
    error_message: str | None


@message
class CreateAclsResponse:
    """The outcomes, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[AclCreationResult, ...]


@message
class DeleteAclsFilter:
    """Which ACLs to delete."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = since(1, default=_LITERAL)
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


@message
class DeleteAclsRequest:
    """Deletes the ACLs that match one of the filters."""

    filters: tuple[DeleteAclsFilter, ...]


@message
class DeleteAclsMatchingAcl:
    """An ACL that matched a filter."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = since(1, default=_LITERAL)
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@message
class DeleteAclsFilterResult:
    """The outcome for one filter."""

    error_code: Int16
    error_message: str | None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


@message
class DeleteAclsResponse:
    """The outcomes, in the order of the request."""

    throttle_time_ms: Int32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...]
