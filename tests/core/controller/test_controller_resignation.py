"""How a term ends: refused writes, lost sessions and failed events."""

from __future__ import annotations

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.controller import MAX_RESIGNATION_BACKOFF_MS
from regent.core.controller.effects import (
    AddBroker,
    BrokerRegistered,
    CancelScheduledEvents,
    ControllerRoleChanged,
    Effect,
    RemoveBroker,
    ScheduleEvent,
    SendResponse,
)
from regent.core.controller.events import (
    BrokerChange,
    ControlledShutdown,
    ControllerChange,
    ControllerEvent,
    Reelect,
    Resign,
    StandAgain,
    Startup,
    TopicChange,
)
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, TopicPartition
from regent.core.protocol.controller import ControlledShutdownResponse
from regent.zk.znodes import BrokerIdZNode, ControllerZNode
from tests.support.controller_parts import (
    Candidate,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
    requests,
)
from tests.support.fake_zookeeper import Call, FakeZooKeeper, act_once
from tests.support.world import T0, World, broker_info, delete, topic_id

CONTROLLER = "/controller"


class UnexpectedError(Exception):
    """An error that no handler expects."""


def lose_session_at(candidate: Candidate, path: str, method: str = "") -> None:
    """Expire the session just before a call that names ``path`` (of one method, if given)."""
    act_once(candidate.session, candidate.session.expire, path=path, method=method)


# --- a refused write ------------------------------------------------------------------------------


def assert_resigned(candidate: Candidate, effects: list[Effect], epoch: int = 1) -> None:
    """Check that the controller keeps nothing of the term."""
    controller = candidate.controller
    assert not controller.is_active
    assert {e.broker_id for e in of_type(effects, RemoveBroker)} == {0, 1, 2}
    assert CancelScheduledEvents() in effects
    assert ControllerRoleChanged(False, epoch) in effects
    fresh = ControllerContext()
    fresh.stats, fresh.event_id = controller.context.stats, controller.context.event_id
    fresh.now_ms = controller.context.now_ms
    assert vars(controller.context) == vars(fresh)


def fire_all_watches(world: World) -> None:
    """Change every znode that a controller watches."""
    world.register(8)
    world.put_topic("new", {0: (1,)}, topic_id(66))
    world.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (1,)}, topic_id(77))
    world.zookeeper.put(BrokerIdZNode.path(1), BrokerIdZNode.encode(broker_info(1, incarnation=7)))


@pytest.mark.parametrize(
    "event", [TopicChange(), BrokerChange(), ControlledShutdown(9, 1, UNKNOWN_BROKER_EPOCH)]
)
def test_a_refused_write_makes_the_controller_resign_and_look_again(
    world: World, active: Candidate, event: ControllerEvent
) -> None:
    world.put_topic("u", {0: (1,)}, topic_id(5))
    world.unregister(2)
    world.elect_another_controller()
    effects = active.handle(event)
    assert_resigned(active, effects)
    again = ScheduleEvent(1000, Reelect())
    assert effects.index(again) > effects.index(CancelScheduledEvents())
    assert requests(effects) == []
    assert world.state(TopicPartition("u", 0)) is None
    if isinstance(event, ControlledShutdown):
        refused = SendResponse(9, ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH))
        assert of_type(effects, SendResponse) == [refused]


def test_a_refused_failover_leaves_no_state_and_is_tried_again(world: World) -> None:
    candidate = Candidate(world, 0)
    act_once(candidate.session, world.elect_another_controller, method="multi_many")
    effects = candidate.start()
    assert_resigned(candidate, effects)
    assert ScheduleEvent(1000, Reelect()) in effects
    candidate.handle(Reelect())
    assert candidate.controller.is_active, "it replaces its own znode of the refused term"
    assert candidate.controller.context.epoch == 3


@pytest.mark.parametrize("how", ["deleted", "overwritten", "taken"])
def test_a_controller_that_finds_its_znode_lost_resigns_at_once(
    world: World, active: Candidate, how: str
) -> None:
    if how == "overwritten":
        world.zookeeper.put(CONTROLLER, ControllerZNode.encode(7, 0))
    else:
        delete(FakeZooKeeper(world.zookeeper), CONTROLLER)
    other = Candidate(world, 5)
    if how == "taken":
        other.handle(Startup())
    effects = active.catch_up()
    resigned = effects[: effects.index(ControllerRoleChanged(False, 1)) + 1]
    assert {e.broker_id for e in of_type(resigned, RemoveBroker)} == {0, 1, 2}
    assert active.controller.is_active == (how != "taken")
    assert world.controller_id() == (5 if how == "taken" else 0)
    assert active.controller.active_controller_id == world.controller_id()
    if how != "taken":
        assert active.controller.context.epoch == 2, "no other broker stood for election"


def test_after_a_resignation_only_the_controller_znode_is_watched(
    world: World, active: Candidate
) -> None:
    delete(FakeZooKeeper(world.zookeeper), CONTROLLER)
    Candidate(world, 5).handle(Startup())
    active.catch_up()
    fire_all_watches(world)
    assert list(active.inbox) == []
    world.zookeeper.put(CONTROLLER, ControllerZNode.encode(5, 1))
    assert list(active.inbox) == [ControllerChange()], "/controller is still watched"


def test_a_second_term_in_one_process_equals_a_first_term_in_a_new_process(
    world: World, active: Candidate
) -> None:
    active.expire()
    again = active.start()
    assert world.leads(T0) == (1, (1, 2), 0), "no election was necessary"
    active.session.close()
    fresh = Candidate(world, 0).start()
    assert [type(e) for e in again] == [type(e) for e in fresh]
    assert kinds(again) == kinds(fresh)
    assert [s.header.controller_epoch for s in requests(again)] == [2] * len(kinds(again))
    assert leader_and_isr_rows(again) == leader_and_isr_rows(fresh)
    assert metadata_rows(again) == metadata_rows(fresh)


# --- session expiry -------------------------------------------------------------------------------


def test_an_expired_session_ends_the_term(world: World, active: Candidate) -> None:
    effects = active.expire()
    assert_resigned(active, effects)
    assert active.controller.active_controller_id == -1
    assert of_type(effects, ScheduleEvent) == [], "the next session starts the next attempt"
    active.start()
    assert active.controller.is_active
    assert active.controller.context.epoch == 2


def test_an_expired_session_of_an_inactive_controller_has_no_effect(
    world: World, active: Candidate
) -> None:
    other = Candidate(world, 5)
    other.start()
    assert other.expire() == []
    assert other.controller.active_controller_id == -1


def test_an_event_interrupted_by_session_expiry_leaves_the_resignation_to_expire(
    world: World, active: Candidate
) -> None:
    epoch = active.controller.context.live_broker_epochs[1]
    lose_session_at(active, "/brokers/topics/t/partitions/0/state")
    effects = active.handle(ControlledShutdown(9, 1, epoch))
    refused = SendResponse(9, ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH))
    assert of_type(effects, SendResponse) == [refused]
    assert of_type(effects, RemoveBroker) == []
    assert_resigned(active, active.expire())


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/brokers/ids", "children"),
        ("/brokers/topics", "children"),
        ("/brokers/topics/t/partitions/1/state", ""),
    ],
)
def test_a_failover_interrupted_by_session_expiry_leaves_no_state(
    world: World, path: str, method: str
) -> None:
    candidate = Candidate(world, 0)
    lose_session_at(candidate, path, method)
    effects = candidate.handle(Startup())
    added = {e.registration.info.broker_id for e in of_type(effects, AddBroker)}
    ended = candidate.expire()
    assert added <= {e.broker_id for e in of_type(ended, RemoveBroker)}
    assert not candidate.controller.is_active
    assert list(candidate.controller.context.all_topics) == []
    candidate.start()
    assert candidate.controller.context.epoch == 2
    assert world.leads(T0) == (1, (1, 2), 0)


def test_a_registration_interrupted_by_session_expiry_is_repeated(
    world: World,
) -> None:
    candidate = Candidate(world, 0)
    lose_session_at(candidate, "/brokers/ids/0")
    assert candidate.start() == []
    candidate.expire()
    assert of_type(candidate.start(), BrokerRegistered) != []


# --- resignation after a failed event -------------------------------------------------------------


def test_a_resigned_controller_deletes_its_znode_and_waits(world: World, active: Candidate) -> None:
    effects = active.handle(Resign("TopicChange failed: a defect"))
    assert_resigned(active, effects)
    assert of_type(effects, ScheduleEvent) == [ScheduleEvent(1000, StandAgain())]
    assert world.controller_id() is None
    assert active.catch_up() == [], "Reelect is ignored during the pause"
    assert world.controller_id() is None
    other = Candidate(world, 5)
    other.start()
    assert other.controller.is_active
    assert active.handle(ControllerChange()) == []
    assert active.controller.active_controller_id == 5


def test_a_resigned_controller_is_elected_again_after_the_pause_if_there_is_no_other(
    world: World, active: Candidate
) -> None:
    active.handle(Resign("a defect"))
    effects = active.handle(StandAgain())
    assert ControllerRoleChanged(True, 2) in effects
    assert world.controller_id() == 0


def test_the_pause_doubles_up_to_one_minute(active: Candidate) -> None:
    pauses = []
    for _ in range(9):
        (pause,) = of_type(active.handle(Resign("a defect")), ScheduleEvent)
        pauses.append(pause.after_ms)
        active.handle(StandAgain())
    assert pauses[:3] == [1000, 2000, 4000]
    assert pauses[-1] == MAX_RESIGNATION_BACKOFF_MS


def test_the_pause_is_short_after_a_long_term(active: Candidate) -> None:
    for _ in range(3):
        active.handle(Resign("a defect"))
        active.handle(StandAgain())
    late_ms = active.now_ms + MAX_RESIGNATION_BACKOFF_MS + 1
    (pause,) = of_type(active.controller.handle(Resign("a defect"), late_ms), ScheduleEvent)
    assert pause.after_ms == 1000


def test_the_pause_is_short_when_the_next_term_sets_the_failed_event_aside(
    active: Candidate,
) -> None:
    for _ in range(3):
        active.handle(Resign("a defect"))
        active.handle(StandAgain())
    pauses = []
    for _ in range(4):
        resign = Resign("TopicChange failed: a defect", "TopicChange")
        (pause,) = of_type(active.handle(resign), ScheduleEvent)
        pauses.append(pause.after_ms)
        active.handle(StandAgain())
    assert pauses == [8000, 1000, 2000, 4000], "short once, when the event is first set aside"


def test_a_resignation_after_a_lost_election_does_not_disturb_the_new_controller(
    world: World, active: Candidate
) -> None:
    delete(FakeZooKeeper(world.zookeeper), CONTROLLER)
    other = Candidate(world, 5)
    other.handle(Startup())
    effects = active.handle(Resign("a defect"))
    assert_resigned(active, effects)
    assert world.controller_id() == 5
    assert ScheduleEvent(1000, StandAgain()) in effects


def test_an_inactive_controller_also_waits_after_a_resignation(
    world: World, active: Candidate
) -> None:
    other = Candidate(world, 5)
    other.start()
    assert other.handle(Resign("a defect")) == [ScheduleEvent(1000, StandAgain())]
    active.session.close()
    other.catch_up()
    assert world.controller_id() is None
    other.handle(StandAgain())
    assert world.controller_id() == 5


def test_the_next_event_undoes_what_a_failed_event_began(world: World) -> None:
    def hook(call: Call) -> None:
        if "/brokers/topics/t" in call.paths:
            candidate.session.hook = None
            raise UnexpectedError

    candidate = Candidate(world, 0)
    candidate.session.hook = hook
    with pytest.raises(UnexpectedError):
        candidate.start()
    effects = candidate.handle(Resign("RegisterBrokerAndReelect failed"))
    assert isinstance(effects[0], BrokerRegistered), "the broker still needs its epoch"
    added = {e.registration.info.broker_id for e in of_type(effects, AddBroker)}
    assert added == {e.broker_id for e in of_type(effects, RemoveBroker)} == {0, 1, 2}
    assert_resigned(candidate, effects)
    assert world.controller_id() is None
    candidate.handle(StandAgain())
    assert candidate.controller.context.epoch == 2


@pytest.mark.parametrize("garbage", [b"seven", b"", b"2147483648"])
def test_an_unreadable_controller_epoch_is_overwritten(world: World, garbage: bytes) -> None:
    world.zookeeper.put("/controller_epoch", garbage)
    candidate = Candidate(world, 0)
    candidate.start()
    assert world.controller_id() == 0
    written = world.zookeeper.snapshot()["/controller_epoch"].data.decode()
    assert written == str(candidate.controller.context.epoch)
