"""A broker of ours takes the place of the controller of Kafka, which has just died."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.events import ControlledShutdown, LeaderAndIsrResponseReceived
from regent.core.errors import Errors
from regent.core.model import BrokerId, BrokerInfo, LeaderAndIsr, TopicPartition
from regent.core.protocol.client import ACKS_ALL
from regent.core.protocol.controller import MoveControllerRequest, MoveControllerResponse
from regent.core.replication.suspect_replicas import SuspectTracker
from regent.zk.znodes import ControllerZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import ProduceRequest
from tests.simulation.cluster import Cluster
from tests.simulation.convergence import assert_converged, assert_online_under_kafka
from tests.simulation.invariants import Invariants
from tests.simulation.kafka_protocol import RELEASES, KafkaRelease
from tests.support.fake_zookeeper import Call, Moment
from tests.support.record_batches import batch

NEWEST = RELEASES[-1]
DEAD = 0
FIRST, SECOND = 3, 4  # of ours
PARTITIONS = 7
ALONE = 6


@pytest.fixture
def kinds() -> dict[BrokerId, KafkaRelease | None]:
    return dict.fromkeys(range(3), NEWEST)


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@pytest.fixture
def cluster(kinds: dict[BrokerId, KafkaRelease | None], partitions: int) -> Cluster:
    """Three brokers of Kafka, of which broker 0 rules; each leads partitions."""
    cluster = Cluster(3)
    Invariants(cluster)
    cluster.run_until_quiet()
    replicas = {n: tuple((n + i) % 3 for i in range(3)) for n in range(ALONE)}
    all_replicas = {**replicas, ALONE: (DEAD,)}
    cluster.put_topic("payments", {n: all_replicas[n] for n in range(partitions)})
    cluster.run_until_quiet()
    cluster.let_kafka_rule(may_rule=True)
    cluster.release_for = kinds.get
    for broker_id in range(3):
        cluster.shut_down(broker_id)
        cluster.run_for(3_000)
        cluster.start(broker_id)
        cluster.run_for(3_000)
    for broker_id in (1, 2):
        if not cluster.brokers[DEAD].is_controller:
            cluster.expire(cluster.brokers[broker_id].session.session_id)
            cluster.take(("event", DEAD))
            cluster.run_for(3_000)
    assert [b.broker_id for b in cluster.kafka_controllers] == [DEAD]
    for number in range(partitions):
        write(cluster, TopicPartition("payments", number))
    cluster.run_for(3_000)
    return cluster


def leadership(cluster: Cluster, number: int) -> LeaderAndIsr:
    state = cluster.state(TopicPartition("payments", number))
    assert state is not None
    return state.leader_and_isr


def write(cluster: Cluster, name: TopicPartition) -> None:
    leader = cluster.brokers[leadership(cluster, name.partition).leader]
    request = ProduceRequest(name, ACKS_ALL, batch(b"x"))
    cluster.network.ask(None, leader.client_endpoint, request, lambda answer: None)


def take_over(cluster: Cluster, kinds: dict[BrokerId, KafkaRelease | None]) -> None:
    """Start ours after the death of broker 0; it registers before its death is handled."""
    session_id = cluster.brokers[DEAD].session.session_id
    cluster.kill(DEAD)
    kinds[DEAD] = None
    ours = cluster.start(DEAD)
    cluster.expire(session_id)

    def register_first(call: Call) -> None:
        is_elected = call.method == "multi" and ControllerZNode.PATH in call.paths
        if is_elected and call.moment is Moment.AFTER and ours.broker_epoch < 0:
            cluster.take(("event", DEAD))

    cluster.brokers[1].session.hook = register_first
    while cluster.brokers[1].inbox:
        cluster.take(("event", 1))
    assert ours.broker_epoch > 0
    assert cluster.brokers[1].is_controller


def test_its_replicas_are_used_again_although_they_refuse_to_lead_on(
    cluster: Cluster, kinds: dict[BrokerId, KafkaRelease | None]
):
    take_over(cluster, kinds)
    first = cluster.brokers[DEAD].broker_epoch
    cluster.run_for(12_000)
    assert cluster.brokers[DEAD].broker_epoch > first
    assert_online_under_kafka(cluster)
    shared = range(PARTITIONS - 1)
    assert {tuple(sorted(leadership(cluster, n).isr)) for n in shared} == {(0, 1, 2)}
    assert leadership(cluster, ALONE).leader == DEAD


@pytest.mark.parametrize("partitions", [ALONE])  # none that cannot follow
def test_its_replicas_are_used_again_although_they_follow_when_the_refusal_is_read(
    cluster: Cluster, kinds: dict[BrokerId, KafkaRelease | None]
):
    take_over(cluster, kinds)
    ours, ruler = cluster.brokers[DEAD], cluster.brokers[1]
    while ours.cache.snapshot.controller is None:
        cluster.take(next(step for step in cluster.steps() if step[0] == "deliver"))
    ours.ask_to_leave_and_stay()  # the controller handles this first
    while not any(isinstance(event, LeaderAndIsrResponseReceived) for event in ruler.inbox):
        cluster.take(next(step for step in cluster.steps() if step[0] == "deliver"))
    (refusal,) = (e for e in ruler.inbox if isinstance(e, LeaderAndIsrResponseReceived))
    assert Errors.KAFKA_STORAGE_ERROR in {
        row.error_code for row in refusal.response.partition_errors
    }
    assert any(isinstance(event, ControlledShutdown) for event in ruler.inbox)
    first = ours.broker_epoch
    cluster.run_for(12_000)
    assert ours.broker_epoch > first
    assert_online_under_kafka(cluster)


def test_an_only_replica_leads_on_when_its_broker_asks_to_shut_down_and_stays(cluster: Cluster):
    cluster.brokers[DEAD].ask_to_leave_and_stay()
    cluster.run_for(3_000)
    assert {leadership(cluster, n).leader for n in range(ALONE)} == {1, 2}
    assert leadership(cluster, ALONE).leader == DEAD
    assert_online_under_kafka(cluster)


def test_a_broker_that_does_not_register_again_is_found(
    cluster: Cluster,
    kinds: dict[BrokerId, KafkaRelease | None],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(SuspectTracker, "take_given_up", lambda _: False)
    take_over(cluster, kinds)
    cluster.run_for(12_000)
    with pytest.raises(AssertionError, match=f"1 of Kafka does not use .* of {DEAD}"):
        assert_online_under_kafka(cluster)


def test_ours_without_replicas_takes_the_rule_and_hands_it_to_another(
    cluster: Cluster,
    kinds: dict[BrokerId, KafkaRelease | None],
    monkeypatch: pytest.MonkeyPatch,
):
    usual = SimulatedBroker._info

    def without_replicas(broker: SimulatedBroker) -> BrokerInfo:
        return replace(usual(broker), no_replicas=True)

    monkeypatch.setattr(SimulatedBroker, "_info", without_replicas)
    for broker_id in (FIRST, SECOND):
        kinds[broker_id] = None
        cluster.start(broker_id)
        cluster.run_for(3_000)
    assert [broker.broker_id for broker in cluster.active_controllers] == [FIRST]
    assert cluster.kafka_controllers == []
    former = cluster.brokers[FIRST].controller.context
    request = MoveControllerRequest(former.epoch, former.epoch_zk_version)
    assert cluster.request(request, to=SECOND) == MoveControllerResponse(Errors.NONE)
    cluster.run_until_quiet()
    assert [broker.broker_id for broker in cluster.active_controllers] == [SECOND]
    assert_converged(cluster)
    placed = {leadership(cluster, number).isr for number in range(PARTITIONS)}
    assert not {FIRST, SECOND} & {replica for isr in placed for replica in isr}
