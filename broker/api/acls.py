"""DescribeAcls, CreateAcls and DeleteAcls, versions 0 to 3.

There is no authorizer, so each is answered with SECURITY_DISABLED, in the words of Kafka. Mirrors
``kafka.server.AclApis``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regent.core.errors import Errors
from regent.core.protocol.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_NOT_DESCRIBED: Final = "No Authorizer is configured on the broker"
_NOT_CHANGED: Final = "No Authorizer is configured."


def acl_apis() -> Sequence[KafkaApi]:
    """Return the APIs."""
    return [
        KafkaApi(KafkaApiKey.DESCRIBE_ACLS, 0, 3, _describe),
        KafkaApi(KafkaApiKey.CREATE_ACLS, 0, 3, _create),
        KafkaApi(KafkaApiKey.DELETE_ACLS, 0, 3, _delete),
    ]


async def _describe(request: KafkaRequest) -> KafkaAnswer:
    decode(DescribeAclsRequest, request)
    refused = DescribeAclsResponse(
        error_code=Errors.SECURITY_DISABLED, error_message=_NOT_DESCRIBED
    )
    return answer(refused, request)


async def _create(request: KafkaRequest) -> KafkaAnswer:
    creations = decode(CreateAclsRequest, request).creations
    refused = AclCreationResult(error_code=Errors.SECURITY_DISABLED, error_message=_NOT_CHANGED)
    return answer(CreateAclsResponse(results=(refused,) * len(creations)), request)


async def _delete(request: KafkaRequest) -> KafkaAnswer:
    filters = decode(DeleteAclsRequest, request).filters
    refused = DeleteAclsFilterResult(
        error_code=Errors.SECURITY_DISABLED, error_message=_NOT_CHANGED
    )
    return answer(DeleteAclsResponse(filter_results=(refused,) * len(filters)), request)
