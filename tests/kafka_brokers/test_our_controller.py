"""Our controller rules a genuine broker of Kafka beside two of ours."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from regent import __version__
from regent.client.broker_request import ask_broker
from regent.config.command_line import COMMAND
from regent.core.model import EndPoint
from regent.core.protocol.messages.control import UpdateMetadataRequest, UpdateMetadataResponse
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.kafka.api import KafkaApiKey
from tests.kafka_brokers.genuine_broker import EACH_VERSION, GenuineBroker

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

KAFKA, FIRST, SECOND = 9, 0, 1
TOPIC = "mixed"
WAIT_S = scaled(20.0)


def regent(cluster: RegentCluster, *arguments: str) -> str:
    """Run a command and return its output; it must succeed."""
    command = [*COMMAND, *arguments, "--data-dir", str(cluster.data_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def produce(cluster: RegentCluster, values: list[str], topic: str = TOPIC) -> None:
    """Produce each value to each partition; all replicas in sync must have it."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    partitions = cluster.partition_states(topic)
    for value in values:
        for partition in partitions:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert not failed


def values_of(server: str, partition: int, count: int) -> list[str]:
    """Return what a consumer that knows one broker first reads of a partition."""
    consumer = Consumer({"bootstrap.servers": server, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found = consumer.consume(count, timeout=WAIT_S)
    consumer.close()
    values = [message.value() for message in found if message.error() is None]
    return [value.decode() for value in values if value is not None]


def isrs(cluster: RegentCluster) -> dict[int, set[int]]:
    return {p: set(s.leader_and_isr.isr) for p, s in cluster.partition_states(TOPIC).items()}


def log_directories(kafka: GenuineBroker, topic: str) -> set[str]:
    """Return the logs of a topic that a broker of Kafka has, without the deleted ones."""
    names = {path.name for path in (kafka.directory / "data").glob(f"{topic}-*")}
    return {name for name in names if not name.endswith("-delete")}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", EACH_VERSION)
def test_a_broker_of_kafka_follows_leads_dies_and_returns(
    version: str, cluster: RegentCluster, jaas: Path, tmp_path: Path
):
    zookeeper = cluster.description["zookeeper"]
    with GenuineBroker(tmp_path / "kafka", KAFKA, zookeeper, version=version, jaas=jaas) as k:
        k.await_serving()
        cluster.create_topic_on(TOPIC, [(FIRST, SECOND, KAFKA), (KAFKA, FIRST), (SECOND, KAFKA)])
        produce(cluster, ["one", "two"])
        assert [cluster.leader_of(TOPIC, p) for p in range(3)] == [FIRST, KAFKA, SECOND]
        assert isrs(cluster) == {0: {FIRST, SECOND, KAFKA}, 1: {KAFKA, FIRST}, 2: {SECOND, KAFKA}}
        assert log_directories(k, TOPIC) == {f"{TOPIC}-{p}" for p in range(3)}
        assert values_of(k.bootstrap_server, 0, 2) == ["one", "two"]
        of_kafka = f"kafka {version.rpartition('.')[0]}"
        rows: list[dict[str, Any]] = json.loads(regent(cluster, "brokers", "list", "-o", "json"))
        assert {row["id"]: row["software"] for row in rows} == {
            **dict.fromkeys((FIRST, SECOND), f"regent {__version__}"),
            KAFKA: of_kafka,
        }
        assert f"{KAFKA} ({of_kafka})" in regent(cluster, "status")

        k.kill()
        eventually(lambda: all(KAFKA not in isr for isr in isrs(cluster).values()), "it is out")
        assert cluster.await_leader(TOPIC, 1) == FIRST
        produce(cluster, ["three"])

        k.start()
        k.await_serving()
        eventually(lambda: all(KAFKA in isr for isr in isrs(cluster).values()), "it caught up")
        regent(
            *(cluster, "elect-leaders", "--election-type", "preferred"),
            *("--topic", TOPIC, "--partition", "1"),
        )
        assert cluster.await_leader(TOPIC, 1, other_than=FIRST) == KAFKA
        produce(cluster, ["four"])
        assert values_of(cluster.bootstrap_server(FIRST), 1, 4) == ["one", "two", "three", "four"]

        k.signal(signal.SIGSTOP)  # it would stand for election, too
        try:
            cluster.move_controller()
        finally:
            k.signal(signal.SIGCONT)
        cluster.create_topic_on("late", [(KAFKA, FIRST), (SECOND, KAFKA)])
        produce(cluster, ["five"], "late")
        cluster.delete_topic("late")
        eventually(lambda: cluster.zookeeper.get("/brokers/topics/late") is None, "it is deleted")
        assert not log_directories(k, "late")

        accepted = cluster.controller_epoch() + 20  # ZooKeeper's data may be set back, for example
        host, port = k.bootstrap_server.split(":")
        told = ask_broker(
            *(EndPoint("", host, int(port)), (KafkaApiKey.UPDATE_METADATA, 7)),
            UpdateMetadataRequest(
                controller_id=SECOND, controller_epoch=accepted, topic_states=(), live_brokers=()
            ),
            *(UpdateMetadataResponse, WAIT_S),
        )
        assert not told.error_code
        cluster.create_topic_on("raised", [(KAFKA, FIRST), (SECOND, KAFKA)])
        eventually(lambda: cluster.controller_epoch() >= accepted, "the epoch is raised")
        produce(cluster, ["six"], "raised")
        assert log_directories(k, "raised") == {"raised-0", "raised-1"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", EACH_VERSION)
def test_each_fetcher_thread_of_a_broker_of_kafka_waits_for_our_records(
    version: str, cluster: RegentCluster, jaas: Path, tmp_path: Path
):
    """With one session for all threads each ended that of another, thousands of times a second."""
    threads, zookeeper = 4, cluster.description["zookeeper"]
    with GenuineBroker(
        *(tmp_path / "kafka", KAFKA, zookeeper),
        version=version,
        jaas=jaas,
        settings={"num.replica.fetchers": threads},
    ) as k:
        k.await_serving()
        cluster.create_topic_on(TOPIC, [(FIRST, KAFKA)] * threads)
        produce(cluster, [str(number) for number in range(20)])
        for partition in range(threads):
            assert len(values_of(cluster.bootstrap_server(FIRST), partition, 20)) == 20
        assert isrs(cluster) == {partition: {FIRST, KAFKA} for partition in range(threads)}
        log = k.log.read_text()
    began = re.findall(r"fetcherId=(\d)", log)
    assert {*began} == {str(number) for number in range(threads)}
    assert log.count("FETCH_SESSION_ID_NOT_FOUND") == 0
