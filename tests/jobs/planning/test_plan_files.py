"""A plan's directory is written completely, or not at all."""

import json
from pathlib import Path

import pytest

from regent.jobs.command import InputError
from regent.jobs.planning.model import Change
from regent.jobs.planning.plan_files import write_plan

CHANGES = [
    Change("a", 0, (1, 2), (1, 3)),
    Change("a", 7, (2, 1), (3, 1)),
    Change("b.c", 0, (1,), (1, 2, 3), bytes=5),
]


def rows_of(path: Path) -> list[tuple[str, int, list[int]]]:
    """Read a reassignment document."""
    document = json.loads(path.read_text())
    assert document.keys() == {"version", "partitions"}
    return [(row["topic"], row["partition"], row["replicas"]) for row in document["partitions"]]


def test_plan_and_rollback(tmp_path: Path):
    target = tmp_path / "to" / "plan"
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
    assert target.stat().st_mode & 0o700 == 0o700


def test_an_empty_directory_is_used_and_a_failure_leaves_no_files(tmp_path: Path):
    target = tmp_path / "plan"
    target.mkdir()
    with pytest.raises(TypeError):
        write_plan(target, CHANGES, {"not json": object()})
    assert list(tmp_path.rglob("*")) == [target]
    write_plan(target, CHANGES, {})
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to .*: Not a directory"):
        write_plan(tmp_path / "file" / "plan", CHANGES, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "plan"]
