"""Requests are routed to the actors; late control requests are refused."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from regent.actors.inbox import Reply
from regent.actors.request_router import RequestRouter, controller_client_id, give_answer
from regent.actors.runtime import RegentActor, start_actor, stop_actor
from regent.actors.topic_request_handler import TopicRequestHandler
from regent.core.admin.admin_manager import AdminManager
from regent.core.errors import ApiError, BadDataError, Errors, SessionExpiredError
from regent.core.model import TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import DescribeEventsRequest, DescribeEventsResponse
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse, ForwardedClient
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.protocol.messages.topics import DeleteTopicsResponse
from regent.core.protocol.topics import error_of, results_of, topic_of
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.authorizer import AclAuthorizer, AuthorizerSettings
from regent.core.security.roles import KeyOwner
from regent.core.security.session import KafkaPrincipal
from regent.transport.control import codec
from regent.transport.control.server import IncomingRequest, WireReply
from regent.zk.stores.topic_store import ZkTopicStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.local_placer import LocalPlacer
from tests.support.stage import TIMEOUT_S, Stage
from tests.support.topic_requests import create_topics, delete_topics
from tests.support.world import TopicIds

ALICE, BOB = (ForwardedClient("User", name, "10.0.0.1") for name in ("alice", "bob"))
ONLY_ALICE = AclAuthorizer(
    AuthorizerSettings(super_users=frozenset({KafkaPrincipal("User", "alice")})), lambda: 0.0
)
PARTITION_REQUESTS = (
    ElectLeadersRequest.of(ElectionType.PREFERRED),
    AlterPartitionReassignmentsRequest.of({TopicPartition("t", 0): (1,)}),
    ListPartitionReassignmentsRequest.of(),
)
HEADER = ControlHeader(controller_id=3, controller_epoch=5, broker_epoch=-1, broker_id=0)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RequestRouter]:
    with Stage() as stage:
        inactive = AdminManager(
            MetadataCache(),
            ZkTopicStore(FakeZooKeeper(stage.zookeeper)),
            TopicIds(),
            lambda: False,
            LocalPlacer(),
        )
        topics = start_actor(TopicRequestHandler, 0, inactive, MetadataCache())
        journal = stage.journal_reader(0, tmp_path)
        yield RequestRouter(stage.broker(0), stage.controller(0), journal, topics, ONLY_ALICE)
        stop_actor(topics, TIMEOUT_S)


def answer(
    router: RequestRouter, client_id: str, correlation_id: int, body: codec.Request
) -> codec.Response:
    """Send a request and return its answer."""
    answered = threading.Event()
    frames: list[codec.Frames] = []

    def deliver(answer: codec.Frames) -> None:
        frames.append(answer)
        answered.set()

    api_key = codec.encode_request(body).api_key
    reply = WireReply(api_key, correlation_id, deliver)
    sender = KeyOwner.broker(3)
    router(IncomingRequest(sender, api_key, HEADER, correlation_id, client_id, body, reply))
    assert answered.wait(TIMEOUT_S)
    header, *body_frames = frames[0]
    if not body_frames:
        raise BadDataError(codec.decode_reply_header(header).error_code.name)
    return codec.decode_response_body(api_key, *body_frames)


def update_metadata(router: RequestRouter, client_id: str, correlation_id: int) -> Errors:
    """Send a control request and return its error."""
    response = answer(router, client_id, correlation_id, UpdateMetadataRequest((), ()))
    assert isinstance(response, UpdateMetadataResponse)
    return response.error_code


def test_a_part_of_the_journal_is_told(router: RequestRouter, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"ts_ms":1}\n{"ts_ms":2}\n')
    part = answer(router, "any", 8, DescribeEventsRequest())
    assert isinstance(part, DescribeEventsResponse)
    assert part.lines == ('{"ts_ms":1}', '{"ts_ms":2}')
    assert (part.broker_id, part.is_end) == (0, True)


def test_a_journal_that_cannot_be_read_is_an_error(router: RequestRouter, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    part = answer(router, "any", 8, DescribeEventsRequest())
    assert part == DescribeEventsResponse(Errors.KAFKA_STORAGE_ERROR, 0)


def test_a_late_request_of_the_same_controller_is_refused(router: RequestRouter) -> None:
    controller = controller_client_id(3)
    assert update_metadata(router, controller, 8) is Errors.NONE
    assert update_metadata(router, controller, 7) is Errors.STALE_CONTROLLER_EPOCH
    assert update_metadata(router, controller, 9) is Errors.NONE


def test_sequence_numbers_of_other_clients_are_ignored(router: RequestRouter) -> None:
    assert update_metadata(router, controller_client_id(3), 8) is Errors.NONE
    assert update_metadata(router, "another client", 1) is Errors.NONE


def test_without_a_session_the_answer_is_retriable() -> None:
    answers: list[codec.Frames] = []
    request = IncomingRequest(
        KeyOwner.broker(3),
        ApiKey.UPDATE_METADATA,
        HEADER,
        1,
        "controller-3",
        UpdateMetadataRequest((), ()),
        WireReply(ApiKey.UPDATE_METADATA, 1, answers.append),
    )
    give_answer(request, SessionExpiredError("there is no session"))
    ((header,),) = answers  # no body, so the sender repeats the request
    assert codec.decode_reply_header(header).error_code is Errors.BROKER_NOT_AVAILABLE


def test_a_sender_is_charged_for_the_work_of_the_actor(router: RequestRouter) -> None:
    charged: queue.Queue[float] = queue.Queue()
    request = UpdateMetadataRequest((), ())
    reply = WireReply(ApiKey.UPDATE_METADATA, 8, lambda _: None)
    key, sender = ApiKey.UPDATE_METADATA, KeyOwner.broker(3)

    def charge(work_s: float, changed: Collection[TopicPartition] = ()) -> None:
        assert not changed
        charged.put(work_s)

    router(IncomingRequest(sender, key, HEADER, 8, "any", request, reply, charge))
    assert charged.get(timeout=TIMEOUT_S) > 0


class AcceptsOne(RegentActor):
    """Answers as a controller that accepts the first of two proposals."""

    def handle(self, message: object, reply: Reply | None) -> None:
        assert reply is not None
        outcomes = (Errors.NONE, Errors.INVALID_UPDATE_VERSION)
        rows = tuple(AlteredPartition("t", n, error) for n, error in enumerate(outcomes))
        reply.set(AlterPartitionResponse(Errors.NONE, rows))


def test_a_charge_names_the_partitions_that_were_changed_as_proposed() -> None:
    charged: queue.Queue[Collection[TopicPartition]] = queue.Queue()
    request, key = AlterPartitionRequest(3, 1, ()), ApiKey.ALTER_PARTITION
    reply = WireReply(key, 8, lambda _: None)

    def charge(_work_s: float, changed: Collection[TopicPartition] = ()) -> None:
        charged.put(changed)

    controller: Any = start_actor(AcceptsOne, "accepts-one")
    try:
        router = RequestRouter(controller, controller, controller, controller, ONLY_ALICE)
        router(IncomingRequest(KeyOwner.broker(3), key, None, 8, "any", request, reply, charge))
        assert charged.get(timeout=TIMEOUT_S) == [TopicPartition("t", 0)]
    finally:
        stop_actor(controller, TIMEOUT_S)


def test_a_forwarded_request_is_decided_here(router: RequestRouter) -> None:
    request = EnvelopeRequest.of(delete_topics(["t"], 60_000), client=ALICE)
    response = answer(router, "broker-1", 1, request)
    assert isinstance(response, EnvelopeResponse)
    decided = response.response
    assert isinstance(decided, DeleteTopicsResponse)
    (result,) = results_of(decided)
    here = "this broker is not the active controller"
    assert (topic_of(result), error_of(result)) == ("t", ApiError(Errors.NOT_CONTROLLER, here))


@pytest.mark.parametrize("request_", PARTITION_REQUESTS)
@pytest.mark.parametrize(
    ("client", "error_code"),
    [
        (ALICE, Errors.NONE),
        (BOB, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (None, Errors.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_the_controller_decides_for_clients_who_may_only(
    router: RequestRouter,
    request_: PartitionsRequest,
    client: ForwardedClient | None,
    error_code: Errors,
) -> None:
    response = answer(router, "broker-3", 1, EnvelopeRequest.of(request_, client=client))
    assert isinstance(response, EnvelopeResponse)
    answered = response.response_to(EnvelopeRequest.of(request_))
    assert isinstance(answered, PartitionsResponse)
    assert answered.error_code == error_code


def test_an_operator_asks_the_controller_without_an_envelope(router: RequestRouter) -> None:
    for request in PARTITION_REQUESTS:
        response = answer(router, "regent-cli", 1, request)
        assert isinstance(response, PartitionsResponse)
        assert response.error_code == Errors.NONE


def test_an_envelope_without_one_request_is_refused(router: RequestRouter) -> None:
    two = EnvelopeRequest(create_topics=create_topics([]), delete_topics=delete_topics([]))
    for envelope in (EnvelopeRequest(), two):
        with pytest.raises(BadDataError, match="INVALID_REQUEST"):
            answer(router, "broker-1", 1, envelope)
