"""A registered broker that answers no control requests is replaced as leader until it answers."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import Effect, ScheduleEvent
from regent.core.controller.events import (
    AlterPartitionReceived,
    CheckBrokers,
    ControlledShutdown,
    LeaderAndIsrResponseReceived,
)
from regent.core.controller.gauges import take_gauges
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrResponse, LeaderAndIsrType
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from tests.support.controller_parts import Candidate, of_type, requests
from tests.support.world import T0, T1, World, topic_id

ALONE = TopicPartition("t", 2)
EVERYWHERE = TopicPartition("t", 3)
TIMEOUT_MS = 4_000


class Watched:
    """Broker 0, the active controller, checks every second that brokers 1 and 2 answer."""

    def __init__(self, world: World, timeout_ms: int = TIMEOUT_MS) -> None:
        self.world = world
        world.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (1,), 3: (1, 2, 0)}, topic_id(77))
        settings = ControllerSettings(broker_answer_timeout_ms=timeout_ms)
        self.candidate = Candidate(world, 0, settings)
        self.unanswered = requests(self.candidate.start())
        self.silent: set[BrokerId] = set()

    def let_answer(self) -> list[Effect]:
        """Let every broker that is not silent answer its control requests."""
        effects: list[Effect] = []
        for _ in range(5):
            waiting, self.unanswered = self.unanswered, []
            for sent in waiting:
                if sent.broker_id in self.silent:
                    self.unanswered.append(sent)
                elif isinstance(sent.request, LeaderAndIsrRequest):
                    answer = LeaderAndIsrResponse(Errors.NONE)
                    event = LeaderAndIsrResponseReceived(
                        sent.broker_id, sent.header, sent.request, answer
                    )
                    effects += self.handle(event)
        return effects

    def handle(self, event: object) -> list[Effect]:
        effects = self.candidate.handle(event)  # type: ignore[arg-type]
        self.unanswered += requests(effects)
        return effects

    def look(self, times: int) -> None:
        """Let the brokers answer, then let the timer fire."""
        for _ in range(times):
            self.let_answer()
            effects = self.handle(CheckBrokers(self.candidate.controller.context.epoch))
            (timer,) = [e for e in of_type(effects, ScheduleEvent) if e.event == CheckBrokers(1)]
            assert timer.after_ms == TIMEOUT_MS // 4


@pytest.fixture
def watched() -> Watched:
    world = World((1, 2))
    return Watched(world)


def test_an_unresponsive_broker_is_replaced_as_leader_in_a_new_leader_epoch(
    watched: Watched,
) -> None:
    watched.look(2)
    watched.silent = {1}
    watched.look(3)
    assert watched.world.leads(T0) == (1, (1, 2), 0), "the timeout has not passed"
    watched.look(1)
    assert watched.world.leads(T0) == (2, (2,), 1)
    assert watched.world.leads(T1) == (2, (2,), 1)
    assert watched.world.leads(ALONE) == (1, (1,), 0), "it has no other replica"
    controller = watched.candidate.controller
    gauges = take_gauges(controller.context, 0, is_active=True)
    assert (gauges.active_broker_count, gauges.fenced_broker_count) == (2, 1)
    assert sorted(controller.context.registrations) == [0, 1, 2]
    queued = len(watched.unanswered)
    watched.look(20)
    assert len(watched.unanswered) - queued <= 1, "an unresponsive broker gets no more requests"


def test_an_unresponsive_broker_is_used_again_when_it_answers(watched: Watched) -> None:
    watched.silent = {1}
    watched.look(7)
    assert watched.world.leads(T0) == (2, (2,), 1)
    watched.silent = set()
    watched.let_answer()
    context = watched.candidate.controller.context
    assert context.unresponsive_broker_ids == context.shutting_down_broker_ids == set()
    assert watched.world.leads(T0) == (2, (2,), 2), "its replica was stopped in the previous epoch"
    proposal = AlterPartitionRow("t", 0, topic_id(77), 2, (2, 1), (-1, -1), 0, 2)
    epoch = context.registrations[2].broker_epoch
    watched.handle(AlterPartitionReceived(9, AlterPartitionRequest(2, epoch, (proposal,))))
    assert watched.world.leads(T0) == (2, (2, 1), 2)


def test_an_unresponsive_broker_is_not_elected_for_another_unresponsive_broker(
    watched: Watched,
) -> None:
    watched.silent = {1, 2}
    watched.look(7)
    assert watched.world.leads(EVERYWHERE) == (0, (0,), 1), "no unresponsive broker led between"
    assert watched.world.leads(T0) == (1, (1,), 1), "it has no other replica"


def test_an_unresponsive_broker_cannot_join_an_isr(watched: Watched) -> None:
    watched.silent = {1}
    watched.look(7)
    proposal = AlterPartitionRow("t", 0, topic_id(77), 1, (2, 1), (-1, -1), 0, 1)
    epoch = watched.candidate.controller.context.registrations[2].broker_epoch
    effects = watched.handle(
        AlterPartitionReceived(9, AlterPartitionRequest(2, epoch, (proposal,)))
    )
    (answer,) = [e.response for e in effects if hasattr(e, "response")]
    assert isinstance(answer, AlterPartitionResponse)
    assert answer.partitions[0].error_code is Errors.INELIGIBLE_REPLICA


def test_no_leader_is_replaced_when_all_brokers_are_unresponsive(watched: Watched) -> None:
    watched.silent = {0, 1, 2}
    watched.look(30)
    assert watched.world.leads(T0) == (1, (1, 2), 0)


def test_a_broker_that_goes_offline_is_no_longer_unresponsive(watched: Watched) -> None:
    watched.silent = {1}
    watched.look(7)
    watched.world.unregister(1)
    watched.candidate.catch_up()
    context = watched.candidate.controller.context
    assert context.unresponsive_broker_ids == context.shutting_down_broker_ids == set()


def test_an_unresponsive_broker_that_is_shutting_down_is_not_used_again(watched: Watched) -> None:
    watched.silent = {1}
    watched.look(7)
    context = watched.candidate.controller.context
    watched.handle(ControlledShutdown(5, 1, context.registrations[1].broker_epoch))
    watched.silent = set()
    watched.let_answer()
    assert context.shutting_down_broker_ids == {1}
    assert watched.world.leads(T0)[0] == 2


def test_brokers_are_not_checked_by_default() -> None:
    world = World()
    world.register(1)
    watched = Watched(world, timeout_ms=0)
    assert not any(
        isinstance(sent.request, LeaderAndIsrRequest)
        and sent.request.type is LeaderAndIsrType.INCREMENTAL
        and not sent.request.topic_states
        for sent in watched.unanswered
    )
    effects = Candidate(world, 8).start()
    assert not [e for e in of_type(effects, ScheduleEvent) if isinstance(e.event, CheckBrokers)]
