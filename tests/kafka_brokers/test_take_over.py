"""Ours takes the place of a genuine controller of Kafka that was killed."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId
from regent.testing.waits import eventually
from regent.zk.znodes import BrokerIdZNode, ControllerZNode
from tests.kafka_brokers.genuine_broker import JARS
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.kafka_brokers.moving_load import PARTITIONS, TOPICS

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

PAUSE_AFTER_S = 2.0  # before the session of the dead broker ends, which takes 4 s


def let_ours_register_first(cluster: MovedCluster, znodes: KazooClient, dead: BrokerId) -> None:
    """Let no broker of Kafka notice that another process has the id of the dead controller.

    They stand still when its session ends. Then ours does, while one of them is elected.
    """
    others = [cluster.kafkas[broker] for broker in BROKERS if broker != dead]
    path = BrokerIdZNode.path(dead)
    former = znodes.get(path)[1].czxid
    time.sleep(PAUSE_AFTER_S)
    for kafka in others:
        kafka.signal(signal.SIGSTOP)
    eventually(lambda: znodes.exists(ControllerZNode.PATH) is None, "its session ends", WAIT_S)
    of_other = b'{"version":1,"brokerid":%d,"timestamp":"0"}' % others[0].broker_id
    znodes.create(ControllerZNode.PATH, of_other, ephemeral=True)

    def is_registered() -> bool:
        now = znodes.exists(path)
        return now is not None and now.czxid > former

    eventually(is_registered, "ours is registered", WAIT_S)
    cluster.processes[dead].send_signal(signal.SIGSTOP)
    for kafka in others:
        kafka.signal(signal.SIGCONT)
    znodes.delete(ControllerZNode.PATH)
    eventually(lambda: znodes.exists(ControllerZNode.PATH) is not None, "one is elected", WAIT_S)
    cluster.processes[dead].send_signal(signal.SIGCONT)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", JARS)
def test_all_replicas_are_in_sync_again_under_the_next_controller_of_kafka(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        cluster.create_topics()
        producer = Producer({**cluster.clients, "acks": "all"})
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                producer.produce(topic, b"value", key=b"key", partition=partition)
        assert producer.flush(WAIT_S) == 0
        admin = AdminClient({**cluster.clients})
        dead = int(admin.list_topics(timeout=WAIT_S).controller_id)
        znodes = KazooClient(zookeeper)
        znodes.start()
        cluster.kafkas[dead].kill()
        move = threading.Thread(target=cluster.follow, args=("move", dead))
        move.start()
        try:
            let_ours_register_first(cluster, znodes, dead)
        finally:
            move.join(2 * WAIT_S)
            znodes.stop()
            znodes.close()
        assert not move.is_alive(), "the page waits until all replicas are in sync"
        log = (tmp_path / f"broker-{dead}" / f"regent-{dead}" / "broker.log").read_text()
        assert "registered again: the controller, a broker of Kafka" in log
        assert int(admin.list_topics(timeout=WAIT_S).controller_id) != dead
        topics = admin.list_topics(timeout=WAIT_S).topics
        isrs = {frozenset(row.isrs) for t in TOPICS for row in topics[t].partitions.values()}
        assert isrs == {frozenset(BROKERS)}
