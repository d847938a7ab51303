from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest as CreatePartitions,
)
from kafka.protocol.admin.topics import (
    CreateTopicsRequest as CreateTopics,
)
from kafka.protocol.admin.topics import (
    DeleteTopicsRequest as DeleteTopics,
)

from regent.api.topics import topic_apis
from regent.core.admin.admin_requests import RespondToClient
from regent.core.errors import Errors
from regent.core.protocol.topics import (
    AssignedPartition,
    ConfigEntry,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    TopicOutcome,
    TopicsRequest,
)
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.primitives import MalformedRequestError
from tests.transport.kafka.wire import ask, request_of

OUTCOMES = [
    TopicOutcome("fine", Errors.NONE, partitions=3),
    TopicOutcome("bad", Errors.INVALID_PARTITIONS, "none at all"),
    TopicOutcome("odd", Errors.TOPIC_ALREADY_EXISTS),
]


class Forwarding:
    """Gives every request the same answer, from its own thread."""

    def __init__(self, outcomes: Sequence[TopicOutcome] = ()) -> None:
        self.asked: list[TopicsRequest] = []
        self._outcomes = outcomes

    def ask(self, request: TopicsRequest, respond: RespondToClient) -> None:
        self.asked.append(request)
        threading.Thread(target=respond, args=(self._outcomes,)).start()

    def create_missing(self, topics: Collection[str]) -> None:
        raise NotImplementedError


def results(rows: Any) -> list[tuple[str, int, str | None]]:
    return [(row.name, row.error_code, row.error_message) for row in rows]


MESSAGES = [
    ("fine", 0, None),
    ("bad", Errors.INVALID_PARTITIONS, "none at all"),
    ("odd", Errors.TOPIC_ALREADY_EXISTS, None),
]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_topics_are_created_by_number_or_by_assignment(version: int):
    forwarding = Forwarding(OUTCOMES)
    topic = CreateTopics.CreatableTopic
    assignment = topic.CreatableReplicaAssignment(partition_index=1, broker_ids=[2, 0])
    configs = [
        topic.CreatableTopicConfig(name="retention.ms", value="5"),
        topic.CreatableTopicConfig(name="segment.ms", value=None),
    ]
    topics = [
        topic(name="a", num_partitions=3, replication_factor=2, assignments=[], configs=configs),
        topic(
            name="b", num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
        ),
    ]

    answer = ask(
        topic_apis(forwarding),
        CreateTopics(topics=topics, timeout_ms=700, validate_only=True),
        version,
    )

    config = (ConfigEntry("retention.ms", "5"), ConfigEntry("segment.ms", None))
    assigned = (AssignedPartition(1, (2, 0)),)
    wanted = (CreatableTopic("a", 3, 2, config=config), CreatableTopic("b", assignment=assigned))
    assert forwarding.asked == [CreateTopicsRequest(wanted, 700, validate_only=True)]
    assert results(answer.topics) == MESSAGES


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_are_added_to_topics(version: int):
    forwarding = Forwarding(OUTCOMES)
    topic = CreatePartitions.CreatePartitionsTopic
    replicas = [topic.CreatePartitionsAssignment(broker_ids=[1, 2])]
    topics = [
        topic(name="a", count=4, assignments=None),
        topic(name="b", count=2, assignments=replicas),
    ]

    answer = ask(
        topic_apis(forwarding),
        CreatePartitions(topics=topics, timeout_ms=700, validate_only=False),
        version,
    )

    wanted = (GrowingTopic("a", 4), GrowingTopic("b", 2, ((1, 2),)))
    assert forwarding.asked == [CreatePartitionsRequest(wanted, 700)]
    assert results(answer.results) == MESSAGES


@pytest.mark.parametrize("version", [1, 2, 3])
def test_topics_are_deleted_by_name(version: int):
    forwarding = Forwarding(OUTCOMES)
    request = DeleteTopics(topic_names=["a", "b"], timeout_ms=700)

    answer = ask(topic_apis(forwarding), request, version)

    assert forwarding.asked == [DeleteTopicsRequest(("a", "b"), 700)]
    assert [(row.name, row.error_code) for row in answer.responses] == [
        (name, error_code) for name, error_code, _ in MESSAGES
    ]


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, Errors.INVALID_REQUEST), (2, Errors.INVALID_REQUEST), (3, Errors.TOPIC_DELETION_DISABLED)],
)
def test_old_clients_get_invalid_request_when_deletion_is_disabled(version: int, error: Errors):
    forwarding = Forwarding([TopicOutcome("t", Errors.TOPIC_DELETION_DISABLED, "not here")])
    request = DeleteTopics(topic_names=["t"], timeout_ms=700)
    (row,) = ask(topic_apis(forwarding), request, version).responses
    assert row.error_code == error


@pytest.mark.parametrize("cut", [1, 2, 8])
def test_a_truncated_request_is_not_forwarded(cut: int):
    forwarding = Forwarding()
    topic = CreateTopics.CreatableTopic
    row = topic(name="a", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    body = CreateTopics(topics=[row], timeout_ms=1, validate_only=False).encode(version=4)[:-cut]
    create, _, _ = topic_apis(forwarding)

    async def answer() -> None:
        await create.handle(request_of(KafkaApiKey.CREATE_TOPICS, 4, body))

    with pytest.raises(MalformedRequestError):
        asyncio.run(answer())
    assert not forwarding.asked
