"""A broker registers again when a controller of Kafka has given up replicas that could serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.controller import Controller
from regent.core.controller.controller_election import ControllerElection
from regent.core.controller.effects import BrokerRegistered, ScheduleEvent
from regent.core.controller.events import ReplicasGivenUp, SuspectReplicasChanged
from regent.core.controller.services import ControllerSettings
from regent.core.model import LogEnd, SuspectReplicas
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdZNode
from tests.support.controller_parts import Candidate, of_type
from tests.support.world import T0, World, broker_info

KAFKA, OURS = 3, 1
INTERVAL_MS = ControllerSettings().registration_renewal_ms


@pytest.fixture
def world() -> World:
    """A controller of Kafka."""
    world = World()
    world.register_as(replace(broker_info(KAFKA), control_endpoint=None, replication_endpoint=None))
    store = ZkControllerStore(world.sessions[KAFKA])
    assert ControllerElection(broker_info(KAFKA), store).elect(0) is not None
    return world


def epoch(world: World) -> int:
    return world.zookeeper.snapshot()[BrokerIdZNode.path(OURS)].stat.czxid


def test_the_same_session_registers_the_same_data_with_a_new_broker_epoch(world: World):
    broker = Candidate(world, OURS)
    broker.start()
    before = world.zookeeper.snapshot()[BrokerIdZNode.path(OURS)]
    effects = broker.handle(ReplicasGivenUp(before.stat.czxid))
    after = world.zookeeper.snapshot()[BrokerIdZNode.path(OURS)]
    assert after.stat.czxid > before.stat.czxid
    assert BrokerRegistered(after.stat.czxid) in effects
    assert (after.data, after.stat.ephemeral_owner) == (before.data, before.stat.ephemeral_owner)
    broker.catch_up()  # the watch on the former registration
    assert epoch(world) == after.stat.czxid
    broker.handle(ReplicasGivenUp(before.stat.czxid))
    assert epoch(world) == after.stat.czxid, "it has registered again since"


def test_the_time_between_two_renewals_grows(world: World):
    broker = Candidate(world, OURS)
    broker.start()
    for interval_ms in (0, INTERVAL_MS, 2 * INTERVAL_MS, 4 * INTERVAL_MS):
        former = epoch(world)
        event = ReplicasGivenUp(former)
        if interval_ms:
            broker.now_ms += 1
            assert of_type(broker.handle(event), ScheduleEvent) == [
                ScheduleEvent(interval_ms - 1, event)
            ]
            broker.now_ms += interval_ms - 1
        broker.handle(event)
        assert epoch(world) > former


def test_under_a_controller_of_this_project_nothing_is_registered_again(world: World):
    world.sessions[KAFKA].server.expire(world.sessions[KAFKA].session_id)
    broker = Candidate(world, OURS)
    broker.start()
    assert broker.controller.is_active
    former = epoch(world)
    broker.handle(ReplicasGivenUp(former))
    assert epoch(world) == former


def test_a_renewed_registration_keeps_its_list_of_suspects_and_later_ones_have_other_names(
    world: World,
):
    session = Candidate(world, OURS).session
    store = ZkControllerStore(session)
    info = broker_info(OURS)
    lists = [SuspectReplicas({T0: LogEnd(1, end)}) for end in range(4)]
    store.register_broker(info, lists[0])
    store.publish_suspects(info, lists[1])
    for suspects in lists[2:]:
        assert store.renew_registration(OURS) is not None
        named = [path for path in world.zookeeper.snapshot() if "/suspect_replicas/" in path]
        store.publish_suspects(info, suspects)
        (now,) = [path for path in world.zookeeper.snapshot() if "/suspect_replicas/" in path]
        assert now not in named, "a controller may still read the former list"
        registration = store.read_broker(OURS)
        assert registration is not None
        assert registration.suspects == suspects  # type: ignore[union-attr]


def test_a_broker_learns_which_suspects_zookeeper_lists_when_they_are_written(world: World):
    candidate = Candidate(world, OURS)
    store, lost = ZkControllerStore(candidate.session), SuspectReplicas({T0: LogEnd(1, 2)})
    listed: list[SuspectReplicas] = []
    controller = Controller(
        broker_info(OURS),
        store,
        candidate.topic_ids,
        suspects=lambda: lost,
        on_suspects_listed=listed.append,
    )
    controller.handle(SuspectReplicasChanged(), 0)
    assert listed == [], "it is not registered"
    candidate.start()
    for times in (1, 2):
        controller.handle(SuspectReplicasChanged(), 0)
        assert listed == [lost] * times
        registration = store.read_broker(OURS)
        assert registration.suspects == lost  # type: ignore[union-attr]
