"""``status`` and ``brokers list`` say what is wrong with brokers of Kafka, and with no_replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerInfo, EndPoint, LeaderAndIsr, ReplicaAssignment
from regent.core.protocol.controller import (
    BrokerSoftware,
    DescribeControllerRequest,
    DescribeControllerResponse,
    OfflineReplicas,
)
from regent.core.protocol.messages.log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.message_codec import encoded
from tests.support.fake_cluster import FakeCluster
from tests.support.world import T0, broker_info

KAFKA, RULER = 9, 10


@pytest.fixture
def kafka(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Broker 0 of ours, and broker 9 of Kafka, of whose log directories one has failed."""

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        results = tuple(
            DescribeLogDirsResult(error_code=error, log_dir=path, topics=())
            for path, error in (("/a", Errors.NONE), ("/b", Errors.KAFKA_STORAGE_ERROR))
        )
        answer = DescribeLogDirsResponse(results=results)
        return (encoded(answer, request.api_version, is_flexible=False),)

    listener = KafkaListener(
        "127.0.0.1", 0, [KafkaApi(KafkaApiKey.DESCRIBE_LOG_DIRS, 1, 1, handle)]
    )
    listener.start()
    cluster.add_broker(0, control_endpoint=cluster.serve(cluster.lead), port=1)
    endpoint = EndPoint("PLAINTEXT", "127.0.0.1", listener.port, "PLAINTEXT")
    cluster.register_as(BrokerInfo(KAFKA, (endpoint,)))
    cluster.elect(0)
    cluster.put_topic(
        "t", {0: ReplicaAssignment((0, KAFKA))}, leaders={0: LeaderAndIsr(0, (0, KAFKA))}
    )
    yield cluster
    listener.close(0.1)


def shown(cluster: FakeCluster) -> dict[str, list[str]]:
    """Return what ``status`` shows, healthy or not."""
    found: dict[str, list[str]] = json.loads(cluster.run("status", "-o", "json").stdout)
    return found


def test_the_failed_log_directories_of_a_broker_of_kafka_are_named(kafka: FakeCluster):
    warning = "broker 9: log directory /b has failed: replace its disk, and restart the broker"
    assert warning in shown(kafka)["warnings"]
    rows = {row["id"]: row for row in kafka.json("brokers", "list")}
    assert rows[KAFKA]["failed_log_dirs"] == ["/b"]
    assert "failed_log_dirs" not in rows[0]
    assert "failed: /b" in kafka.run("brokers", "list").stdout


def test_the_replicas_that_its_controller_takes_for_failed_are_named(kafka: FakeCluster):
    kafka.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE,
        software=(BrokerSoftware(0, "regent"), BrokerSoftware(KAFKA, "kafka 3.9")),
        offline_replicas=(OfflineReplicas(0, 1, (T0,)), OfflineReplicas(KAFKA, 7, (T0,))),
    )
    reasons = shown(kafka)["reasons"]
    named = [reason for reason in reasons if "offline" in reason]
    assert named == [
        "broker 9: 7 replicas offline: t-0 and 6 more: see its log for the reason, then restart it"
    ]


def test_replicas_on_a_broker_that_takes_none_are_a_warning_with_the_command(kafka: FakeCluster):
    def warned() -> list[str]:
        found = shown(kafka)["warnings"]
        return [line for line in found if "no_replicas" in line]

    kafka.register_as(replace(broker_info(RULER), no_replicas=True))
    assert warned() == []
    kafka.put_topic(
        "u", {0: ReplicaAssignment((0, RULER))}, leaders={0: LeaderAndIsr(0, (0, RULER))}
    )
    assert warned() == [
        "broker 10 has the setting no_replicas, and 1 replica: u-0: move them:"
        " regent jobs plan decommission --from 10"
    ]
