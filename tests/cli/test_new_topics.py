"""New topics from options and files."""

from __future__ import annotations

import json

import pytest

from regent.cli.new_topics import parse_config, parse_replica_assignment, parse_topics_file
from regent.client.topics import TopicsRefusedError
from tests.support.topic_requests import creatable, setting


def problems_in(content: object) -> list[str]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(TopicsRefusedError) as raised:
        parse_topics_file(data, "f.json")
    return str(raised.value).splitlines()


# --- from the command line ------------------------------------------------------------------------


def test_replica_assignments_are_kafkas() -> None:
    assert parse_replica_assignment("0:1:2,1:2:0") == ((0, 1, 2), (1, 2, 0))
    assert parse_replica_assignment("7") == ((7,),)
    assert parse_replica_assignment("2147483647") == ((2_147_483_647,),)
    assert parse_replica_assignment("0:1, 1:2") == ((0, 1), (1, 2))


@pytest.mark.parametrize(
    "text", ["", "0:,1:2", "a:b", "0:1,", "-1", "0:1;1:2", "99999999999", "2147483648"]
)
def test_other_replica_assignments_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"partition . must be broker ids"):
        parse_replica_assignment(text)


def test_configurations_are_names_and_values() -> None:
    assert parse_config(["retention.ms=5", " cleanup.policy = compact ", "x=a=b", "e="]) == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
        "x": "a=b",
        "e": "",
    }


@pytest.mark.parametrize("option", ["retention.ms", "=5", "", " = "])
def test_configurations_without_a_name_or_a_value_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match="must be NAME=VALUE"):
        parse_config([option])


def test_a_configuration_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"retention\.ms is given twice"):
        parse_config(["retention.ms=5", "retention.ms=6"])


# --- from a file ----------------------------------------------------------------------------------


def test_a_file_lists_topics_with_configurations_of_any_scalar_type() -> None:
    entries = [
        {"topic": "a", "partitions": 3, "replication_factor": 2},
        {
            "topic": "b",
            "partitions": 1,
            "replication_factor": 1,
            "config": {"retention.ms": 5, "preallocate": True, "cleanup.policy": "compact"},
        },
    ]

    assert parse_topics_file(json.dumps(entries).encode(), "f.json") == [
        creatable("a", 3, 2),
        creatable(
            *("b", 1, 1),
            configs=(
                setting("retention.ms", "5"),
                setting("preallocate", "true"),
                setting("cleanup.policy", "compact"),
            ),
        ),
    ]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1,", b"\xff"])
def test_a_file_that_is_not_json_is_refused(content: bytes) -> None:
    (problem,) = problems_in(content)
    assert problem.startswith("f.json: not JSON")


@pytest.mark.parametrize("content", [{}, [], {"topics": []}, "t", 3, None])
def test_a_file_that_is_not_a_list_of_topics_is_refused(content: object) -> None:
    (problem,) = problems_in(content)
    assert problem.startswith("f.json: must be a JSON list of objects with the keys topic, ")


GOOD = {"topic": "t", "partitions": 1, "replication_factor": 1}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_partitions": 3}, "unknown key 'num_partitions'; did you mean partitions?"),
        ({"replicationFactor": 3}, "unknown key 'replicationFactor'"),
        ({"topic": 5}, "topic must be a string, not 5"),
        ({"topic": None}, "topic must be a string, not null"),
        ({"partitions": "3"}, 'partitions must be a number, not "3"'),
        ({"partitions": -1}, "partitions must be at least 1, not -1"),
        ({"replication_factor": 0}, "replication_factor must be at least 1, not 0"),
        ({"partitions": 1.5}, "partitions must be a number, not 1.5"),
        ({"partitions": True}, "partitions must be a number, not true"),
        ({"replication_factor": None}, "replication_factor must be a number, not null"),
        ({"config": ["a"]}, 'config must be an object, not ["a"]'),
        ({"config": None}, "config must be an object, not null"),
        ({"config": {"retention.ms": None}}, "config retention.ms must be a string, a number"),
        ({"config": {"retention.ms": [1]}}, "config retention.ms must be a string, a number"),
    ],
)
def test_an_entry_with_a_mistake_is_named(change: dict[str, object], problem: str) -> None:
    (found,) = problems_in([GOOD, GOOD | change])
    assert found.startswith("f.json: entry 2")
    assert problem in found


@pytest.mark.parametrize("key", ["topic", "partitions", "replication_factor"])
def test_a_missing_key_is_named(key: str) -> None:
    (problem,) = problems_in([{name: value for name, value in GOOD.items() if name != key}])
    assert problem.endswith(f"{key} is missing")


def test_all_mistakes_are_reported_in_at_most_ten_lines() -> None:
    problems = problems_in([{"topic": f"t{n}"} for n in range(8)])

    assert len(problems) == 11
    assert problems[0] == "f.json: entry 1 (t0): partitions is missing"
    assert problems[1] == "f.json: entry 1 (t0): replication_factor is missing"
    assert problems[-1] == "… and 6 more problems"
