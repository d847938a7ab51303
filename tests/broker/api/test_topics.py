from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
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

from regent.broker.api.topics import topic_apis
from regent.broker.broker_settings import broker_settings
from regent.config.settings import Settings
from regent.core.admin.admin_requests import RespondToClient, RespondToCreation, refuse
from regent.core.admin.config_descriptions import BrokerSettings, describe_topic
from regent.core.errors import Errors, SessionExpiredError
from regent.core.protocol.control import TopicId
from regent.core.protocol.envelope import ForwardedClient, Requester
from regent.core.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.transport.kafka.api import KafkaApi, KafkaApiKey
from regent.transport.kafka.primitives import MalformedRequestError, uuid_bytes, uuid_text
from tests.support.topic_requests import (
    assigned,
    creatable,
    create_partitions,
    create_topics,
    delete_topics,
    growing,
    setting,
)
from tests.transport.kafka.wire import ask, request_of

TOPIC_ID, OTHER_ID = uuid_text(bytes(range(16))), uuid_text(bytes(range(1, 17)))
MESSAGES = [
    ("fine", 0, None),
    ("bad", Errors.INVALID_PARTITIONS, "none at all"),
    ("odd", Errors.TOPIC_ALREADY_EXISTS, None),
]
ERRORS: list[dict[str, Any]] = [
    {"name": t, "error_code": code, "error_message": text} for t, code, text in MESSAGES
]
FINE, *REFUSED = ERRORS
CREATED = CreateTopicsResponse(
    topics=(
        CreatableTopicResult(**FINE, topic_id=TOPIC_ID, num_partitions=3, replication_factor=2),
        *(CreatableTopicResult(**row) for row in REFUSED),
    )
)
SETTINGS = BrokerSettings(broker_settings(Settings(), 0), {}, {})


class Forwarding:
    """Gives every request the same answer, from its own thread."""

    def __init__(self, response: TopicsResponse | None = None) -> None:
        self.asked: list[TopicsRequest] = []
        self.requesters: list[Requester | None] = []
        self._response = response

    def ask(
        self,
        request: TopicsRequest,
        respond: RespondToClient,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> None:
        self.asked.append(request)
        self.requesters.append(requester)
        response = self._response or refuse(request, Errors.NOT_CONTROLLER, "nobody decides")
        threading.Thread(target=respond, args=(response,)).start()

    def create_missing(self, topics: Collection[str], respond: RespondToCreation) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def apis(forwarding: Forwarding, executor: Executor) -> Sequence[KafkaApi]:
    return topic_apis(forwarding, lambda: SETTINGS, executor)


def results(rows: Any) -> list[tuple[str, int, str | None]]:
    return [(row.name, row.error_code, row.error_message) for row in rows]


def in_uuid(id_: TopicId) -> uuid.UUID:
    return uuid.UUID(bytes=uuid_bytes(id_))


# --- CreateTopics ---------------------------------------------------------------------------------


def creation(*names: str, **fields: Any) -> CreateTopics:
    topic = CreateTopics.CreatableTopic
    rows = [
        topic(name=name, num_partitions=3, replication_factor=2, assignments=[], configs=[])
        for name in names
    ]
    return CreateTopics(topics=rows, timeout_ms=700, **fields)


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_by_number_or_by_assignment(version: int, executor: Executor):
    forwarding = Forwarding(CREATED)
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
    request = CreateTopics(topics=topics, timeout_ms=700, validate_only=version > 0)

    answer = ask(apis(forwarding, executor), request, version)

    config = (setting("retention.ms", "5"), setting("segment.ms", None))
    wanted = (
        creatable("a", 3, 2, configs=config),
        creatable("b", assignments=assigned((1, (2, 0)))),
    )
    assert forwarding.asked == [create_topics(wanted, 700, validate_only=version > 0)]
    if version > 0:
        assert results(answer.topics) == MESSAGES
    else:
        assert [(row.name, row.error_code) for row in answer.topics] == [m[:2] for m in MESSAGES]


@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_created_topic_is_described_and_a_refused_one_is_not(version: int, executor: Executor):
    request = creation("fine", "bad", "odd")
    config = CreateTopics.CreatableTopic.CreatableTopicConfig(name="retention.ms", value="5")
    request.topics[0].configs = [config]

    fine, bad, _ = ask(apis(Forwarding(CREATED), executor), request, version).topics

    assert (fine.num_partitions, fine.replication_factor) == (3, 2)
    assert fine.topic_config_error_code == 0
    described = [
        (row.name, row.value, row.read_only, row.config_source, row.is_sensitive)
        for row in fine.configs
    ]
    assert described == [
        (row.name, row.value, row.is_read_only, row.source, False)
        for row in describe_topic({"retention.ms": "5"}, SETTINGS)
    ]
    assert (bad.num_partitions, bad.replication_factor, bad.configs) == (-1, -1, [])
    if version == 7:
        assert (fine.topic_id, bad.topic_id) == (in_uuid(TOPIC_ID), None)


def test_a_topic_that_is_created_too_late_has_an_id_and_no_description(executor: Executor):
    late = CreatableTopicResult(
        name="t", topic_id=TOPIC_ID, error_code=Errors.REQUEST_TIMED_OUT, error_message="none yet"
    )
    response = CreateTopicsResponse(topics=(late,))
    (row,) = ask(apis(Forwarding(response), executor), creation("t"), 7).topics
    assert (row.topic_id, row.num_partitions, row.configs) == (in_uuid(TOPIC_ID), -1, [])


def test_a_topic_is_created_though_its_settings_cannot_be_read(executor: Executor):
    def fail() -> BrokerSettings:
        raise SessionExpiredError("no session")

    (row, _, _) = ask(topic_apis(Forwarding(CREATED), fail, executor), creation("fine"), 7).topics
    assert (row.error_code, row.topic_config_error_code) == (0, Errors.REQUEST_TIMED_OUT)
    assert row.configs is None


@pytest.mark.parametrize("cut", [1, 2, 8])
def test_a_truncated_request_is_not_forwarded(cut: int, executor: Executor):
    forwarding = Forwarding()
    body = creation("a", validate_only=False).encode(version=4)[:-cut]
    create, _, _ = apis(forwarding, executor)

    async def answer() -> None:
        await create.handle(request_of(KafkaApiKey.CREATE_TOPICS, 4, body))

    with pytest.raises(MalformedRequestError):
        asyncio.run(answer())
    assert not forwarding.asked


# --- CreatePartitions -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_to_topics(version: int, executor: Executor):
    grown = (CreatePartitionsTopicResult(**row) for row in ERRORS)
    forwarding = Forwarding(CreatePartitionsResponse(results=tuple(grown)))
    topic = CreatePartitions.CreatePartitionsTopic
    replicas = [topic.CreatePartitionsAssignment(broker_ids=[1, 2])]
    topics = [
        topic(name="a", count=4, assignments=None),
        topic(name="b", count=2, assignments=replicas),
    ]
    request = CreatePartitions(topics=topics, timeout_ms=700, validate_only=False)

    answer = ask(apis(forwarding, executor), request, version)

    wanted = (growing("a", 4), growing("b", 2, [(1, 2)]))
    assert forwarding.asked == [create_partitions(wanted, 700)]
    assert results(answer.results) == MESSAGES


# --- DeleteTopics ---------------------------------------------------------------------------------


def deletion(*topics: tuple[str | None, TopicId | None]) -> DeleteTopics:
    rows = [
        DeleteTopics.DeleteTopicState(
            name=name, topic_id=uuid.UUID(int=0) if id_ is None else in_uuid(id_)
        )
        for name, id_ in topics
    ]
    return DeleteTopics(topics=rows, timeout_ms=700)


@pytest.mark.parametrize("version", range(7))
def test_topics_are_deleted_by_name(version: int, executor: Executor):
    rows = (DeletableTopicResult(**row) for row in ERRORS)
    forwarding = Forwarding(DeleteTopicsResponse(responses=tuple(rows)))
    by_name = DeleteTopics(topic_names=["a", "b"], timeout_ms=700)
    request = by_name if version < 6 else deletion(("a", None), ("b", None))

    answer = ask(apis(forwarding, executor), request, version)

    assert forwarding.asked == [delete_topics(("a", "b"), 700)]
    if version >= 5:
        assert results(answer.responses) == MESSAGES
    else:
        assert [(row.name, row.error_code) for row in answer.responses] == [m[:2] for m in MESSAGES]


def test_topics_are_deleted_by_id(executor: Executor):
    done = DeletableTopicResult(name="t", topic_id=TOPIC_ID, error_code=Errors.NONE)
    refused = DeletableTopicResult(
        name=None,
        topic_id=OTHER_ID,
        error_code=Errors.UNKNOWN_TOPIC_ID,
        error_message="no topic has it",
    )
    forwarding = Forwarding(DeleteTopicsResponse(responses=(done, refused)))
    request = deletion((None, TOPIC_ID), (None, OTHER_ID))

    known, unknown = ask(apis(forwarding, executor), request, 6).responses

    assert forwarding.asked == [delete_topics((), 700, (TOPIC_ID, OTHER_ID))]
    assert (known.name, known.topic_id, known.error_code) == ("t", in_uuid(TOPIC_ID), 0)
    assert (unknown.name, unknown.topic_id) == (None, in_uuid(OTHER_ID))
    assert (unknown.error_code, unknown.error_message) == (
        Errors.UNKNOWN_TOPIC_ID,
        "no topic has it",
    )


@pytest.mark.parametrize("unclear", [("t", TOPIC_ID), (None, None)])
def test_nothing_is_deleted_when_a_topic_has_a_name_and_an_id_or_neither(
    unclear: tuple[str | None, TopicId | None], executor: Executor
):
    forwarding = Forwarding()
    answer = ask(apis(forwarding, executor), deletion(("u", None), unclear), 6)
    assert not forwarding.asked
    rows = [(row.name, row.error_code) for row in answer.responses]
    assert rows == [("u", Errors.INVALID_REQUEST), (unclear[0], Errors.INVALID_REQUEST)]


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, Errors.INVALID_REQUEST), (2, Errors.INVALID_REQUEST), (3, Errors.TOPIC_DELETION_DISABLED)],
)
def test_old_clients_get_invalid_request_when_deletion_is_disabled(
    version: int, error: Errors, executor: Executor
):
    refused = DeletableTopicResult(
        name="t", error_code=Errors.TOPIC_DELETION_DISABLED, error_message="not here"
    )
    forwarding = Forwarding(DeleteTopicsResponse(responses=(refused,)))
    request = DeleteTopics(topic_names=["t"], timeout_ms=700)
    (row,) = ask(apis(forwarding, executor), request, version).responses
    assert row.error_code == error
