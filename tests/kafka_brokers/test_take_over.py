"""Ours takes the place of a genuine controller of Kafka that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.testing.waits import eventually
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.kafka_brokers.moving_load import PARTITIONS, TOPICS

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_all_replicas_are_in_sync_again_under_the_next_controller_of_kafka(
    jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper) as cluster:
        cluster.create_topics()
        produced = Producer({**cluster.clients, "acks": "all"})
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                produced.produce(topic, b"value", key=b"key", partition=partition)
        assert produced.flush(WAIT_S) == 0
        admin = AdminClient(cluster.clients)

        def controller() -> int:
            return int(admin.list_topics(timeout=WAIT_S).controller_id)

        dead = controller()
        assert dead in BROKERS
        cluster.kafkas[dead].kill()
        cluster.take_place(dead)

        def are_in_sync() -> bool:
            topics = admin.list_topics(timeout=WAIT_S).topics
            return all(
                set(row.isrs) == set(BROKERS)
                for topic in TOPICS
                for row in topics[topic].partitions.values()
            )

        eventually(are_in_sync, "all replicas are in sync", WAIT_S)
