"""The jobs read and write on a real HDFS, and on an S3 server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.config.command_line import COMMAND
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs import place as place_job
from regent.jobs import plan as plan_job
from regent.jobs import report_balance, report_events
from regent.jobs.command import InputError
from regent.jobs.files import SUCCESS, JobFiles, path_to_read
from regent.jobs.new_directory import new_directory, new_table
from regent.jobs.tables import write_files
from regent.testing.waits import scaled
from tests.jobs.journals import GeneratedHistory, write_journals
from tests.support.maven_jars import JarsUnavailableError
from tests.support.mini_hadoop import MiniHadoop
from tests.support.object_store import ObjectStore

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.slow]

TOPICS = (PlacementSpec("payments", 12, 3, 0), PlacementSpec("audit", 2, 1, 0))
BROKERS = (0, 1, 2)
INPUTS: dict[str, Any] = {
    "topics.json": [topic._asdict() for topic in TOPICS],
    "brokers.json": BROKERS,
    "more.json": (*BROKERS, 3),
}

PARTS = {
    "json": r"placement\.json",
    "jsonl": r"part-00000-.*\.json",
    "parquet": r"part-00000-.*\.parquet",
}


def expected() -> list[dict[str, Any]]:
    """Return the placement, sorted."""
    brokers = tuple(PlacementBroker(broker, None, 0) for broker in BROKERS)
    request = PlaceTopicsRequest(TOPICS, brokers, "ring", "0", "batch", 0)
    return [{"topic": t, "partition": p, "replicas": [*r]} for t, p, r in place(request)]


@pytest.fixture(scope="module")
def hdfs(hadoop: MiniHadoop, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a directory with the inputs."""
    directory = tmp_path_factory.mktemp("inputs")
    address = f"{hadoop.address}/in %41{{b}}"
    for name, content in INPUTS.items():
        (directory / name).write_text(json.dumps(content))
        JobFiles(lambda: spark).put(directory / name, f"{address}/{name}")
    return address


@pytest.fixture
def files(spark: SparkSession) -> Iterator[JobFiles]:
    files = JobFiles(lambda: spark)
    yield files
    files.close()


@pytest.mark.parametrize("file_format", ["json", "jsonl", "parquet"])
def test_a_placement_on_hdfs_is_read_by_a_plan_and_by_a_report(
    hdfs: str, spark: SparkSession, file_format: str, files: JobFiles, capsys: Any
):
    placed, planned = f"{hdfs}/placed-{file_format}", f"{hdfs}/planned-{file_format}"
    inputs = ["--topics", f"{hdfs}/topics.json", "--brokers", f"{hdfs}/brokers.json"]
    assert place_job.main([*inputs, "--out", placed, "--format", file_format], spark) == 0
    assert json.loads(capsys.readouterr().out)["out"] == placed
    done, part = [entry.name for entry in files.entries(placed)]
    assert done == SUCCESS
    assert re.fullmatch(PARTS[file_format], part)

    assignment = f"{placed}/placement.json" if file_format == "json" else placed
    brokers = ["--brokers", f"{hdfs}/more.json"]
    options = ["--assignment", assignment, *brokers, "--out", planned]
    assert plan_job.main(["add-brokers", *options], spark) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["moves"] == summary["lower_bound"] == 9  # of 38 replicas on 4 brokers
    rollback = json.loads(files.read(f"{planned}/rollback.json"))["partitions"]
    assert len(rollback) == summary["partitions_changed"]
    assert all(row in expected() for row in rollback)

    assert report_balance.main(["--assignment", assignment, *brokers, "-o", "json"], spark) == 0
    assert json.loads(capsys.readouterr().out)["per_broker"]["replicas"]["max"] == 13


def test_journals_on_hdfs_give_the_same_report_as_a_local_copy(
    hdfs: str, spark: SparkSession, files: JobFiles, tmp_path: Path, capsys: Any
):
    write_journals(tmp_path, tuple(GeneratedHistory(11).events(3, 40)))
    files.put(tmp_path, f"{hdfs}/cluster")
    reports, counts = [], []
    for cluster in (str(tmp_path), f"{hdfs}/cluster"):
        options = ["--journals", cluster, "--out", f"{cluster}/table", "-o", "json"]
        assert report_events.main(options, spark) == 0
        reports.append(json.loads(capsys.readouterr().out))
        counts.append(spark.read.parquet(path_to_read(f"{cluster}/table")).count())
    of_files, of_hdfs = [{**report, "out": None, "seconds": None} for report in reports]
    assert of_hdfs == of_files
    assert counts[0] == counts[1] > 0


def test_a_table_that_is_not_complete_is_removed_from_hdfs(
    hdfs: str, spark: SparkSession, files: JobFiles
):
    out = f"{hdfs}/unfinished"

    def fail() -> None:
        with new_table(out, files) as location:
            write_files(spark.range(3), location, "parquet")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert files.entry(out) is None


def test_files_on_hdfs_are_not_overwritten(
    hdfs: str, spark: SparkSession, files: JobFiles, capsys: Any
):
    inputs = ["--topics", f"{hdfs}/topics.json", "--brokers", f"{hdfs}/brokers.json"]
    before = files.entries(hdfs)
    assert place_job.main([*inputs, "--out", hdfs], spark) == 2
    said = capsys.readouterr().err
    assert f"{hdfs} exists already (without _SUCCESS: perhaps an interrupted job left it)" in said
    assert files.entries(hdfs) == before


def test_checksums_of_local_files_are_not_copied(hdfs: str, files: JobFiles):
    with new_directory(f"{hdfs}/without-checksums", files) as directory:
        (directory / "part-00000.parquet").touch()
        (directory / ".part-00000.parquet.crc").touch()
    entries = files.entries(f"{hdfs}/without-checksums")
    assert [entry.name for entry in entries] == [SUCCESS, "part-00000.parquet"]


def test_a_file_that_is_missing_on_hdfs_is_named(hdfs: str, spark: SparkSession, capsys: Any):
    missing = ["--topics", f"{hdfs}/missing.json", "--brokers", f"{hdfs}/brokers.json"]
    assert place_job.main([*missing, "--dry-run"], spark) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{hdfs}/missing.json: no such file or directory")


def test_a_page_is_not_written_into_a_directory_on_hdfs(hdfs: str, files: JobFiles):
    before = files.entries(hdfs)
    with pytest.raises(InputError, match="is a directory"), files.writing(hdfs) as path:
        path.touch()
    assert files.entries(hdfs) == before


@pytest.mark.parametrize("location", ["hdfs://127.0.0.1:99999/x", "hdfs://no-host.invalid/x"])
def test_a_wrong_uri_is_named(files: JobFiles, location: str):
    with pytest.raises(InputError, match=f"^{location}: "):
        files.read(location)


@pytest.fixture
def store(java: None, tmp_path: Path) -> Iterator[ObjectStore]:
    """An S3 server. Skips where there are no jars for it, but fails in CI."""
    try:
        store = ObjectStore(tmp_path)
    except JarsUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with store:
        yield store


def test_a_placement_on_s3_is_read_by_a_plan(store: ObjectStore):
    for name, content in INPUTS.items():
        store.put(name, json.dumps(content).encode())
    at = store.address
    inputs = ("--topics", f"{at}/topics.json", "--brokers", f"{at}/brokers.json")
    placed = run(store, "place", *inputs, "--out", f"{at}/placed", "--format", "parquet")
    assert placed["partitions"] == 14
    assert store.get("placed/_SUCCESS") == b""

    inputs = ("--assignment", f"{at}/placed", "--brokers", f"{at}/more.json")
    planned = run(store, "plan", "add-brokers", *inputs, "--out", f"{at}/planned")
    rollback = json.loads(store.get("planned/rollback.json"))["partitions"]
    assert len(rollback) == planned["partitions_changed"]
    assert all(row in expected() for row in rollback)


def test_events_on_s3_become_a_table_there(store: ObjectStore, tmp_path: Path):
    events = list(GeneratedHistory(11).events(3, 40))
    write_journals(tmp_path / "cluster", events)
    for path in (tmp_path / "cluster").rglob("events.jsonl*"):
        store.put(str(path.relative_to(tmp_path)), path.read_bytes())
    options = ("--journals", f"{store.address}/cluster", "--out", f"{store.address}/table")
    report = run(store, "report", "events", *options, "-o", "json")
    assert (report["events"], report["unreadable_lines"]) == (len(events), {})
    assert store.get("table/_SUCCESS") == b""


def run(store: ObjectStore, *arguments: str) -> dict[str, Any]:
    """Run a job in a process of its own, whose Spark has the jars for S3; return its summary."""
    settings = [part for key, value in store.conf.items() for part in ("--conf", f"{key}={value}")]
    ended = subprocess.run(
        [*COMMAND, "jobs", *arguments, "--master", "local[2]", *settings],
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary
