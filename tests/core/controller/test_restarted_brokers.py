"""A new controller finds brokers that restarted since the last decision."""

from __future__ import annotations

import pytest

from regent.core.controller.events import BrokerChange, ReadAgain
from regent.core.model import (
    NO_LEADER,
    LeaderRecoveryState,
    LogEnd,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrRequest, UpdateMetadataRequest
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import ConfigEntityZNode, TopicPartitionStateZNode, TopicZNode
from tests.support.controller_parts import Candidate, leader_and_isr_rows, requests
from tests.support.world import T0, World, broker_info

U0 = TopicPartition("u", 0)
MIN_INSYNC_REPLICAS_2 = {"min.insync.replicas": "2"}
LOST: dict[TopicPartition, LogEnd] = {T0: LogEnd(4, 7)}
unreadable_at_first = pytest.mark.parametrize(
    "path", [TopicZNode.path("t"), TopicPartitionStateZNode.path(T0)]
)


@pytest.fixture
def world() -> World:
    """Broker 1 leads; 2 is in sync; 3 has no replica and becomes the controller."""
    world = World((1, 2))
    world.put_topic("t", {0: (1, 2)})
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    return world


def test_a_replica_that_did_not_restart_replaces_a_restarted_leader(world: World) -> None:
    world.restart(1)
    effects = Candidate(world, 3).start()
    assert world.leads(T0) == (2, (2,), 6)
    row = leader_and_isr_rows(effects)[1][T0]
    assert (row.leader, row.leader_epoch) == (2, 6), "it has not received epoch 5 since its restart"


def test_a_restarted_follower_leaves_the_isr_in_a_new_epoch(world: World) -> None:
    world.restart(2)
    Candidate(world, 3).start()
    assert world.leads(T0) == (1, (1,), 6)


def test_when_all_replicas_restarted_the_first_leads_in_a_new_epoch(world: World) -> None:
    world.restart(1)
    world.restart(2)
    Candidate(world, 3).start()
    assert world.leads(T0) == (1, (1, 2), 6)


@unreadable_at_first
def test_a_restarted_leader_is_replaced_in_one_epoch_when_its_partition_can_be_read(
    world: World, path: str
) -> None:
    world.restart(1)
    world.zookeeper.deny(path)
    candidate = Candidate(world, 3)
    candidate.start()
    world.zookeeper.allow(path)
    candidate.handle(ReadAgain(1))
    assert world.leads(T0) == (2, (2,), 6)


def test_a_leader_that_did_not_restart_leads_on_in_the_same_epoch(world: World) -> None:
    Candidate(world, 3).start()
    assert world.leads(T0) == (1, (1, 2), 5)


def test_a_leader_that_lost_records_is_removed_and_the_partition_waits_for_the_offline_replica(
    world: World,
) -> None:
    world.unregister(2)
    world.restart(1, SuspectReplicas(LOST))
    candidate = Candidate(world, 3)
    candidate.start()
    leader, isr, _ = world.leads(T0)
    assert (leader, isr) == (-1, (1, 2)), "2 stays in the ISR, because 1 is suspect"
    registration = world.register(2)
    assert registration.suspects == SuspectReplicas()
    candidate.catch_up()
    assert world.leads(T0)[:2] == (2, (2,))


@unreadable_at_first
def test_a_leader_that_lost_records_is_removed_when_its_partition_can_be_read(
    world: World, path: str
) -> None:
    world.unregister(2)
    world.restart(1, SuspectReplicas(LOST))
    world.zookeeper.deny(path)
    candidate = Candidate(world, 3)
    candidate.start()
    world.zookeeper.allow(path)
    sent_requests = requests(candidate.handle(ReadAgain(1)))
    assert world.leads(T0)[:2] == (-1, (1, 2))
    leaders = {
        row.leader
        for sent in sent_requests
        if isinstance(sent.request, LeaderAndIsrRequest | UpdateMetadataRequest)
        for _, row in sent.request.partitions()
    }
    assert leaders == {-1}, "no broker is sent the old leader"


def test_when_all_replicas_are_suspect_the_longest_log_leads(world: World) -> None:
    world.unregister(2)
    world.restart(1, SuspectReplicas(LOST))
    candidate = Candidate(world, 3)
    candidate.start()
    world.register(2)
    world.restart(2, SuspectReplicas({T0: LogEnd(4, 9)}))
    candidate.catch_up()
    assert world.leads(T0)[:2] == (2, (2,))
    assert candidate.controller.context.stats.unclean_leader_elections == 1


def test_a_replica_that_failed_with_the_leader_is_eligible_when_all_other_replicas_are_suspect(
    world: World,
) -> None:
    world.register(0)
    world.put_topic("u", {0: (0, 1, 2)})
    world.put_state(U0, 2, (0, 1, 2), leader_epoch=5)
    world.unregister(0)
    world.unregister(2)
    world.restart(1, SuspectReplicas({U0: LogEnd(-1, -1)}))
    candidate = Candidate(world, 3)
    candidate.start()
    assert world.leads(U0)[:2] == (-1, (1, 2))
    world.register(0)
    candidate.catch_up()
    assert world.leads(U0)[:2] == (0, (0,)), "0 has all committed records, 2 is not needed"
    assert candidate.controller.context.stats.unclean_leader_elections == 0


@pytest.mark.parametrize(
    ("entity", "values", "leader"),
    [
        ("topics/t", "", 2),
        ("topics/t", "1", -1),
        ("topics/t", "12", -1),
        ("brokers/<default>", "1", -1),
        ("brokers/<default>", "12", -1),
        ("topics/u", "1", 2),
    ],
)
def test_an_eligible_replica_leads_unless_the_isr_could_commit_without_it(
    world: World, entity: str, values: str, leader: int
) -> None:
    """``min.insync.replicas`` was 2 when replica 2 left the ISR; it may be lowered and raised."""
    world.zookeeper.put(
        "/config/brokers/<default>", ConfigEntityZNode.encode(MIN_INSYNC_REPLICAS_2)
    )
    candidate = Candidate(world, 3)
    candidate.start()
    world.unregister(2)
    candidate.catch_up()
    assert world.leads(T0)[:2] == (1, (1,))
    for value in values:
        config = ConfigEntityZNode.encode({"min.insync.replicas": value})
        world.zookeeper.put(f"/config/{entity}", config)
    world.unregister(1)
    world.register(2)
    candidate.catch_up()
    assert world.leads(T0)[0] == leader


def test_a_replica_that_is_no_longer_suspect_is_elected(world: World) -> None:
    world.unregister(2)
    world.restart(1, SuspectReplicas(LOST))
    candidate = Candidate(world, 3)
    candidate.start()
    store = ZkControllerStore(world.sessions[1])
    store.publish_suspects(broker_info(1, 2), SuspectReplicas())
    candidate.catch_up()
    assert world.leads(T0)[:2] == (1, (1,))


def test_a_log_that_is_sound_by_now_is_elected_when_a_broker_with_a_longer_suspect_log_starts(
    world: World,
) -> None:
    world.restart(1, SuspectReplicas(LOST))
    world.unregister(2)
    candidate = Candidate(world, 3)
    candidate.start()
    assert world.leads(T0)[0] == NO_LEADER
    sound = ZkControllerStore(world.sessions[1])
    sound.publish_suspects(broker_info(1, 2), SuspectReplicas())
    world.register(2, suspects=SuspectReplicas({T0: LogEnd(4, 9)}))
    candidate.handle(BrokerChange())
    assert world.leads(T0)[:2] == (1, (1,))
    state = world.state(T0)
    assert state is not None
    assert state.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERED
