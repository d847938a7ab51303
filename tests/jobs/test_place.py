"""``regent jobs place`` as it is called, in a session that is there already."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from core.placement import place
from core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from jobs.place import main

TOPICS = [
    {"topic": "payments", "partitions": 12, "replication_factor": 3, "config": {"a": "b"}},
    {"topic": "audit", "partitions": 2, "replication_factor": 1, "start_partition": 4},
]
BROKERS: list[Any] = [2, 0, {"id": 1, "host": "example.org", "rack": None}]
EXPECTED = place(
    PlaceTopicsRequest(
        (PlacementSpec("payments", 12, 3, 0), PlacementSpec("audit", 2, 1, 4)),
        tuple(PlacementBroker(b, None, 0) for b in range(3)),
        "ring",
        "0",
        "batch",
        0,
    )
)
ROWS = [{"topic": t, "partition": p, "replicas": list(r)} for t, p, r in EXPECTED]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write the inputs; return the options that name them."""
    topics, brokers = tmp_path / "topics.json", tmp_path / "brokers.json"
    topics.write_text(json.dumps(TOPICS))
    brokers.write_text(json.dumps(BROKERS))
    return ["--topics", str(topics), "--brokers", str(brokers)]


@pytest.mark.spark
def test_it_writes_what_the_reassignment_tool_reads_and_sums_it_up(
    spark: SparkSession, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main([*files, "--out", str(out)], spark) == 0
    assert [path.name for path in out.iterdir()] == ["placement.json"]
    document = json.loads((out / "placement.json").read_text())
    assert document == {"version": 1, "partitions": ROWS}
    summary = json.loads(capsys.readouterr().out)
    assert summary.pop("seconds") > 0
    assert summary == {
        "job": "place",
        "topics": 2,
        "partitions": 14,
        "replicas": 38,
        "brokers": 3,
        "strategy": "ring",
        "start_index": "0",
        "index": "batch",
        "seed": 0,
        "replicas_per_broker": {"min": 12, "max": 13},
        "leaders_per_broker": {"min": 4, "max": 5},
        "out": str(out),
    }


@pytest.mark.spark
def test_rows_are_written_as_json_lines_or_parquet(
    spark: SparkSession, files: list[str], tmp_path: Path
):
    lines, table = tmp_path / "lines", tmp_path / "table"
    table.mkdir()  # empty: as good as none
    assert main([*files, "--out", str(lines), "--format", "jsonl"], spark) == 0
    assert main([*files, "--out", str(table), "--format", "parquet"], spark) == 0
    [part] = lines.glob("part-*.json")
    assert [json.loads(line) for line in part.read_text().splitlines()] == ROWS
    assert pyarrow.parquet.read_table(table).to_pylist() == ROWS


@pytest.mark.spark
def test_a_dry_run_writes_nothing_and_tells_the_seed_it_drew(
    spark: SparkSession, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(tmp_path.iterdir())
    assert main([*files, "--dry-run", "--start-index", "random"], spark) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["out"] is None
    assert 0 <= summary["seed"] < 2**32
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out DIR, or --dry-run"),
        (["--out", "."], "choose a new directory"),
        (["--dry-run", "--start-index", "x"], "start index must be a number"),
        (["--dry-run", "--strategy", "best"], "'best' is not one of 'ring', 'kafka'"),
        (["--dry-run", "--topics", "/nowhere"], "'/nowhere' does not exist"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    files: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*files, *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not output.out


@pytest.mark.parametrize(
    ("topics", "brokers", "message"),
    [
        ("nonsense", "[0]", "topics.json is not JSON"),
        ("{}", "[0]", "topics.json must be a JSON list with at least one entry"),
        ('["a"]', "[0]", "topics.json: entry 0 must be an object"),
        ('[{"topic": "a", "partitions": "1"}]', "[0]", "partitions must be of type int, not '1'"),
        ('[{"topic": "a", "partitions": 1}]', "[0]", "replication_factor must be of type int"),
        (
            '[{"topic": "a", "partitions": 1, "replication_factor": 2}]',
            "[0]",
            "topic a: replication factor 2 is larger than the 1 available broker",
        ),
        (
            '[{"topic": "a", "partitions": 1, "replication_factor": 1}]',
            '[0, {"rack": "x"}]',
            "brokers.json: entry 1: id must be of type int, not None",
        ),
        (
            '[{"topic": "a", "partitions": 100000001, "replication_factor": 1}]',
            "[0]",
            "more than 100000000 partitions",
        ),
    ],
)
def test_wrong_files_are_one_line_and_status_2_before_spark_starts(
    topics: str,
    brokers: str,
    message: str,
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "topics.json").write_text(topics)
    (tmp_path / "brokers.json").write_text(brokers)
    assert main([*files, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_java_it_is_one_line_and_status_1(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main([*files, "--dry-run"]) == 1
    assert "JAVA_HOME is /nowhere" in capsys.readouterr().err
