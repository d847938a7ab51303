"""Requests to a controller of Kafka: what it understands, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from regent.broker.api.controller_requests import ControllerAccess, controller_apis
from regent.broker.api.fetch import TopicNamesById
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerRequest,
)
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from regent.testing.waits import eventually, scaled
from regent.transport.control.client import RequestFailedError
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.controller_channel import KafkaControllerChannel
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.message_codec import answer, decode
from tests.broker.api.canned_replicas import EXECUTOR, cached

BROKER, EPOCH = 2, 5  # the only broker that is registered
ORDERS, PAYMENTS = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
TIMEOUT_MS = round(scaled(10_000))


class KafkaController:
    """A listener that serves a controller's requests; ``answers`` are given in their turn."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.requests: list[Any] = []
        self.versions: list[int] = []
        self.answers: list[Any] = []

    def listen(self, apis: Sequence[KafkaApi] | None = None) -> KafkaControllerChannel:
        """Return a connection to a listener of these APIs, by default those of this project."""
        listener = self.serve(apis)
        channel = KafkaControllerChannel(f"tcp://127.0.0.1:{listener.port}", client_id="broker-2")
        self._stack.callback(channel.close)
        return channel

    def serve(self, apis: Sequence[KafkaApi] | None = None, port: int = 0) -> KafkaListener:
        """Return a listener of these APIs."""
        cache = cached({"orders": ORDERS, "payments": PAYMENTS})
        access = ControllerAccess(lambda: True, self._respond, lambda _: range(1), EXECUTOR)
        served = apis or controller_apis(access, TopicNamesById(cache), RegisteredFollowers(cache))
        listener = KafkaListener("127.0.0.1", port, served)
        listener.start()
        self._stack.callback(listener.close)
        return listener

    def api(self, key: KafkaApiKey, kind: type, last: int, first: int = 0) -> KafkaApi:
        """Return an API that gives the next answer."""

        async def handle(request: KafkaRequest) -> KafkaAnswer:
            self.requests.append(decode(kind, request))
            self.versions.append(request.api_version)
            return answer(self.answers.pop(0), request)

        return KafkaApi(key, first, last, handle)

    def _respond(self, request: ControllerRequest, respond: Callable[[object], None]) -> None:
        self.requests.append(request)
        respond(self.answers.pop(0))


@pytest.fixture
def controller() -> Iterator[KafkaController]:
    with ExitStack() as stack:
        yield KafkaController(stack)


def row(topic: str, topic_id: str | None, partition: int = 0) -> AlterPartitionRow:
    return AlterPartitionRow(topic, partition, topic_id, 4, (2, 3), (EPOCH, 9), 1, 7)


def request(*rows: AlterPartitionRow) -> AlterPartitionRequest:
    return AlterPartitionRequest(BROKER, EPOCH, rows)


def test_proposals_arrive_as_they_were_sent(controller: KafkaController):
    rows = row("payments", PAYMENTS), row("orders", ORDERS, 1), row("orders", ORDERS)
    by_topic = rows[1], rows[2], rows[0]
    altered = [
        AlteredPartition(r.topic, r.partition, Errors.NONE, 2, 4, (2, 3), 1, 8) for r in by_topic
    ]
    controller.answers = [AlterPartitionResponse(Errors.NONE, tuple(altered))]
    given = controller.listen().request(request(*rows), timeout_ms=TIMEOUT_MS)
    assert controller.requests == [request(*by_topic)]
    assert given == AlterPartitionResponse(Errors.NONE, tuple(altered))


def test_a_topic_without_an_id_goes_by_its_name(controller: KafkaController):
    altered = AlteredPartition("orders", 0, Errors.NONE, 2, 4, (2, 3), 1, 8)
    controller.answers = [AlterPartitionResponse(Errors.NONE, (altered,))]
    given = controller.listen().request(request(row("orders", None)), timeout_ms=TIMEOUT_MS)
    (sent,) = controller.requests[0].partitions
    assert (sent.topic, sent.topic_id, sent.isr_broker_epochs) == ("orders", None, (-1, -1))
    assert given == AlterPartitionResponse(Errors.NONE, (altered,))


def test_a_refused_proposal_brings_no_state(controller: KafkaController):
    refused = AlteredPartition("orders", 0, Errors.INELIGIBLE_REPLICA, 2, 4, (2,), 0, 8)
    controller.answers = [AlterPartitionResponse(Errors.NONE, (refused,))]
    given = controller.listen().request(request(row("orders", ORDERS)), timeout_ms=TIMEOUT_MS)
    assert isinstance(given, AlterPartitionResponse)
    assert given.partitions == (AlteredPartition("orders", 0, Errors.INELIGIBLE_REPLICA),)


def test_a_refused_request_has_the_error(controller: KafkaController):
    stale = AlterPartitionRequest(BROKER, EPOCH - 1, (row("orders", ORDERS),))
    given = controller.listen().request(stale, timeout_ms=TIMEOUT_MS)
    assert given == AlterPartitionResponse(Errors.STALE_BROKER_EPOCH)


def test_a_controlled_shutdown_returns_what_remains(controller: KafkaController):
    remaining = (TopicPartition("orders", 3),)
    controller.answers = [ControlledShutdownResponse(Errors.NONE, remaining)]
    asked = ControlledShutdownRequest(BROKER, EPOCH)
    given = controller.listen().request(asked, timeout_ms=TIMEOUT_MS)
    assert controller.requests == [asked]
    assert given == ControlledShutdownResponse(Errors.NONE, remaining)


def test_a_new_topic_is_asked_for_in_the_newest_common_version(controller: KafkaController):
    result = CreatableTopicResult(name="new", error_code=0, error_message=None, topic_id=ORDERS)
    controller.answers = [CreateTopicsResponse(topics=(result,))] * 2
    asked = CreateTopicsRequest(topics=(CreatableTopic(name="new"),), timeout_ms=0)
    for last in (5, 9):
        channel = controller.listen(
            [controller.api(KafkaApiKey.CREATE_TOPICS, CreateTopicsRequest, last)]
        )
        given = channel.request(asked, timeout_ms=TIMEOUT_MS)
        assert isinstance(given, CreateTopicsResponse)
        assert given.topics[0].name == "new"
    assert controller.versions == [5, 7]
    # Kafka's controller waits for no leader in 0 ms, and says that the time is over.
    assert controller.requests[0].timeout_ms > 0


def test_a_broker_that_knows_no_common_version_is_named_with_the_reason(
    controller: KafkaController,
):
    channel = controller.listen(
        [controller.api(KafkaApiKey.CREATE_TOPICS, CreateTopicsRequest, 9, first=8)]
    )
    with pytest.raises(RequestFailedError, match="CreateTopics in the versions 8 to 9"):
        channel.request(CreateTopicsRequest(topics=(), timeout_ms=1), timeout_ms=TIMEOUT_MS)
    with pytest.raises(RequestFailedError, match="set isr_change_protocol"):
        channel.request(request(row("orders", ORDERS)), timeout_ms=TIMEOUT_MS)


def test_a_controller_of_another_release_at_the_same_address_is_asked_for_its_versions(
    controller: KafkaController,
):
    key = KafkaApiKey.CREATE_TOPICS
    old = controller.serve([controller.api(key, CreateTopicsRequest, 9, first=8)])
    endpoint = f"tcp://127.0.0.1:{old.port}"
    with closing(KafkaControllerChannel(endpoint, client_id="broker-2")) as channel:
        asked = CreateTopicsRequest(topics=(), timeout_ms=1)
        with pytest.raises(RequestFailedError):
            channel.request(asked, timeout_ms=TIMEOUT_MS)
        old.close()
        controller.serve([controller.api(key, CreateTopicsRequest, 5)], old.port)
        controller.answers = [CreateTopicsResponse(topics=())]

        def is_answered() -> bool:
            with suppress(RequestFailedError):
                return channel.request(asked, timeout_ms=TIMEOUT_MS) == CreateTopicsResponse(
                    topics=()
                )
            return False

        eventually(is_answered, "the other release is asked")
    assert controller.versions == [5]
