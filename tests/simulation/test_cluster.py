"""Whole clusters without chance: the protocols as a newcomer would draw them."""

from __future__ import annotations

from core.model import TopicPartition
from tests.simulation.cluster import Cluster
from tests.simulation.invariants import Invariants, assert_converged


def ring(partitions: int, brokers: int) -> dict[int, tuple[int, ...]]:
    return {i: tuple((i + j) % brokers for j in range(brokers)) for i in range(partitions)}


def test_a_cluster_elects_a_controller_and_leads_what_is_created():
    cluster = Cluster(3)
    cluster.run_until_quiet()
    cluster.put_topic("payments", ring(12, 3))
    cluster.run_until_quiet()
    Invariants(cluster).check()
    assert_converged(cluster)
    stored = cluster.leadership(TopicPartition("payments", 4))
    assert stored is not None
    assert stored.leader_and_isr.isr == (1, 2, 0)


def test_when_the_controller_dies_another_rules_and_its_partitions_are_led():
    cluster = Cluster(3)
    cluster.run_until_quiet()
    cluster.put_topic("payments", ring(12, 3))
    cluster.run_until_quiet()
    session = cluster.brokers[0].session.session_id
    cluster.kill(0)
    cluster.expire(session)
    cluster.run_until_quiet()
    Invariants(cluster).check()
    assert_converged(cluster)
    cluster.start(0)
    cluster.run_until_quiet()
    assert_converged(cluster)
