"""A leader that writes its ISR to ZooKeeper and notifies the controller later."""

from __future__ import annotations

import pytest
from pykka import ActorRef

import regent.core.replication.isr_change_propagation
from regent.actors.alter_partition_sender import PropagateIsrChanges, SendPending, ZkIsrManager
from regent.actors.broker import Broker
from regent.actors.runtime import start_actor, stop_actor
from regent.config.threads import UNEXPECTED_ERRORS
from regent.zk.stores.isr_store import ZkIsrStore
from regent.zk.znodes import (
    IsrChangeNotificationSequenceZNode,
    IsrChangeNotificationZNode,
    TopicPartitionStateZNode,
)
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.replicas import PARTITION, leader_of_two
from tests.support.stage import TIMEOUT_S, Stage, actor_of, replication_endpoint
from tests.support.world import leadership

ENDPOINTS = {b: replication_endpoint(b) for b in (1, 2)}
STATE = TopicPartitionStateZNode.path(PARTITION)


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
        leader.replica_manager,
        ZkIsrStore(session),
        scheduler=stage.scheduler("s"),
    )
    yield ref
    stop_actor(ref, TIMEOUT_S)


def notifications(stage: Stage) -> list[bytes]:
    prefix = IsrChangeNotificationSequenceZNode.PATH_PREFIX
    return [n.data for path, n in stage.zookeeper.snapshot().items() if path.startswith(prefix)]


def isr(leader: Broker) -> tuple[int, ...]:
    return leader.replica_manager.partitions[PARTITION].isr


def test_a_leader_writes_its_proposed_isr(
    stage: Stage, leader: Broker, manager: ActorRef[ZkIsrManager]
):
    stage.put_state(PARTITION, 1, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    assert stage.state(PARTITION) == leadership(1, (1, 2), partition_epoch=1)


def test_the_controller_is_notified_after_a_quiet_period(
    stage: Stage,
    leader: Broker,
    manager: ActorRef[ZkIsrManager],
    monkeypatch: pytest.MonkeyPatch,
):
    stage.zookeeper.put(IsrChangeNotificationZNode.PATH)
    stage.put_state(PARTITION, 1, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    manager.tell(PropagateIsrChanges())
    assert notifications(stage) == [], "the quiet period has not ended"
    monkeypatch.setattr(regent.core.replication.isr_change_propagation, "LINGER_MS", 0)

    def is_notified() -> bool:
        manager.tell(PropagateIsrChanges())
        return bool(notifications(stage))

    stage.wait_for(is_notified)
    assert stop_actor(manager, TIMEOUT_S)
    (data,) = notifications(stage)
    assert IsrChangeNotificationSequenceZNode.decode(data) == (PARTITION,)


def test_a_failed_notification_is_repeated(
    stage: Stage,
    leader: Broker,
    manager: ActorRef[ZkIsrManager],
    monkeypatch: pytest.MonkeyPatch,
):
    before = UNEXPECTED_ERRORS.count
    monkeypatch.setattr(regent.core.replication.isr_change_propagation, "LINGER_MS", -1)
    stage.put_state(PARTITION, 1, (1,))
    manager.tell(SendPending())
    stage.wait_for(lambda: isr(leader) == (1, 2))
    for _ in range(3):
        manager.tell(PropagateIsrChanges())  # the parent of notifications is missing
    stage.zookeeper.put(IsrChangeNotificationZNode.PATH)

    def is_notified() -> bool:
        manager.tell(PropagateIsrChanges())
        return bool(notifications(stage))

    stage.wait_for(is_notified)
    assert UNEXPECTED_ERRORS.count == before


def test_without_a_session_the_write_is_repeated(
    stage: Stage, leader: Broker, session: FakeZooKeeper, manager: ActorRef[ZkIsrManager]
):
    before = UNEXPECTED_ERRORS.count
    stage.zookeeper.expire(session.session_id)
    manager.tell(SendPending())
    actor = actor_of(manager)
    stage.wait_for(lambda: actor.requests >= 2)
    assert UNEXPECTED_ERRORS.count == before
    assert isr(leader) == (1,)


def test_a_deposed_leader_does_not_change_the_state(
    stage: Stage, leader: Broker, manager: ActorRef[ZkIsrManager]
):
    stage.put_state(PARTITION, 1, (1,))
    stage.put_state(PARTITION, 2, (2,), leader_epoch=1)
    manager.tell(SendPending())
    stage.wait_for(lambda: leader.replica_manager.counters.failed_isr_updates == 1)
    assert stage.leads(PARTITION)[0] == 2
    assert isr(leader) == (1,)
