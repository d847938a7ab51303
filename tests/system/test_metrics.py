"""Metrics of the brokers of a real cluster, with the names and labels that dashboards query."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from tests.support.dashboards import ABSENT, queries, query_parts

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


def offered(metrics: dict[str, float]) -> set[tuple[str, frozenset[str]]]:
    """Every sample with its labels, both with and without their values."""
    samples = map(query_parts, metrics)
    return {
        (name, labels | {label.partition("=")[0] for label in labels}) for name, labels in samples
    }


def use(cluster: RegentCluster, topic: str) -> Producer:
    """Write one record to each partition, read them as a group, and commit.

    Return the producer, which stays connected.
    """
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition in range(3):
        producer.produce(topic, b"paid", partition=partition)
    assert producer.flush(scaled(30)) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "auditors",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    for _ in range(3):
        message = consumer.poll(scaled(30))
        assert message is not None
        assert message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()
    return producer


def test_dashboards_find_what_they_query(whole_cluster: RegentCluster) -> None:
    cluster = whole_cluster
    cluster.create_topic("payments", 3)
    cluster.await_agreement([0, 1, 2], "payments")
    producer = use(cluster, "payments")
    reported = {broker_id: cluster.metrics(broker_id) for broker_id in (0, 1, 2)}

    del producer
    found = set().union(*map(offered, reported.values()))
    missing = [
        query
        for query in queries()
        for name, labels in [query_parts(query)]
        if not any(name == its_name and labels <= its_labels for its_name, its_labels in found)
    ]
    assert {query_parts(query)[0] for query in missing} == set(ABSENT), missing

    active_controller = "kafka_controller_kafkacontroller_activecontrollercount"
    assert [b for b, metrics in reported.items() if metrics[active_controller] == 1] == [
        cluster.controller()
    ]
    in_sync = 'kafka_cluster_partition_insyncreplicascount{topic="payments",partition="0"}'
    assert [m[in_sync] for m in reported.values() if in_sync in m] == [3.0]
    written = 'kafka_server_brokertopicmetrics_messagesinpersec{topic="payments"}'
    assert sum(metrics.get(written, 0) for metrics in reported.values()) == 3
    groups = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert sum(metrics[groups] for metrics in reported.values()) == 1
    fetches = "kafka_server_fetcherstats_requestspersec"
    eventually(
        lambda: sum(v for k, v in cluster.metrics(0).items() if k.startswith(fetches)) > 0,
        "it follows a leader",
    )
