"""What a client may do of a request that is forwarded; the broker and the controller ask both.

The broker that a client is connected to refuses at once what the client may not do. The active
controller's broker decides again, for the client that the envelope names: it does not rely on the
other brokers' newest ACLs, and a broker's key alone orders nothing. Mirrors the checks of
``KafkaApis`` and ``ConfigAdminManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from regent.core.admin.admin_requests import refuse
from regent.core.admin.partition_requests import refuse_partitions
from regent.core.errors import Errors
from regent.core.protocol.control import TopicId
from regent.core.protocol.envelope import ForwardedClient, ForwardedRequest
from regent.core.protocol.messages.configs import (
    AlterConfigsResourceResult,
    IncrementalAlterConfigsRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from regent.core.protocol.topics import (
    R,
    TopicResult,
    TopicsRequest,
    TopicsResponse,
    results_of,
    with_results,
)
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.security.acls import CLUSTER, AclOperation, Resource, ResourceType
from regent.core.security.authorizer import ALLOW_ALL, Asked, Authorizer
from regent.core.security.session import KafkaPrincipal, Session

May: TypeAlias = Callable[[AclOperation, Resource, bool], bool]
"""Whether the client may do an operation on a resource, and whether a denial is logged."""

_DENIED: Final[Mapping[str, Any]] = {
    "error_code": Errors.TOPIC_AUTHORIZATION_FAILED,
    "error_message": "Authorization failed.",
}
NO_CLIENT: Final = "a broker sends this only in an envelope that names the client who asked"
_OF_CLUSTER: Final[Mapping[type, AclOperation]] = {
    ElectLeadersRequest: AclOperation.ALTER,
    AlterPartitionReassignmentsRequest: AclOperation.ALTER,
    ListPartitionReassignmentsRequest: AclOperation.DESCRIBE,
}
_NAMES: Final[Mapping[type, str]] = {
    ElectLeadersRequest: "ElectLeaders",
    AlterPartitionReassignmentsRequest: "AlterPartitionReassignments",
    ListPartitionReassignmentsRequest: "ListPartitionReassignments",
    CreateTopicsRequest: "CreateTopics",
    CreatePartitionsRequest: "CreatePartitions",
    DeleteTopicsRequest: "DeleteTopics",
    IncrementalAlterConfigsRequest: "IncrementalAlterConfigs",
}


def authorized(
    request: TopicsRequest, may: May, names: Mapping[TopicId | None, str]
) -> tuple[TopicsRequest, Sequence[TopicResult]]:
    """Return what the client may do of a request, and the results of the rest.

    ``names`` has the topics by id. A topic whose id is not among them stays in the request.
    """
    match request:
        case CreateTopicsRequest(topics=topics):
            if may(AclOperation.CREATE, CLUSTER, False):
                return request, ()
            denied = {
                row.name for row in topics if not may(AclOperation.CREATE, _topic(row.name), True)
            }
            created = [CreatableTopicResult(name=name, **_DENIED) for name in sorted(denied)]
            rest = tuple(row for row in topics if row.name not in denied)
            return replace(request, topics=rest), created
        case CreatePartitionsRequest(topics=growing):
            denied = {
                row.name for row in growing if not may(AclOperation.ALTER, _topic(row.name), True)
            }
            grown = [CreatePartitionsTopicResult(name=name, **_DENIED) for name in sorted(denied)]
            kept = tuple(row for row in growing if row.name not in denied)
            return replace(request, topics=kept), grown
        case DeleteTopicsRequest(topics=states):
            refusals = {row: _undeletable(row, may, names) for row in dict.fromkeys(states)}
            left = tuple(row for row in states if refusals[row] is None)
            return replace(request, topics=left), [r for r in refusals.values() if r is not None]
        case IncrementalAlterConfigsRequest(resources=resources):
            denied = {
                row.resource_name
                for row in resources
                if not may(AclOperation.ALTER_CONFIGS, _topic(row.resource_name), True)
            }
            unaltered = [
                AlterConfigsResourceResult(
                    resource_type=ResourceType.TOPIC, resource_name=name, **_DENIED
                )
                for name in sorted(denied)
            ]
            others = tuple(row for row in resources if row.resource_name not in denied)
            return replace(request, resources=others), unaltered


def _topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def _undeletable(
    row: DeleteTopicState, may: May, names: Mapping[TopicId | None, str]
) -> DeletableTopicResult | None:
    """Return why a topic may not be deleted; None: it may, or no topic has the id."""
    name = row.name if row.topic_id is None else names.get(row.topic_id)
    if name is None:
        return None
    topic = _topic(name)
    if row.topic_id is not None and not may(AclOperation.DESCRIBE, topic, True):
        return DeletableTopicResult(name=None, topic_id=row.topic_id, **_DENIED)
    if not may(AclOperation.DELETE, topic, True):
        return DeletableTopicResult(name=name, topic_id=row.topic_id, **_DENIED)
    return None


def has_any(request: TopicsRequest) -> bool:
    """Whether there is something to do."""
    if isinstance(request, IncrementalAlterConfigsRequest):
        return bool(request.resources)
    return bool(request.topics)


def nothing(request: TopicsRequest) -> TopicsResponse:
    """Return the answer to a request without topics."""
    return refuse(request, Errors.NONE, "")


def completed(response: R, refused: Sequence[TopicResult]) -> R:
    """Return the response with the results of what was refused."""
    return with_results(response, [*results_of(response), *refused]) if refused else response


def needs_all(request: TopicsRequest, refused: Sequence[TopicResult]) -> TopicsResponse | None:
    """Return the answer if nothing is done because a part is refused; None: it is done."""
    if not refused or not getattr(request, "all_or_none", False):
        return None
    return refuse(request, Errors.OPERATION_NOT_ATTEMPTED, "another topic is refused")


def decide_for_client(
    request: TopicsRequest,
    client: ForwardedClient | None,
    authorizer: Authorizer,
    snapshot: MetadataSnapshot,
    decide: Callable[[TopicsRequest], TopicsResponse],
) -> TopicsResponse:
    """Decide what the client of an envelope may do, and refuse the rest.

    Without a client a broker asks for itself: it creates the topics that its clients need, after
    it has authorized them, and nothing else. ``snapshot`` has the topics by id.
    """
    if authorizer is ALLOW_ALL or (client is None and isinstance(request, CreateTopicsRequest)):
        return decide(request)
    if client is None:
        return refuse(request, Errors.CLUSTER_AUTHORIZATION_FAILED, NO_CLIENT)
    names = {topic_id: name for name, topic_id in snapshot.topic_ids.items()}
    rest, refused = authorized(request, asking(authorizer, client, request), names)
    answer = needs_all(rest, refused)
    if answer is None:
        answer = decide(_with_names(rest, names)) if has_any(rest) else nothing(rest)
    return completed(answer, refused)


def _with_names(request: TopicsRequest, names: Mapping[TopicId | None, str]) -> TopicsRequest:
    """Return a request that also names the topics that it deletes by id.

    What was authorized is decided: an id that no topic had at that moment stands for no topic.
    """
    if not isinstance(request, DeleteTopicsRequest):
        return request
    rows = (
        row if row.topic_id is None else replace(row, name=names.get(row.topic_id, row.topic_id))
        for row in request.topics
    )
    return replace(request, topics=tuple(rows))


def refused_to_client(
    request: PartitionsRequest, client: ForwardedClient | None, authorizer: Authorizer
) -> PartitionsResponse | None:
    """Return the answer if the client of an envelope may not ask this; None: it may.

    No broker asks for itself: the controller holds its own elections.
    """
    if authorizer is ALLOW_ALL:
        return None
    denied = Errors.CLUSTER_AUTHORIZATION_FAILED
    if client is None:
        return refuse_partitions(request, denied, NO_CLIENT)
    if asking(authorizer, client, request)(_OF_CLUSTER[type(request)], CLUSTER, True):
        return None
    return refuse_partitions(request, denied, "Cluster authorization failed.")


def asking(authorizer: Authorizer, client: ForwardedClient, request: ForwardedRequest) -> May:
    """Return what asks an authorizer for a client."""
    session = Session(client.host, KafkaPrincipal(client.principal_type, client.name))
    name = _NAMES[type(request)]

    def may(operation: AclOperation, resource: Resource, is_logged: bool) -> bool:
        return authorizer.authorize(session, operation, resource, Asked(name, is_logged=is_logged))

    return may
