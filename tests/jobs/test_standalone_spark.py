"""Placement on a Spark cluster that shares no disk with the driver, and loses a worker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet
import pytest

from regent.config.command_line import COMMAND
from regent.core.placement.replica_placer import place
from regent.core.ports import TopicAssignment
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
)
from regent.testing.waits import eventually, scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.own_disks import OwnDisksUnavailableError, require_own_disks
from tests.support.standalone_spark import StandaloneSpark
from tests.support.topic_controller import brokers_of

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.slow, pytest.mark.zookeeper]

TOPICS, PARTITIONS, BROKERS = 40, 1_000, 30
TIMEOUT_S = scaled(240.0)


@pytest.fixture
def spark(
    java: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneSpark]:
    """Two workers that do not see the directory of the test."""
    try:
        require_own_disks(tmp_path)
    except OwnDisksUnavailableError as error:
        pytest.skip(str(error))
    with StandaloneSpark(tmp_path_factory.mktemp("standalone"), hidden=tmp_path) as spark:
        yield spark


@pytest.fixture
def admin(zookeeper_address: str) -> Iterator[ZkAdminStore]:
    """A cluster without topics, one of whose brokers creates them."""
    with closing(ZooKeeperClient(zookeeper_address, 6000, on_watch=lambda _: None)) as client:
        client.start(timeout_s=scaled(10.0))
        with brokers_of(client, BROKERS):
            yield ZkAdminStore(client)


def test_topics_are_created_and_written_as_placed_although_a_worker_dies_while_it_computes(
    spark: StandaloneSpark, admin: ZkAdminStore, zookeeper_address: str, tmp_path: Path
):
    specs = [PlacementSpec(f"topic-{number:04d}", PARTITIONS, 3, 0) for number in range(TOPICS)]
    topics, out = tmp_path / "topics.json", tmp_path / "out"
    topics.write_text(json.dumps([spec._asdict() for spec in specs]))
    job = subprocess.Popen(
        [
            *(*COMMAND, "jobs", "place", "--master", spark.master),
            *("--topics", str(topics), "--brokers", "zookeeper", "--zookeeper", zookeeper_address),
            *("--apply", "--out", str(out), "--format", "parquet"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        computing = eventually(lambda: spark.computing_workers, "a task has begun", TIMEOUT_S)
        spark.kill_worker(computing[0])
        assert admin.topics.read_topic_names() == []
        stdout, stderr = job.communicate(timeout=TIMEOUT_S)
    finally:
        job.kill()
    assert job.returncode == 0, stderr
    assert json.loads(stdout)["created"] == TOPICS
    request = PlaceTopicsRequest(
        tuple(specs),
        tuple(PlacementBroker(b, None, 0) for b in range(BROKERS)),
        *("ring", "0", "batch", 0),
    )
    expected = place(request)
    created = admin.topics.read_topics([spec.topic for spec in specs])
    assert expected == [
        PlacedPartition(name, number, assignment.replicas)
        for name, topic in sorted(created.items())
        if isinstance(topic, TopicAssignment)
        for number, assignment in sorted(topic.partitions.items())
    ]
    written = pyarrow.parquet.read_table(out)["replicas"].to_pylist()
    assert written == [list(row.replicas) for row in expected]
