"""Clusters without random faults: the main protocols, one after the other."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from regent.core.controller.events import EventsLost
from regent.core.controller.services import ControllerSettings
from regent.core.model import NO_LEADER, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from regent.zk.znodes import DeleteTopicsTopicZNode, TopicZNode
from tests.simulation.bounds import MAX_ELECTION_MS, Bounds
from tests.simulation.broker import SUSPECTS_DELAY_MS
from tests.simulation.cluster import Cluster, short_settings
from tests.simulation.committed_records import CommittedRecords, LogKey
from tests.simulation.convergence import assert_converged
from tests.simulation.damage import Damage
from tests.simulation.disk import Disk
from tests.simulation.invariants import Invariants
from tests.simulation.odds import MAX_LEADER_EPOCHS
from tests.simulation.records import BrokenInvariantError, RecordObserver
from tests.simulation.simulated_logs import NamedLog
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import batch

P0 = TopicPartition("payments", 0)
P4 = TopicPartition("payments", 4)


def ring(partitions: int, brokers: int) -> dict[int, tuple[int, ...]]:
    return {i: tuple((i + j) % brokers for j in range(brokers)) for i in range(partitions)}


@pytest.fixture
def cluster() -> Cluster:
    """Three brokers, twelve partitions, all replicas in sync."""
    cluster = Cluster(3)
    Invariants(cluster)
    cluster.run_until_quiet()
    cluster.put_topic("payments", ring(12, 3))
    cluster.run_until_quiet()
    return cluster


def test_a_cluster_elects_a_controller_and_leaders_of_a_new_topic(cluster: Cluster):
    assert_converged(cluster)
    stored = cluster.state(P4)
    assert stored is not None
    assert stored.leader_and_isr.isr == (1, 2, 0)


def test_after_the_death_of_the_controller_another_is_elected_and_elects_leaders(cluster: Cluster):
    session = cluster.brokers[0].session.session_id
    cluster.kill(0)
    cluster.expire(session)
    cluster.run_until_quiet()
    assert_converged(cluster)
    cluster.start(0)
    cluster.run_until_quiet()
    assert_converged(cluster)


def test_a_broker_hands_over_its_leaderships_before_it_stops(cluster: Cluster):
    cluster.shut_down(1)
    cluster.run_until_quiet()
    assert sorted(cluster.brokers) == [0, 2]
    assert_converged(cluster)


def test_a_partition_moves_and_its_topic_is_deleted(cluster: Cluster):
    answer = cluster.request(AlterPartitionReassignmentsRequest.of({P0: (2,)}))
    assert isinstance(answer, AlterPartitionReassignmentsResponse)
    assert answer.results == {P0: NO_ERROR}
    cluster.run_until_quiet()
    assert_converged(cluster)
    stored = cluster.state(P0)
    assert stored is not None
    assert stored.leader_and_isr.isr == (2,)
    cluster.zookeeper.put(DeleteTopicsTopicZNode.path("payments"))
    cluster.run_until_quiet()
    assert_converged(cluster)
    assert TopicZNode.path("payments") not in cluster.zookeeper.snapshot()


def test_each_requested_move_may_take_leader_epochs():
    cluster = Cluster(4)
    history = Invariants(cluster).history
    cluster.run_until_quiet()
    cluster.put_topic("payments", {0: (0, 1)})
    cluster.run_until_quiet()
    controller = cluster.active_controllers[0].control_endpoint
    for number, target in enumerate([(2, 3), (0, 1)] * 3):
        asked = AlterPartitionReassignmentsRequest.of({P0: target})
        cluster.network.ask(None, controller, asked, lambda _: None)
        cluster.network.hold(max(cluster.network.packets), 10_000 * number)
    bounds = Bounds(cluster, history)
    bounds.begin()
    before = cluster.state(P0)
    cluster.run_until_quiet()
    now = cluster.state(P0)
    assert before is not None
    assert now is not None
    used = now.leader_and_isr.leader_epoch - before.leader_and_isr.leader_epoch
    assert used > MAX_LEADER_EPOCHS
    bounds.check(MAX_LEADER_EPOCHS)


def test_a_sound_replica_need_not_lead_before_its_broker_has_listed_it_as_sound():
    cluster, bounds = cluster_whose_leader_fails_when_the_other_replica_becomes_sound()
    bounds.look()
    cluster.time.advance(SUSPECTS_DELAY_MS)
    take_all_steps(cluster)
    bounds.look()
    assert leader_of(cluster, P0) == 1


def test_a_sound_replica_need_not_lead_while_the_zookeeper_server_of_the_controller_lags():
    cluster, bounds = cluster_whose_leader_fails_when_the_other_replica_becomes_sound()
    controller = cluster.active_controllers[0].session.session_id
    lagging = cluster.zookeeper.add_follower(lag=10)
    cluster.zookeeper.connect_to = lambda: lagging
    cluster.zookeeper.disconnect(controller)
    cluster.zookeeper.reconnect(controller)
    cluster.time.advance(SUSPECTS_DELAY_MS)
    take_all_steps(cluster)
    bounds.look()
    assert leader_of(cluster, P0) == NO_LEADER
    cluster.zookeeper.catch_up()
    take_all_steps(cluster)
    assert leader_of(cluster, P0) == 1


def test_a_sound_replica_must_lead_although_its_broker_does_not_list_it_as_sound():
    cluster, bounds = cluster_whose_leader_fails_when_the_other_replica_becomes_sound()
    cluster.time.forget(cluster.brokers[1])
    cluster.time.advance(SUSPECTS_DELAY_MS)
    take_all_steps(cluster)
    with pytest.raises(AssertionError, match="ElectionIsBounded: no leader for"):
        bounds.look()


def test_a_sound_replica_must_lead_while_its_broker_is_about_to_list_other_replicas():
    cluster, bounds = cluster_whose_leader_fails_when_the_other_replica_becomes_sound()
    controller = cluster.active_controllers[0].controller
    controller.context.note_rejoined(1, P0)
    with pytest.raises(AssertionError, match="ElectionIsBounded: no leader for"):
        bounds.look()


def cluster_whose_leader_fails_when_the_other_replica_becomes_sound() -> tuple[Cluster, Bounds]:
    """Return a cluster right after the failure, and bounds whose time is over."""
    cluster = Cluster(2)
    bounds = Bounds(cluster, Invariants(cluster).history)
    cluster.run_until_quiet()
    cluster.put_topic("payments", {0: (0, 1)})
    cluster.run_until_quiet()
    cluster.disks[1].note_lost([P0])
    cluster.brokers[1].acted()
    cluster.run_until_quiet()
    bounds.begin()
    cluster.run_for(MAX_ELECTION_MS)
    cluster.disks[1].mark_sound(P0)
    cluster.brokers[1].acted()
    cluster.brokers[0].notice_failed_directory()
    take_all_steps(cluster)
    assert leader_of(cluster, P0) == NO_LEADER
    return cluster, bounds


def take_all_steps(cluster: Cluster) -> None:
    """Take all steps that are possible before time passes."""
    while steps := cluster.steps():
        cluster.take(steps[0])


def leader_of(cluster: Cluster, topic_partition: TopicPartition) -> int:
    """Return the leader of a partition as stored in ZooKeeper."""
    stored = cluster.state(topic_partition)
    assert stored is not None
    return stored.leader_and_isr.leader


def test_moves_that_fill_the_event_queue_do_not_begin_term_after_term():
    def settings() -> ControllerSettings:
        return replace(short_settings(), isr_changes_through_zookeeper=True)

    cluster = Cluster(4, settings)
    cluster.run_until_quiet()
    cluster.put_topic("payments", ring(6, 3))
    cluster.run_until_quiet()
    moves = {TopicPartition("payments", number): (0, 3) for number in range(6)}
    cluster.request(AlterPartitionReassignmentsRequest.of(moves))
    session = cluster.brokers[3].session.session_id
    cluster.kill(3)  # before it has copied anything
    cluster.expire(session)
    cluster.bound_inboxes(3)
    cluster.active_controllers[0].tell(EventsLost())
    cluster.run_until_quiet(max_steps=2_000)
    restart(cluster, 3)
    assert_converged(cluster)


def restart(cluster: Cluster, broker_id: int) -> None:
    """Start a broker that was killed, and wait until the cluster is at rest."""
    cluster.start(broker_id)
    cluster.run_until_quiet()


def test_a_topic_is_not_deleted_while_a_directory_with_a_replica_is_unreadable(
    cluster: Cluster,
):
    for is_broken in (True, False):
        session = cluster.brokers[2].session.session_id
        cluster.kill(2)
        cluster.expire(session)
        cluster.run_until_quiet()
        disk = cluster.disks[2]
        if is_broken:
            disk.start_broken()
            cluster.zookeeper.put(DeleteTopicsTopicZNode.path("payments"))
        else:
            disk.repair(has_its_data=True)
        restart(cluster, 2)
        is_there = TopicZNode.path("payments") in cluster.zookeeper.snapshot()
        assert is_there is is_broken
    assert_converged(cluster)


def test_a_cluster_is_at_rest_although_a_topic_whose_deletion_waits_is_written_to(
    cluster: Cluster,
):
    """Such a write is never committed, and a client that writes it again has no end, either."""
    session = cluster.brokers[2].session.session_id
    cluster.kill(2)
    cluster.expire(session)
    cluster.run_until_quiet()

    def write() -> None:
        led = cluster.brokers[1].replica_manager.partitions[TopicPartition("payments", 1)]
        led.local_log.append_as_leader(bytearray(batch(b"again")), led.leader_epoch)

    cluster.before_rest = write
    with pytest.raises(AssertionError, match="still busy"):
        cluster.run_until_quiet(max_steps=1_000)
    cluster.zookeeper.put(DeleteTopicsTopicZNode.path("payments"))
    cluster.expire(cluster.active_controllers[0].session.session_id)  # the next one knows both
    cluster.run_until_quiet(max_steps=1_000)


def test_the_logs_of_a_topic_whose_znode_is_removed_by_hand_are_set_aside(cluster: Cluster):
    path = TopicZNode.path("payments")
    for node in sorted(cluster.zookeeper.snapshot(), reverse=True):
        if f"{node}/".startswith(f"{path}/"):
            cluster.zookeeper.remove(node)
    cluster.run_until_quiet()
    assert_converged(cluster)
    for disk in cluster.disks.values():
        assert isinstance(disk, Disk)
        assert sorted(disk.aside) == [TopicPartition("payments", i) for i in range(12)]


def test_an_error_of_an_observer_inside_a_request_handler_ends_the_simulation(cluster: Cluster):
    class FailingObserver(RecordObserver):
        def on_deleted(self, broker_id: int, log: NamedLog) -> None:
            raise AssertionError(f"{log.topic_partition} must stay on {broker_id}")

    cluster.observe(FailingObserver())
    cluster.zookeeper.put(DeleteTopicsTopicZNode.path("payments"))
    with pytest.raises(BrokenInvariantError, match=r"payments-.* must stay on"):
        cluster.run_until_quiet()


def test_the_damaged_log_that_suspect_replicas_wait_for_is_restored(cluster: Cluster):
    for broker_id in (0, 2):
        cluster.disks[broker_id].note_lost([P4])
    cluster.disks[1].log(P4).damage(0)
    damage = Damage(cluster, random.Random(0), lambda *_: None)
    assert damage.restore_lost_records() == set()
    assert not cluster.disks[1].log(P4).damaged


def test_a_damaged_log_is_not_restored_while_another_in_sync_replica_is_sound(cluster: Cluster):
    cluster.disks[0].note_lost([P4])
    cluster.disks[1].log(P4).damage(0)
    damage = Damage(cluster, random.Random(0), lambda *_: None)
    assert damage.restore_lost_records() is None
    assert cluster.disks[1].log(P4).damaged


def test_large_writes_to_zookeeper_are_split_into_requests_of_the_allowed_size(cluster: Cluster):
    cluster.zookeeper.max_request_bytes = 2_500  # a larger one is an error of the caller
    cluster.put_topic("orders", ring(30, 3))
    cluster.run_until_quiet()
    session = cluster.brokers[0].session.session_id
    cluster.kill(0)
    cluster.expire(session)
    cluster.run_until_quiet()
    assert_converged(cluster)


def test_how_many_had_a_lost_batch_is_known_when_another_is_committed_in_its_place() -> None:
    known = CommittedRecords(LogKey(P0, "an id"), unclean_epochs=[1])
    first, second = (StoredBatch(5, 5, epoch, 0, 0, batch(b"x")) for epoch in (0, 1))
    known.on_committed(0, first, 0, holders=3)
    known.on_committed(1, second, 1, holders=1)
    assert known.committed_at(5, 1) == second
    assert (known.holders_of(first), known.holders_of(second)) == (3, 1)
    known.on_committed(0, first, 0, holders=2)  # the old leader does not know of the new one yet
    assert known.committed_at(5, 0) == first
    assert (known.holders_of(first), known.holders_of(second)) == (3, 1)
