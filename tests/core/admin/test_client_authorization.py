"""The controller authorizes what a broker forwards, for the client that the envelope names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regent.core.admin.admin_requests import refuse
from regent.core.admin.client_authorization import decide_for_client, refused_to_client
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.envelope import ForwardedClient
from regent.core.protocol.messages.configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionsRequest,
)
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse, results_of, topic_of
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.security.acls import (
    CLUSTER,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import ALLOW_ALL, AclAuthorizer, AuthorizerSettings

ALICE = ForwardedClient("User", "alice", "10.0.0.1")
ID, UNKNOWN_ID = "A" * 22, "B" * 22
DENIED = Errors.TOPIC_AUTHORIZATION_FAILED
T0 = TopicPartition("t", 0)
ELECTIONS = ElectLeadersRequest.of(ElectionType.PREFERRED, [T0])
KNOWN = MetadataSnapshot(topic_ids={"mine": ID})


def guard(
    operation: AclOperation, *names: str, kind: ResourceType = ResourceType.TOPIC
) -> AclAuthorizer:
    """Return what lets alice, at her address, do one operation on what has these names."""
    entry = AccessControlEntry("User:alice", "10.0.0.1", operation, AclPermissionType.ALLOW)
    made = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
    patterns = [ResourcePattern(kind, name, PatternType.LITERAL) for name in names]
    made.replace({pattern: frozenset({entry}) for pattern in patterns})
    return made


class Decider:
    """Does what is asked, and notes it."""

    def __init__(self) -> None:
        self.decided: list[TopicsRequest] = []

    def __call__(self, request: TopicsRequest) -> TopicsResponse:
        self.decided.append(request)
        return refuse(request, Errors.NONE, "")


def creation(*names: str, **more: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=tuple(CreatableTopic(name=name) for name in names), timeout_ms=1, **more
    )


def growth(*names: str) -> CreatePartitionsRequest:
    topics = (CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names)
    return CreatePartitionsRequest(topics=tuple(topics), timeout_ms=1)


def deletion(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=tuple(DeleteTopicState(name=name) for name in names), timeout_ms=1
    )


def alteration(*names: str) -> IncrementalAlterConfigsRequest:
    rows = (AlterConfigsResource(resource_type=2, resource_name=n, configs=()) for n in names)
    return IncrementalAlterConfigsRequest(resources=tuple(rows))


def outcomes(response: TopicsResponse) -> dict[str, int]:
    return {topic_of(row): row.error_code for row in results_of(response)}


@pytest.mark.parametrize(
    ("make", "operation"),
    [
        (creation, AclOperation.CREATE),
        (growth, AclOperation.ALTER),
        (deletion, AclOperation.DELETE),
        (alteration, AclOperation.ALTER_CONFIGS),
    ],
)
def test_what_the_client_may_not_do_is_refused_and_the_rest_is_decided(
    make: Callable[..., TopicsRequest], operation: AclOperation
):
    decide, authorizer = Decider(), guard(operation, "mine")
    response = decide_for_client(make("theirs", "mine"), ALICE, authorizer, KNOWN, decide)
    assert outcomes(response) == {"theirs": DENIED, "mine": Errors.NONE}
    assert decide.decided == [make("mine")]
    elsewhere = ALICE._replace(host="10.0.0.2")
    response = decide_for_client(make("mine"), elsewhere, authorizer, KNOWN, decide)
    assert outcomes(response) == {"mine": DENIED}
    assert decide.decided == [make("mine")]


def test_brokers_create_topics_for_themselves_and_do_nothing_else():
    decide, authorizer = Decider(), guard(AclOperation.CREATE)
    decide_for_client(creation("t"), None, authorizer, KNOWN, decide)
    for request in (growth("t"), deletion("t"), alteration("t")):
        refused = decide_for_client(request, None, authorizer, KNOWN, decide)
        assert outcomes(refused) == {"t": Errors.CLUSTER_AUTHORIZATION_FAILED}
    assert decide.decided == [creation("t")]


@pytest.mark.parametrize("client", [ALICE, None])
def test_without_an_authorizer_everything_is_decided(client: ForwardedClient | None):
    decide = Decider()
    decide_for_client(deletion("t"), client, ALLOW_ALL, KNOWN, decide)
    assert decide.decided == [deletion("t")]
    assert refused_to_client(ELECTIONS, client, ALLOW_ALL) is None


@pytest.mark.parametrize(
    ("request_", "operation"),
    [
        (ELECTIONS, AclOperation.ALTER),
        (AlterPartitionReassignmentsRequest.of({T0: (1,)}), AclOperation.ALTER),
        (ListPartitionReassignmentsRequest.of(), AclOperation.DESCRIBE),
    ],
    ids=["elect", "reassign", "list"],
)
def test_the_controller_elects_and_reassigns_for_clients_who_may(
    request_: PartitionsRequest, operation: AclOperation
):
    may = guard(operation, CLUSTER.name, kind=ResourceType.CLUSTER)
    assert refused_to_client(request_, ALICE, may) is None
    may_not = guard(AclOperation.CREATE, CLUSTER.name, kind=ResourceType.CLUSTER)
    for client, authorizer in [
        (ALICE, may_not),
        (ALICE._replace(name="bob"), may),
        (ALICE._replace(host="10.0.0.2"), may),
        (ALICE._replace(principal_type="Group"), may),
        (None, may),
    ]:
        refused = refused_to_client(request_, client, authorizer)
        assert refused is not None
        assert refused.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED


def test_all_topics_are_created_or_none():
    decide = Decider()
    request, authorizer = (
        creation("theirs", "mine", all_or_none=True),
        guard(AclOperation.CREATE, "mine"),
    )
    response = decide_for_client(request, ALICE, authorizer, KNOWN, decide)
    assert outcomes(response) == {"theirs": DENIED, "mine": Errors.OPERATION_NOT_ATTEMPTED}
    assert decide.decided == []


def test_a_topic_is_deleted_by_its_id_as_the_topic_that_was_authorized():
    """A topic that gets the id after the decision is another one."""
    decide = Decider()
    states = tuple(DeleteTopicState(name=None, topic_id=id_) for id_ in (ID, UNKNOWN_ID))
    request = DeleteTopicsRequest(topics=states, timeout_ms=1)
    decide_for_client(request, ALICE, guard(AclOperation.DELETE, "mine"), KNOWN, decide)
    (decided,) = decide.decided
    assert isinstance(decided, DeleteTopicsRequest)
    assert [row.name for row in decided.topics] == ["mine", UNKNOWN_ID]


@pytest.mark.parametrize(
    ("operation", "name"), [(AclOperation.READ, "mine"), (AclOperation.CREATE, None)]
)
def test_the_name_of_an_id_is_told_to_those_who_may_describe_the_topic(
    operation: AclOperation, name: str | None
):
    state = DeleteTopicState(name=None, topic_id=ID)
    request = DeleteTopicsRequest(topics=(state,), timeout_ms=1)
    response = decide_for_client(request, ALICE, guard(operation, "mine"), KNOWN, Decider())
    (row,) = results_of(response)
    assert (row.error_code, getattr(row, "name", None)) == (DENIED, name)
