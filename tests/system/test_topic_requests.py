"""Any broker handles clients' requests about topics, also while the controller changes."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import TIMEOUT_S, scaled
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.primitives import Reader, Writer
from tests.transport.kafka.raw_client import request_bytes

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS, REPLICATION_FACTOR = 4, 2


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    with RegentCluster(tmp_path_factory.mktemp("cluster"), "--no-placement-service") as cluster:
        yield cluster


def create(cluster: RegentCluster, broker_id: BrokerId, topic: str) -> Errors:
    """Send a CreateTopics request to this broker only."""
    brokers = cluster.description["brokers"]
    port = next(broker["port"] for broker in brokers if broker["id"] == broker_id)
    body = Writer()
    body.int32(1)
    body.string(topic)
    body.int32(PARTITIONS)
    body.int16(REPLICATION_FACTOR)
    for _ in ("assignments", "configurations"):
        body.int32(0)
    body.int32(round(TIMEOUT_S * 1000))
    body.boolean(False)
    request = request_bytes(body.whole(), api_key=KafkaApiKey.CREATE_TOPICS, version=4)
    with socket.create_connection(("127.0.0.1", port), scaled(TIMEOUT_S)) as connection:
        connection.settimeout(scaled(2 * TIMEOUT_S))
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            reader = Reader(memoryview(answer.read(size)))
    _correlation_id, _throttle_ms, count = reader.int32(), reader.int32(), reader.int32()
    assert (count, reader.string()) == (1, topic)
    return Errors(reader.int16())


def test_a_topic_can_be_created_at_any_broker(whole_cluster: RegentCluster):
    cluster = whole_cluster
    for broker_id in range(3):
        topic = f"created-at-{broker_id}"
        assert create(cluster, broker_id, topic) is Errors.NONE
        led = cluster.partition_states(topic)
        assert sorted(led) == list(range(PARTITIONS))
        assert all(len(row.leader_and_isr.isr) == REPLICATION_FACTOR for row in led.values())
        rows = cluster.metadata(broker_id).partitions
        known = {row.partition for row in rows if row.topic == topic}
        assert known == set(range(PARTITIONS)), "the answering broker knows the topic"


@pytest.mark.nightly
def test_topics_are_created_while_another_controller_is_elected(cluster: RegentCluster):
    active_controller = cluster.controller()
    assert active_controller is not None
    others = [broker_id for broker_id in range(3) if broker_id != active_controller]
    cluster.signal(active_controller, signal.SIGKILL)
    with ThreadPoolExecutor(6) as clients:
        answers = [
            clients.submit(create, cluster, others[number % 2], f"t{number}") for number in range(6)
        ]
    assert [answer.result(scaled(2 * TIMEOUT_S)) for answer in answers] == [Errors.NONE] * 6
    for number in range(6):
        assert sorted(cluster.partition_states(f"t{number}")) == list(range(PARTITIONS))
