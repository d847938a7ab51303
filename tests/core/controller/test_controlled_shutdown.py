"""What a broker that is about to stop hands over, and what it is told remains."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from regent.core.controller.effects import ScheduleEvent, SendControlRequest
from regent.core.controller.events import (
    ControlledShutdown,
    ControlledShutdownAbandoned,
    ControlledShutdownTimeout,
    LeaderAndIsrResponseReceived,
)
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrResponse
from regent.core.protocol.controller import ControlledShutdownResponse
from regent.zk.codecs.znodes import TopicPartitionStateZNode
from tests.support.term import (
    T0,
    T1,
    Office,
    kinds,
    leader_and_isr_rows,
    of_type,
    stop_replica_rows,
)

DONE = ControlledShutdownResponse(Errors.NONE)


@pytest.fixture
def office() -> Office:
    return Office(brokers=(0, 1, 2))


def epoch_of(office: Office, broker_id: int) -> int:
    return office.context.live_broker_epochs[broker_id]


def ask(office: Office, event: ControlledShutdown) -> ControlledShutdownResponse:
    """Return the answer, which new leaders do not delay: they are given up at once."""
    office.shutdowns.shut_down(event)
    office.shutdowns.on_timeout(ControlledShutdownTimeout(event.request_id, office.context.epoch))
    response = office.answers[event.request_id]
    assert isinstance(response, ControlledShutdownResponse)
    return response


_request_ids = itertools.count(1)


def shut_down(office: Office, broker_id: int, offset: int = 0) -> ControlledShutdownResponse:
    return ask(
        office,
        ControlledShutdown(next(_request_ids), broker_id, epoch_of(office, broker_id) + offset),
    )


def test_leaderships_move_to_others_in_sync_and_the_broker_leaves_the_isr(office: Office) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    assert shut_down(office, 2) == DONE
    assert office.leads(T0) == (0, (0, 1), 1)
    assert office.context.shutting_down_broker_ids == {2}
    effects = office.effects()
    assert sorted(leader_and_isr_rows(effects)) == [0, 1, 2], "it obeys until it stops"
    assert leader_and_isr_rows(effects)[2][T0].leader == 0
    assert stop_replica_rows(effects) == {}


def test_what_it_follows_it_stops_and_leaves_the_isr_of(office: Office) -> None:
    office.lead(T0, (0, 2), leader=0, isr=(0, 2))
    assert shut_down(office, 2) == DONE
    assert office.leads(T0) == (0, (0,), 1)
    assert office.replica_state(T0, 2) is ReplicaState.OFFLINE
    effects = office.effects()
    assert kinds(effects).count((2, "StopReplica")) == 1
    stop = stop_replica_rows(effects)[2][T0]
    assert (stop.leader_epoch, stop.delete_partition) == (0, False)
    assert leader_and_isr_rows(effects)[0][T0].isr == (0,)


def test_the_last_in_sync_keeps_leading_and_hears_so(office: Office) -> None:
    office.lead(T1, (2, 0), leader=2, isr=(2,))
    office.lead(T0, (2, 0), leader=2, isr=(2,))
    answer = shut_down(office, 2)
    assert answer == ControlledShutdownResponse(Errors.NONE, (T0, T1))
    assert office.leads(T0) == (2, (2,), 0)


def test_three_brokers_stopping_one_after_another(office: Office) -> None:
    office.lead(T0, (0, 1, 2), leader=0, isr=(0, 1, 2))
    remaining = [len(shut_down(office, b).remaining_partitions) for b in (2, 1, 0)]
    assert remaining == [0, 0, 1]
    assert office.leads(T0)[:2] == (0, (0,))


def test_a_broker_that_leaves_is_not_handed_anything(office: Office) -> None:
    office.lead(T0, (2, 1, 0), leader=2, isr=(2, 1, 0))
    office.context.shutting_down_broker_ids.add(1)
    shut_down(office, 2)
    assert office.leads(T0) == (0, (0,), 1)


def test_partitions_without_another_replica_are_neither_moved_nor_named(office: Office) -> None:
    office.lead(T0, (2,), leader=2, isr=(2,))
    assert shut_down(office, 2) == DONE
    assert office.leads(T0) == (2, (2,), 0)
    assert office.sent() == []


def test_partitions_nobody_leads_or_to_be_deleted_are_left_alone(office: Office) -> None:
    doomed = TopicPartition("u", 0)
    office.assign(T0, (2, 0))
    office.lead(doomed, (2, 0), leader=2, isr=(2, 0))
    office.context.queue_topic_deletion(["u"])
    assert shut_down(office, 2) == DONE
    assert office.leads(doomed) == (2, (2, 0), 0)


def test_a_replica_being_added_counts_as_another_replica(office: Office) -> None:
    office.lead(T0, ReplicaAssignment((2, 0), (0,)), leader=2, isr=(2,))
    answer = shut_down(office, 2)
    assert answer.remaining_partitions == (T0,)


def test_asking_again_gives_the_same_answer_and_moves_nothing_more(office: Office) -> None:
    office.lead(T0, (2, 0), leader=2, isr=(2,))
    office.lead(T1, (0, 2), leader=0, isr=(0, 2))
    answers = {shut_down(office, 2) for _ in range(3)}
    assert answers == {ControlledShutdownResponse(Errors.NONE, (T0,))}
    assert office.leads(T0) == (2, (2,), 0)
    assert office.leads(T1) == (0, (0,), 1)


@pytest.mark.parametrize(
    ("offset", "error"),
    [(-1, Errors.STALE_BROKER_EPOCH), (0, Errors.NONE), (1, Errors.NONE)],
)
def test_a_broker_of_an_earlier_life_is_refused(office: Office, offset: int, error: Errors) -> None:
    office.lead(T0, (2, 0), leader=2, isr=(2, 0))
    answer = shut_down(office, 2, offset)
    assert answer.error_code is error
    assert office.context.shutting_down_broker_ids == ({2} if error is Errors.NONE else set())
    assert office.leads(T0)[0] == (0 if error is Errors.NONE else 2)


def test_a_broker_that_does_not_know_its_epoch_is_believed(office: Office) -> None:
    assert ask(office, ControlledShutdown(1, 2, UNKNOWN_BROKER_EPOCH)) == DONE


@pytest.mark.parametrize("broker_epoch", [UNKNOWN_BROKER_EPOCH, 5])
def test_a_broker_that_is_not_registered_is_refused(office: Office, broker_epoch: int) -> None:
    answer = ask(office, ControlledShutdown(1, 9, broker_epoch))
    assert answer == ControlledShutdownResponse(Errors.BROKER_NOT_AVAILABLE)
    assert office.context.shutting_down_broker_ids == set()


def test_a_broker_is_let_go_when_the_new_leaders_have_had_their_time(office: Office) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    assert 5 not in office.answers, "nobody has taken over yet"
    timeout = ControlledShutdownTimeout(5, office.context.epoch)
    assert timeout in [e.event for e in of_type(office.effects(), ScheduleEvent)]
    office.shutdowns.on_timeout(timeout)
    assert office.answers[5] == DONE
    office.shutdowns.on_timeout(timeout)


@pytest.mark.parametrize(("life", "goes"), [(0, True), (-1, False)])
def test_a_broker_is_let_go_when_the_new_leader_has_heard_in_its_present_life(
    office: Office, life: int, goes: bool
) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    sent = of_type(office.effects(), SendControlRequest)
    (told,) = (e for e in sent if e.broker_id == 0 and isinstance(e.request, LeaderAndIsrRequest))
    assert isinstance(told.request, LeaderAndIsrRequest)
    header = told.header._replace(broker_epoch=told.header.broker_epoch + life)
    response = LeaderAndIsrResponse(Errors.NONE)
    office.shutdowns.on_leader_and_isr_response(
        LeaderAndIsrResponseReceived(0, header, told.request, response)
    )
    assert (5 in office.answers) is goes


def test_an_answer_about_an_earlier_topic_of_that_name_does_not_let_a_broker_go(
    office: Office,
) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    office.context.add_topic_id(T0.topic, "later")
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    sent = of_type(office.effects(), SendControlRequest)
    (told,) = (e for e in sent if e.broker_id == 0 and isinstance(e.request, LeaderAndIsrRequest))
    assert isinstance(told.request, LeaderAndIsrRequest)
    (topic,) = told.request.topic_states
    (state,) = topic.partition_states
    later = state._replace(leader_epoch=state.leader_epoch + 7)
    former = replace(topic, topic_id="earlier", partition_states=(later,))
    for states, goes in ((former, False), (topic, True)):
        request = replace(told.request, topic_states=(states,))
        response = LeaderAndIsrResponse(Errors.NONE)
        office.shutdowns.on_leader_and_isr_response(
            LeaderAndIsrResponseReceived(0, told.header, request, response)
        )
        assert (5 in office.answers) is goes


def test_an_answer_to_an_earlier_order_does_not_let_a_broker_go(office: Office) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    office.put_state(T0, 2, (2, 0, 1), leader_epoch=4)
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    sent = of_type(office.effects(), SendControlRequest)
    (told,) = (e for e in sent if e.broker_id == 0 and isinstance(e.request, LeaderAndIsrRequest))
    assert isinstance(told.request, LeaderAndIsrRequest)
    (topic,) = told.request.topic_states
    (row,) = topic.partition_states
    earlier = replace(topic, partition_states=(row._replace(leader_epoch=row.leader_epoch - 1),))
    request = replace(told.request, topic_states=(earlier,))
    response = LeaderAndIsrResponse(Errors.NONE)
    office.shutdowns.on_leader_and_isr_response(
        LeaderAndIsrResponseReceived(0, told.header, request, response)
    )
    assert 5 not in office.answers


def test_an_answer_to_an_earlier_controller_does_not_let_a_broker_go(office: Office) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    sent = of_type(office.effects(), SendControlRequest)
    (told,) = (e for e in sent if e.broker_id == 0 and isinstance(e.request, LeaderAndIsrRequest))
    assert isinstance(told.request, LeaderAndIsrRequest)
    header = told.header._replace(controller_epoch=told.header.controller_epoch - 1)
    response = LeaderAndIsrResponse(Errors.NONE)
    office.shutdowns.on_leader_and_isr_response(
        LeaderAndIsrResponseReceived(0, header, told.request, response)
    )
    assert 5 not in office.answers


def test_asking_again_does_not_let_a_broker_go_before_the_new_leaders_know(office: Office) -> None:
    office.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    for request_id in (5, 6):
        office.shutdowns.shut_down(ControlledShutdown(request_id, 2, epoch_of(office, 2)))
    assert not office.answers.keys() & {5, 6}
    for request_id in (5, 6):
        office.shutdowns.on_timeout(ControlledShutdownTimeout(request_id, office.context.epoch))
    assert (office.answers[5], office.answers[6]) == (DONE, DONE)


def test_whoever_waits_is_refused_when_the_controller_resigns(office: Office) -> None:
    office.lead(T0, (2, 0), leader=2, isr=(2, 0))
    office.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(office, 2)))
    office.shutdowns.refuse_all()
    assert office.answers[5] == ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)
    office.shutdowns.on_timeout(ControlledShutdownTimeout(5, office.context.epoch))


def abandonment(office: Office) -> ControlledShutdownAbandoned:
    return next(
        effect.event
        for effect in of_type(office.effects(), ScheduleEvent)
        if isinstance(effect.event, ControlledShutdownAbandoned)
    )


def test_a_broker_that_asked_to_stop_and_stays_is_used_again(office: Office) -> None:
    office.lead(T0, (2, 0), leader=2, isr=(2, 0))
    shut_down(office, 2)
    abandoned = abandonment(office)
    office.shutdowns.on_abandoned(replace(abandoned, broker_epoch=abandoned.broker_epoch - 1))
    office.shutdowns.on_abandoned(replace(abandoned, controller_epoch=0))
    assert office.context.shutting_down_broker_ids == {2}, "another life, another term"
    office.shutdowns.on_abandoned(abandoned)
    assert office.context.shutting_down_broker_ids == set()
    assert T0 in leader_and_isr_rows(office.effects())[2]


def test_a_broker_that_stays_follows_again_in_a_new_leader_epoch(office: Office) -> None:
    office.lead(T0, (0, 1, 2), leader=0, isr=(0, 1))  # 2 is not in sync: no epoch ends for it
    shut_down(office, 2)
    assert office.leads(T0) == (0, (0, 1), 0)
    office.shutdowns.on_abandoned(abandonment(office))
    assert office.leads(T0) == (0, (0, 1), 1)
    orders = leader_and_isr_rows(office.effects())
    assert {broker: rows[T0].leader_epoch for broker, rows in orders.items()} == {0: 1, 1: 1, 2: 1}


def test_a_broker_that_stays_follows_again_once_the_state_may_be_written(office: Office) -> None:
    office.lead(T0, (0, 1, 2), leader=0, isr=(0, 1))
    shut_down(office, 2)
    abandoned = abandonment(office)
    office.server.deny_writing(TopicPartitionStateZNode.path(T0))
    office.shutdowns.on_abandoned(abandoned)
    assert office.context.must_read_again
    office.effects()
    office.server.allow(TopicPartitionStateZNode.path(T0))
    office.topics.read_again()
    assert leader_and_isr_rows(office.effects())[2][T0].leader_epoch == 1
