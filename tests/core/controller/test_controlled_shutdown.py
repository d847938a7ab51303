"""Controlled shutdown: which leaderships move, and which partitions remain."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from regent.core.controller.effects import ScheduleEvent
from regent.core.controller.events import (
    ControlledShutdown,
    ControlledShutdownAbandoned,
    ControlledShutdownTimeout,
    LeaderAndIsrResponseReceived,
)
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
)
from regent.core.protocol.controller import ControlledShutdownResponse
from regent.zk.znodes import TopicPartitionStateZNode
from tests.support.controller_parts import (
    ControllerParts,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    of_type,
    stop_replica_rows,
)
from tests.support.world import T0, T1, broker_info

DONE = ControlledShutdownResponse(Errors.NONE)


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(0, 1, 2))


def epoch_of(parts: ControllerParts, broker_id: int) -> int:
    return parts.context.live_broker_epochs[broker_id]


def ask(parts: ControllerParts, event: ControlledShutdown) -> ControlledShutdownResponse:
    """Return the response, without waiting for the new leaders to answer."""
    parts.shutdowns.shut_down(event)
    parts.shutdowns.on_timeout(ControlledShutdownTimeout(event.request_id, parts.context.epoch))
    response = parts.answers[event.request_id]
    assert isinstance(response, ControlledShutdownResponse)
    return response


_request_ids = itertools.count(1)


def shut_down(
    parts: ControllerParts, broker_id: int, offset: int = 0
) -> ControlledShutdownResponse:
    return ask(
        parts,
        ControlledShutdown(next(_request_ids), broker_id, epoch_of(parts, broker_id) + offset),
    )


def test_leaderships_move_to_isr_members_and_the_broker_leaves_the_isr(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    assert shut_down(parts, 2) == DONE
    assert parts.leads(T0) == (0, (0, 1), 1)
    assert parts.context.shutting_down_broker_ids == {2}
    effects = parts.effects()
    assert sorted(leader_and_isr_rows(effects)) == [0, 1, 2], "it follows until it stops"
    assert leader_and_isr_rows(effects)[2][T0].leader == 0
    assert stop_replica_rows(effects) == {}


def test_leaderships_move_to_another_host_if_one_has_a_replica() -> None:
    parts = ControllerParts(brokers=())
    for broker_id, host in ((0, "m"), (1, "m"), (2, None)):
        parts.register_as(replace(broker_info(broker_id), node_host=host))
    parts.brokers.load()
    parts.lead(T0, (0, 1, 2), leader=0, isr=(0, 1, 2))
    parts.lead(T1, (0, 1), leader=0, isr=(0, 1))
    assert shut_down(parts, 0) == DONE
    assert parts.leads(T0) == (2, (1, 2), 1)
    assert parts.leads(T1) == (1, (1,), 1)


def test_followers_stop_and_leave_the_isr(parts: ControllerParts) -> None:
    parts.lead(T0, (0, 2), leader=0, isr=(0, 2))
    assert shut_down(parts, 2) == DONE
    assert parts.leads(T0) == (0, (0,), 1)
    assert parts.replica_state(T0, 2) is ReplicaState.OFFLINE
    effects = parts.effects()
    assert kinds(effects).count((2, "StopReplica")) == 1
    stop = stop_replica_rows(effects)[2][T0]
    assert (stop.leader_epoch, stop.delete_partition) == (0, False)
    assert leader_and_isr_rows(effects)[0][T0].isr == (0,)


def test_the_last_isr_member_keeps_leadership_and_is_reported(parts: ControllerParts) -> None:
    parts.lead(T1, (2, 0), leader=2, isr=(2,))
    parts.lead(T0, (2, 0), leader=2, isr=(2,))
    answer = shut_down(parts, 2)
    assert answer == ControlledShutdownResponse(Errors.NONE, (T0, T1))
    assert parts.leads(T0) == (2, (2,), 0)


def test_three_brokers_can_shut_down_one_after_another(parts: ControllerParts) -> None:
    parts.lead(T0, (0, 1, 2), leader=0, isr=(0, 1, 2))
    remaining = [len(shut_down(parts, b).remaining_partitions) for b in (2, 1, 0)]
    assert remaining == [0, 0, 1]
    assert parts.leads(T0)[:2] == (0, (0,))


def test_a_broker_that_is_shutting_down_is_not_elected(parts: ControllerParts) -> None:
    parts.lead(T0, (2, 1, 0), leader=2, isr=(2, 1, 0))
    parts.context.shutting_down_broker_ids.add(1)
    shut_down(parts, 2)
    assert parts.leads(T0) == (0, (0,), 1)


def test_partitions_with_one_replica_are_not_moved_or_reported(parts: ControllerParts) -> None:
    parts.lead(T0, (2,), leader=2, isr=(2,))
    assert shut_down(parts, 2) == DONE
    assert parts.leads(T0) == (2, (2,), 0)
    assert parts.sent() == []


def test_partitions_without_leader_or_queued_for_deletion_are_not_changed(
    parts: ControllerParts,
) -> None:
    queued = TopicPartition("u", 0)
    parts.assign(T0, (2, 0))
    parts.lead(queued, (2, 0), leader=2, isr=(2, 0))
    parts.context.queue_topic_deletion(["u"])
    assert shut_down(parts, 2) == DONE
    assert parts.leads(queued) == (2, (2, 0), 0)


def test_an_added_replica_counts_as_another_replica(parts: ControllerParts) -> None:
    parts.lead(T0, ReplicaAssignment((2, 0), (0,)), leader=2, isr=(2,))
    answer = shut_down(parts, 2)
    assert answer.remaining_partitions == (T0,)


def test_a_repeated_request_gets_the_same_response_and_moves_nothing(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 0), leader=2, isr=(2,))
    parts.lead(T1, (0, 2), leader=0, isr=(0, 2))
    answers = {shut_down(parts, 2) for _ in range(3)}
    assert answers == {ControlledShutdownResponse(Errors.NONE, (T0,))}
    assert parts.leads(T0) == (2, (2,), 0)
    assert parts.leads(T1) == (0, (0,), 1)


@pytest.mark.parametrize(
    ("offset", "error"),
    [(-1, Errors.STALE_BROKER_EPOCH), (0, Errors.NONE), (1, Errors.BROKER_NOT_AVAILABLE)],
)
def test_a_broker_epoch_is_refused_unless_it_is_the_known_one(
    parts: ControllerParts, offset: int, error: Errors
) -> None:
    parts.lead(T0, (2, 0), leader=2, isr=(2, 0))
    answer = shut_down(parts, 2, offset)
    assert answer.error_code is error
    assert parts.context.shutting_down_broker_ids == ({2} if error is Errors.NONE else set())
    assert parts.leads(T0)[0] == (0 if error is Errors.NONE else 2)


def test_a_request_without_a_broker_epoch_is_accepted(parts: ControllerParts) -> None:
    assert ask(parts, ControlledShutdown(1, 2, UNKNOWN_BROKER_EPOCH)) == DONE


@pytest.mark.parametrize("broker_epoch", [UNKNOWN_BROKER_EPOCH, 5])
def test_an_unregistered_broker_is_refused(parts: ControllerParts, broker_epoch: int) -> None:
    answer = ask(parts, ControlledShutdown(1, 9, broker_epoch))
    assert answer == ControlledShutdownResponse(Errors.BROKER_NOT_AVAILABLE)
    assert parts.context.shutting_down_broker_ids == set()


def test_the_response_is_sent_at_the_timeout_if_the_new_leaders_do_not_answer(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    parts.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(parts, 2)))
    assert 5 not in parts.answers, "the new leader has not answered"
    timeout = ControlledShutdownTimeout(5, parts.context.epoch)
    assert timeout in [e.event for e in of_type(parts.effects(), ScheduleEvent)]
    parts.shutdowns.on_timeout(timeout)
    assert parts.answers[5] == DONE
    parts.shutdowns.on_timeout(timeout)


def sent_to_the_new_leader(parts: ControllerParts) -> tuple[ControlHeader, LeaderAndIsrRequest]:
    """Shut broker 2 down with request 5; return the request that makes broker 0 the leader."""
    parts.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(parts, 2)))
    (sent,) = leader_and_isr_requests(parts.effects(), 0)
    return sent


def is_answered_after(
    parts: ControllerParts,
    header: ControlHeader,
    request: LeaderAndIsrRequest,
    **topic_fields: object,
) -> bool:
    """Let broker 0 answer a request about one topic, whose fields may be replaced."""
    (topic,) = request.topic_states
    changed = replace(topic, **topic_fields)  # type: ignore[arg-type]
    parts.shutdowns.on_leader_and_isr_response(
        LeaderAndIsrResponseReceived(
            0, header, replace(request, topic_states=(changed,)), LeaderAndIsrResponse(Errors.NONE)
        )
    )
    return 5 in parts.answers


@pytest.mark.parametrize(
    ("field", "offset", "answered"),
    [("broker_epoch", 0, True), ("broker_epoch", -1, False), ("controller_epoch", -1, False)],
)
def test_the_response_is_sent_when_the_new_leader_answers_with_the_current_epochs(
    parts: ControllerParts, field: str, offset: int, answered: bool
) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    header, request = sent_to_the_new_leader(parts)
    header = header._replace(**{field: getattr(header, field) + offset})
    assert is_answered_after(parts, header, request) is answered


def test_an_answer_about_an_earlier_topic_of_the_same_name_does_not_send_the_response(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    parts.context.add_topic_id(T0.topic, "later")
    header, request = sent_to_the_new_leader(parts)
    ((_, row),) = request.partitions()
    later = (row._replace(leader_epoch=row.leader_epoch + 7),)
    assert not is_answered_after(parts, header, request, topic_id="earlier", partition_states=later)
    assert is_answered_after(parts, header, request)


def test_an_answer_to_an_earlier_leader_epoch_does_not_send_the_response(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    parts.put_state(T0, 2, (2, 0, 1), leader_epoch=4)
    header, request = sent_to_the_new_leader(parts)
    ((_, row),) = request.partitions()
    earlier = (row._replace(leader_epoch=row.leader_epoch - 1),)
    assert not is_answered_after(parts, header, request, partition_states=earlier)


def test_a_repeated_request_also_waits_for_the_new_leaders(parts: ControllerParts) -> None:
    parts.lead(T0, (2, 0, 1), leader=2, isr=(2, 0, 1))
    for request_id in (5, 6):
        parts.shutdowns.shut_down(ControlledShutdown(request_id, 2, epoch_of(parts, 2)))
    assert not parts.answers.keys() & {5, 6}
    for request_id in (5, 6):
        parts.shutdowns.on_timeout(ControlledShutdownTimeout(request_id, parts.context.epoch))
    assert (parts.answers[5], parts.answers[6]) == (DONE, DONE)


def test_waiting_requests_are_refused_when_the_controller_resigns(parts: ControllerParts) -> None:
    parts.lead(T0, (2, 0), leader=2, isr=(2, 0))
    parts.shutdowns.shut_down(ControlledShutdown(5, 2, epoch_of(parts, 2)))
    parts.shutdowns.refuse_all()
    assert parts.answers[5] == ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)
    parts.shutdowns.on_timeout(ControlledShutdownTimeout(5, parts.context.epoch))


def abandonment(parts: ControllerParts) -> ControlledShutdownAbandoned:
    return next(
        effect.event
        for effect in of_type(parts.effects(), ScheduleEvent)
        if isinstance(effect.event, ControlledShutdownAbandoned)
    )


def test_a_broker_that_does_not_stop_is_used_again(parts: ControllerParts) -> None:
    parts.lead(T0, (2, 0), leader=2, isr=(2, 0))
    shut_down(parts, 2)
    abandoned = abandonment(parts)
    parts.shutdowns.on_abandoned(replace(abandoned, broker_epoch=abandoned.broker_epoch - 1))
    parts.shutdowns.on_abandoned(replace(abandoned, controller_epoch=0))
    assert parts.context.shutting_down_broker_ids == {2}, (
        "other broker epoch, other controller epoch"
    )
    parts.shutdowns.on_abandoned(abandoned)
    assert parts.context.shutting_down_broker_ids == set()
    assert T0 in leader_and_isr_rows(parts.effects())[2]


def test_a_broker_that_does_not_stop_follows_again_in_a_new_leader_epoch(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (0, 1, 2), leader=0, isr=(0, 1))  # 2 is not in sync: no new leader epoch
    shut_down(parts, 2)
    assert parts.leads(T0) == (0, (0, 1), 0)
    parts.shutdowns.on_abandoned(abandonment(parts))
    assert parts.leads(T0) == (0, (0, 1), 1)
    rows_by_broker = leader_and_isr_rows(parts.effects())
    assert {broker: rows[T0].leader_epoch for broker, rows in rows_by_broker.items()} == {
        0: 1,
        1: 1,
        2: 1,
    }


def test_a_broker_that_does_not_stop_follows_again_when_the_state_can_be_written(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (0, 1, 2), leader=0, isr=(0, 1))
    shut_down(parts, 2)
    abandoned = abandonment(parts)
    parts.zookeeper.deny_writing(TopicPartitionStateZNode.path(T0))
    parts.shutdowns.on_abandoned(abandoned)
    assert parts.context.must_read_again
    parts.effects()
    parts.zookeeper.allow(TopicPartitionStateZNode.path(T0))
    parts.topics.read_again()
    assert leader_and_isr_rows(parts.effects())[2][T0].leader_epoch == 1
