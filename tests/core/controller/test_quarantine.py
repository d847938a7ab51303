"""Handlers that raise: the third controller quarantines the event or topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import pytest

from regent.core.controller import events
from regent.core.controller.context import ControllerContext
from regent.core.controller.controller import Controller
from regent.core.controller.effects import BrokerRegistered, Effect, ScheduleEvent, SendResponse
from regent.core.controller.election.leader_elections import LeaderElections
from regent.core.controller.events import ControllerEvent, TopicChange
from regent.core.controller.partition_entries import PartitionEntry
from regent.core.controller.quarantine import (
    FIRST_MINUTE_MS,
    MAX_FAILURES,
    Quarantine,
    resignation,
)
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.errors import ApiError, Errors
from regent.core.model import EndPoint, PartitionAndReplica, ReplicaAssignment, TopicPartition
from regent.core.ports import ControllerFailure
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    NoteOperationRequest,
    UndeleteTopicRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.zk.client.operations import ConnectionLossError
from regent.zk.znodes import (
    ControllerFailuresZNode,
    DeleteTopicsTopicZNode,
    TopicPartitionStateZNode,
)
from tests.support.controller_parts import Candidate, of_type
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Moment
from tests.support.world import T0, World, delete, topic_id

EVIL = TopicPartition("evil", 0)
RECORDS = ControllerFailuresZNode.PATH
PAUSE_MS = 60_000


class PlantedError(Exception):
    """An error that no handler expects."""


class ThreeControllers:
    """Brokers 0, 8 and 9 with controllers; it handles errors as the event manager does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.candidates = [Candidate(world, broker_id) for broker_id in (0, 8, 9)]
        self.waiting: deque[tuple[Candidate, ControllerEvent]] = deque()
        self.failures = 0
        for candidate in self.candidates:
            self.deliver(candidate, events.RegisterBrokerAndReelect())
        self.settle()

    @property
    def active(self) -> Candidate | None:
        """The active controller, if there is one."""
        return next((c for c in self.candidates if c.controller.is_active), None)

    def deliver(self, candidate: Candidate, event: ControllerEvent) -> list[Effect]:
        """Let a controller handle an event; after an error it resigns and stands again later."""
        try:
            effects = candidate.handle(event)
        except Exception as error:  # noqa: BLE001 - as the event manager does
            self.failures += 1
            effects = self._resign(candidate, resignation(event, error))
        for timer in of_type(effects, ScheduleEvent):
            if isinstance(timer.event, events.StandAgain | events.Reelect):
                self.waiting.append((candidate, timer.event))
        return effects

    def _resign(self, candidate: Candidate, resign: events.Resign) -> list[Effect]:
        try:
            return candidate.handle(resign)
        except PlantedError:
            self.waiting.append((candidate, events.Reelect()))
            return candidate.handle(events.Expire())

    def settle(self, *, pauses: int = 30) -> None:
        """Handle all events of watches; while there is no active controller, end pauses."""
        for _ in range(pauses):
            while any(c.inbox for c in self.candidates):
                for candidate in self.candidates:
                    while candidate.inbox:
                        self.deliver(candidate, candidate.inbox.popleft())
            if self.active is not None or not self.waiting:
                return
            for candidate in self.candidates:
                candidate.now_ms += PAUSE_MS
            self.deliver(*self.waiting.popleft())

    def tell_active(self, event: ControllerEvent) -> list[Effect]:
        """Let the active controller handle an event."""
        self.settle()
        active = self.active
        assert active is not None
        if not isinstance(event, events.Expire):
            return self.deliver(active, event)
        active.session.expire()
        effects = self.deliver(active, event)
        active.session.renew(active.on_watch)
        self.deliver(active, events.RegisterBrokerAndReelect())
        return effects

    def records(self) -> dict[str, int]:
        """Return how many controllers each failed event or topic has ended."""
        node = self.world.zookeeper.snapshot().get(RECORDS)
        failures = () if node is None else ControllerFailuresZNode.decode(node.data)
        return {f.what: f.controllers for f in failures}


@pytest.fixture
def cluster(world: World) -> ThreeControllers:
    world.put_topic("evil", {0: (1, 2)}, topic_id(66))
    return ThreeControllers(world)


HEADER = ControlHeader(0, 1, 1)
VALUES: dict[str, Any] = {
    "reason": "a test",
    "event": "",
    "topic": "evil",
    "topics": None,
    "topic_partition": EVIL,
    "broker_id": 1,
    "broker_epoch": 1,
    "controller_epoch": 1,
    "epoch_zk_version": 0,
    "request_id": 7,
    "enabled": False,
    "header": HEADER,
    "answered_ms": 0.0,
    "endpoints": (EndPoint("PLAINTEXT", "elsewhere", 1),),
}
REQUESTS: dict[type, dict[str, Any]] = {
    events.OperationNoted: {"request": NoteOperationRequest("somebody", "did it")},
    events.UndeleteTopic: {"request": UndeleteTopicRequest("evil", topic_id(66), 1, ())},
    events.AlterPartitionReceived: {"request": AlterPartitionRequest(1, 1, ())},
    events.ReplicaLeaderElection: {"request": ElectLeadersRequest.of(ElectionType.PREFERRED, ())},
    events.ApiPartitionReassignment: {"request": AlterPartitionReassignmentsRequest.of({})},
    events.ListPartitionReassignments: {"request": ListPartitionReassignmentsRequest.of(None)},
    events.LeaderAndIsrResponseReceived: {
        "request": LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ()),
        "response": LeaderAndIsrResponse(Errors.NONE, ()),
    },
    events.UpdateMetadataResponseReceived: {"response": UpdateMetadataResponse(Errors.NONE)},
    events.TopicDeletionStopReplicaResponseReceived: {
        "request": StopReplicaRequest(()),
        "response": StopReplicaResponse(Errors.NONE),
    },
}
EVENTS: tuple[type[ControllerEvent], ...] = get_args(ControllerEvent)


def example(kind: type[ControllerEvent]) -> ControllerEvent:
    """Return an event of a type; the fields of a new type need only values in ``VALUES``."""
    values = VALUES | REQUESTS.get(kind, {})
    return kind(**{field.name: values[field.name] for field in fields(kind)})


@pytest.fixture
def poisoned(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> type[ControllerEvent]:
    """An event type whose handling always raises, before or after its work."""
    kind: type[ControllerEvent] = request.param[0]
    moment: str = request.param[1]
    dispatch = Controller._dispatch

    def poisoned_dispatch(self: Controller, event: ControllerEvent, now_ms: int) -> None:
        if moment == "after" or type(event) is not kind:
            dispatch(self, event, now_ms)
        is_left_alone = not self.is_active or self._quarantine.has_event(
            resignation(event, PlantedError()).event
        )
        if type(event) is kind and not is_left_alone:
            raise PlantedError(kind.__name__)
        if type(event) is kind and moment == "before":
            dispatch(self, event, now_ms)

    monkeypatch.setattr(Controller, "_dispatch", poisoned_dispatch)
    return kind


@pytest.mark.parametrize(
    "poisoned",
    [(kind, moment) for kind in EVENTS for moment in ("before", "after")],
    indirect=True,
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def test_the_cluster_continues_when_any_handler_raises(
    cluster: ThreeControllers, poisoned: type[ControllerEvent]
) -> None:
    for _ in range(
        12
    ):  # topics are quarantined first, as many as one event may name, then the event
        cluster.tell_active(example(poisoned))
    cluster.settle()
    active = cluster.active
    assert active is not None
    cluster.failures = 0
    if poisoned is events.BrokerChange:  # without broker changes, only new topics can be seen
        cluster.world.put_topic("new", {0: (2, 1)}, topic_id(5))
        cluster.settle()
        assert cluster.world.leads(TopicPartition("new", 0))[0] == 2
    else:
        cluster.world.unregister(1)
        cluster.settle()
        assert cluster.world.leads(T0)[0] == 2
    elections = (events.Startup, events.ControllerChange, events.Reelect, events.StandAgain)
    others = (events.Expire, events.Resign, events.RegisterBrokerAndReelect)
    if poisoned not in (*elections, *others):
        assert cluster.active is active
        assert cluster.failures == 0, "the event is quarantined"


def raise_planted(*_: Any) -> None:
    """Raise an unexpected error."""
    raise PlantedError


def raise_for_evil(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises when an argument is about the topic ``evil``."""

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            has_partition = isinstance(value, PartitionAndReplica | PartitionEntry)
            partition = value.topic_partition if has_partition else value
            if "evil" in (partition, getattr(partition, "topic", None)):
                raise PlantedError(function.__name__)
        return function(*args, **kwargs)

    return poisoned


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (TopicChanges, "_with_topic_id"),
        (ControllerContext, "add_topic"),
        (ControllerContext, "add_partitions"),
        (ControllerContext, "put_partition_leadership_info"),
        (ControllerContext, "_set_state"),
        (ControlRequestBatch, "_leader_and_isr_row"),
    ],
)
def test_a_topic_that_ends_two_controllers_is_quarantined_by_the_third(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    world = cluster.world
    monkeypatch.setattr(owner, name, raise_for_evil(getattr(owner, name)))
    first = cluster.active
    assert first is not None
    delete(FakeZooKeeper(world.zookeeper), "/controller")
    cluster.settle()
    assert cluster.failures == 2
    active = cluster.active
    assert active is not None
    assert cluster.records() == {"topic evil": 2}
    assert active.controller.context.epoch == 4
    (reason,) = active.controller.context.bad_topics.values()
    assert "evil failed" in reason or "about topic evil: PlantedError" in reason
    world.unregister(1)
    cluster.settle()
    assert world.leads(T0)[0] == 2
    assert (cluster.failures, cluster.active) == (2, active)


@pytest.fixture
def quarantined(cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch) -> ThreeControllers:
    """A cluster whose third controller has quarantined ``evil``; the cause is repaired."""
    with monkeypatch.context() as patched:
        patched.setattr(ControllerContext, "add_topic", raise_for_evil(ControllerContext.add_topic))
        delete(FakeZooKeeper(cluster.world.zookeeper), "/controller")
        cluster.settle()
    cluster.world.unregister(1)
    cluster.settle()
    assert cluster.world.leads(EVIL)[0] == 1, "a topic that is quarantined gets no new leader"
    return cluster


def test_a_topic_is_tried_again_when_its_znode_changes(quarantined: ThreeControllers) -> None:
    quarantined.world.put_topic("evil", {0: (1, 2), 1: (2, 1)}, topic_id(66))
    quarantined.settle()
    assert quarantined.world.leads(EVIL)[0] == 2
    assert quarantined.records() == {}


def test_a_topic_is_tried_again_when_the_record_is_deleted(quarantined: ThreeControllers) -> None:
    delete(FakeZooKeeper(quarantined.world.zookeeper), RECORDS)
    quarantined.settle()
    assert quarantined.world.leads(EVIL)[0] == 2


def test_a_topic_to_be_deleted_is_not_led_although_deletion_is_quarantined(
    cluster: ThreeControllers,
) -> None:
    """It may have lost its states: it would begin in a leader epoch that brokers know."""
    zookeeper = cluster.world.zookeeper
    failure = ControllerFailure("TopicDeletion", "TopicDeletion", "a test", 2, 0, 1)
    zookeeper.put(RECORDS, ControllerFailuresZNode.encode([failure]))
    cluster.settle()
    zookeeper.put(DeleteTopicsTopicZNode.path("evil"))
    state = TopicPartitionStateZNode.path(EVIL)
    zookeeper.remove(state)
    zookeeper.remove("/controller")
    cluster.settle()
    assert state not in zookeeper.snapshot()
    delete(FakeZooKeeper(zookeeper), RECORDS)
    cluster.settle()
    assert cluster.active is not None
    context = cluster.active.controller.context
    assert state not in zookeeper.snapshot()
    assert context.topics_to_be_deleted == {"evil"}
    assert not context.topics_ineligible_for_deletion


def test_the_event_that_ends_quarantines_is_never_quarantined(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, new = cluster.world, TopicPartition("new", 0)
    failure = ControllerFailure("TopicChange", "TopicChange", "a test", 2, 0, 1)
    world.zookeeper.put(RECORDS, ControllerFailuresZNode.encode([failure]))
    with monkeypatch.context() as patched:
        patched.setattr(Quarantine, "on_change", raise_planted)
        for _ in range(3):
            cluster.tell_active(events.ControllerFailuresChange())
        cluster.settle()
    world.put_topic("new", {0: (2, 1)}, topic_id(5))
    cluster.settle()
    assert TopicPartitionStateZNode.path(new) not in world.zookeeper.snapshot(), (
        "it skips TopicChange"
    )
    delete(FakeZooKeeper(world.zookeeper), RECORDS)
    cluster.settle()
    assert world.leads(new)[0] == 2


def test_reassignments_set_aside_continue_when_the_record_is_deleted(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has no targets: the topic's znode has the assignment to continue."""
    moving = ReplicaAssignment((8, 1, 2), adding_replicas=(8,), removing_replicas=(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(Reassignments, "resume", raise_planted)
        cluster.world.put_topic("t", {0: moving}, topic_id(77))
        delete(FakeZooKeeper(cluster.world.zookeeper), "/controller")
        cluster.settle()
    assert "ZkPartitionReassignment" in cluster.records()
    leader, isr, epoch = cluster.world.leads(T0)
    delete(FakeZooKeeper(cluster.world.zookeeper), RECORDS)
    cluster.settle()
    assert cluster.world.leads(T0) == (leader, isr, epoch + 1), (
        "the first epoch of the reassignment"
    )


def test_a_new_topic_of_the_same_name_is_not_set_aside(quarantined: ThreeControllers) -> None:
    quarantined.world.delete_topic("evil")
    quarantined.settle()
    assert quarantined.records() == {}
    quarantined.world.put_topic("evil", {0: (2, 1)}, topic_id(67))
    quarantined.settle()
    assert quarantined.world.leads(EVIL)[0] == 2


@pytest.mark.parametrize("fate", ["repaired", "removed", "replaced"])
def test_a_deletion_of_a_topic_that_is_quarantined_waits(
    quarantined: ThreeControllers, fate: str
) -> None:
    request = DeleteTopicsTopicZNode.path("evil")
    quarantined.world.zookeeper.put(request)
    quarantined.settle()
    assert request in quarantined.world.zookeeper.snapshot()
    if fate == "repaired":
        quarantined.world.put_topic("evil", {0: (1, 2), 1: (2, 1)}, topic_id(66))
    else:
        quarantined.world.delete_topic("evil")
    if fate == "replaced":  # before the controller looks
        quarantined.world.put_topic("evil", {0: (2, 1)}, topic_id(67))
    quarantined.settle()
    assert quarantined.active is not None
    is_to_go = quarantined.active.controller.context.is_topic_queued_for_deletion("evil")
    assert is_to_go == (fate == "repaired")
    assert (request in quarantined.world.zookeeper.snapshot()) == is_to_go, (
        "the request was for an earlier topic"
    )


def test_later_controllers_also_set_the_topic_aside(quarantined: ThreeControllers) -> None:
    for _ in range(3):
        delete(FakeZooKeeper(quarantined.world.zookeeper), "/controller")
        quarantined.settle()
    assert quarantined.active is not None
    assert set(quarantined.active.controller.context.bad_topics) == {"evil"}
    assert quarantined.records() == {"topic evil": 2}


def test_the_rebalance_timer_is_scheduled_again_although_it_is_quarantined(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebalance continues in the same term when the cause is repaired."""

    def fail(*_: object) -> None:
        raise PlantedError

    monkeypatch.setattr(LeaderElections, "rebalance", fail)
    for _ in range(3):
        cluster.settle()
        assert cluster.active is not None
        epoch = cluster.active.controller.context.epoch
        event = events.AutoPreferredReplicaLeaderElection(epoch)
        effects = cluster.tell_active(event)
    assert cluster.records() == {"AutoPreferredReplicaLeaderElection": 2}
    assert event in [effect.event for effect in of_type(effects, ScheduleEvent)]


def test_failures_after_the_first_minute_of_a_term_count_once(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Controller, "_read_again", raise_for_evil(lambda *_, **__: 1 / 0))
    for _ in range(4):
        assert cluster.active is not None
        cluster.active.now_ms += FIRST_MINUTE_MS
        epoch = cluster.active.controller.context.epoch
        cluster.tell_active(events.ReadAgain(epoch))
        cluster.settle()
    assert cluster.records() == {"ReadAgain": 1}


def test_a_request_that_is_quarantined_gets_an_error(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PlantedError

    monkeypatch.setattr(Reassignments, "ongoing", fail)
    request = events.ListPartitionReassignments(7, ListPartitionReassignmentsRequest.of())
    cluster.tell_active(request)
    cluster.tell_active(request)
    (reply,) = of_type(cluster.tell_active(request), SendResponse)
    assert reply.request_id == 7
    assert reply.response == ListPartitionReassignmentsResponse.of(
        {}, ApiError(Errors.UNKNOWN_SERVER_ERROR)
    )


def test_a_deposed_controller_records_no_failure(
    cluster: ThreeControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = cluster.active
    assert active is not None
    cluster.world.elect_another_controller()
    active.handle(resignation(TopicChange(), PlantedError()))
    assert RECORDS not in cluster.world.zookeeper.snapshot()


def test_a_failure_counts_once_although_the_response_to_its_write_is_lost(
    cluster: ThreeControllers,
) -> None:
    active = cluster.active
    assert active is not None
    session = active.session

    def lose_the_answer(call: Call) -> None:
        if RECORDS in call.paths and call.moment is Moment.AFTER and "multi" in call.method:
            session.hook = None
            raise ConnectionLossError("a test")

    cluster.world.zookeeper.put(RECORDS, ControllerFailuresZNode.encode(()))
    session.hook = lose_the_answer
    active.handle(resignation(TopicChange(), PlantedError()))
    assert cluster.records() == {"TopicChange": 1}


def test_the_failure_records_are_bounded_and_unreadable_records_are_dropped(
    cluster: ThreeControllers,
) -> None:
    many = [ControllerFailure(f"event {n}", "e", "x" * 300, 1, 0, 1) for n in range(MAX_FAILURES)]
    cluster.world.zookeeper.put(RECORDS, ControllerFailuresZNode.encode(many))
    active = cluster.active
    assert active is not None
    active.handle(resignation(TopicChange(), PlantedError("y" * 10_000)))
    records = cluster.records()
    assert len(records) == MAX_FAILURES
    assert "event 0" not in records
    assert records["TopicChange"] == 1
    assert len(cluster.world.zookeeper.snapshot()[RECORDS].data) < 50_000
    cluster.world.zookeeper.put(RECORDS, b"garbage")
    cluster.settle()
    assert cluster.active is not None


def test_hidden_failure_records_quarantine_nothing(cluster: ThreeControllers) -> None:
    cluster.world.zookeeper.put(RECORDS, ControllerFailuresZNode.encode([]))
    cluster.world.zookeeper.deny(RECORDS)
    delete(FakeZooKeeper(cluster.world.zookeeper), "/controller")
    cluster.settle()
    assert cluster.active is not None
    assert cluster.failures == 0


def test_a_registration_that_fails_unexpectedly_is_tried_again(world: World) -> None:
    def hook(call: Call) -> None:
        if (
            call.method == "multi"
            and "/brokers/ids/0" in call.paths
            and call.moment is Moment.AFTER
        ):
            candidate.session.hook = None
            raise PlantedError

    candidate = Candidate(world, 0)
    candidate.session.hook = hook
    effects = candidate.start()
    (again,) = [e.event for e in of_type(effects, ScheduleEvent)]
    assert isinstance(again, events.RegisterBrokerAndReelect)
    (registered,) = of_type(candidate.handle(again), BrokerRegistered)
    assert registered.broker_epoch == world.zookeeper.snapshot()["/brokers/ids/0"].stat.czxid
