"""Real followers: they fall behind, are killed, return, and are in sync again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.znodes import IsrChangeNotificationZNode

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 6
SESSION_TIMEOUT_MS = 10_000  # longer than the allowed lag of a paused follower
CONFIG = """
[broker]
replica_lag_time_max_ms = 1000
replica_fetch_wait_max_ms = 100
replica_fetch_backoff_ms = 100
isr_change_protocol = "{}"
"""


@pytest.fixture(
    params=["controller", pytest.param("zookeeper", marks=pytest.mark.nightly)], scope="module"
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RegentCluster]:
    directory = tmp_path_factory.mktemp(request.param)
    config = directory / "cluster.toml"
    config.write_text(CONFIG.format(request.param))
    options = ["--config", str(config), "--session-timeout-ms", str(SESSION_TIMEOUT_MS)]
    with RegentCluster(directory, "--no-placement-service", "--restart", *options) as cluster:
        cluster.create_topic("payments", PARTITIONS)
        cluster.await_isr("payments", {0, 1, 2})
        yield cluster


def leaders(cluster: RegentCluster, topic: str) -> dict[int, tuple[int, int]]:
    """Return the leader and leader epoch of every partition."""
    states = cluster.partition_states(topic).items()
    return {n: (s.leader_and_isr.leader, s.leader_and_isr.leader_epoch) for n, s in states}


@pytest.mark.parametrize("role", ["follower of the controller", "controller"])
def test_after_a_killed_broker_returns_all_replicas_are_in_sync(cluster: RegentCluster, role: str):
    controller = cluster.controller()
    assert controller is not None
    killed = controller if role == "controller" else next(b for b in (0, 1, 2) if b != controller)
    before = cluster.broker_epoch(killed)
    cluster.signal(killed, signal.SIGKILL)
    cluster.await_isr("payments", {0, 1, 2} - {killed})
    eventually(lambda: cluster.broker_epoch(killed) not in (None, before), "it is back")
    cluster.await_isr("payments", {0, 1, 2})
    cluster.await_agreement([0, 1, 2], "payments")
    eventually(lambda: cluster.status()["healthy"], "status is healthy")


def test_a_paused_follower_leaves_the_isr_and_returns_without_an_election(
    cluster: RegentCluster,
):
    controller = cluster.controller()
    paused = next(b for b in (0, 1, 2) if b != controller)
    others = {0, 1, 2} - {paused}
    topic = f"created-without-{paused}"
    first, second = others
    cluster.signal(paused, signal.SIGSTOP)
    try:
        cluster.create_topic_on(topic, [(first, second, paused), (second, first, paused)])
        created = leaders(cluster, topic)
        cluster.await_isr(topic, others)
    finally:
        cluster.signal(paused, signal.SIGCONT)
    cluster.await_isr(topic, {0, 1, 2})
    assert leaders(cluster, topic) == created, "a change of an ISR needs no election"


def test_the_controller_reads_every_notification_of_an_isr_change(cluster: RegentCluster):
    cluster.await_agreement([0, 1, 2], "payments")
    eventually(
        lambda: cluster.zookeeper.children(IsrChangeNotificationZNode.PATH) == [],
        "all notifications are read and deleted",
    )
