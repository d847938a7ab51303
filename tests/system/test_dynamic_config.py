"""Unclean elections are enabled for a topic without a live in-sync replica: it gets a leader."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from regent.client.broker_request import ask_broker
from regent.core.model import NO_LEADER, EndPoint
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.client.operations import Create
from regent.zk.znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RegentCluster]:
    with RegentCluster(tmp_path, "--no-placement-service") as cluster:
        yield cluster


def leader_and_isr(cluster: RegentCluster, topic: str) -> tuple[int, tuple[int, ...]]:
    """Return leader and ISR of a topic's only partition in ZooKeeper."""
    leadership = cluster.partition_states(topic)[0].leader_and_isr
    return leadership.leader, leadership.isr


def allow_unclean_elections(cluster: RegentCluster, topic: str) -> None:
    """Enable unclean elections as Kafka's own tool does."""
    config = ConfigEntityZNode.encode({"unclean.leader.election.enable": "true"})
    cluster.zookeeper.multi([Create(ConfigEntityZNode.path("topics", topic), config)])
    notification = ConfigEntityChangeNotificationSequenceZNode.encode(f"topics/{topic}")
    prefix = ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX
    cluster.zookeeper.multi([Create(prefix, notification, sequential=True)])


def address_of(broker_id: int, bootstrap_server: str) -> str | None:
    """Return the address of a broker as another one tells it to clients.

    librdkafka is not asked while the address changes: it may have sent its request to the broker
    whose address it then learns anew, and waits for the answer as long as its timeout.
    """
    host, _, port = bootstrap_server.rpartition(":")
    answer = ask_broker(
        EndPoint("", host, int(port)),
        (KafkaApiKey.DESCRIBE_CLUSTER, 0),
        DescribeClusterRequest(include_cluster_authorized_operations=False),
        DescribeClusterResponse,
        scaled(5.0),
    )
    brokers = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    return brokers.get(broker_id)


def test_clients_get_another_address_while_the_broker_runs(cluster: RegentCluster) -> None:
    def addresses() -> set[str | None]:
        return {address_of(1, cluster.bootstrap_server(told)) for told in (0, 2)}

    assert addresses() == {cluster.bootstrap_server(1)}
    entry = ConfigEntry(
        "advertised.listeners",
        "PLAINTEXT://localhost:9",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server(1)})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(scaled(10))
    eventually(lambda: addresses() == {"localhost:9"}, "clients are told")
    fresh = AdminClient({"bootstrap.servers": cluster.bootstrap_server(0)})
    told = fresh.list_topics(timeout=scaled(10)).brokers[1]
    assert f"{told.host}:{told.port}" == "localhost:9"
    cluster.restart(1)
    eventually(lambda: addresses() == {"localhost:9"}, "it has the address from its start")
    cluster.create_topic("after", 3)
    cluster.await_agreement([0, 1, 2], "after")


@pytest.mark.nightly
def test_enabling_unclean_elections_ends_the_wait_for_a_leader(
    cluster: RegentCluster,
) -> None:
    cluster.create_topic("payments", 1)
    cluster.await_agreement([0, 1, 2], "payments")
    controller = cluster.controller()
    assert controller is not None
    first, last = (b for b in (0, 1, 2) if b != controller)
    cluster.create_topic_on("stuck", [(first, last)])
    eventually(lambda: leader_and_isr(cluster, "stuck")[1] == (first, last), "it has a leader")
    cluster.signal(last, signal.SIGKILL)
    eventually(lambda: leader_and_isr(cluster, "stuck") == (first, (first,)), "one is in sync")
    cluster.signal(first, signal.SIGKILL)
    eventually(
        lambda: leader_and_isr(cluster, "stuck") == (NO_LEADER, (first,)), "there is no leader"
    )
    cluster.start_broker(last)
    gauge = "kafka_controller_kafkacontroller_offlinepartitionscount"
    eventually(lambda: cluster.metrics(controller)[gauge] == 1.0, "the gauge counts the partition")
    allow_unclean_elections(cluster, "stuck")
    eventually(lambda: leader_and_isr(cluster, "stuck") == (last, (last,)), "it has a leader again")
    meter = "kafka_controller_controllerstats_uncleanleaderelectionspersec"
    eventually(lambda: cluster.metrics(controller)[meter] == 1.0, "the meter counted it")
    eventually(
        lambda: cluster.partition_states("stuck")[0].leader_and_isr.leader_recovery_state == 0,
        "the new leader has recovered",
    )
