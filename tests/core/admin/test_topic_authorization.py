"""The controller authorizes what a broker forwards, for the client that the envelope names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regent.core.admin.admin_requests import refuse
from regent.core.admin.topic_authorization import decide_for_client
from regent.core.errors import Errors
from regent.core.protocol.messages.configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from regent.core.protocol.topics import (
    EnvelopeRequest,
    ForwardedClient,
    TopicsRequest,
    TopicsResponse,
    results_of,
    topic_of,
)
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.security.acls import (
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
KNOWN = MetadataSnapshot(topic_ids={"mine": ID})


def guard(operation: AclOperation, *names: str) -> AclAuthorizer:
    """Return what lets alice, at her address, do one operation on topics with these names."""
    entry = AccessControlEntry("User:alice", "10.0.0.1", operation, AclPermissionType.ALLOW)
    made = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
    kind = ResourceType.TOPIC
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
    envelope = EnvelopeRequest.of(make("theirs", "mine"), client=ALICE)
    response = decide_for_client(envelope, authorizer, KNOWN, decide)
    assert outcomes(response) == {"theirs": DENIED, "mine": Errors.NONE}
    assert decide.decided == [make("mine")]
    nobody = EnvelopeRequest.of(make("mine"), client=ALICE._replace(host="10.0.0.2"))
    assert outcomes(decide_for_client(nobody, authorizer, KNOWN, decide)) == {"mine": DENIED}
    assert decide.decided == [make("mine")]


def test_what_brokers_ask_for_themselves_is_decided():
    decide = Decider()
    envelope = EnvelopeRequest.of(creation("t"))
    decide_for_client(envelope, guard(AclOperation.CREATE), KNOWN, decide)
    decide_for_client(EnvelopeRequest.of(creation("t"), client=ALICE), ALLOW_ALL, KNOWN, decide)
    assert decide.decided == [creation("t")] * 2


def test_all_topics_are_created_or_none():
    decide = Decider()
    envelope = EnvelopeRequest.of(creation("theirs", "mine", all_or_none=True), client=ALICE)
    response = decide_for_client(envelope, guard(AclOperation.CREATE, "mine"), KNOWN, decide)
    assert outcomes(response) == {"theirs": DENIED, "mine": Errors.OPERATION_NOT_ATTEMPTED}
    assert decide.decided == []


def test_a_topic_is_deleted_by_its_id_as_the_topic_that_was_authorized():
    """A topic that gets the id after the decision is another one."""
    decide = Decider()
    states = tuple(DeleteTopicState(name=None, topic_id=id_) for id_ in (ID, UNKNOWN_ID))
    envelope = EnvelopeRequest.of(DeleteTopicsRequest(topics=states, timeout_ms=1), client=ALICE)
    decide_for_client(envelope, guard(AclOperation.DELETE, "mine"), KNOWN, decide)
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
    envelope = EnvelopeRequest.of(DeleteTopicsRequest(topics=(state,), timeout_ms=1), client=ALICE)
    response = decide_for_client(envelope, guard(operation, "mine"), KNOWN, Decider())
    (row,) = results_of(response)
    assert (row.error_code, getattr(row, "name", None)) == (DENIED, name)
