"""AlterPartition requests are sent one at a time and repeated after a failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic

import pytest
from pykka import ActorRef

from regent.actors.alter_partition_sender import (
    AlterPartitionSender,
    ControllerAlterPartitionSender,
    SendPending,
)
from regent.actors.broker import Broker, Registered
from regent.actors.request_channel import ControllerUnknownError
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeMetadataRequest
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from regent.core.replication.replica_manager import ReplicaManager
from regent.testing.waits import scaled
from tests.support.replicas import PARTITION, alive, fetch, lead_and_follow, leader_of_two
from tests.support.stage import (
    TIMEOUT_S,
    BrokenChannelError,
    Stage,
    actor_of,
    ask,
    replication_endpoint,
)

ENDPOINTS = {b: replication_endpoint(b) for b in (0, 1, 2)}
STOPS_AT_ONCE_S = scaled(1.0)


@pytest.fixture
def leader(stage: Stage) -> Broker:
    return leader_of_two(stage, ENDPOINTS)


def isr(leader: Broker) -> tuple[int, ...]:
    return leader.replica_manager.partitions[PARTITION].isr


def accept(request: AlterPartitionRequest, partition_epoch: int = 1) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        Errors.NONE,
        tuple(
            AlteredPartition(
                row.topic,
                row.partition,
                Errors.NONE,
                request.broker_id,
                row.leader_epoch,
                row.new_isr,
                row.leader_recovery_state,
                partition_epoch,
            )
            for row in request.partitions
        ),
    )


def refuse(error: Errors) -> AlterPartitionResponse:
    return AlterPartitionResponse(Errors.NONE, (AlteredPartition(*PARTITION, error),))


class ScriptedSender(AlterPartitionSender):
    """Gives scripted answers, then accepts every proposal."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        *script: AlterPartitionResponse | Exception,
    ) -> None:
        super().__init__("sender", replica_manager, scheduler)
        self.accepted: queue.Queue[AlterPartitionRequest] = queue.Queue()
        self._script = list(script)

    def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if not self._script:
            self.accepted.put(request)
            return accept(request)
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "failure",
    [
        BrokenChannelError(),
        ControllerUnknownError("no active controller"),
        AlterPartitionResponse(Errors.NOT_CONTROLLER),
        AlterPartitionResponse(Errors.STALE_BROKER_EPOCH),
        refuse(Errors.NOT_CONTROLLER),
        AlterPartitionResponse(Errors.NONE),
        ValueError("a defect"),
    ],
    ids=[
        "no answer",
        "no controller",
        "not the controller",
        "stale broker epoch",
        "a deposed controller",
        "an answer without the partition",
        "defect",
    ],
)
def test_a_proposal_is_repeated_until_it_is_answered(
    stage: Stage, leader: Broker, failure: AlterPartitionResponse | Exception
):
    ref = start_actor(
        ScriptedSender, leader.replica_manager, stage.scheduler("s"), failure, failure
    )
    sender = actor_of(ref)
    ref.tell(SendPending())
    (row,) = sender.accepted.get(timeout=TIMEOUT_S).partitions
    assert (row.topic_partition, row.new_isr) == (PARTITION, (1, 2))
    assert stop_actor(ref, TIMEOUT_S)
    assert isr(leader) == (1, 2)
    assert sender.requests == 3


def test_a_wake_up_does_not_shorten_the_pause_after_a_failure(stage: Stage, leader: Broker):
    failed_at: list[float] = []

    class Timed(ScriptedSender):
        def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
            failed_at.append(monotonic())
            return super().alter_partitions(request)

    ref = start_actor(Timed, leader.replica_manager, stage.scheduler("s"), BrokenChannelError())
    while len(failed_at) < 2:
        ref.tell(SendPending())
    assert stop_actor(ref, TIMEOUT_S)
    first, second = failed_at
    assert second - first >= 0.045


def test_an_unregistered_broker_waits_longer_after_each_refusal_until_it_is_registered(
    stage: Stage, leader: Broker
):
    asked: queue.Queue[tuple[float, int]] = queue.Queue()
    unregistered = leader.replica_manager.broker_epoch

    class Deposing(ScriptedSender):
        def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
            asked.put((monotonic(), request.broker_epoch))
            if request.broker_epoch == unregistered:
                return AlterPartitionResponse(Errors.STALE_BROKER_EPOCH)
            return super().alter_partitions(request)

    scheduler = stage.scheduler("s")
    ref = start_actor(Deposing, leader.replica_manager, scheduler)
    ref.tell(SendPending())
    times = [asked.get(timeout=TIMEOUT_S)[0] for _ in range(5)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for gap, at_least in zip(gaps, (0.045, 0.095, 0.195, 0.395), strict=True):
        assert gap >= at_least
    scheduler.shutdown()  # no timer ends the pause
    leader.actor_ref.tell(Registered(unregistered + 1))
    while leader.replica_manager.broker_epoch == unregistered:
        ask(leader.actor_ref, DescribeMetadataRequest())
    ref.tell(SendPending())
    assert asked.get(timeout=TIMEOUT_S)[1] == unregistered + 1, "the pause is over"
    assert stop_actor(ref, TIMEOUT_S)
    assert isr(leader) == (1, 2)


def test_no_request_is_sent_without_a_proposal(stage: Stage, leader: Broker):
    ref = start_actor(ScriptedSender, leader.replica_manager, stage.scheduler("s"))
    sender = actor_of(ref)
    for _ in range(3):
        ref.tell(SendPending())
    sender.accepted.get(timeout=TIMEOUT_S)
    ask(leader.actor_ref, lead_and_follow(1, (1, 2), isr=(1,), leader_epoch=1, partition_epoch=1))
    leader.replica_manager.fetch(fetch(2, leader_epoch=1), 0, lambda _: None)
    ref.tell(SendPending())
    sender.accepted.get(timeout=TIMEOUT_S)
    assert stop_actor(ref, TIMEOUT_S)
    assert sender.requests == 2


# --- requests to a controller ---------------------------------------------------------------------


class ScriptedController:
    """The control endpoint of a remote controller."""

    def __init__(self) -> None:
        self.endpoints: queue.Queue[str] = queue.Queue()
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.closed = 0

    def open(self, endpoint: str) -> ScriptedController:
        self.endpoints.put(endpoint)
        return self

    def request(
        self,
        body: AlterPartitionRequest,
        *,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> AlterPartitionResponse:
        self.asked.set()
        if not self.answers.is_set():
            assert closing is not None
            closing.wait(timeout_ms / 1000)
            raise BrokenChannelError
        return accept(body)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def elsewhere() -> ScriptedController:
    return ScriptedController()


@pytest.fixture
def sender(
    stage: Stage, leader: Broker, elsewhere: ScriptedController
) -> Iterator[ActorRef[ControllerAlterPartitionSender]]:
    ref = start_actor(
        ControllerAlterPartitionSender,
        leader.replica_manager,
        leader.cache,
        stage.controller(1),
        elsewhere.open,
        scheduler=stage.scheduler("s"),
        timeout_ms=60_000,
    )
    yield ref
    stop_actor(ref, TIMEOUT_S)


def test_the_sender_waits_for_a_controller_and_finds_it_through_its_broker(
    stage: Stage,
    leader: Broker,
    elsewhere: ScriptedController,
    sender: ActorRef[ControllerAlterPartitionSender],
):
    sender.tell(SendPending())
    actor = actor_of(sender)
    stage.wait_for(lambda: actor.requests >= 2)
    assert elsewhere.endpoints.empty(), "no controller is known"
    ask(leader.actor_ref, alive(ENDPOINTS, controller=2, control_endpoint="inproc://control-2"))
    stage.wait_for(lambda: isr(leader) == (1, 2))
    assert elsewhere.endpoints.get(timeout=TIMEOUT_S) == "inproc://control-2"


def test_a_controller_on_the_same_broker_is_asked_directly(
    stage: Stage,
    leader: Broker,
    elsewhere: ScriptedController,
    sender: ActorRef[ControllerAlterPartitionSender],
):
    registration = stage.zookeeper.snapshot()["/brokers/ids/1"]
    ask(leader.actor_ref, alive(ENDPOINTS, controller=1, control_endpoint="inproc://control-1"))
    leader.actor_ref.tell(Registered(registration.stat.czxid))
    sender.tell(SendPending())
    # The controller does not know the topic: the proposal waits for a LeaderAndIsr.
    stage.wait_for(lambda: leader.replica_manager.counters.failed_isr_updates > 0)
    assert elsewhere.endpoints.empty()
    assert stage.unexpected == []


def test_the_sender_stops_at_once_while_the_controller_does_not_answer(
    leader: Broker,
    elsewhere: ScriptedController,
    sender: ActorRef[ControllerAlterPartitionSender],
):
    elsewhere.answers.clear()
    ask(leader.actor_ref, alive(ENDPOINTS, controller=2, control_endpoint="inproc://control-2"))
    sender.tell(SendPending())
    assert elsewhere.asked.wait(TIMEOUT_S)
    assert stop_actor(sender, STOPS_AT_ONCE_S)
    assert elsewhere.closed == 1
    assert leader.replica_manager.alter_partition_request() is not None, (
        "the proposal is pending again"
    )
