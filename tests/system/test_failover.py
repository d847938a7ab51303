"""Real processes that are killed, paused and disconnected."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from regent.core.protocol.broker import ShutdownBrokerRequest
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.client.operations import ANY_VERSION, Delete, SetData
from regent.zk.znodes import ControllerEpochZNode, ControllerZNode

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 12
MAX_MOVES = 40  # one of three brokers wins each election at random


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    with RegentCluster(tmp_path_factory.mktemp("cluster"), "--no-placement-service") as cluster:
        cluster.create_topic("payments", PARTITIONS)
        yield cluster


def test_ten_moves_of_the_controller_lose_nothing(cluster: RegentCluster):
    first = cluster.controller_epoch() + 1
    for epoch in range(first, first + 10):
        cluster.zookeeper.multi([Delete(ControllerZNode.PATH, ANY_VERSION)])
        cluster.await_agreement([0, 1, 2], "payments", epoch)
    assert len(cluster.partition_states("payments")) == PARTITIONS


@pytest.mark.parametrize(
    "data",
    [b"garbage", ControllerZNode.encode(99, 0), ControllerZNode.encode(0, 0), b'{"brokerid":1}'],
)
def test_after_an_overwritten_controller_znode_there_is_one_active_controller(
    cluster: RegentCluster, data: bytes
):
    epoch = cluster.controller_epoch()
    cluster.zookeeper.multi([SetData(ControllerZNode.PATH, data, ANY_VERSION)])
    cluster.await_agreement([0, 1, 2], "payments")
    active_controller = [
        b for b in (0, 1, 2) if cluster.metadata(b).broker_state == "RunningAsController"
    ]
    assert active_controller == [cluster.controller()]
    assert cluster.controller_epoch() >= epoch


def test_a_paused_controller_is_replaced_and_returns_as_a_broker(cluster: RegentCluster):
    paused = cluster.controller()
    assert paused is not None
    others = [b for b in (0, 1, 2) if b != paused]
    epoch, broker_epoch = cluster.controller_epoch(), cluster.broker_epoch(paused)
    cluster.signal(paused, signal.SIGSTOP)
    try:
        eventually(lambda: cluster.controller() in others, "another controller")
        rows = cluster.await_agreement(others, "payments", epoch + 1)
    finally:
        cluster.signal(paused, signal.SIGCONT)
    assert all(paused not in row.isr for row in rows.values())
    eventually(
        lambda: cluster.broker_epoch(paused) not in (None, broker_epoch), "it registers again"
    )
    eventually(lambda: cluster.metadata(paused).broker_state == "RunningAsBroker", "it resigned")
    cluster.await_agreement([0, 1, 2], "payments", epoch + 1)
    for _ in range(MAX_MOVES):  # later it can be elected again
        if cluster.controller() == paused:
            break
        epoch = cluster.controller_epoch()
        cluster.zookeeper.multi([Delete(ControllerZNode.PATH, ANY_VERSION)])
        cluster.await_agreement([0, 1, 2], "payments", epoch + 1)
    assert cluster.controller() == paused


def test_a_killed_controller_is_replaced_at_once_and_rejoins(cluster: RegentCluster):
    killed = cluster.controller()
    assert killed is not None
    others = [b for b in (0, 1, 2) if b != killed]
    epoch, broker_epoch = cluster.controller_epoch(), cluster.broker_epoch(killed)
    cluster.signal(killed, signal.SIGKILL)
    rows = cluster.await_agreement(others, "payments", epoch + 1)
    assert len(rows) == PARTITIONS
    elected, bumped = cluster.zookeeper.get_many([ControllerZNode.PATH, ControllerEpochZNode.PATH])
    assert elected is not None
    assert bumped is not None
    assert elected.stat.czxid == bumped.stat.mzxid, "one transaction"
    (failover,) = [
        line
        for journal in cluster.data_dir.glob("broker-*/events.jsonl")
        for line in map(json.loads, journal.read_text().splitlines())
        if line["controller_epoch"] == epoch + 1 and line["event"] == "Reelect"
    ]
    cause = f"event {epoch + 1}-{failover['event_id']}: "
    for broker in others:
        log = (cluster.data_dir / f"broker-{broker}" / "broker.log").read_text()
        assert f"{cause}LeaderAndIsr FULL" in log, "one grep finds the requests of an event"
    cluster.start_broker(killed)
    again = cluster.broker_epoch(killed)
    assert again is not None
    assert broker_epoch is not None
    assert again > broker_epoch
    cluster.await_agreement([0, 1, 2], "payments", epoch + 1)


@pytest.mark.nightly
def test_a_broker_hands_over_its_leaderships_before_it_stops(tmp_path: Path):
    with RegentCluster(tmp_path, "--no-placement-service") as cluster:
        cluster.create_topic("payments", PARTITIONS)
        cluster.await_agreement([0, 1, 2], "payments")
        controller = cluster.controller()
        leaves = next(b for b in (0, 1, 2) if b != controller)
        pid = cluster.pid(leaves)
        answer = cluster.ask(leaves, ShutdownBrokerRequest(), timeout_s=30)
        assert answer.remaining_partitions == ()
        leaders = {s.leader_and_isr.leader for s in cluster.partition_states("payments").values()}
        assert leaves not in leaders
        eventually(lambda: cluster.broker_epoch(leaves) is None, "its registration ends")
        cluster.await_end(leaves, pid)
        others = [b for b in (0, 1, 2) if b != leaves]
        cluster.await_agreement(others, "payments")
        cluster.signal(next(b for b in others if b != controller), signal.SIGTERM)
        assert controller is not None
        cluster.await_agreement([controller], "payments")
