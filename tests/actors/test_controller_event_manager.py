from __future__ import annotations

import queue
import threading
from dataclasses import fields
from typing import Any, get_args

import pytest
from pykka import ActorRef

from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.inbox import ClearAndPut, MessageWithReply, Reply
from regent.core.controller.context import ControllerContext
from regent.core.controller.events import (
    AdvertisedListenersChanged,
    BrokerChange,
    ControllerEvent,
    EventsLost,
    Expire,
    LeaderAndIsrResponseReceived,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    Reelect,
    RegisterBrokerAndReelect,
    Resign,
    StandAgain,
    TopicChange,
    UncleanLeaderElectionEnable,
    is_always_queued,
)
from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerId, EndPoint, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AwaitBrokersRequest,
    AwaitBrokersResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.testing.waits import eventually
from regent.zk.client.requests import RequestRefusedError
from regent.zk.znodes import BrokerIdZNode, ControllerFailuresZNode, ControllerZNode
from tests.support.fake_zookeeper import Call
from tests.support.stage import TIMEOUT_S, Sent, Stage, accept, actor_of, ask

MOVED = EndPoint("PLAINTEXT", "elsewhere", 9092)
PAYMENTS = {0: ReplicaAssignment((0, 1)), 1: ReplicaAssignment((1, 0))}


def create_payments(stage: Stage) -> None:
    stage.put_topic("payments", PAYMENTS)


def await_another_controller(stage: Stage, former: BrokerId) -> BrokerId:
    """Wait until a broker other than ``former`` is the active controller; return its id."""

    def active() -> BrokerId:
        node = stage.zookeeper.snapshot().get(ControllerZNode.PATH)
        return former if node is None else ControllerZNode.decode(node.data)

    stage.wait_for(lambda: active() != former)
    return active()


def test_the_first_broker_becomes_controller_and_sends_requests_to_itself(stage: Stage):
    stage.controller(0)
    stage.wait_for(lambda: bool(stage.metadata_sent_to(0)))
    header = stage.sent[0].header
    assert (header.controller_id, header.controller_epoch) == (0, 1)


def test_a_new_broker_gets_the_full_state(stage: Stage):
    controller = stage.controller(0)
    create_payments(stage)
    epoch = stage.register(1).broker_epoch
    ask(controller, BrokerChange())
    stage.wait_for(lambda: any(type(s.request) is LeaderAndIsrRequest for s in to(stage, 1)))
    assert all(s.header.broker_epoch == epoch for s in to(stage, 1))
    assert type(to(stage, 1)[0].request) is UpdateMetadataRequest


def to(stage: Stage, broker_id: int) -> list[Sent]:
    return [sent for sent in list(stage.sent) if sent.broker_id == broker_id]


def test_all_brokers_get_the_same_encoded_body(stage: Stage):
    controller = stage.controller(0)
    stage.register(1)
    ask(controller, BrokerChange())
    create_payments(stage)
    ask(controller, TopicChange())
    stage.wait_for(
        lambda: all(any(m.topic_states for m in stage.metadata_sent_to(b)) for b in (0, 1))
    )
    assert stage.metadata_sent_to(0)[-1] == stage.metadata_sent_to(1)[-1]


def test_a_controlled_shutdown_is_handled_and_answered(stage: Stage):
    controller = stage.controller(0)
    epoch = stage.register(1).broker_epoch
    create_payments(stage)
    ask(controller, TopicChange())
    answer = ask(controller, ControlledShutdownRequest(1, epoch))
    assert answer == ControlledShutdownResponse(Errors.NONE)
    for number in PAYMENTS:
        leader, isr, _ = stage.leads(TopicPartition("payments", number))
        assert (leader, isr) == (0, (0,))


def ask_about_brokers(
    controller: ActorRef[ControllerEventManager], timeout_ms: int = 60_000
) -> queue.Queue[object]:
    """Ask the controller when the brokers know; the answer arrives in the queue."""
    answers: queue.Queue[object] = queue.Queue()
    request = AwaitBrokersRequest(timeout_ms)
    controller.tell(MessageWithReply(request, Reply.of(answers.put)))
    return answers


def test_a_question_about_brokers_is_answered_when_all_have_handled_their_requests(stage: Stage):
    controller, may_answer = stage.controller(0), threading.Event()
    stage.register(1)
    ask(controller, BrokerChange())
    assert ask_about_brokers(controller).get(timeout=TIMEOUT_S) == AwaitBrokersResponse(Errors.NONE)

    def answer(sent: Sent) -> ControlResponse:
        if sent.broker_id == 1 and isinstance(sent.request, UpdateMetadataRequest):
            assert may_answer.wait(TIMEOUT_S)
        return accept(sent)

    stage.answer = answer
    create_payments(stage)
    ask(controller, TopicChange())
    answers = ask_about_brokers(controller)
    late = ask_about_brokers(controller, timeout_ms=10).get(timeout=TIMEOUT_S)
    assert late == AwaitBrokersResponse(Errors.NONE, behind=(1,))
    assert answers.empty()
    may_answer.set()
    assert answers.get(timeout=TIMEOUT_S) == AwaitBrokersResponse(Errors.NONE)


def test_nobody_waits_for_a_broker_that_is_silent_or_gone(stage: Stage):
    controller, may_answer = stage.controller(0), threading.Event()
    stage.register(1)
    ask(controller, BrokerChange())
    ask_about_brokers(controller).get(timeout=TIMEOUT_S)

    def answer(sent: Sent) -> ControlResponse:
        assert sent.broker_id != 1 or may_answer.wait(TIMEOUT_S)
        return accept(sent)

    stage.answer = answer
    create_payments(stage)
    ask(controller, TopicChange())
    waiting = ask_about_brokers(controller)
    silent = AwaitBrokersResponse(Errors.NONE, behind=(1,))

    def is_refused_at_once() -> bool:
        return ask_about_brokers(controller, timeout_ms=1).get(timeout=TIMEOUT_S) == silent

    stage.wait_for(is_refused_at_once)
    may_answer.set()
    stage.unregister(1)
    ask(controller, BrokerChange())
    assert waiting.get(timeout=TIMEOUT_S) == AwaitBrokersResponse(Errors.NONE)


def test_only_the_active_controller_knows_about_brokers(stage: Stage):
    stage.controller(0)
    inactive = stage.controller(1)
    refused = AwaitBrokersResponse(Errors.NOT_CONTROLLER)
    assert ask_about_brokers(inactive).get(timeout=TIMEOUT_S) == refused


def test_session_expiry_resigns_and_later_requests_are_refused(stage: Stage):
    controller = stage.controller(0)
    ask(controller, ClearAndPut(Expire()))
    answer = ask(controller, ControlledShutdownRequest(0, -1))
    assert answer.error_code is Errors.STALE_CONTROLLER_EPOCH


def test_a_controller_that_stops_has_resigned_in_the_journal_and_another_is_elected(stage: Stage):
    actors = [stage.controller(0), stage.controller(1)]
    actors[0].stop()  # its session stays open

    def is_active() -> bool:
        answer = actors[1].ask(DescribeControllerRequest(), timeout=TIMEOUT_S)
        assert isinstance(answer, DescribeControllerResponse)
        return answer.error_code is Errors.NONE

    eventually(is_active, "the other one is elected")
    actors[1].stop()
    ends = [(r.changes, r.controller_epoch) for r in stage.journal.events if r.event == Expire()]
    assert ends == [(("broker 0: resigned",), 1), (("broker 1: resigned",), 2)]


def test_a_preempted_request_is_answered_with_not_controller(stage: Stage):
    controller = stage.controller(0)
    blocked = stage.zookeeper  # no event is handled while the test holds this lock
    with blocked._changed:
        controller.tell(TopicChange())
        waiting = controller.ask(ListPartitionReassignmentsRequest.of(), block=False)
        controller.tell(ClearAndPut(Expire()))
    assert waiting.get(timeout=TIMEOUT_S) == ListPartitionReassignmentsResponse.of(
        {}, ApiError(Errors.NOT_CONTROLLER)
    )


@pytest.mark.parametrize(
    "event",
    [StandAgain(), UncleanLeaderElectionEnable(True), AdvertisedListenersChanged((MOVED,))],
)
def test_events_that_cannot_be_read_again_survive_session_expiry(
    stage: Stage, event: ControllerEvent
):
    controller = stage.controller(0)
    ask(controller, Resign("a test"))
    with stage.zookeeper._changed:  # no event is handled while the test holds this lock
        controller.tell(RegisterBrokerAndReelect())
        controller.tell(event)
        controller.tell(ClearAndPut(Expire()))

    def handled() -> list[ControllerEvent]:
        return [recorded.event for recorded in list(stage.journal.events)]

    stage.wait_for(lambda: event in handled())
    assert handled().index(Expire()) < handled().index(event)


def test_no_event_is_handled_between_an_unexpected_error_and_the_resignation(stage: Stage):
    controller = stage.controller(0)
    actor = actor_of(controller)
    epoch = actor.controller.context.live_broker_epochs[0]
    nothing = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())
    not_an_answer: Any = None
    with stage.zookeeper._changed:  # no event is handled while the test holds this lock
        controller.tell(BrokerChange())
        controller.tell(
            LeaderAndIsrResponseReceived(0, ControlHeader(0, 1, epoch), nothing, not_an_answer)
        )
        waiting = controller.ask(ListPartitionReassignmentsRequest.of(), block=False)
    assert waiting.get(timeout=TIMEOUT_S) == ListPartitionReassignmentsResponse.of(
        {}, ApiError(Errors.NOT_CONTROLLER)
    )


def test_an_unexpected_error_moves_the_controller_and_stops_no_actor(stage: Stage):
    first = stage.controller(0)
    stage.controller(1)
    actor = actor_of(first)
    epoch = actor.controller.context.live_broker_epochs[0]
    nothing = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())
    not_an_answer: Any = None
    header = ControlHeader(0, 1, epoch)
    first.tell(LeaderAndIsrResponseReceived(0, header, nothing, not_an_answer))

    assert await_another_controller(stage, 0) == 1
    assert len(stage.unexpected) == 1
    answer = ask(first, ListPartitionReassignmentsRequest.of())
    assert answer.error_code == Errors.NOT_CONTROLLER


def test_a_request_that_ended_two_controllers_is_refused_by_the_third(stage: Stage):
    controllers = [stage.controller(broker_id) for broker_id in range(3)]
    actor = actor_of(controllers[0])
    broker_epoch = actor.controller.context.live_broker_epochs[0]
    not_a_row: Any = None
    request = AlterPartitionRequest(0, broker_epoch, (not_a_row,))

    active = 0
    for _ in range(2):
        with pytest.raises(AttributeError):
            ask(controllers[active], request)
        active = await_another_controller(stage, active)
    assert ask(controllers[active], request).error_code is Errors.UNKNOWN_SERVER_ERROR
    assert len(stage.unexpected) == 2


def test_the_journal_has_each_event_and_its_changes(stage: Stage):
    controller = stage.controller(0)
    create_payments(stage)
    ask(controller, TopicChange())
    recorded = [r for r in stage.journal.events if r.event == TopicChange() and r.changes]
    assert recorded[0].controller_epoch == 1
    assert "payments: new topic" in recorded[0].changes


def test_responses_of_brokers_become_events(stage: Stage):
    controller = stage.controller(0)
    stage.wait_for(
        lambda: any(isinstance(r.event, LeaderAndIsrResponseReceived) for r in stage.journal.events)
    )
    event = next(
        r.event for r in stage.journal.events if isinstance(r.event, LeaderAndIsrResponseReceived)
    )
    assert isinstance(event, LeaderAndIsrResponseReceived)
    assert event.response == LeaderAndIsrResponse(Errors.NONE)
    assert controller.is_alive()


def test_a_topic_that_ended_two_controllers_is_quarantined_by_the_third(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    add_topic = ControllerContext.add_topic

    def poisoned(self: ControllerContext, topic: str) -> None:
        if topic == "evil":
            raise KeyError("a defect")
        add_topic(self, topic)

    monkeypatch.setattr(ControllerContext, "add_topic", poisoned)
    controllers = [stage.controller(broker_id) for broker_id in (0, 1, 2)]
    assignment = {0: (0, 1, 2)}
    stage.put_topic("evil", assignment)

    def failures() -> dict[str, int]:
        node = stage.zookeeper.snapshot().get(ControllerFailuresZNode.PATH)
        rows = () if node is None else ControllerFailuresZNode.decode(node.data)
        return {row.what: row.controllers for row in rows}

    def quarantined() -> list[str]:
        actors = [actor_of(ref) for ref in controllers]
        active = [a.controller for a in actors if a.controller.is_active]
        return [what for controller in active for what in controller.context.quarantined]

    stage.wait_for(lambda: quarantined() == ["topic evil"])
    assert failures() == {"topic evil": 2}
    stage.put_topic("good", assignment)
    state = "/brokers/topics/good/partitions/0/state"
    stage.wait_for(lambda: state in stage.zookeeper.snapshot())


def test_a_failed_registration_is_repeated_although_the_term_ends_meanwhile(stage: Stage):
    controller = stage.controller(0)
    refused: list[Call] = []

    def refuse_once(call: Call) -> None:
        if BrokerIdZNode.path(0) in call.paths and call.method == "multi" and not refused:
            refused.append(call)
            raise RequestRefusedError("a test")

    stage.sessions[0].hook = refuse_once
    stage.zookeeper.remove(BrokerIdZNode.path(0))
    ask(controller, Resign("a test"))
    assert refused
    stage.wait_for(lambda: BrokerIdZNode.path(0) in stage.zookeeper.snapshot())


def test_a_full_queue_loses_no_change(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ControllerEventManager, "inbox_limit", 100)
    controller = stage.controller(0)
    with stage.zookeeper._changed:  # no event is handled while the test holds this lock
        controller.tell(BrokerChange())
        for number in range(1000):  # many rewritten topics
            controller.tell(PartitionModifications(f"topic-{number}"))
        for trigger in (TopicChange(), Reelect(), RegisterBrokerAndReelect()):
            controller.tell(trigger)
    assignment = {0: (0,)}
    stage.put_topic("late", assignment)
    stage.wait_for(lambda: "/brokers/topics/late/partitions/0/state" in stage.zookeeper.snapshot())

    def handled() -> list[ControllerEvent]:
        return [recorded.event for recorded in list(stage.journal.events)]

    stage.wait_for(lambda: RegisterBrokerAndReelect() in handled()[2:])
    assert {EventsLost(), TopicChange(), Reelect(), RegisterBrokerAndReelect()} <= set(handled())
    assert handled().index(EventsLost()) < handled().index(TopicChange())


FIELDS_OF_THE_BROKER = {
    *("reason", "event", "topic", "controller_epoch", "enabled", "endpoints", "broker_epoch")
}


@pytest.mark.parametrize("kind", get_args(ControllerEvent))
def test_every_event_is_always_queued_or_replaced_by_events_lost(kind: Any):
    names = {field.name for field in fields(kind)}
    is_about_one_of_many = bool(names - FIELDS_OF_THE_BROKER)
    is_about_one_of_many |= names == {"topic"}
    is_about_one_of_many &= kind is not PartitionReassignmentIsrChange  # a new term causes them
    assert is_always_queued(kind(*[None] * len(names))) is not is_about_one_of_many
