"""The session of a job is the user's, and starts when it is needed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pyspark
import pytest

from regent.config.command_line import COMMAND
from regent.config.java import find_java
from regent.testing.waits import scaled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

PLACE = ("jobs", "place", "--dry-run", "--topics", "topics.json", "--brokers", "brokers.json")
RESULT_LIMIT = "spark.driver.maxResultSize"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "topics.json").write_text(
        '[{"topic": "a", "partitions": 4, "replication_factor": 2}]'
    )
    (tmp_path / "brokers.json").write_text("[1, 2, 3]")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master of-the-defaults-file\n")
    return tmp_path


def place(
    directory: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARK_CONF_DIR": str(directory / "conf"), **(variables or {})}
    return subprocess.run(
        [*COMMAND, *PLACE, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )


@pytest.mark.nightly
def test_spark_defaults_are_read_and_options_are_stronger(directory: Path):
    refused = place(directory)
    assert refused.returncode == 1
    assert (
        "did not start (exit status 1): Master must either be yarn or start with" in refused.stderr
    )
    assert refused.stderr.count("\n") == 1
    done = place(directory, "--master", "local[1]", "--conf", "spark.driver.memory=600m")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
def test_a_timeout_of_spark_names_the_reason_and_the_setting_for_a_longer_wait(directory: Path):
    # As docs/spark.md tells for a cluster of one's own: the class archive is not of this Spark.
    variables = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    options = ("--master", "spark://127.0.0.1:1", "--start-timeout", "15")
    refused = place(directory, *options, variables=variables)
    assert refused.returncode == 1
    assert refused.stderr.startswith("regent jobs place: Spark did not start within 15 s: it was")
    assert refused.stderr.endswith(" (--start-timeout gives it longer)\n")
    assert refused.stderr.count("\n") == 1
    assert "archive" not in refused.stderr
    if "waiting for the JVM" not in refused.stderr:  # on a fast machine
        assert "waiting for spark://127.0.0.1:1 to start the application" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--conf", "spark.a"), "--conf spark.a: write it as spark.NAME=VALUE"),
        (("--conf", "master=yarn"), "--conf master=yarn: write it as spark.NAME=VALUE"),
        (("--start-timeout", "0"), "--start-timeout"),
    ],
)
def test_wrong_options_of_the_session_are_one_line(
    directory: Path, arguments: tuple[str, ...], message: str
):
    refused = place(directory, *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_start_takes_no_longer_than_wanted(directory: Path):
    refused = place(directory, "--master", "local[1]", "--start-timeout", "0.1")
    assert refused.returncode == 1
    assert "Spark did not start within 0.1 s" in refused.stderr


@pytest.mark.nightly
def test_an_error_of_the_jvm_is_one_line(directory: Path):
    rows = {"topic": ["a"] * 999, "partition": [*range(999)], "replicas": [[1, 2]] * 999}
    damaged = directory / "damaged.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), damaged)
    with damaged.open("r+b") as file:
        file.seek(50)
        file.write(bytes(200))
    report = ("jobs", "report", "balance", "--assignment", str(damaged))
    ended = subprocess.run(
        [*COMMAND, *report, "--brokers", "brokers.json", "--master", "local[1]"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith("regent jobs report balance: ")


@pytest.mark.nightly
@pytest.mark.parametrize(("conf", "limit"), [((), "0"), (("--conf", RESULT_LIMIT + "=2g"), "2g")])
def test_a_job_of_spark_submit_has_no_limit_of_results_that_its_user_did_not_set(
    directory: Path, conf: tuple[str, ...], limit: str
):
    script = directory / "job.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "from regent.jobs import place\n"
        f"assert place.main({list(PLACE[2:])}) == 0\n"
        f"print(SparkSession.active().conf.get({RESULT_LIMIT!r}))\n"
    )
    home = str(Path(pyspark.__file__).parent)
    variables = {
        "SPARK_HOME": home,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [f"{home}/bin/spark-submit", "--master", "local[1]", *conf, str(script)],
        cwd=directory,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [limit], done.stderr
