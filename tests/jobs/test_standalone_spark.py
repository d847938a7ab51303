"""Placement on a Spark cluster that shares no disk with the driver, and loses a worker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from regent.config.command_line import COMMAND
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.testing.waits import eventually
from tests.support.own_disks import OwnDisksUnavailableError, require_own_disks
from tests.support.standalone_spark import StandaloneSpark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS, PARTITIONS = 1_000, 1_000
BROKERS = range(7, 1_007)


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


def test_the_death_of_a_worker_does_not_change_the_placement(
    spark: StandaloneSpark, tmp_path: Path
):
    specs = [PlacementSpec(f"topic-{number:04d}", PARTITIONS, 3, 0) for number in range(TOPICS)]
    topics, brokers, out = tmp_path / "topics.json", tmp_path / "brokers.json", tmp_path / "out"
    topics.write_text(json.dumps([spec._asdict() for spec in specs]))
    brokers.write_text(json.dumps(list(BROKERS)))
    job = subprocess.Popen(
        [
            *(*COMMAND, "jobs", "place", "--master", spark.master),
            *("--topics", str(topics), "--brokers", str(brokers)),
            *("--out", str(out), "--format", "parquet"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: spark.busy_workers == 2, "both workers have an executor", 60)
        assert job.poll() is None
        spark.kill_worker(0)
        stdout, stderr = job.communicate(timeout=120)
    finally:
        job.kill()
    assert (job.returncode, stderr) == (0, "")
    assert json.loads(stdout)["partitions"] == TOPICS * PARTITIONS
    request = PlaceTopicsRequest(
        tuple(specs), tuple(PlacementBroker(b, None, 0) for b in BROKERS), "ring", "0", "batch", 0
    )
    table = pyarrow.parquet.read_table(out).sort_by(
        [("topic", "ascending"), ("partition", "ascending")]
    )
    expected = place(request)
    assert table["replicas"].to_pylist() == [list(row.replicas) for row in expected]
    assert table["partition"].to_pylist() == [row.partition for row in expected]
