"""A plan is read completely, and must have a rollback for each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regent.client.moves import Move
from regent.client.plan_directory import PlanFileError, read_plan
from regent.core.model import TopicPartition

ROW = {"topic": "t", "partition": 0, "replicas": [2, 3]}
T1 = TopicPartition("t", 1)


def write(directory: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def document(*rows: object) -> dict[str, Any]:
    return {"version": 1, "partitions": rows}


def row(partition: int, *replicas: int, **more: int) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "replicas": replicas, **more}


def test_moves_have_the_sequence_of_the_plan_and_their_rollback_the_opposite_one(tmp_path: Path):
    files = {
        "plan.json": document(row(2, 1), row(1, 1, bytes=2**40), row(0, 2)),
        "rollback.json": document(*(row(n, 0) for n in range(3))),
        "waves/0001.json": "from an older version, and not needed",
    }
    plan = read_plan(write(tmp_path, files))

    assert [move.partition.partition for move in plan.moves] == [2, 1, 0]
    assert plan.moves[1] == Move(T1, (0,), (1,), 2**40)
    assert [move.partition.partition for move in plan.rollback.moves] == [0, 1, 2]
    assert plan.rollback.moves[1] == Move(T1, (1,), (0,), 2**40)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (document(), "plan.json does not have t-0, which the other document has"),
        (document(row(0, 2), row(1, 2)), "rollback.json does not have t-1"),
        ("{", "plan.json: not JSON"),
        ("[]", "plan.json: must be a JSON object"),
        ({"version": 1}, "plan.json: partitions is missing"),
        ({"partitions": [ROW]}, 'plan.json: it must have "version": 1, as Kafka\'s documents'),
        ({"version": 2, "partitions": [ROW]}, 'plan.json: it must have "version": 1'),
        (document({}), "entry 1 of partitions: topic is missing"),
        (document(row(0, 1, 1)), "entry 1 of partitions: replicas must be"),
        (document(row(0)), "entry 1 of partitions: t-0 has no replicas"),
        (document(row(-1, 1)), "entry 1 of partitions: partition must be"),
        (document(row(0, 1, bytes=-1)), "entry 1 of partitions: bytes must be"),
        (document(ROW, ROW), "entry 2 of partitions: t-0 is named twice"),
        (document(7), "entry 1 of partitions must be an object"),
        (document({**ROW, "topic": 5}), "entry 1 of partitions: topic must"),
        (document({**ROW, "topic": "a\nb"}), "plan.json: topic 'a\\nb' has other characters"),
    ],
)
def test_an_invalid_plan_is_refused_by_name(tmp_path: Path, plan: Any, problem: str):
    write(tmp_path, {"plan.json": plan, "rollback.json": document(row(0, 0, 1))})
    with pytest.raises(PlanFileError) as caught:
        read_plan(tmp_path)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_impossible_topic_name_is_refused(tmp_path: Path):
    content = document({**ROW, "topic": "a/b"})
    write(tmp_path, {"plan.json": content, "rollback.json": content})
    with pytest.raises(PlanFileError, match=r"rollback\.json: topic 'a/b' "):
        read_plan(tmp_path)


def test_a_plan_may_have_nothing_to_move(tmp_path: Path):
    write(tmp_path, {"plan.json": document(), "rollback.json": document()})
    assert read_plan(tmp_path).moves == ()


def test_a_directory_without_a_plan_is_refused(tmp_path: Path):
    with pytest.raises(PlanFileError, match=r"is not a plan .*name the directory that"):
        read_plan(tmp_path)
    with pytest.raises(PlanFileError, match="is not a plan"):
        read_plan(tmp_path / "nowhere")


def test_a_plan_without_a_rollback_is_refused(tmp_path: Path):
    write(tmp_path, {"plan.json": document(ROW)})
    with pytest.raises(PlanFileError, match=r"rollback\.json: No such file"):
        read_plan(tmp_path)
