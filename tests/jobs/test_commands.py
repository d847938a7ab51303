"""What all jobs have in common: how they name themselves, and what they read."""

from __future__ import annotations

import codecs
import gzip
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from regent.cli.main import cli
from regent.jobs.files import JobFiles
from tests.jobs.journals import GeneratedHistory, write_journals

MODULES = {
    "place": "place",
    "plan": "plan",
    "report balance": "report_balance",
    "report events": "report_events",
}
GOALS = ("decommission", "replace", "add-brokers", "rebalance", "replication-factor")
OF_PLANS = ("execute", "rollback", "status", "pause", "resume", "unthrottle")
COMMANDS = [*MODULES, *(f"plan {name}" for name in (*GOALS, *OF_PLANS))]
ROWS = [{"topic": "t", "partition": p, "replicas": [p % 3, (p + 1) % 3]} for p in range(12)]
FILES = {
    "topics.json": [{"topic": "a", "partitions": 4, "replication_factor": 2}],
    "brokers.json": [0, 1, 2, 3],
    "now.json": {"version": 1, "partitions": ROWS},
    "sizes.json": [{"topic": "t", "partition": p, "bytes": 10} for p in range(12)],
}
CLUSTER = ("--assignment", "now.json", "--brokers", "brokers.json")
RUNS = {
    "place": ("--topics", "topics.json", "--brokers", "brokers.json", "--out", "out"),
    "plan rebalance": (*CLUSTER, "--sizes", "sizes.json", "--out", "out"),
    "report balance": (*CLUSTER, "--html", "out"),
    "report events": ("--journals", "journals", "--html", "out"),
    "report events --out": ("--journals", "journals/broker-0/events.jsonl", "--out", "out"),
}


def run(command: str, *arguments: str, spark: SparkSession | None = None) -> int:
    """Run a job by what a user types after ``regent jobs``; return the status."""
    job = next(name for name in MODULES if command == name or command.startswith(f"{name} "))
    words = command.removeprefix(job).split()
    module = importlib.import_module(f"regent.jobs.{MODULES[job]}")
    status: int = module.main([*(w for w in words if w != "--out"), *arguments], spark)
    return status


@pytest.mark.parametrize("command", [*MODULES, "backup", "restore"])
def test_other_users_read_nothing_that_a_job_writes(command: str):
    """Files of records, also those that Spark's processes make: they inherit the mask."""
    before = os.umask(0o022)
    try:
        result = CliRunner().invoke(cli, ["jobs", *command.split(), "--nonsense"])
        assert result.exit_code == 2
        assert os.umask(0o022) == 0o077
    finally:
        os.umask(before)


@pytest.mark.parametrize("command", COMMANDS)
def test_messages_begin_with_the_command_that_was_typed(
    command: str, capsys: pytest.CaptureFixture[str]
):
    assert run(command, "--nonsense") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"regent jobs {command}: No such option")
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_names_the_program_and_not_its_path(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["/some/where/very/deep/bin/regent", "jobs"])
    assert run(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"Usage: regent jobs {command} [OPTIONS]")


def write_files(directory: Path, *, mark: bytes = b"", compressed: bool = False) -> None:
    for name, content in FILES.items():
        data = mark + json.dumps(content).encode()
        path = directory / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(data) if compressed else data)
    write_journals(directory / "journals", list(GeneratedHistory(3).events(2, 30)))


@pytest.mark.spark
@pytest.mark.parametrize(
    "command",
    ["place", *(pytest.param(run, marks=pytest.mark.nightly) for run in RUNS if run != "place")],
)
def test_relative_paths_are_those_of_the_current_directory(
    command: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_files(tmp_path)
    spark.sparkContext.parallelize([0], 1).map(lambda _: 0).collect()  # workers have started
    monkeypatch.chdir(tmp_path)
    assert run(command, *RUNS[command], spark=spark) == 0
    assert (tmp_path / "out").exists()


@pytest.mark.spark
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("command", ["place", "plan rebalance", "report balance"])
def test_every_file_may_be_compressed_and_have_a_mark(
    command: str, mark: bytes, compressed: bool, spark: SparkSession, tmp_path: Path
):
    write_files(tmp_path, mark=mark, compressed=compressed)
    arguments: Sequence[str] = [
        str(tmp_path / text) + (".gz" if compressed and text in FILES else "")
        if text in FILES or text == "out"
        else text
        for text in RUNS[command]
    ]
    assert run(command, *arguments, spark=spark) == 0


@pytest.mark.spark
def test_a_server_that_does_not_answer_is_given_up_soon(spark: SparkSession):
    files = JobFiles(lambda: spark)
    settings = files._hadoop_settings()
    assert settings.get("ipc.client.connect.max.retries.on.timeouts") == "1"
    assert settings.get("fs.s3a.attempts.maximum") == "2"
    own = spark.sparkContext._jsc.hadoopConfiguration()
    assert own.get("fs.s3a.attempts.maximum") != "2", "the session is its user's"
    own.set("fs.s3a.attempts.maximum", "9")
    try:
        assert files._hadoop_settings().get("fs.s3a.attempts.maximum") == "9"
    finally:
        own.unset("fs.s3a.attempts.maximum")
    with pytest.raises(Exception, match=r"hdfs://127\.0\.0\.1:1/x: .*Connection refused"):
        files.entry("hdfs://127.0.0.1:1/x")
