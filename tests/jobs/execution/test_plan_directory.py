"""A plan is read completely, and must have a rollback for each partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regent.core.model import TopicPartition
from regent.jobs.command import InputError
from regent.jobs.execution.plan_directory import read_plan

ROW = {"topic": "t", "partition": 0, "replicas": [2, 3]}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def write(directory: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def document(*rows: object) -> dict[str, Any]:
    return {"version": 1, "partitions": rows}


def row(partition: int, *replicas: int) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "replicas": replicas}


def test_waves_are_read_in_the_sequence_of_their_numbers(tmp_path: Path):
    waves = {f"waves/{n:04d}.json": document(row(n, 1)) for n in range(1, 12)}
    before = document(*(row(n, 0) for n in range(1, 12)))
    plan = read_plan(write(tmp_path, {**waves, "rollback.json": before, "waves/notes.txt": ""}))

    assert [wave[0].partition.partition for wave in plan.waves] == list(range(1, 12))
    assert plan.moves[0] == (T1, (0,), (1,))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"waves/readme": ""}, "no wave moves t-0, which rollback.json has: is a wave missing?"),
        ({"waves/0002.json": document(ROW)}, "0002.json: wave 1 is missing"),
        (
            {"waves/0001.json": document(ROW), "waves/1.json": document(ROW)},
            "wave 2 is missing",
        ),
        ({"waves/0001.json": "{"}, "0001.json: not JSON"),
        ({"waves/0001.json": "[]"}, "0001.json: must be a JSON object"),
        ({"waves/0001.json": {}}, "0001.json: partitions is missing"),
        ({"waves/0001.json": document({})}, "entry 1 of partitions: topic is missing"),
        ({"waves/0001.json": document(row(0, 1, 1))}, "entry 1 of partitions: replicas must be"),
        ({"waves/0001.json": document(row(0))}, "entry 1 of partitions: t-0 has no replicas"),
        ({"waves/0001.json": document(row(-1, 1))}, "entry 1 of partitions: partition must be"),
        ({"waves/0001.json": document(ROW, ROW)}, "entry 2 of partitions: t-0 is named twice"),
        ({"waves/0001.json": document(7)}, "entry 1 of partitions must be an object"),
        ({"waves/0001.json": document({**ROW, "topic": 5})}, "entry 1 of partitions: topic must"),
        (
            {"waves/0001.json": document(ROW), "waves/0002.json": document(ROW)},
            "0002.json: 0001.json moves t-0 as well",
        ),
        ({"waves/0001.json": document(row(1, 2))}, "rollback.json does not have t-1"),
    ],
)
def test_an_invalid_plan_is_refused_by_name(tmp_path: Path, files: dict[str, Any], problem: str):
    write(tmp_path, {**files, "rollback.json": document(row(0, 0, 1))})
    with pytest.raises(InputError) as caught:
        read_plan(tmp_path)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_impossible_topic_name_is_refused(tmp_path: Path):
    content = document({**ROW, "topic": "a/b"})
    write(tmp_path, {"waves/0001.json": content, "rollback.json": content})
    with pytest.raises(InputError, match=r"rollback\.json: topic 'a/b' "):
        read_plan(tmp_path)


def test_a_plan_may_have_nothing_to_move(tmp_path: Path):
    write(tmp_path, {"waves/readme": "", "rollback.json": document()})
    assert read_plan(tmp_path).moves == []


def test_a_directory_without_waves_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"is not a plan .*name the directory that"):
        read_plan(tmp_path)
    with pytest.raises(InputError, match="is not a plan"):
        read_plan(tmp_path / "nowhere")


def test_a_plan_without_a_rollback_is_refused(tmp_path: Path):
    write(tmp_path, {"waves/0001.json": document(ROW)})
    with pytest.raises(InputError, match=r"rollback\.json: No such file"):
        read_plan(tmp_path)
