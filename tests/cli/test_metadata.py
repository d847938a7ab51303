"""``metadata``: the metadata cache of one broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.config.addresses import without_key
from regent.core.errors import Errors
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from tests.support.fake_cluster import FakeCluster, failing, write_cluster_file
from tests.support.world import live_broker

TOPIC_ID = "A" * 22
CACHE = DescribeMetadataResponse(
    Errors.NONE,
    broker_id=1,
    broker_state="RunningAsBroker",
    controller_id=0,
    controller_epoch=3,
    brokers=(
        live_broker(
            0,
            17,
            port=9092,
            control_endpoint="tcp://127.0.0.1:19092",
            replication_endpoint="tcp://127.0.0.1:29092",
        ),
    ),
    partitions=(
        MetadataPartition("b", None, 0, -1, 4, 2, (), (0,), (0,), 5),
        MetadataPartition("a", TOPIC_ID, 1, 0, 0, 3, (0, 1), (1, 0), (), 0),
    ),
)


def test_a_cache_is_printed_with_exactly_the_documented_keys(cluster: FakeCluster) -> None:
    cluster.add_broker(1, control_endpoint=cluster.serve(lambda _: CACHE))

    assert cluster.json("metadata", "--broker", "1") == {
        "controller_id": 0,
        "controller_epoch": 3,
        "brokers": [
            {
                "id": 0,
                "broker_epoch": 17,
                "host": "127.0.0.1",
                "port": 9092,
                "control_endpoint": "tcp://127.0.0.1:19092",
                "replication_endpoint": "tcp://127.0.0.1:29092",
                "rack": None,
                "no_replicas": False,
                "node_host": None,
                "is_controller": True,
                "software": "regent",
            }
        ],
        "partitions": [
            {
                "topic": "a",
                "topic_id": TOPIC_ID,
                "partition": 1,
                "leader": 0,
                "leader_epoch": 0,
                "controller_epoch": 3,
                "isr": [0, 1],
                "replicas": [1, 0],
                "offline_replicas": [],
                "partition_epoch": 0,
            },
            {
                "topic": "b",
                "topic_id": None,
                "partition": 0,
                "leader": -1,
                "leader_epoch": 4,
                "controller_epoch": 2,
                "isr": [],
                "replicas": [0],
                "offline_replicas": [0],
                "partition_epoch": 5,
            },
        ],
    }
    assert cluster.received == [DescribeMetadataRequest()]


def test_a_cache_is_printed_as_a_table(cluster: FakeCluster) -> None:
    cluster.add_broker(1, control_endpoint=cluster.serve(lambda _: CACHE))

    lines = cluster.run("metadata", "--broker", "1").stdout.splitlines()

    assert lines[0] == "Broker 1 (RunningAsBroker) knows controller 0 (epoch 3), brokers 0"
    assert lines[2].split() == ["a", "1", "0", "0", "0,1", "1,0", "-"]


@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_broker_that_zookeeper_lost_is_found_by_the_data_directory(
    cluster: FakeCluster, tmp_path: Path, is_reachable: bool
) -> None:
    write_cluster_file(tmp_path, brokers={1: cluster.serve(lambda _: CACHE)})
    cluster.is_reachable = is_reachable

    answer = cluster.json("metadata", "--broker", "1", "--data-dir", str(tmp_path))

    assert answer["controller_epoch"] == 3


def test_an_unknown_broker_is_named(cluster: FakeCluster, tmp_path: Path) -> None:
    assert failing(cluster.run("metadata", "--broker", "7")) == "broker 7 is not registered"
    assert cluster.run("metadata").exit_code == 2


def test_another_broker_at_the_address_is_an_error(cluster: FakeCluster) -> None:
    cluster.add_broker(2, control_endpoint=cluster.serve(lambda _: CACHE))

    assert failing(cluster.run("metadata", "--broker", "2")) == (
        "no metadata of broker 2: broker 1 answered"
    )


def test_a_broker_that_refuses_is_named(cluster: FakeCluster) -> None:
    endpoint = cluster.serve(lambda _: Errors.BROKER_NOT_AVAILABLE)
    cluster.add_broker(1, control_endpoint=endpoint)

    assert failing(cluster.run("metadata", "--broker", "1")).startswith(
        f"broker 1 does not answer: {without_key(endpoint)}: "
    )
