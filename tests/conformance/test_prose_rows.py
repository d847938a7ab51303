"""Rows of the table that are only prose; each test is named after its row."""

from __future__ import annotations

import pytest

from regent.actors.runtime import stop_actor
from regent.core.controller.events import LeaderAndIsrResponseReceived
from regent.core.controller.states import ReplicaState
from regent.core.errors import BrokerIdInUseError, Errors
from regent.core.model import PartitionAndReplica, TopicPartition
from regent.core.protocol.broker import FetchRequest
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.replication.partition import Role
from regent.zk.client.operations import Create
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import (
    ControllerZNode,
    DeleteTopicsTopicZNode,
    LogDirEventNotificationSequenceZNode,
    TopicZNode,
)
from tests.conformance.leading import NAME, CountedLogs, fresh_manager, leader_and_isr_row
from tests.conformance.topic_requests import Desk
from tests.simulation.cluster import Cluster
from tests.simulation.network import Fate, usual_fate
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.stage import TIMEOUT_S, Stage, actor_of
from tests.support.topic_requests import creatable, create_topics
from tests.support.world import World, broker_info, live_broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HEADER = ControlHeader(1, 1, -1)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(3)
    cluster.run_until_quiet()
    return cluster


# --- creating topics ------------------------------------------------------------------------------


def test_ap_09_a_topic_that_exists_is_not_created_again():
    desk = Desk([0, 1])
    assert desk.create(creatable("topic")) is Errors.NONE
    assert desk.create(creatable("topic")) is Errors.TOPIC_ALREADY_EXISTS


def test_ap_10_a_name_that_differs_in_dots_only_is_refused():
    desk = Desk([0])
    desk.put_topic("test.topic", {0: (0,)})
    assert desk.create(creatable("test_topic")) is Errors.INVALID_TOPIC_EXCEPTION


def test_ap_22_of_two_colliding_names_in_one_request_one_is_created():
    desk = Desk([0])
    wanted = (creatable("test.topic"), creatable("test_topic"))
    errors = desk.answer(create_topics(wanted, 10_000))
    assert errors == [Errors.NONE, Errors.INVALID_TOPIC_EXCEPTION]
    assert desk.topic("test_topic") is None


# --- reassignments --------------------------------------------------------------------------------


def test_ra_13_no_reassignment_is_listed_for_an_idle_or_absent_topic(cluster: Cluster):
    cluster.put_topic("t", {0: (0, 1)})
    cluster.run_until_quiet()
    absent = TopicPartition("absent", 0)
    for partitions in (None, (T0,), (absent,)):
        listed = cluster.request(ListPartitionReassignmentsRequest.of(partitions))
        assert listed == ListPartitionReassignmentsResponse.of({})


def test_ra_14_a_partition_whose_new_replica_lags_is_not_under_replicated(cluster: Cluster):
    cluster.put_topic("t", {0: (0,)})
    cluster.run_until_quiet()
    cluster.network.fate = lambda packet: (
        Fate.LOST if isinstance(packet.exchange.request, FetchRequest) else usual_fate(packet)
    )
    cluster.request(AlterPartitionReassignmentsRequest.of({T0: (1, 0)}))
    cluster.run_until_quiet()
    led = cluster.brokers[0].replica_manager.partitions[T0]
    assert led.assignment.adding_replicas == (1,)
    assert led.isr == (0,)
    assert not led.is_under_replicated


# --- log directories ------------------------------------------------------------------------------


def _fail_directory(cluster: Cluster, broker_id: int) -> None:
    broker = cluster.brokers[broker_id]
    broker.notice_failed_directory()
    data = LogDirEventNotificationSequenceZNode.encode(broker_id)
    prefix = LogDirEventNotificationSequenceZNode.PATH_PREFIX
    broker.session.multi([Create(prefix, data, sequential=True)])
    cluster.run_until_quiet()


def test_ldf_03_leadership_moves_when_the_leaders_directory_fails(cluster: Cluster):
    cluster.put_topic("t", {0: (1, 2, 0), 1: (1, 2, 0)})
    cluster.run_until_quiet()
    _fail_directory(cluster, 1)
    state = cluster.state(T0)
    assert state is not None
    assert (state.leader_and_isr.leader, set(state.leader_and_isr.isr)) == (2, {0, 2})
    (active,) = cluster.active_controllers
    replica = PartitionAndReplica(T0, 1)
    assert active.controller.context.replica_state(replica) is ReplicaState.OFFLINE
    prefix = LogDirEventNotificationSequenceZNode.PATH_PREFIX
    assert not [path for path in cluster.zookeeper.snapshot() if path.startswith(prefix)]


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("bounces", [False, True])
def test_ldf_06_a_broker_that_lost_one_directory_serves_the_other(
    cluster: Cluster, victim: int, bounces: bool
):
    cluster.put_topic("t", {0: (1, 2, 0), 1: (1, 2, 0)})
    cluster.run_until_quiet()
    _fail_directory(cluster, victim)
    if bounces:
        cluster.shut_down(victim)
        cluster.run_until_quiet()
        cluster.start(victim)
        cluster.run_until_quiet()
    lost, kept = cluster.state(T0), cluster.state(T1)
    assert lost is not None
    assert kept is not None
    assert victim not in (lost.leader_and_isr.leader, *lost.leader_and_isr.isr)
    assert victim in kept.leader_and_isr.isr
    for other in {0, 1, 2} - {victim}:
        session_id = cluster.brokers[other].session.session_id
        cluster.kill(other)
        cluster.expire(session_id)
    cluster.run_until_quiet()
    assert cluster.brokers[victim].replica_manager.partitions[T1].role is Role.LEADER


# --- metadata and counts --------------------------------------------------------------------------


def test_met_01_all_brokers_learn_of_another_controller(cluster: Cluster):
    cluster.shut_down(0)
    cluster.run_until_quiet()
    cluster.start(0)
    cluster.run_until_quiet()
    known = {broker.cache.snapshot.controller_id for broker in cluster.brokers.values()}
    assert len(known) == 1
    assert known != {0}


def test_met_02_replicas_isr_and_leader_reach_every_broker(cluster: Cluster):
    cluster.put_topic("t1", {0: (1, 2, 0), 1: (2, 0, 1)})
    cluster.run_until_quiet()
    for broker in cluster.brokers.values():
        for number, replicas in enumerate([(1, 2, 0), (2, 0, 1)]):
            row = broker.cache.snapshot.partitions[TopicPartition("t1", number)]
            assert (row.leader, row.replicas, row.isr) == (replicas[0], replicas, replicas)


def test_met_15_creations_and_deletions_never_count_as_offline(cluster: Cluster):
    worst = {"offline": 0, "imbalanced": 0, "under-replicated": 0}

    def sample() -> None:
        for broker in cluster.brokers.values():
            context = broker.controller.context
            found = (
                context.offline_partition_count,
                context.preferred_replica_imbalance_count,
                broker.replica_manager.under_replicated_count,
            )
            for name, count in zip(worst, found, strict=True):
                worst[name] = max(worst[name], count)

    cluster.after_step = sample
    for _ in range(3):
        topics = [f"t{number}" for number in range(3)]
        for topic in topics:
            cluster.put_topic(topic, {n: tuple((n + j) % 3 for j in range(3)) for n in range(3)})
        cluster.run_until_quiet()
        for topic in topics:
            cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))
        cluster.run_until_quiet()
        assert not [t for t in topics if TopicZNode.path(t) in cluster.zookeeper.snapshot()]
    assert worst == dict.fromkeys(worst, 0)


def test_met_16_a_partition_without_a_leader_is_known_with_its_isr(cluster: Cluster):
    cluster.put_topic("t", {0: (2,)})
    cluster.run_until_quiet()
    session_id = cluster.brokers[2].session.session_id
    cluster.kill(2)
    cluster.expire(session_id)
    cluster.run_until_quiet()
    for broker in cluster.brokers.values():
        row = broker.cache.snapshot.partitions[T0]
        assert (row.leader, row.isr, row.offline_replicas) == (-1, (2,), (2,))


def test_met_17_two_of_six_replicas_killed_leave_four_in_sync():
    cluster = Cluster(6)
    cluster.run_until_quiet()
    cluster.put_topic("t", {0: (0, 1, 2, 3, 4, 5)})
    cluster.run_until_quiet()
    for broker_id in (4, 5):
        session_id = cluster.brokers[broker_id].session.session_id
        cluster.kill(broker_id)
        cluster.expire(session_id)
    cluster.run_until_quiet()
    state = cluster.state(T0)
    assert state is not None
    assert state.leader_and_isr.isr == (0, 1, 2, 3)


# --- how brokers apply control requests -----------------------------------------------------------


class TwoDirectories(CountedLogs):
    """Even partitions are in a directory that may fail, odd ones are not."""

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log was in the directory that failed."""
        return super().is_offline(topic_partition) and topic_partition.partition % 2 == 0


def test_fen_13_a_repeated_deletion_is_answered_the_same():
    manager, logs = fresh_manager(logs=TwoDirectories())
    rows = tuple(
        leader_and_isr_row(0, (0,), (0,))._replace(partition_index=number) for number in (0, 1)
    )
    topic = LeaderAndIsrTopic("t", None, rows)
    manager.handle(HEADER, LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ()), 0)
    logs.fail()
    stops = tuple(StopReplicaPartition(number, 0, delete_partition=True) for number in (0, 1))
    for _ in range(2):
        response = manager.handle(
            HEADER, StopReplicaRequest((StopReplicaTopic("t", None, stops),)), 0
        )
        assert isinstance(response, StopReplicaResponse)
        errors = [error.error_code for error in response.partition_errors]
        assert errors == [Errors.KAFKA_STORAGE_ERROR, Errors.NONE]


def test_fen_17_a_follower_accepts_the_same_leader_in_a_later_epoch():
    manager, _ = fresh_manager()
    brokers = tuple(live_broker(b, replication_endpoint=f"tcp://{b}:1") for b in (0, 1))
    manager.handle(HEADER, UpdateMetadataRequest((), brokers), 0)
    for epoch in (1, 3):
        row = leader_and_isr_row(1, (1,), (1, 0), leader_epoch=epoch)
        topic = LeaderAndIsrTopic(NAME.topic, None, (row,))
        manager.handle(HEADER, LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ()), 0)
        assert manager.partitions[NAME].role is Role.FOLLOWER
        request = manager.fetch_request(1, now_ms=0)
        assert request is not None
        assert [row.current_leader_epoch for _, row in request.partitions()] == [epoch]


# --- controllers and registrations ----------------------------------------------------------------


def test_evt_07_after_an_impossible_error_another_controller_is_elected():
    with Stage() as stage:
        first = stage.controller(0)
        stage.controller(1)
        header = ControlHeader(0, 1, 0)
        nothing = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())
        actor = actor_of(first)
        epoch = actor.controller.context.live_broker_epochs[0]
        header = header._replace(broker_epoch=epoch)
        first.tell(LeaderAndIsrResponseReceived(0, header, nothing, None))  # type: ignore[arg-type]

        def has_moved() -> bool:
            node = stage.zookeeper.snapshot().get(ControllerZNode.PATH)
            return node is not None and ControllerZNode.decode(node.data) == 1

        stage.wait_for(has_moved)
        assert not actor.controller.is_active
        assert stage.zookeeper.snapshot()["/controller_epoch"].data == b"2"


def test_rec_07_stopping_twice_is_stopping_once():
    with Stage() as stage:
        controller = stage.controller(0)
        for _ in range(2):
            stop_actor(controller, TIMEOUT_S)
        assert not controller.is_alive()


def test_rec_09_a_second_broker_of_one_id_fails_and_the_first_stays():
    world = World()
    first = world.register(0)
    store = ZkControllerStore(FakeZooKeeper(world.zookeeper))
    with pytest.raises(BrokerIdInUseError):
        store.register_broker(broker_info(0, incarnation=2))
    assert store.read_broker(0) == first


def test_zk_20_relative_paths_are_refused_and_a_missing_one_is_skipped():
    world = World()
    with pytest.raises(ValueError, match="not a znode path"):
        world.zookeeper.put("relative/path")
    world.zookeeper.put("/a/b/c")
    world.zookeeper.remove("/a/b/nobody")
    assert "/a/b/c" in world.zookeeper.snapshot()
