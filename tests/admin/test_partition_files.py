"""Kafka's JSON files about partitions, from Kafka's tools and from people."""

from __future__ import annotations

import io
import json

import pytest

from regent.admin.partition_files import (
    read_partitions_file,
    read_reassignment_file,
    read_topics_to_move_file,
    reassignment_json,
)
from regent.core.errors import BadDataError
from regent.core.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MOVES = {T0: (3, 4), T1: (4, 3)}


def file(content: object) -> io.BytesIO:
    stream = io.BytesIO(content if isinstance(content, bytes) else json.dumps(content).encode())
    stream.name = "moves.json"
    return stream


def test_what_is_written_is_read_again() -> None:
    content = reassignment_json(dict(reversed(MOVES.items())))

    assert content == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [3, 4]},
            {"topic": "t", "partition": 1, "replicas": [4, 3]},
        ],
    }
    assert read_reassignment_file(file(content)) == MOVES


def test_keys_of_other_versions_and_tools_are_ignored() -> None:
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any"], "note": {}}

    for version in ({}, {"version": 1}, {"version": "1"}, {"version": None, "by": "hand"}):
        assert read_reassignment_file(file({**version, "partitions": [entry]})) == {T0: (1,)}


def test_the_other_files_name_topics_and_partitions() -> None:
    topics = file({"version": 1, "topics": [{"topic": "b"}, {"topic": "a", "x": 1}]})
    partitions = file({"partitions": [{"topic": "t", "partition": n} for n in (1, 0)]})

    assert read_topics_to_move_file(topics) == ["b", "a"]
    assert read_partitions_file(partitions) == [T1, T0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "moves.json: not JSON"),
        ([], "moves.json: must be a JSON object, not []"),
        ({}, "moves.json: partitions is missing"),
        ({"partitions": []}, "moves.json: partitions is empty"),
        ({"partitions": [1]}, "moves.json: an element of partitions must be an object, not 1"),
        (
            [{"topic": "t", "partition": 0, "replicas": [1]}, {"partition": 0, "replicas": [1]}],
            "moves.json: entry 2 of partitions: topic is missing",
        ),
        (
            [{"topic": "t", "partition": "0", "replicas": [1]}],
            "moves.json: entry 1 of partitions: partition must be an integer from 0",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": 1}],
            "moves.json: entry 1 of partitions: replicas must be a list of broker ids, not 1",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": [1, 1]}],
            "moves.json: entry 1 of partitions: replicas must be free of duplicates",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": []}],
            "moves.json: entry 1 of partitions: t-0 has no replicas (--cancel stops a move)",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": [n]} for n in (1, 2)],
            "moves.json: entry 2 of partitions: t-0 is named twice",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_it_must_be(content: object, problem: str) -> None:
    if isinstance(content, list) and content:
        content = {"version": 1, "partitions": content}

    with pytest.raises(BadDataError) as caught:
        read_reassignment_file(file(content))

    message = str(caught.value)
    assert message.startswith(problem)
    assert message.endswith(
        '; it must be {"partitions": [{"topic": "t", "partition": 0, "replicas": [0, 1]}, …]}'
    )
