"""Jobs on a real YARN, whose containers share no file of a test with the driver."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from regent.config.command_line import COMMAND
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.files import JobFiles
from regent.testing.waits import scaled
from tests.support.maven_jars import SPARK_JARS
from tests.support.mini_hadoop import MiniHadoop

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.slow]

TOPICS: Final = tuple(PlacementSpec(f"topic-{number:03d}", 500, 3, 0) for number in range(600))
BROKERS: Final = tuple(range(7, 107))
TIMEOUT_S: Final = scaled(240.0)
_QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS: Final = {
    "spark.yarn.jars": f"local:{SPARK_JARS}/*",  # not uploaded: they are 460 MB
    "spark.yarn.am.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class Yarn:
    """Runs jobs whose driver has its files in ``directory``."""

    def __init__(self, hadoop: MiniHadoop, directory: Path) -> None:
        self._environment = {
            **os.environ,
            "HADOOP_CONF_DIR": str(hadoop.configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(directory),
        }

    def run(self, *arguments: str) -> dict[str, Any]:
        """Return the summary of a job that succeeds."""
        conf = [part for key, value in SETTINGS.items() for part in ("--conf", f"{key}={value}")]
        ended = subprocess.run(
            [*COMMAND, "jobs", *arguments, "--master", "yarn", *conf],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        summary: dict[str, Any] = json.loads(ended.stdout)
        return summary


@pytest.fixture
def yarn(hadoop: MiniHadoop, tmp_path: Path) -> Yarn:
    return Yarn(hadoop, tmp_path)


def test_a_plan_on_yarn_reads_hdfs_and_writes_to_the_driver(
    yarn: Yarn, hadoop: MiniHadoop, spark: SparkSession, tmp_path: Path
):
    assignment, out = f"{hadoop.address}/assignment", tmp_path / "planned"
    rows = "SELECT 't' AS topic, cast(id AS int) AS partition, array(int(id % 3)) AS replicas"
    spark.sql(f"{rows} FROM range(4000)").write.parquet(assignment)
    brokers = tmp_path / "brokers.json"
    brokers.write_text("[0, 1, 2, 3]")
    inputs = ("--assignment", assignment, "--brokers", str(brokers))
    summary = yarn.run("plan", "add-brokers", *inputs, "--out", str(out))
    assert summary["moves"] == summary["lower_bound"] == 1_000
    plan = json.loads((out / "plan.json").read_text())["partitions"]
    assert [row["replicas"] for row in plan] == [[3]] * 1_000


def test_a_placement_on_yarn_reads_the_driver_and_writes_to_hdfs(
    yarn: Yarn, hadoop: MiniHadoop, spark: SparkSession, tmp_path: Path
):
    out = f"{hadoop.address}/placed-on-yarn"
    topics, brokers = tmp_path / "topics.json", tmp_path / "brokers.json"
    topics.write_text(json.dumps([topic._asdict() for topic in TOPICS]))
    brokers.write_text(json.dumps(BROKERS))
    JobFiles(lambda: spark).put(brokers, f"{hadoop.address}/brokers.json")
    inputs = ("--topics", str(topics), "--brokers", f"{hadoop.address}/brokers.json")
    summary = yarn.run("place", *inputs, "--out", out, "--format", "parquet")
    assert summary["out"] == out
    request = PlaceTopicsRequest(
        TOPICS, tuple(PlacementBroker(b, None, 0) for b in BROKERS), "ring", "0", "batch", 0
    )
    table = spark.read.parquet(out).orderBy("topic", "partition").toArrow()
    expected = place(request)
    assert table["replicas"].to_pylist() == [list(row.replicas) for row in expected]
    assert table["partition"].to_pylist() == [row.partition for row in expected]
