from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

import pytest

from regent.actors.request_send_thread import Dispatch, OnResponse, QueuedRequest, in_dispatches
from regent.actors.runtime import stop_actor
from regent.core.controller.events import BrokerUnusable, ControllerEvent, ElectionDoubted
from regent.core.errors import Errors
from regent.core.model import BrokerInfo
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.transport.control.client import RequestError, RequestFailedError
from regent.transport.control.codec import encode_request
from tests.support.stage import (
    TIMEOUT_S,
    BrokenChannelError,
    RecordingChannel,
    Sent,
    Stage,
    accept,
    actor_of,
)

Answers: TypeAlias = "queue.Queue[ControlResponse]"
HEADER = ControlHeader(9, 1, 1)


def dispatch(*requests: ControlRequest) -> Dispatch:
    return Dispatch([QueuedRequest(HEADER, r, encode_request(r)) for r in requests])


@pytest.fixture
def answers():
    return queue.Queue[ControlResponse]()


def put_into(answers: Answers) -> OnResponse:
    return lambda header, request, response, answered_ms: answers.put(response)


def fail_first(
    *errors: RequestError, kind: type[ControlRequest] | None = None
) -> Callable[[Sent], ControlResponse]:
    """Answers that fail with each error once, if the request is of this kind."""
    left = iter(errors)

    def answer(sent: Sent) -> ControlResponse:
        if kind is None or isinstance(sent.request, kind):
            for error in left:
                raise error
        return accept(sent)

    return answer


def kinds(sent: list[Sent]) -> list[type[ControlRequest]]:
    return [type(each.request) for each in sent]


def test_a_request_is_sent_again_until_it_is_answered(stage: Stage, answers: Answers):
    stage.answer = fail_first(BrokenChannelError(), BrokenChannelError())
    thread = stage.request_send_thread(1, put_into(answers))
    thread.tell(dispatch(StopReplicaRequest(())))
    assert answers.get(timeout=TIMEOUT_S) == StopReplicaResponse(Errors.NONE)
    assert [sent.request for sent in stage.sent] == [StopReplicaRequest(())] * 3


def test_requests_arrive_in_sequence_although_one_fails_first(stage: Stage, answers: Answers):
    stage.answer = fail_first(BrokenChannelError())
    thread = stage.request_send_thread(1, put_into(answers))
    for request in (StopReplicaRequest(()), UpdateMetadataRequest((), ())):
        thread.tell(dispatch(request))
    assert type(answers.get(timeout=TIMEOUT_S)) is StopReplicaResponse
    assert type(answers.get(timeout=TIMEOUT_S)) is UpdateMetadataResponse
    assert kinds(stage.sent) == [StopReplicaRequest, StopReplicaRequest, UpdateMetadataRequest]


def test_of_two_requests_only_the_unanswered_one_is_sent_again(stage: Stage, answers: Answers):
    stage.answer = fail_first(BrokenChannelError(), kind=UpdateMetadataRequest)
    thread = stage.request_send_thread(1, put_into(answers))
    thread.tell(dispatch(StopReplicaRequest(()), UpdateMetadataRequest((), ())))
    assert type(answers.get(timeout=TIMEOUT_S)) is StopReplicaResponse
    assert type(answers.get(timeout=TIMEOUT_S)) is UpdateMetadataResponse
    assert kinds(stage.sent) == [StopReplicaRequest, UpdateMetadataRequest, UpdateMetadataRequest]


def test_an_overloaded_broker_gets_the_refused_one_of_two_requests_again(
    stage: Stage, answers: Answers
):
    busy = RequestFailedError("inproc://broker-1", Errors.BROKER_NOT_AVAILABLE, "busy")
    stage.answer = fail_first(busy)
    thread = stage.request_send_thread(1, put_into(answers))
    thread.tell(dispatch(StopReplicaRequest(()), UpdateMetadataRequest((), ())))
    assert type(answers.get(timeout=TIMEOUT_S)) is UpdateMetadataResponse
    assert type(answers.get(timeout=TIMEOUT_S)) is StopReplicaResponse
    assert kinds(stage.sent) == [StopReplicaRequest, UpdateMetadataRequest, StopReplicaRequest]


def test_only_update_metadata_may_be_unanswered_together_with_another_request():
    roles = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())
    stop, metadata = StopReplicaRequest(()), UpdateMetadataRequest((), ())
    requests: list[ControlRequest]
    requests = [roles, metadata, metadata, roles, stop, stop, metadata, metadata]
    queued = [QueuedRequest(HEADER, r, encode_request(r)) for r in requests]
    sent = [[q.request for q in each.unanswered] for each in in_dispatches(queued)]
    assert sent == [[roles, metadata], [metadata, roles], [stop], [stop, metadata], [metadata]]


def test_two_update_metadata_are_not_unanswered_together():
    """A broker must not apply the first one last: it would keep its older state."""
    metadata, stop = UpdateMetadataRequest((), ()), StopReplicaRequest(())
    requests: list[ControlRequest] = [metadata, metadata, metadata, stop]
    queued = [QueuedRequest(HEADER, r, encode_request(r)) for r in requests]
    sent = [[q.request for q in each.unanswered] for each in in_dispatches(queued)]
    assert sent == [[metadata], [metadata], [metadata, stop]]


def test_an_error_without_a_body_counts_as_an_answer(stage: Stage, answers: Answers):
    def answer(sent: Sent) -> ControlResponse:
        raise RequestFailedError("inproc://broker-1", Errors.UNKNOWN_SERVER_ERROR, "refused")

    stage.answer = answer
    thread = stage.request_send_thread(1, put_into(answers))
    thread.tell(dispatch(UpdateMetadataRequest((), ())))
    expected = UpdateMetadataResponse(Errors.UNKNOWN_SERVER_ERROR)
    assert answers.get(timeout=TIMEOUT_S) == expected


def test_the_thread_stops_at_once_while_its_broker_does_not_answer(stage: Stage, answers: Answers):
    """REC-08."""
    tried = threading.Event()

    def answer(sent: Sent) -> ControlResponse:
        tried.set()
        raise BrokenChannelError

    stage.answer = answer
    thread = stage.request_send_thread(1, put_into(answers))
    thread.tell(dispatch(StopReplicaRequest(())))
    assert tried.wait(TIMEOUT_S)
    assert stop_actor(thread, TIMEOUT_S)
    assert answers.empty()


def test_nothing_is_sent_while_the_session_may_have_expired(stage: Stage, answers: Answers):
    asked = threading.Event()
    alive = threading.Event()

    def may_announce() -> bool:
        asked.set()
        return alive.is_set()

    thread = stage.request_send_thread(1, put_into(answers), may_announce=may_announce)
    thread.tell(dispatch(StopReplicaRequest(())))
    assert asked.wait(TIMEOUT_S)
    assert stage.sent == []
    alive.set()
    assert answers.get(timeout=TIMEOUT_S) == StopReplicaResponse(Errors.NONE)


REFUSED = {
    Errors.BROKER_ID_NOT_REGISTERED: "broker 3 answers at the address of broker 1",
    Errors.NOT_CONTROLLER: "ZooKeeper has broker 2 with epoch 8",
}


@pytest.mark.parametrize("error", REFUSED)
def test_a_refusal_to_answer_is_repeated_and_named_but_is_no_answer(
    stage: Stage, answers: Answers, error: Errors, caplog: pytest.LogCaptureFixture
):
    refused = RequestFailedError("inproc://broker-1", error, REFUSED[error])
    stage.answer = fail_first(*[refused] * 20)
    told: queue.Queue[ControllerEvent] = queue.Queue()
    thread = stage.request_send_thread(1, put_into(answers), tell=told.put)
    thread.tell(dispatch(StopReplicaRequest(())))
    assert answers.get(timeout=TIMEOUT_S) == StopReplicaResponse(Errors.NONE)
    assert len(stage.sent) == 21
    assert answers.empty()
    doubts = [event for event in told.queue if isinstance(event, ElectionDoubted)]
    assert len(doubts) == (error is Errors.NOT_CONTROLLER)
    lines = [record.message for record in caplog.records if REFUSED[error] in record.message]
    assert len(lines) == 1, "once in ten seconds"
    assert actor_of(thread)._stats.last_error == ""


@pytest.mark.parametrize(
    "error", [Errors.BROKER_ID_NOT_REGISTERED, Errors.CLUSTER_AUTHORIZATION_FAILED]
)
def test_why_a_broker_takes_no_request_is_known_until_it_takes_one(
    stage: Stage, answers: Answers, error: Errors
):
    is_right = threading.Event()
    refused = RequestFailedError("inproc://broker-1", error, REFUSED.get(error, "no right"))

    def answer(sent: Sent) -> ControlResponse:
        if not is_right.is_set():
            raise refused
        return accept(sent)

    stage.answer = answer
    thread = stage.request_send_thread(1, put_into(answers))
    stats = actor_of(thread)._stats
    thread.tell(dispatch(StopReplicaRequest(())))
    stage.wait_for(lambda: stats.refusal == str(refused))
    is_right.set()
    assert answers.get(timeout=TIMEOUT_S) == StopReplicaResponse(Errors.NONE)
    assert stats.refusal == ""


def test_a_broker_that_takes_no_request_at_all_is_tried_again_and_says_why(
    stage: Stage,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """It names no listener that we can use, or knows only older versions."""
    may_open = threading.Event()
    refused = RequestFailedError("broker 1", Errors.LISTENER_NOT_FOUND, "no listener INSIDE")
    open_channel = stage.open_channel

    def refuse_first(broker: BrokerInfo) -> RecordingChannel:
        if not may_open.is_set():
            raise refused
        return open_channel(broker)

    monkeypatch.setattr(stage, "open_channel", refuse_first)
    told: list[ControllerEvent] = []
    thread = stage.request_send_thread(1, put_into(answers), tell=told.append)
    stats = actor_of(thread)._stats
    thread.tell(dispatch(StopReplicaRequest(())))
    stage.wait_for(lambda: stats.refusal == str(refused) and stats.failures > 2)
    may_open.set()
    assert answers.get(timeout=TIMEOUT_S) == StopReplicaResponse(Errors.NONE)
    stage.wait_for(lambda: stats.software == "kafka 3.9")
    assert stats.refusal == ""
    lines = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 1, "once in ten seconds"
    assert told == [BrokerUnusable(1, HEADER, str(refused))], "once, for the journal"


def test_lines_of_logs_name_requests_without_their_partitions():
    roles = LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())
    assert repr(dispatch(roles, UpdateMetadataRequest((), ()))) == (
        "Dispatch(LeaderAndIsr, UpdateMetadata)"
    )
