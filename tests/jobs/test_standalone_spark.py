"""Tables that a Spark cluster writes on a shared disk, although it loses a worker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.jobs.journals import GeneratedHistory, write_journals
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
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the driver and all workers see."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def admin(zookeeper_address: str) -> Iterator[ZkAdminStore]:
    """A cluster without topics, one of whose brokers creates them."""
    with closing(ZooKeeperClient(zookeeper_address, 6000, on_watch=lambda _: None)) as client:
        client.start(timeout_s=scaled(10.0))
        with brokers_of(client, BROKERS):
            yield ZkAdminStore(client)


def test_topics_are_created_and_written_as_placed_although_a_worker_dies(
    spark: StandaloneSpark,
    admin: ZkAdminStore,
    zookeeper_address: str,
    tmp_path: Path,
    shared: Path,
):
    specs = [PlacementSpec(f"topic-{number:04d}", PARTITIONS, 3, 0) for number in range(TOPICS)]
    topics, out = tmp_path / "topics.json", shared / "out"
    topics.write_text(json.dumps([spec._asdict() for spec in specs]))
    job = subprocess.Popen(
        [
            *(*COMMAND, "jobs", "place", "--master", spark.master),
            *("--topics", str(topics), "--brokers", "zookeeper", "--zookeeper", zookeeper_address),
            *("--apply", "--out", out.as_uri(), "--format", "parquet"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        computing = eventually(lambda: spark.computing_workers, "a task has begun", TIMEOUT_S)
        spark.kill_worker(computing[0])
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
    assert rows_of(out) == [
        {"topic": t, "partition": p, "replicas": list(replicas)} for t, p, replicas in expected
    ]


def test_a_placement_is_complete_although_a_worker_dies_while_it_writes(
    spark: StandaloneSpark, tmp_path: Path, shared: Path
):
    specs = (PlacementSpec("a", 3_000_000, 2, 0),)
    topics, brokers = tmp_path / "topics.json", tmp_path / "brokers.json"
    topics.write_text(json.dumps([spec._asdict() for spec in specs]))
    brokers.write_text(json.dumps([1, 2, 3]))
    inputs = ("--topics", str(topics), "--brokers", str(brokers))
    write_while_a_worker_dies(spark, shared, "place", *inputs, "--format", "parquet")
    table = pyarrow.parquet.read_table(shared / "out").sort_by("partition")
    number = np.arange(3_000_000)
    assert (table["partition"].to_numpy() == number).all()
    replicas = table["replicas"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
    assert (replicas == np.stack([number % 3, (number + 1) % 3], axis=1) + 1).all()


def test_a_table_of_events_is_complete_although_a_worker_dies_while_it_writes(
    spark: StandaloneSpark, shared: Path
):
    events = list(GeneratedHistory(7).events(4, 200))
    write_journals(shared / "cluster", events)
    copies = 200
    for journal in (shared / "cluster").rglob("events.jsonl*"):
        journal.write_bytes(journal.read_bytes() * copies)
    inputs = ("--journals", (shared / "cluster").as_uri(), "-o", "json")
    report = write_while_a_worker_dies(spark, shared, "report", "events", *inputs)
    assert report["events"] == len(events) * copies
    written = pyarrow.parquet.read_table(shared / "out", columns=["broker_id", "event_id"])
    counts = written.group_by(["broker_id", "event_id"]).aggregate([([], "count_all")])
    assert set(counts["count_all"].to_pylist()) == {copies}
    assert len(counts) == len(events)


def test_a_table_on_the_disk_of_the_driver_is_refused(spark: StandaloneSpark, tmp_path: Path):
    topics, brokers = tmp_path / "topics.json", tmp_path / "brokers.json"
    topics.write_text('[{"topic": "a", "partitions": 1, "replication_factor": 1}]')
    brokers.write_text("[1]")
    inputs = ("--topics", str(topics), "--brokers", str(brokers), "--format", "jsonl")
    command = [*COMMAND, "jobs", "place", "--master", spark.master, *inputs]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{tmp_path / 'out'} is on this machine, and the executors of" in ended.stderr
    assert not (tmp_path / "out").exists()


def write_while_a_worker_dies(
    spark: StandaloneSpark, shared: Path, *arguments: str
) -> dict[str, Any]:
    """Run a job that writes to ``shared / "out"``; return its summary."""
    job = subprocess.Popen(
        [
            *(*COMMAND, "jobs", *arguments, "--out", (shared / "out").as_uri()),
            *("--master", spark.master),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    unfinished = f"{shared / '.out.'}"  # what tasks write, before it is committed
    try:
        writing = eventually(lambda: spark.writing_workers(unfinished), "a task writes", TIMEOUT_S)
        spark.kill_worker(writing[0])
        stdout, stderr = job.communicate(timeout=TIMEOUT_S)
    finally:
        job.kill()
    assert job.returncode == 0, stderr
    assert (shared / "out" / "_SUCCESS").exists()
    summary: dict[str, Any] = json.loads(stdout)
    return summary


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a placement, sorted."""
    read = pyarrow.parquet.read_table(table)
    rows: list[dict[str, Any]] = read.sort_by(
        [("topic", "ascending"), ("partition", "ascending")]
    ).to_pylist()
    return rows
