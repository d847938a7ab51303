"""The files of a plan."""

import json
from pathlib import Path

from regent.jobs.planning.model import Change
from regent.jobs.planning.plan_files import write_plan

CHANGES = [
    Change("a", 0, (1, 2), (1, 3), 1),
    Change("a", 7, (2, 1), (3, 1), 2),
    Change("b.c", 0, (1,), (1, 2, 3), 1),
]


def rows_of(path: Path) -> list[tuple[str, int, list[int]]]:
    """Read a reassignment document."""
    document = json.loads(path.read_text())
    assert document.keys() == {"version", "partitions"}
    return [(row["topic"], row["partition"], row["replicas"]) for row in document["partitions"]]


def test_plan_and_rollback_and_waves(tmp_path: Path):
    target = tmp_path
    write_plan(target, CHANGES, [1, 0, 1], {"moves": 4})
    files = [str(path.relative_to(target)) for path in sorted(target.rglob("*.json"))]
    expected = ["plan.json", "rollback.json", "summary.json", "waves/0001.json", "waves/0002.json"]
    assert files == expected
    plan = [("a", 0, [1, 3]), ("a", 7, [3, 1]), ("b.c", 0, [1, 2, 3])]
    assert rows_of(target / "plan.json") == plan
    assert rows_of(target / "rollback.json") == [
        ("a", 0, [1, 2]),
        ("a", 7, [2, 1]),
        ("b.c", 0, [1]),
    ]
    assert rows_of(target / "waves" / "0001.json") == [plan[1]]
    assert rows_of(target / "waves" / "0002.json") == [plan[0], plan[2]]
    assert json.loads((target / "summary.json").read_text()) == {"moves": 4}
