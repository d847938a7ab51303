"""The files of a plan."""

import json
from pathlib import Path

from regent.client.moves import Move
from regent.client.partition_files import read_reassignment_file
from regent.client.plan_directory import write_plan
from regent.core.model import TopicPartition

CHANGES = [
    Move(TopicPartition("a", 0), (1, 2), (1, 3)),
    Move(TopicPartition("a", 7), (2, 1), (3, 1)),
    Move(TopicPartition("b.c", 0), (1,), (1, 2, 3), bytes=5),
]


def rows_of(path: Path) -> list[tuple[str, int, list[int]]]:
    """Read a reassignment document."""
    document = json.loads(path.read_text())
    assert document.keys() == {"version", "partitions"}
    return [(row["topic"], row["partition"], row["replicas"]) for row in document["partitions"]]


def test_plan_and_rollback(tmp_path: Path):
    target = tmp_path
    write_plan(target, CHANGES, {"moves": 4})
    files = sorted(path.name for path in target.iterdir())
    assert files == ["plan.json", "rollback.json", "summary.json"]
    plan = [("a", 0, [1, 3]), ("a", 7, [3, 1]), ("b.c", 0, [1, 2, 3])]
    assert rows_of(target / "plan.json") == plan
    assert rows_of(target / "rollback.json") == [
        ("a", 0, [1, 2]),
        ("a", 7, [2, 1]),
        ("b.c", 0, [1]),
    ]
    assert '"bytes":5' in (target / "plan.json").read_text().splitlines()[3]
    assert json.loads((target / "summary.json").read_text()) == {"moves": 4}


def test_reassign_reads_plan_and_rollback(tmp_path: Path):
    write_plan(tmp_path, CHANGES, {})
    for name, field in (("plan.json", "target"), ("rollback.json", "before")):
        with (tmp_path / name).open("rb") as file:
            found = read_reassignment_file(file).replicas
        assert found == {change.partition: getattr(change, field) for change in CHANGES}
