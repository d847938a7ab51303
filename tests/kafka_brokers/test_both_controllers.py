"""A genuine broker of Kafka and two of ours: our controller rules it, and it rules ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from tests.kafka_brokers.genuine_broker import EACH_VERSION, JARS, GenuineBroker
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

KAFKA = 9
TIMEOUT_S = scaled(60.0)
ASK_S = scaled(5.0)
SETTINGS = "[broker]\nreplica_lag_time_max_ms = 2000\n"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PROTOCOLS = [("2.8.2", "2.6"), *((version, version[:3]) for version in JARS)]
"""With 2.6 it fetches without the last epoch, and writes ISRs into ZooKeeper."""


class Mixed:
    """Brokers 0 and 1 of this project and broker 9 of Kafka, each with one listener."""

    def __init__(
        self, stack: ExitStack, directory: Path, version: str, protocol: str | None = None
    ) -> None:
        self._ports = dict(enumerate(free_ports(2)))
        self._config = directory / "cluster.toml"
        self._config.write_text(SETTINGS)
        options = [
            part
            for broker, port in self._ports.items()
            for part in ("--broker-setting", f"{broker}:listeners=PLAINTEXT://127.0.0.1:{port}")
        ]
        self.cluster = stack.enter_context(
            RegentCluster(
                directory,
                *("--brokers", "2", "--no-placement-service", "--no-internal-topics"),
                *("--config", str(self._config), *options),
            )
        )
        data_dir = str(self.cluster.data_dir)
        login = ("zookeeper", "client-config", "--data-dir", data_dir)
        command = [sys.executable, "-m", "regent", *login]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        self.kafka = stack.enter_context(
            GenuineBroker(
                directory / "kafka",
                KAFKA,
                self.cluster.description["zookeeper"],
                jaas=self.cluster.data_dir / "zookeeper-client.jaas",
                version=version,
                settings={
                    "replica.lag.time.max.ms": 2_000,
                    "inter.broker.protocol.version": protocol or version[:3],
                },
            )
        )
        eventually(
            lambda: KAFKA in self.ask(0).list_topics(timeout=ASK_S).brokers,
            "Kafka joins",
            TIMEOUT_S,
        )

    def bootstrap(self, broker: int) -> str:
        return (
            self.kafka.bootstrap_server if broker == KAFKA else f"127.0.0.1:{self._ports[broker]}"
        )

    def ask(self, broker: int) -> Any:
        return AdminClient({"bootstrap.servers": self.bootstrap(broker)})

    def create(self, topic: str, *replicas: int) -> None:
        admin = self.ask(0)
        new = NewTopic(topic, 1, replica_assignment=[list(replicas)])
        admin.create_topics([new])[topic].result(TIMEOUT_S)
        self.await_state(topic, replicas[0], set(replicas))

    def await_state(self, topic: str, leader: int | None, isr: set[int], asked: int = 0) -> None:
        def is_so() -> bool:
            found = (
                self.ask(asked).list_topics(topic, timeout=ASK_S).topics[topic].partitions.get(0)
            )
            is_led = found is not None and leader in (None, found.leader)
            return is_led and set(found.isrs) == isr

        eventually(is_so, f"{topic} is led by {leader} with {isr} in sync", TIMEOUT_S)

    def produce(
        self, topic: str, broker: int, codec: str = "none", *, size: int = 5, count: int = 1
    ) -> None:
        """Wait for the acknowledgement of all in-sync replicas, of an idempotent producer."""
        errors: list[Any] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap(broker),
                "enable.idempotence": True,
                "compression.type": codec,
            }
        )
        for _ in range(count):
            producer.produce(topic, b"v" * size, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == [None] * count

    def await_equal_logs(self, topic: str) -> None:
        """Wait until the replicas of all brokers have the same bytes."""

        def content(folder: Path) -> bytes:
            (log,) = (found for found in folder.rglob(f"{topic}-0") if found.is_dir())
            return b"".join(segment.read_bytes() for segment in sorted(log.glob("*.log")))

        ours = (self.cluster.data_dir / f"broker-{broker}" for broker in self._ports)
        folders = [self.kafka.directory / "data", *ours]
        eventually(lambda: len(set(map(content, folders))) == 1, "equal logs", TIMEOUT_S)

    def await_controller(self, asked: int) -> None:
        def is_kafka() -> bool:
            try:
                return bool(self.ask(asked).list_topics(timeout=ASK_S).controller_id == KAFKA)
            except KafkaException as error:  # the broker has just started
                raise LookupError(error) from None

        eventually(is_kafka, f"broker {asked} knows that Kafka rules", TIMEOUT_S)

    def let_kafka_win(self) -> None:
        """End both of ours at once: only Kafka's broker can be elected. Then start them again."""
        self.cluster.kill(0, 1)
        self.await_controller(KAFKA)
        for broker, port in self._ports.items():
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            options = ("--listeners", listeners, "--config", str(self._config))
            self.cluster.start_broker(broker, *options)
            self.await_controller(broker)

    def pause_follower(self, topic: str, leader: int, follower: int, asked: int) -> None:
        """Let the leader shrink the ISR and expand it again.

        The follower misses more than one answer of the leader has.
        """
        self.cluster.pause(follower)
        self.await_state(topic, leader, {0, 1, KAFKA} - {follower}, asked)
        self.produce(topic, leader, size=10_000, count=300)
        self.cluster.resume(follower)
        self.await_state(topic, leader, {0, 1, KAFKA}, asked)


@pytest.fixture(params=EACH_VERSION)
def mixed(request: pytest.FixtureRequest, jars: None, tmp_path: Path) -> Iterator[Mixed]:
    del jars
    with ExitStack() as stack:
        yield Mixed(stack, tmp_path, request.param)


def test_a_broker_of_kafka_asks_our_controller(mixed: Mixed):
    """It shrinks and expands an ISR, gets producer ids, and gives its leaderships away."""
    mixed.create("orders", KAFKA, 0, 1)
    mixed.produce("orders", KAFKA)
    controller = mixed.ask(KAFKA).list_topics(timeout=ASK_S).controller_id
    mixed.pause_follower("orders", KAFKA, 1 - controller, asked=controller)
    mixed.kafka.stop()
    mixed.await_state("orders", 0, {0, 1}, asked=0)
    mixed.produce("orders", 0)


def test_our_brokers_obey_a_controller_of_kafka_and_ask_it(mixed: Mixed):
    mixed.create("orders", KAFKA, 0, 1)
    mixed.let_kafka_win()
    mixed.await_state("orders", KAFKA, {0, 1, KAFKA})
    mixed.create("payments", 0, 1, KAFKA)
    mixed.produce("payments", 1)
    mixed.pause_follower("payments", 0, 1, asked=0)
    mixed.cluster.shut_down(0)
    mixed.await_state("payments", 1, {1, KAFKA}, asked=1)
    mixed.produce("payments", 1)


def test_our_brokers_serve_a_cluster_without_topics_under_a_controller_of_kafka(mixed: Mixed):
    mixed.let_kafka_win()
    mixed.produce("created-by-its-first-record", 0)


@pytest.mark.nightly
@pytest.mark.parametrize(("version", "protocol"), PROTOCOLS)
def test_logs_are_the_same_after_leaders_of_both_kinds(
    version: str, protocol: str, jars: None, tmp_path: Path
):
    del jars
    with ExitStack() as stack:
        mixed = Mixed(stack, tmp_path, version, protocol)
        mixed.create("orders", 0, 1, KAFKA)
        mixed.create("payments", KAFKA, 0, 1)
        for codec in CODECS:
            mixed.produce("orders", 0, codec)
            mixed.produce("payments", KAFKA, codec)
        mixed.kafka.kill()
        mixed.await_state("payments", 0, {0, 1})
        mixed.produce("payments", 0)
        mixed.kafka.start()
        for topic in ("orders", "payments"):
            mixed.await_state(topic, 0, {0, 1, KAFKA})
            mixed.await_equal_logs(topic)
        mixed.let_kafka_win()
        for topic in ("orders", "payments"):
            mixed.await_state(topic, None, {0, 1, KAFKA})
            mixed.produce(topic, 0, "zstd")
            mixed.await_equal_logs(topic)
