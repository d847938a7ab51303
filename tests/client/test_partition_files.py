"""Kafka's JSON files about partitions, from Kafka's tools and from people."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import BinaryIO

import pytest

from regent.client.partition_files import (
    TopicPartitionReplica,
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


def test_a_written_file_can_be_read_again() -> None:
    content = reassignment_json(dict(reversed(MOVES.items())))

    assert content == {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [3, 4], "log_dirs": ["any", "any"]},
            {"topic": "t", "partition": 1, "replicas": [4, 3], "log_dirs": ["any", "any"]},
        ],
    }
    assert read_reassignment_file(file(content)) == (MOVES, {})


def test_log_directories_are_kept() -> None:
    log_dirs = {TopicPartitionReplica(4, T0): "/d/one", TopicPartitionReplica(3, T1): "/d/two"}

    content = reassignment_json(MOVES, log_dirs)

    assert read_reassignment_file(file(content)) == (MOVES, log_dirs)
    assert str(TopicPartitionReplica(4, T0)) == "t-0-4"


def test_files_that_kafkas_tool_accepts_are_accepted() -> None:
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any"]}

    for version in ({}, {"version": 1}, {"version": "1"}, {"version": None}):
        content = {**version, "partitions": [entry]}
        assert read_reassignment_file(file(content)) == ({T0: (1,)}, {})
    with_mark = b"\xef\xbb\xbf" + json.dumps(content).encode()
    assert read_reassignment_file(file(with_mark)) == ({T0: (1,)}, {})


ENTRY = {"topic": "t", "partition": 0, "replicas": [1]}
UNREAD = [
    (read_reassignment_file, {"partitions": [ENTRY | {"logdirs": ["/d"]}]}, "log_dirs"),
    (read_reassignment_file, {"partitions": [ENTRY], "verson": 1}, "version"),
    (read_reassignment_file, {"partition": [ENTRY]}, "partitions"),
    (read_topics_to_move_file, {"topics": [{"topic": "a", "topics": 1}]}, "topic"),
    (read_topics_to_move_file, {"topics": [{"topic": "a"}], "topic": "b"}, "topics"),
    (
        read_partitions_file,
        {"partitions": [{"topic": "t", "partition": 0, "part": 1}]},
        "partition",
    ),
    (read_partitions_file, {"partitions": [], "versions": 1}, "version"),
]


@pytest.mark.parametrize(("read", "content", "meant"), UNREAD)
def test_a_key_that_nothing_reads_is_refused(
    read: Callable[[BinaryIO], object], content: object, meant: str
) -> None:
    with pytest.raises(BadDataError, match=f"unknown key .*; did you mean {meant}\\?"):
        read(file(content))


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_reassignment_file, b'{"partitions": [], "partitions": [{}]}'),
        (read_reassignment_file, b'{"partitions": [{"topic": "a", "partition": 0, "topic": "b"}]}'),
        (read_topics_to_move_file, b'{"topics": [{"topic": "a", "topic": "b"}]}'),
        (read_partitions_file, b'{"partitions": [{"partition": 0, "partition": 1}]}'),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    read: Callable[[BinaryIO], object], content: bytes
) -> None:
    with pytest.raises(BadDataError, match="is there twice in one object"):
        read(file(content))


def test_the_other_files_name_topics_and_partitions() -> None:
    topics = file({"version": 1, "topics": [{"topic": "b"}, {"topic": "a"}]})
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
        (
            [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/d"]}],
            "moves.json: entry 1 of partitions: Size of replicas list [1, 2] is different from"
            " size of log dirs list [/d] for partition t-0",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": "any"}],
            "moves.json: entry 1 of partitions: log_dirs must be a list, not 'any'",
        ),
        (
            [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [1]}],
            "moves.json: entry 1 of partitions: log_dirs must be a list of paths or",
        ),
        (
            {"version": 2, "partitions": [{}]},
            "moves.json: version must be 1, not 2",
        ),
    ],
)
def test_an_error_names_the_wrong_field_and_its_allowed_values(
    content: object, problem: str
) -> None:
    if isinstance(content, list) and content:
        content = {"version": 1, "partitions": content}

    with pytest.raises(BadDataError) as caught:
        read_reassignment_file(file(content))

    message = str(caught.value)
    assert message.startswith(problem)
    assert message.endswith(
        '; it must be {"partitions": [{"topic": "t", "partition": 0, "replicas": [0, 1]}, …]}'
    )
