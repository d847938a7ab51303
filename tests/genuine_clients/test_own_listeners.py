"""Brokers with Kafka's ``listeners``: each client sees its own, and followers have theirs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from regent.core.model import BrokerRegistration
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

BROKERS = (0, 1, 2)
TIMEOUT_S = scaled(30.0)
NAMED = """
[broker]
listener_security_protocol_map = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,BROKER:PLAINTEXT"
inter_broker_listener_name = "BROKER"
[listener_name.outside]
max_connections = 200
"""


class Ports:
    """The ports of each listener by broker."""

    def __init__(self, *listeners: str) -> None:
        found = iter(free_ports(len(listeners) * len(BROKERS)))
        self.of = {name: {broker: next(found) for broker in BROKERS} for name in listeners}

    def bootstrap(self, listener: str) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.of[listener].values())

    def options(self) -> list[str]:
        """Return the listeners of each broker for ``regent cluster``."""
        return [
            part
            for broker in BROKERS
            for part in (
                "--broker-setting",
                f"{broker}:listeners="
                + ",".join(f"{name}://127.0.0.1:{of[broker]}" for name, of in self.of.items()),
            )
        ]


@pytest.fixture(scope="module")
def named_ports() -> Ports:
    return Ports("BROKER", "INSIDE", "OUTSIDE")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, named_ports: Ports) -> Iterator[RegentCluster]:
    """A cluster with two listeners for clients and one for brokers."""
    directory = tmp_path_factory.mktemp("named")
    config = directory / "cluster.toml"
    config.write_text(NAMED)
    options = ("--no-placement-service", "--config", str(config), *named_ports.options())
    with RegentCluster(directory, *options) as cluster:
        yield cluster


def seen_by_librdkafka(bootstrap: str) -> dict[int, int]:
    """Return the ports of the brokers that a client is told."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
    return {broker.id: broker.port for broker in found.brokers.values()}


def seen_by_kafka_python(bootstrap: str) -> dict[int, int]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        return {row["broker_id"]: row["port"] for row in client.describe_cluster()["brokers"]}


def produced_and_read(bootstrap: str, topic: str, partitions: int) -> None:
    """Write to every partition with acks=all, and read it back, also in a group."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for partition in range(partitions):
        producer.produce(topic, b"v", partition=partition, on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all")) as other:
        for partition in range(partitions):
            other.send(topic, b"w", partition=partition).get(TIMEOUT_S)
    settings = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest"}
    with closing(KafkaConsumer(topic, bootstrap_servers=bootstrap, **settings)) as consumer:
        found: set[TopicPartition] = set()

        def has_all() -> bool:
            found.update(consumer.poll(timeout_ms=500))
            return len(found) == partitions

        eventually(has_all, "every partition was read")


@pytest.mark.parametrize("listener", ["INSIDE", "OUTSIDE"])
def test_a_client_sees_the_endpoints_of_its_own_listener(
    named: RegentCluster, named_ports: Ports, listener: str
) -> None:
    bootstrap = named_ports.bootstrap(listener)
    assert seen_by_librdkafka(bootstrap) == named_ports.of[listener]
    assert seen_by_kafka_python(bootstrap) == named_ports.of[listener]
    topic = f"by-{listener.lower()}"
    named.create_topic(topic, 3)
    produced_and_read(bootstrap, topic, 3)
    named.await_isr(topic, {0, 1, 2})


def test_listeners_are_registered_as_kafka_registers_them(
    named: RegentCluster, named_ports: Ports
) -> None:
    registered = ZkAdminStore(named.zookeeper).read_brokers()
    for broker, registration in registered.items():
        assert isinstance(registration, BrokerRegistration)
        info = registration.info
        assert {e.listener: e.port for e in info.endpoints} == {
            name: ports[broker] for name, ports in named_ports.of.items()
        }
        assert info.replication_endpoint == f"tcp://127.0.0.1:{named_ports.of['BROKER'][broker]}"
        assert info.plaintext_endpoint is not None
        assert info.plaintext_endpoint.listener == "INSIDE"
    assert named.status()["healthy"]
    assert named.status()["warnings"] == []


def test_a_restarted_broker_follows_by_the_listener_of_brokers(named: RegentCluster) -> None:
    named.create_topic("restarted", 3)
    named.await_isr("restarted", {0, 1, 2})
    named.restart(1)
    named.await_isr("restarted", {0, 1, 2})


def test_an_only_listener_serves_clients_and_followers(tmp_path: Path) -> None:
    ports = Ports("PLAINTEXT")
    options = ("--no-placement-service", "--restart", *ports.options())
    with RegentCluster(tmp_path / "one", *options) as cluster:
        assert seen_by_librdkafka(cluster.bootstrap_servers) == ports.of["PLAINTEXT"]
        cluster.create_topic("one", 6)
        cluster.await_isr("one", {0, 1, 2})
        produced_and_read(ports.bootstrap("PLAINTEXT"), "one", 6)
        before = cluster.broker_epoch(2)
        cluster.signal(2, signal.SIGKILL)
        cluster.await_isr("one", {0, 1})
        eventually(lambda: cluster.broker_epoch(2) not in (None, before), "it is back")
        cluster.await_isr("one", {0, 1, 2})
        assert cluster.status()["under_replicated_partitions"] == 0
