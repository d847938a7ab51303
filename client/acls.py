"""Tools list, create and delete ACLs by Kafka's requests to any broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.config.addresses import bracketed
from regent.core.errors import Errors, RegentError
from regent.core.model import EndPoint
from regent.core.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
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
from regent.transport.kafka.api import KafkaApiKey

A = TypeVar("A")
_VERSION: Final = 3
_LEAST_S: Final = 0.001


class AclError(RegentError):
    """ACLs could not be read or changed; the message says why, and what helps."""


class AclsClient:
    """Asks ``brokers``, then those that ``find_others`` returns, until one answers.

    ``timeout_s`` is for each call. Every method raises ``AclError``. A change is asked of the next
    broker if the answer of one was lost: it may be made twice, which is the same as once.
    """

    def __init__(
        self,
        brokers: Sequence[EndPoint],
        *,
        timeout_s: float,
        find_others: Callable[[], Sequence[EndPoint]],
    ) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s
        self._find_others = find_others

    def find(self, wanted: AclBindingFilter) -> Sequence[AclBinding]:
        """Return the ACLs that a filter means."""
        request = DescribeAclsRequest(**_fields(wanted))
        answered = self._ask(KafkaApiKey.DESCRIBE_ACLS, request, DescribeAclsResponse)
        _check(answered.error_code, answered.error_message)
        return [
            AclBinding(
                _pattern(row.resource_type, row.resource_name, row.pattern_type), _entry(acl)
            )
            for row in answered.resources
            for acl in row.acls
        ]

    def create(self, bindings: Sequence[AclBinding]) -> None:
        """Create ACLs; those that exist stay."""
        creations = (
            AclCreation(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                resource_pattern_type=pattern.pattern_type,
                **entry._asdict(),
            )
            for pattern, entry in bindings
        )
        request = CreateAclsRequest(creations=tuple(creations))
        answered = self._ask(KafkaApiKey.CREATE_ACLS, request, CreateAclsResponse)
        for row in answered.results:
            _check(row.error_code, row.error_message)

    def delete(self, filters: Sequence[AclBindingFilter]) -> Sequence[AclBinding]:
        """Delete the ACLs that filters mean, and return them."""
        rows = tuple(DeleteAclsFilter(**_fields(wanted)) for wanted in filters)
        request = DeleteAclsRequest(filters=rows)
        answered = self._ask(KafkaApiKey.DELETE_ACLS, request, DeleteAclsResponse)
        deleted = []
        for result in answered.filter_results:
            _check(result.error_code, result.error_message)
            for row in result.matching_acls:
                _check(row.error_code, row.error_message)
                pattern = _pattern(row.resource_type, row.resource_name, row.pattern_type)
                deleted.append(AclBinding(pattern, _entry(row)))
        return deleted

    def _ask(self, key: KafkaApiKey, request: object, answer: type[A]) -> A:
        until = time.monotonic() + self._timeout_s
        problems = []
        for broker in chain(self._brokers, self._others()):
            left_s = max(until - time.monotonic(), _LEAST_S)
            try:
                return ask_broker(broker, (key, _VERSION), request, answer, left_s)
            except NoAnswerError as error:
                problems.append(f"{bracketed(broker.host)}:{broker.port}: {error}")
        raise AclError(f"no broker answers: {'; '.join(problems) or 'none is known'}")

    def _others(self) -> Iterable[EndPoint]:
        yield from (broker for broker in self._find_others() if broker not in self._brokers)


def _fields(wanted: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission_type,
    }


def _pattern(resource_type: int, name: str, pattern_type: int) -> ResourcePattern:
    return ResourcePattern(ResourceType(resource_type), name, PatternType(pattern_type))


def _entry(row: Any) -> AccessControlEntry:
    return AccessControlEntry(
        row.principal,
        row.host,
        AclOperation(row.operation),
        AclPermissionType(row.permission_type),
    )


def _check(error_code: int, message: str | None) -> None:
    if error_code == Errors.SECURITY_DISABLED:
        raise AclError(
            "the brokers have no authorizer, so ACLs would have no effect: set"
            " authorizer_class_name in their [authorizer] table, and super_users"
        )
    if error_code == Errors.CLUSTER_AUTHORIZATION_FAILED:
        raise AclError(
            "this client may not do that: it needs Describe (to list) or Alter (to change) on the"
            " cluster, or must be one of super_users"
        )
    if error_code:
        raise AclError(message or f"the broker refuses: {Errors(error_code).name}")
