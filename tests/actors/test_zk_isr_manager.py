"""A leader that writes its ISRs itself, and tells the controller when that is over."""

from __future__ import annotations

import pytest
from pykka import ActorRef

import regent.core.replication.isr_change_propagation
from regent.actors.alter_partition_sender import SendPending
from regent.actors.broker import Broker
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.zk_isr_manager import PropagateIsrChanges, ZkIsrManager
from regent.core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch
from regent.zk.codecs.admin_znodes import (
    IsrChangeNotificationSequenceZNode,
    IsrChangeNotificationZNode,
)
from regent.zk.codecs.znodes import TopicPartitionStateZNode
from regent.zk.stores.isr_store import ZkIsrStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.replicas import PARTITION, leader_of_two
from tests.support.stage import TIMEOUT_S, Stage, replication_endpoint

ENDPOINTS = {b: replication_endpoint(b) for b in (1, 2)}
STATE = TopicPartitionStateZNode.path(PARTITION)
ORDERED_BY = 1  # the controller epoch of every order


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


@pytest.fixture
def leader(stage: Stage) -> Broker:
    return leader_of_two(stage, ENDPOINTS)


@pytest.fixture
def session(stage: Stage) -> FakeZooKeeper:
    return FakeZooKeeper(stage.zookeeper)


@pytest.fixture
def manager(stage: Stage, leader: Broker, session: FakeZooKeeper):
    ref = start_actor(
        ZkIsrManager,
        TIMEOUT_S,
        leader.replica_manager,
        ZkIsrStore(session),
        scheduler=stage.scheduler("s"),
    )
    yield ref
    stop_actor(ref, TIMEOUT_S)


def put_state(stage: Stage, isr: tuple[int, ...]) -> None:
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, isr), ORDERED_BY)
    stage.zookeeper.put(STATE, TopicPartitionStateZNode.encode(state))


def stored(stage: Stage) -> LeaderIsrAndControllerEpoch:
    node = stage.zookeeper.snapshot()[STATE]
    return TopicPartitionStateZNode.decode(node.data, node.stat.version)


def notifications(stage: Stage) -> list[bytes]:
    prefix = IsrChangeNotificationSequenceZNode.PATH_PREFIX
    return [n.data for path, n in stage.zookeeper.snapshot().items() if path.startswith(prefix)]


def isr(leader: Broker) -> tuple[int, ...]:
    return leader.replica_manager.partitions[PARTITION].isr


def test_a_leader_writes_the_isr_it_proposes(
    stage: Stage, leader: Broker, manager: ActorRef[ZkIsrManager]
):
    put_state(stage, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    assert stored(stage) == LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1, 2), 0, 1), ORDERED_BY)


def test_the_controller_is_told_after_a_while(
    stage: Stage,
    leader: Broker,
    manager: ActorRef[ZkIsrManager],
    monkeypatch: pytest.MonkeyPatch,
):
    stage.zookeeper.put(IsrChangeNotificationZNode.PATH)
    put_state(stage, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    manager.tell(PropagateIsrChanges())
    assert notifications(stage) == [], "more may change"
    monkeypatch.setattr(regent.core.replication.isr_change_propagation, "LINGER_MS", 0)

    def is_told() -> bool:
        manager.tell(PropagateIsrChanges())
        return bool(notifications(stage))

    stage.wait_for(is_told)
    assert stop_actor(manager, TIMEOUT_S)
    (data,) = notifications(stage)
    assert IsrChangeNotificationSequenceZNode.decode(data) == (PARTITION,)


def test_what_cannot_be_told_is_told_later(
    stage: Stage,
    leader: Broker,
    manager: ActorRef[ZkIsrManager],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(regent.core.replication.isr_change_propagation, "LINGER_MS", -1)
    put_state(stage, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    for _ in range(3):
        manager.tell(PropagateIsrChanges())  # there is no place for notifications
    stage.zookeeper.put(IsrChangeNotificationZNode.PATH)

    def is_told() -> bool:
        manager.tell(PropagateIsrChanges())
        return bool(notifications(stage))

    stage.wait_for(is_told)
    actor = manager._actor_weakref()
    assert actor is not None
    assert actor.activity.failures == 0


def test_between_sessions_it_tries_again(
    stage: Stage, leader: Broker, session: FakeZooKeeper, manager: ActorRef[ZkIsrManager]
):
    stage.zookeeper.expire(session.session_id)
    manager.tell(SendPending())
    actor = manager._actor_weakref()
    assert actor is not None
    stage.wait_for(lambda: actor.requests >= 2)
    assert actor.activity.failures == 0
    assert isr(leader) == (1,)


def test_a_leader_that_was_deposed_leaves_the_state_alone(
    stage: Stage, leader: Broker, manager: ActorRef[ZkIsrManager]
):
    put_state(stage, (1,))
    newer = LeaderIsrAndControllerEpoch(LeaderAndIsr(2, (2,), 1), ORDERED_BY)
    stage.zookeeper.put(STATE, TopicPartitionStateZNode.encode(newer))
    manager.tell(SendPending())
    stage.wait_for(lambda: leader.replica_manager.counters.failed_isr_updates == 1)
    assert stored(stage).leader_and_isr.leader == 2
    assert isr(leader) == (1,)
