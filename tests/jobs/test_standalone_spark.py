"""Placement on a Spark cluster of several processes, one of which is killed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

from regent.config.command_line import COMMAND
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.testing.waits import eventually
from tests.support.standalone_spark import StandaloneSpark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS, PARTITIONS = 1_000, 1_000
BROKERS = range(7, 1_007)


def test_the_death_of_a_worker_does_not_change_the_placement(java: None, tmp_path: Path):
    specs = [PlacementSpec(f"topic-{number:04d}", PARTITIONS, 3, 0) for number in range(TOPICS)]
    topics, brokers, out = tmp_path / "topics.json", tmp_path / "brokers.json", tmp_path / "out"
    topics.write_text(json.dumps([spec._asdict() for spec in specs]))
    brokers.write_text(json.dumps(list(BROKERS)))
    with StandaloneSpark(tmp_path) as spark:
        job = subprocess.Popen(
            [
                *(*COMMAND, "jobs", "place", "--master", spark.master),
                *("--topics", str(topics), "--brokers", str(brokers)),
                *("--out", str(out), "--format", "parquet"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            started = "worker-0/app-*/*/stderr"  # of an executor
            eventually(lambda: any(tmp_path.glob(started)), "the worker has an executor", 60)
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
