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
from tests.support.maven_jars import SPARK_JARS
from tests.support.mini_hadoop import MiniHadoop

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIMEOUT_S: Final = 240.0
_QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS: Final = {
    "spark.yarn.jars": f"local:{SPARK_JARS}/*",  # not uploaded: they are 460 MB
    "spark.yarn.am.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
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
    spark.sql(f"{rows} FROM range(40000)").write.parquet(assignment)
    brokers = tmp_path / "brokers.json"
    brokers.write_text("[0, 1, 2, 3]")
    inputs = ("--assignment", assignment, "--brokers", str(brokers))
    summary = yarn.run("plan", "add-brokers", *inputs, "--out", str(out))
    assert summary["moves"] == summary["lower_bound"] == 10_000
    plan = json.loads((out / "plan.json").read_text())["partitions"]
    assert [row["replicas"] for row in plan] == [[3]] * 10_000
