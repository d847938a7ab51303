"""``regent jobs place`` as a command, in an existing session."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from regent.config.command_line import COMMAND
from regent.core.errors import BadDataError
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.place import main
from regent.testing.waits import eventually, scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.topic_controller import brokers_of

TOPICS = [
    {"topic": "payments", "partitions": 12, "replication_factor": 3, "config": {"retention.ms": 5}},
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


def write_files(directory: Path, topics: Sequence[Any], brokers: Sequence[Any]) -> list[str]:
    """Write the inputs; return their options."""
    topics_file, brokers_file = directory / "topics.json", directory / "brokers.json"
    topics_file.write_text(json.dumps(topics))
    brokers_file.write_text(json.dumps(brokers))
    return ["--topics", str(topics_file), "--brokers", str(brokers_file)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return write_files(tmp_path, TOPICS, BROKERS)


@pytest.mark.spark
def test_it_writes_a_reassignment_document_and_prints_a_summary(
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
    table.mkdir()  # empty counts as absent
    assert main([*files, "--out", str(lines), "--format", "jsonl"], spark) == 0
    assert main([*files, "--out", str(table), "--format", "parquet"], spark) == 0
    [part] = lines.glob("part-*.json")
    assert [json.loads(line) for line in part.read_text().splitlines()] == ROWS
    assert pyarrow.parquet.read_table(table).to_pylist() == ROWS
    assert (lines / "_SUCCESS").exists()
    assert (table / "_SUCCESS").exists()


@pytest.mark.spark
def test_a_dry_run_writes_nothing_and_prints_its_random_seed(
    spark: SparkSession, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = sorted(tmp_path.iterdir())
    assert main([*files, "--dry-run", "--start-index", "random"], spark) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["out"] is None
    assert 0 <= summary["seed"] < 2**32
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.spark
def test_copysets_are_in_the_parquet_files_and_in_the_summary(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    brokers = [{"id": 2**31 - 1 - 5 * b, "rack": f"rack-{b % 4}"} for b in range(12)]
    topics = [{"topic": f"t{n}", "partitions": 50, "replication_factor": 3} for n in range(5)]
    files = write_files(tmp_path, topics, brokers)
    out = tmp_path / "\N{SNOWMAN} 100% [new]" / "out"
    options = ["--strategy", "copyset", "--scatter-width", "4", "--seed", "9"]
    assert main([*files, *options, "--out", str(out), "--format", "parquet"], spark) == 0
    table = pyarrow.parquet.read_table(out)
    assert table.column_names == ["topic", "partition", "replicas"]
    copysets = {frozenset(replicas) for replicas in table["replicas"].to_pylist()}
    assert len(copysets) == 8
    racks = {broker["id"]: broker["rack"] for broker in brokers}
    assert all(len({racks[broker] for broker in copyset}) == 3 for copyset in copysets)
    summary = json.loads(capsys.readouterr().out)
    assert summary["replicas_per_broker"] == {"min": 62, "max": 63}
    assert summary["leaders_per_broker"] == {"min": 20, "max": 21}
    assert (summary["scatter_width"], summary["copyset_seed"]) == (4, 9)
    assert main([*files, *options, "--dry-run"], spark) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "out": summary["out"], "seconds": summary["seconds"]} == summary


@pytest.mark.spark
def test_a_broker_without_room_is_an_error_and_leaves_no_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    brokers = [0, {"id": 1, "capacity": 20, "replica_count": 9}, 2]
    files = write_files(tmp_path, TOPICS, brokers)
    before = sorted(tmp_path.rglob("*"))
    assert main([*files, "--out", str(tmp_path / "a" / "b"), "--format", "jsonl"], spark) == 1
    output = capsys.readouterr()
    assert "broker 1 would get 13 replicas and has room for 11" in output.err
    assert output.err.count("\n") == 1
    assert not output.out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.spark
@pytest.mark.zookeeper
def test_topics_are_created_once_and_others_are_unchanged(
    spark: SparkSession,
    zookeeper_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    with cluster(zookeeper_address, brokers=4) as admin:
        files = write_files(tmp_path, topics_named("a", "b"), [])
        files = [*files[:2], "--brokers", "zookeeper", "--zookeeper", zookeeper_address]
        options = [*files, "--start-index", "least-loaded", "--apply"]
        assert main([*options, "--dry-run"], spark) == 0
        assert admin.topics.read_topic_names() == []
        assert main(options, spark) == 0
        assert main(options, spark) == 0
        *_, first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert (first["created"], first["unchanged"], first["existing"]) == (2, 0, 0)
        assert (second["created"], second["unchanged"], second["existing"]) == (0, 2, 0)
        write_files(tmp_path, topics_named("a", "b", "c"), [])
        out = tmp_path / "out"
        assert main([*files, "--start-index", "3", "--apply", "--out", str(out)], spark) == 1
        output = capsys.readouterr()
        assert "2 topics exist with other replicas" in output.err
        assert json.loads(output.out)["created"] == 1
        assert len(json.loads((out / "placement.json").read_text())["partitions"]) == 15
        found = admin.topics.read_topics(["a", "b", "c"]).values()
        topics = [topic for topic in found if not isinstance(topic, BadDataError)]
        assert [t.partitions[0].replicas for t in topics] == [(0, 1), (1, 2), (1, 2)]
        config = admin.configs.read_topic_configs(["c"])
        assert config["c"] == {"retention.ms": "5"}


def topics_named(*names: str) -> list[dict[str, Any]]:
    return [
        {"topic": t, "partitions": 5, "replication_factor": 2, "config": {"retention.ms": 5}}
        for t in names
    ]


@contextmanager
def cluster(address: str, brokers: int) -> Iterator[ZkAdminStore]:
    """Register brokers for the block; one of them answers requests about topics."""
    with closing(ZooKeeperClient(address, 6000, on_watch=lambda _: None)) as client:
        client.start(timeout_s=scaled(10.0))
        with brokers_of(client, brokers):
            yield ZkAdminStore(client)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an output: --out DIR, --table NAME, --apply or --dry-run"),
        (["--out", "."], "choose a new directory"),
        (["--out", "topics.json"], "choose a new directory"),
        (["--out", "topics.json/out"], "cannot write to topics.json/out: Not a directory"),
        (["--out", "x" * 300], "cannot be read: File name too long"),
        (["--out", "topics.json/out", "--format", "parquet"], "cannot write to topics.json/out"),
        (["--out", "new", "--format", "csv"], "'csv' is not one of 'json', 'jsonl', 'parquet'"),
        (["--dry-run", "--start-index", "x"], "start index must be a number"),
        (["--dry-run", "--start-index", "-1"], "start index must be a number"),
        (["--dry-run", "--start-index", "99999999999"], "start index must be a number"),
        (["--dry-run", "--strategy", "best"], "'best' is not one of 'ring', 'kafka'"),
        (["--dry-run", "--seed", "-1"], "-1 is not in the range 0<=x<="),
        (["--dry-run", "--scatter-width", "4"], "a scatter width goes with strategy copyset"),
        (
            ["--dry-run", "--strategy", "copyset", "--scatter-width", "3"],
            "scatter width must be from 1 to 2",
        ),
        (["--dry-run", "--scatter-width", "0"], "0 is not in the range x>=1"),
        (["--dry-run", "--topics", "/nowhere"], "/nowhere cannot be read: No such file"),
        (["--dry-run", "--topics", "."], ". cannot be read: Is a directory"),
        (["--dry-run", "--brokers", "/nowhere"], "/nowhere cannot be read: No such file"),
        (["--dry-run", "--brokers", "."], "cannot be read: Is a directory"),
        (["--dry-run", "--brokers", "zookeeper"], "no cluster in data"),
        (["--apply"], "no cluster in data"),
        (["--apply", "--zookeeper", "nonsense:port"], "nonsense:port"),
        (["--what"], "No such option"),
        (["more"], "unexpected extra argument"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    files: list[str],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main([*files, *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not output.out
    assert sorted(tmp_path.rglob("*")) == before


ONE = '[{"topic": "a", "partitions": 1, "replication_factor": 1}]'


def one(**changes: object) -> str:
    return json.dumps([{"topic": "a", "partitions": 1, "replication_factor": 1} | changes])


@pytest.mark.parametrize(
    ("topics", "brokers", "message"),
    [
        ("nonsense", "[0]", "topics.json is not JSON"),
        ("", "[0]", "topics.json is not JSON"),
        ("[]", "[0]", "topics.json must be a JSON list with at least one topic"),
        ("{}", "[0]", "topics.json must be a JSON list with at least one topic"),
        ('["a"]', "[0]", "topics.json: entry 0 must be an object"),
        (ONE.replace("1", "NaN"), "[0]", "topics.json is not JSON"),
        (one(partitions="1"), "[0]", "partitions must be a whole number, not '1'"),
        (one(partitions=1.0), "[0]", "partitions must be a whole number, not 1.0"),
        (one(partitions=True), "[0]", "partitions must be a whole number, not True"),
        (one(partitions=0), "[0]", "topic a: the number of partitions must be positive"),
        (one(partitions=-5), "[0]", "topic a: the number of partitions must be positive"),
        (ONE.replace("1", "1" * 30), "[0]", "partitions must be a whole number"),
        (one(start_partition=-1), "[0]", "topic a: partition ids must be from 0"),
        (one(start_partition=2**31 - 1), "[0]", "topic a: partition ids must be from 0"),
        (one(replication_factor=None), "[0]", "replication_factor must be a whole number"),
        (one(replication_factor=0), "[0]", "topic a: the replication factor must be positive"),
        (one(replication_factor=2), "[0]", "2 is larger than the 1 available broker"),
        (one(topic=None), "[0]", "topic must be a text, not None"),
        (one(topic=""), "[0]", "the name of topic '' is empty"),
        (one(topic=".."), "[0]", 'cannot be "." or ".."'),
        (one(topic="a\nb"), "[0]", "has other characters than ASCII letters"),
        (one(topic="\N{SNOWMAN}"), "[0]", "has other characters than ASCII letters"),
        (one(topic="x" * 250), "[0]", "has 250 characters, and 249 is the limit"),
        (
            one(replication=1),
            "[0]",
            "entry 0: 'replication' is unknown; did you mean replication_factor?",
        ),
        (
            f"[{one(topic='a.b')[1:-1]}, {one(topic='a_b')[1:-1]}]",
            "[0]",
            'entry 1: topic a_b collides with topic a.b: "." and "_" are the same in metrics',
        ),
        (one(x=1), "[0]", "'x' is unknown; those are config, partitions, replication_factor"),
        (one(config=["a"]), "[0]", "topic a: config must be an object"),
        (
            one(config={"retention.m": 5}),
            "[0]",
            "topic a config retention.m is not a setting of topics; did you mean retention.ms?",
        ),
        (
            one(config={"retention.ms": None}),
            "[0]",
            "topic a: config retention.ms must be a text or a number",
        ),
        (one(config={"retention.ms": "x"}), "[0]", "topic a config retention.ms "),
        (
            one(config={"min.compaction.lag.ms": 2, "max.compaction.lag.ms": 1}),
            "[0]",
            "topic a config: min.compaction.lag.ms (2) must not exceed",
        ),
        (f"[{ONE[1:-1]}, {ONE[1:-1]}]", "[0]", "topic a is listed more than once"),
        (ONE, "[]", "brokers.json must be a JSON list with at least one broker"),
        (ONE, "[1, 1]", "broker 1 is listed more than once"),
        (ONE, '[0, {"rack": "x"}]', "brokers.json: entry 1: a broker needs an id"),
        (ONE, '[0, {"id": 1, "rack": "x"}]', "not all brokers have a rack (broker 0 has none)"),
        (ONE, "[0, 1]", "no broker has one: add the racks, or choose --strategy kafka"),
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
    assert main([*files, "--dry-run", "--strategy", "rack-aware"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_java_it_is_one_line_and_status_1(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main([*files, "--dry-run"]) == 1
    assert "JAVA_HOME is /nowhere" in capsys.readouterr().err


def test_a_document_of_too_many_partitions_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    topics = [{"topic": "a", "partitions": 10_000_001, "replication_factor": 1}]
    files = write_files(tmp_path, topics, [0])
    assert main([*files, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "10000001 partitions are too many for one document" in said
    assert "--format jsonl or --format parquet" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["json", "jsonl", "parquet"])
def test_sigterm_while_it_writes_leaves_nothing(java: None, tmp_path: Path, file_format: str):
    topics = [{"topic": "a", "partitions": 9_000_000, "replication_factor": 3}]
    files = write_files(tmp_path, topics, [0, 1, 2])
    before = sorted(tmp_path.iterdir())
    options = ["--out", str(tmp_path / "out"), "--format", file_format, "--master", "local[2]"]
    with subprocess.Popen(
        [*COMMAND, "jobs", "place", *files, *options], stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            parts = (".out.*.part/placement.json", ".out.*.part/**/part-*")
            eventually(lambda: any(map(list, map(tmp_path.glob, parts))), "it writes", scaled(50))
            job.terminate()
            said = job.communicate(timeout=scaled(40))[1]
        finally:
            job.kill()
    assert (job.returncode, said) == (130, "")
    assert sorted(tmp_path.iterdir()) == before
