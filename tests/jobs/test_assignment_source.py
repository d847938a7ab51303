"""Sources of an assignment: every kind of file, ZooKeeper, and errors."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from regent.core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, ReplicaAssignment
from regent.jobs.assignment_source import (
    AssignmentSource,
    ReassignmentInProgressError,
    assignment_frame,
    check_assignment,
)
from regent.jobs.command import InputError
from regent.testing.waits import scaled
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import TopicPartitionStateZNode, TopicZNode
from tests.jobs.local_files import LOCAL_FILES

ROWS: list[dict[str, Any]] = [
    {"topic": "a", "partition": 0, "replicas": [3, 1]},
    {"topic": "a", "partition": 1, "replicas": [1]},
    {"topic": "b", "partition": 0, "replicas": [2, 3, 1]},
]
UNKNOWN = dict.fromkeys(("leader", "isr", "adding_replicas", "removing_replicas", "min_isr"))
EXPECTED = [{**row, **UNKNOWN} for row in ROWS]


def source_of(path: Path) -> AssignmentSource:
    """Return the source at a path; there is no cluster."""
    return AssignmentSource.of(str(path), no_cluster, LOCAL_FILES)


def no_cluster() -> str:
    """There is no cluster."""
    raise AssertionError


def rows_of(spark: SparkSession, source: AssignmentSource) -> list[dict[str, Any]]:
    """Return the rows, sorted."""
    frame = assignment_frame(spark, source).orderBy("topic", "partition")
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.spark
def test_a_reassignment_document_in_any_layout(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "plan.json"
    rows = [{**row, "log_dirs": ["any"] * len(row["replicas"])} for row in ROWS]
    for indent in (None, 2):
        path.write_text(json.dumps({"version": 1, "partitions": rows}, indent=indent))
        assert rows_of(spark, source_of(path)) == EXPECTED
    path.write_text(json.dumps([{**row, "leader": 1, "isr": [1]} for row in ROWS]))
    described = [{**row, **UNKNOWN, "leader": 1, "isr": [1]} for row in ROWS]
    assert rows_of(spark, source_of(path)) == described


@pytest.mark.spark
def test_json_lines_and_parquet_as_a_file_or_a_directory(spark: SparkSession, tmp_path: Path):
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "_SUCCESS").touch()
    write_lines(lines / "part-1.json", ROWS[:2])
    assert rows_of(spark, source_of(lines)) == EXPECTED[:2]
    write_lines(lines / "part-2.json", ROWS[2:])
    assert rows_of(spark, source_of(lines)) == EXPECTED
    table = tmp_path / "table"
    spark.createDataFrame(
        [(r["partition"], r["topic"], r["replicas"]) for r in ROWS],
        "partition bigint, topic string, replicas array<bigint>",
    ).repartition(2).write.parquet(str(table))
    assert rows_of(spark, source_of(table)) == EXPECTED
    file = tmp_path / "file.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    assert rows_of(spark, source_of(file)) == EXPECTED


@pytest.mark.spark
def test_a_whole_number_that_is_no_broker_id_is_refused(spark: SparkSession, tmp_path: Path):
    rows = [{"topic": "a", "partition": 0, "replicas": [2**40]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "file.parquet")
    source = source_of(tmp_path / "file.parquet")
    with pytest.raises(InputError, match="a-0 has a replica that is not a broker id"):
        check_assignment(assignment_frame(spark, source), source)


@pytest.mark.spark
def test_names_with_spaces_brackets_and_percent_signs(spark: SparkSession, tmp_path: Path):
    folder = tmp_path / "100% [of] {it}"
    folder.mkdir()
    write_lines(folder / "a 1.json", ROWS[:1])
    assert rows_of(spark, source_of(folder)) == EXPECTED[:1]
    write_lines(folder / "a*2.json", ROWS[1:])
    assert rows_of(spark, source_of(folder)) == EXPECTED


@pytest.mark.spark
@pytest.mark.zookeeper
def test_zookeeper_with_leaders_and_without_topics_being_deleted(
    spark: SparkSession, zookeeper_address: str
):
    client = ZooKeeperClient(zookeeper_address, 6000, on_watch=lambda _: None)
    client.start(timeout_s=scaled(10.0))
    try:
        for path in ("/brokers", "/brokers/topics", "/admin", "/admin/delete_topics"):
            client.multi([Create(path)])
        for topic in ("a", "b", "gone"):
            assignments = {p: ReplicaAssignment((1, 2)) for p in range(2)}
            create_topic(client, topic, assignments)
        client.multi([Create("/admin/delete_topics/gone")])
        for path in ("/config", "/config/topics"):
            client.multi([Create(path)])
        config = b'{"version":1,"config":{"min.insync.replicas":"2"}}'
        client.multi([Create("/config/topics/a", config)])
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(2, (2,)), 1)
        for path in ("/brokers/topics/a/partitions", "/brokers/topics/a/partitions/1"):
            client.multi([Create(path)])
        data = TopicPartitionStateZNode.encode(state)
        client.multi([Create("/brokers/topics/a/partitions/1/state", data)])
        source = AssignmentSource.of("zookeeper", lambda: zookeeper_address, LOCAL_FILES)
        assert [tuple(row.values()) for row in rows_of(spark, source)] == [
            ("a", 0, [1, 2], -1, [], [], [], 2),
            ("a", 1, [1, 2], 2, [2], [], [], 2),
            ("b", 0, [1, 2], -1, [], [], [], None),
            ("b", 1, [1, 2], -1, [], [], [], None),
        ]
        create_topic(client, "moving", {7: ReplicaAssignment((1, 2, 3), (3,), (1,))})
        assert len(rows_of(spark, source)) == 5
        frame = assignment_frame(spark, source)
        check_assignment(frame, source)
        with pytest.raises(ReassignmentInProgressError, match=r"already \(moving-7\)"):
            check_assignment(frame, source, refuse_moving=True)
    finally:
        client.close()


@pytest.mark.spark
def test_partitions_of_a_file_that_are_being_reassigned_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
):
    still: dict[str, list[int]] = {"adding_replicas": [], "removing_replicas": []}
    rows = [{**row, **still} for row in ROWS]
    path = write_lines(tmp_path / "lines.json", rows)
    check_assignment(assignment_frame(spark, source_of(path)), source_of(path), refuse_moving=True)
    rows += [{"topic": "c", "partition": p, "replicas": [1, 2, 3]} for p in range(4)]
    rows[3] |= {"removing_replicas": [3]}
    rows[5] |= {"adding_replicas": [3]}
    path.write_text(json.dumps(rows))
    frame = assignment_frame(spark, source_of(path))
    check_assignment(frame, source_of(path))
    with pytest.raises(ReassignmentInProgressError) as refusal:
        check_assignment(frame, source_of(path), refuse_moving=True)
    assert "reassigned already (c-0, c-2): wait for it to complete" in str(refusal.value)
    assert f", and write {path} anew" in str(refusal.value)
    for row in rows[:5]:
        row["adding_replicas"] = [1]
    path.write_text(json.dumps(rows))
    frame = assignment_frame(spark, source_of(path))
    with pytest.raises(ReassignmentInProgressError, match=r"already \(a-0, a-1, b-0, …\)"):
        check_assignment(frame, source_of(path), refuse_moving=True)


def create_topic(
    client: ZooKeeperClient, topic: str, assignments: dict[int, ReplicaAssignment]
) -> None:
    """Create a topic's znode."""
    data = TopicZNode.encode(encode_topic_id(b"0123456789abcdef"), assignments)
    client.multi([Create(TopicZNode.path(topic), data)])


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no partitions"),
        ([*ROWS, ROWS[1]], "a-1 is listed more than once"),
        ([*ROWS, {"topic": "c", "replicas": [1]}], "entry without a topic or a partition"),
        ([*ROWS, {"topic": "c", "partition": -1, "replicas": [1]}], "cannot be negative"),
        ([*ROWS, {"topic": "c", "partition": 1, "replicas": []}], "c-1 has no replicas"),
        ([*ROWS, {"topic": "c", "partition": 1}], "c-1 has no replicas"),
        ([*ROWS, {"topic": "c", "partition": 1, "replicas": [None]}], "c-1 has a replica that is"),
        ([*ROWS, {"topic": "c", "partition": 1, "replicas": [-2]}], "c-1 has a replica that is"),
        ([*ROWS, {"topic": "c", "partition": 1, "replicas": [4, 4]}], "c-1 has two replicas on"),
    ],
)
def test_an_invalid_assignment_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, rows: list[dict[str, Any]], message: str
):
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    with pytest.raises(InputError, match=message):
        check_assignment(assignment_frame(spark, source_of(path)), source_of(path))


@pytest.mark.spark
def test_lines_that_are_not_rows_are_refused(spark: SparkSession, tmp_path: Path):
    path = write_lines(tmp_path / "lines.json", ROWS)
    frame = assignment_frame(spark, source_of(path))
    check_assignment(frame, source_of(path))
    with path.open("a") as file:
        file.write('{"topic": "a", "partition": ')
    with pytest.raises(InputError, match=r"lines\.json: line 4 is not JSON: "):
        check_assignment(assignment_frame(spark, source_of(path)), source_of(path))


@pytest.mark.spark
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["document", "list", "lines"])
def test_marks_and_compression_are_read_in_every_kind_of_file(
    spark: SparkSession, tmp_path: Path, kind: str, mark: bytes, compressed: bool
):
    text = {
        "document": json.dumps({"version": 1, "partitions": ROWS}),
        "list": json.dumps(ROWS),
        "lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    }[kind]
    data = mark + text.encode()
    path = tmp_path / ("now.json.gz" if compressed else "now.json")
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert rows_of(spark, source_of(path)) == EXPECTED


@pytest.mark.spark
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 3 is not JSON: "),
        ("7", "line 3 is not an object"),
        ('{"partition": 0, "replicas": [1]}', "line 3 has no topic"),
        ('{"topic": "c", "replicas": [1]}', "line 3 has no partition"),
        ('{"topic": "c", "partition": "0", "replicas": [1]}', "line 3 has an impossible partition"),
        ('{"topic": "c", "partition": 0, "replicas": 1}', "line 3 has an impossible replicas"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_its_own_reason(
    spark: SparkSession, tmp_path: Path, line: str, problem: str
):
    path = write_lines(tmp_path / "lines.json", ROWS)
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:2], line, *rows[2:]]))
    with pytest.raises(InputError, match=re.escape(problem)):
        check_assignment(assignment_frame(spark, source_of(path)), source_of(path))


def test_a_compressed_file_with_another_name_is_refused(tmp_path: Path):
    path = tmp_path / "now.json"
    path.write_bytes(gzip.compress(b"[]"))
    with pytest.raises(InputError, match=r"is compressed by gzip: let its name end with \.gz"):
        source_of(path)
    (tmp_path / "now.json.gz").write_text("[]")
    with pytest.raises(InputError, match="is not compressed by gzip, as its name says"):
        source_of(tmp_path / "now.json.gz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no assignment: it is empty"),
        ("nonsense", "is no assignment: it is not JSON: invalid literal"),
        ("{}", "must be one object with partitions"),
        ("7", "is no assignment"),
        ('{"partitions": []}\n{"partitions": []}', "must be one object with partitions"),
        ('{"partitions": [{"topic": "a", "partition": "0"}]}', "changed from number to string"),
        ('{"partitions": [{"topic": "a", "partition": 99999999999}]}', "parse:99999999999"),
        ('{"partitions": [{"topic": "a", "repl', "it is not JSON: "),
        ('{"partitions": []}', 'it must have "version": 1'),
        ('{"version": 2, "partitions": []}', 'it must have "version": 1'),
        ("PAR1 and what not", "is not Parquet"),
    ],
)
def test_files_that_are_not_assignments_are_refused_without_spark(
    tmp_path: Path, content: str, message: str
):
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(InputError) as refusal:
        source_of(path)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_directories_that_are_not_assignments_are_refused_without_spark(tmp_path: Path):
    with pytest.raises(InputError, match="no such file or directory"):
        source_of(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no files"):
        source_of(tmp_path)
    table = pyarrow.table({"topic": ["a"], "partition": [0]})
    pyarrow.parquet.write_table(table, tmp_path / "part-0.parquet")
    with pytest.raises(InputError, match="no column replicas: it has topic, partition"):
        source_of(tmp_path)
    for column, problem in (("[0]", "string"), ([0.5], "list<.*: double>"), (["0"], "list<")):
        table = pyarrow.table({"topic": ["a"], "partition": [0], "replicas": [column]})
        pyarrow.parquet.write_table(table, tmp_path / "part-0.parquet")
        with pytest.raises(InputError, match=f"column replicas is {problem}"):
            source_of(tmp_path)
    (tmp_path / "notes.txt").write_text("?")
    with pytest.raises(InputError, match="other files than one assignment"):
        source_of(tmp_path)
