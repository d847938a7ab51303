"""``topics create``: from options or a file to the znodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from regent.core.protocol.messages.topics import CreateTopicsRequest
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import (
    FakeCluster,
    failing,
    placed,
    replicas,
)

RING = {0: (0, 1, 2), 1: (1, 2, 0), 2: (2, 0, 1), 3: (0, 1, 2)}


def test_a_topic_is_placed_and_written_and_its_leaders_awaited(local: FakeCluster) -> None:
    result = local.run("topics", "create", "t", "--partitions", "4", "--replication-factor", "3")

    assert result.exit_code == 0
    assert result.stdout == "Created topic t (4 partitions, replication factor 3).\n"
    assert result.stderr == ""
    assert replicas(local, "t") == RING
    topic_id = local.topic("t").topic_id
    assert topic_id is not None
    assert len(topic_id) == 22
    request = local.received[-1]
    assert isinstance(request, CreateTopicsRequest)
    assert 0 < request.timeout_ms <= 30_000


def test_the_created_topics_are_printed_as_json(local: FakeCluster) -> None:
    answer = local.json("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")

    assert answer == [
        {
            "topic": "t",
            "topic_id": local.topic("t").topic_id,
            "partitions": 1,
            "replication_factor": 1,
        }
    ]


def test_the_name_may_be_given_as_in_kafkas_tools(local: FakeCluster) -> None:
    options = ("--topic", "t", "--partitions", "1", "--replication-factor", "1")

    assert local.run("topics", "create", *options).exit_code == 0
    assert local.run("topics", "describe", "--topic", "t").exit_code == 0


def test_configurations_are_written_with_the_topic(local: FakeCluster) -> None:
    shape = ("--partitions", "1", "--replication-factor", "1")
    settings = ("--config", "retention.ms=5", "--config", "cleanup.policy=compact")

    assert local.run("topics", "create", "t", *shape, *settings).exit_code == 0

    data = local.zookeeper.snapshot()["/config/topics/t"].data
    assert ConfigEntityZNode.decode(data) == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert local.writes.index("/config/topics/t") < local.writes.index("/brokers/topics/t")


def test_the_broker_chooses_the_numbers_that_are_not_given(local: FakeCluster) -> None:
    result = local.run("topics", "create", "t", "-o", "json")
    (created,) = json.loads(result.stdout)
    assert (created["partitions"], created["replication_factor"]) == (1, 1)
    assert local.run("topics", "create", "u", "--partitions", "2").stdout == (
        "Created topic u (2 partitions, replication factor 1).\n"
    )


def test_an_explicit_assignment_needs_no_placement(local: FakeCluster) -> None:
    result = local.run("topics", "create", "t", "--replica-assignment", "2:0,0:1")

    assert result.stdout == "Created topic t (2 partitions, replication factor 2).\n"
    assert replicas(local, "t") == {0: (2, 0), 1: (0, 1)}
    assert not local.placer.requests


def test_placement_options_are_passed_to_the_service(local: FakeCluster) -> None:
    options = ("--strategy", "kafka", "--start-index", "2", "--index", "per-topic")
    shape = ("--partitions", "2", "--replication-factor", "2")

    assert local.run("topics", "create", "t", *shape, *options).exit_code == 0

    request = placed(local)
    assert (request.strategy, request.start_index, request.index) == ("kafka", "2", "per-topic")
    assert [broker.broker_id for broker in request.brokers] == [0, 1, 2]
    assert replicas(local, "t")[0][0] == 2


def test_the_least_loaded_start_counts_the_brokers_replicas(local: FakeCluster) -> None:
    local.put_topic("old", {0: (0, 1), 1: (0, 1)})
    shape = ("--partitions", "1", "--replication-factor", "1")

    assert (
        local.run("topics", "create", "t", *shape, "--start-index", "least-loaded").exit_code == 0
    )

    assert [broker.replica_count for broker in placed(local).brokers] == [2, 2, 0]
    assert replicas(local, "t") == {0: (2,)}


def test_all_topics_of_a_file_are_placed_in_one_request(local: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    entries = [
        {"topic": "b", "partitions": 1, "replication_factor": 2},
        {
            "topic": "a",
            "partitions": 2,
            "replication_factor": 1,
            "config": {"min.insync.replicas": 1},
        },
    ]
    file.write_text(json.dumps(entries))

    result = local.run("topics", "create", "--from-file", str(file))

    assert result.stdout.splitlines() == [
        "Created topic a (2 partitions, replication factor 1).",
        "Created topic b (1 partition, replication factor 2).",
    ]
    assert replicas(local, "a") == {0: (0,), 1: (1,)}
    assert replicas(local, "b") == {0: (2, 0)}
    assert len(placed(local).topics) == 2


def test_a_file_may_come_through_a_pipe(local: FakeCluster) -> None:
    entries = [{"topic": "a", "partitions": 1, "replication_factor": 1}]

    result = local.run("topics", "create", "--from-file", "-", stdin=json.dumps(entries).encode())

    assert result.exit_code == 0
    assert replicas(local, "a") == {0: (0,)}


def test_one_invalid_topic_of_a_file_prevents_all_writes(
    local: FakeCluster, tmp_path: Path
) -> None:
    file = tmp_path / "topics.json"
    good = {"topic": "good", "partitions": 1, "replication_factor": 1}
    file.write_text(json.dumps([good, good | {"topic": "b@d"}, good | {"replication_factor": 7}]))
    before = list(local.writes)

    result = local.run("topics", "create", "--from-file", str(file))

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "regent: topic good is named more than once",
        'regent: topic \'b@d\' has other characters than ASCII letters, digits, ".", "_" and "-"',
    ]
    assert local.writes == before


def test_numbers_of_a_file_that_no_request_can_have_are_named(
    local: FakeCluster, tmp_path: Path
) -> None:
    file = tmp_path / "topics.json"
    row = {"topic": "t", "partitions": 3_000_000_000, "replication_factor": 40_000}
    file.write_text(json.dumps([row]))
    result = local.run("topics", "create", "--from-file", str(file))
    assert [line.partition("(t): ")[2] for line in result.stderr.splitlines()] == [
        "partitions must be at most 2147483647, not 3000000000",
        "replication_factor must be at most 32767, not 40000",
    ]


def test_what_was_created_before_brokers_fell_silent_is_told(
    local: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.client.topics._MAX_SLICE_TOPICS", 1)
    decide, created = local.decide, []

    def decide_one(request: TopicsRequest) -> TopicsResponse | None:
        if isinstance(request, CreateTopicsRequest) and not request.validate_only:
            created.append(request)
        return decide(request) if len(created) < 2 else None

    monkeypatch.setattr(local, "decide", decide_one)
    file = tmp_path / "topics.json"
    rows = [{"topic": name, "partitions": 1, "replication_factor": 1} for name in "abc"]
    file.write_text(json.dumps(rows))
    create = ("topics", "create", "--timeout-ms", "500", "--from-file", str(file))
    result = local.run(*create)
    assert result.exit_code == 1
    assert result.stdout == "Created topic a (1 partition, replication factor 1).\n"
    told = [line.removeprefix("regent: ") for line in result.stderr.splitlines()]
    assert [line[: len("topic b may not be created")] for line in told[-2:]] == [
        "topic b may not be created",
        "topic c may not be created",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("t", "--partitions", "0", "--replication-factor", "1"), "partitions must be at least 1"),
        (
            ("t", "--partitions", "1", "--replication-factor", "4"),
            "larger than the 3 available brokers",
        ),
        (("t", "--partitions", "-1", "--replication-factor", "1"), "partitions must be at least 1"),
        (("t", "--replica-assignment", "0:1,0"), "partition 1 has 1 replicas"),
        (("t", "--replica-assignment", "0:7"), "broker 7 is not registered"),
        (("a b", "--partitions", "1", "--replication-factor", "1"), "other characters"),
        (
            ("t", "--partitions", "1", "--replication-factor", "1", "--start-index", "middle"),
            "start index must be a number",
        ),
        (
            ("t", "--partitions", "1", "--replication-factor", "1", "--config", "colour=red"),
            "config colour is not a setting of topics",
        ),
    ],
)
def test_an_impossible_topic_is_refused_in_one_line_and_nothing_is_written(
    local: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    before = list(local.writes)

    assert problem in failing(local.run("topics", "create", *arguments))

    assert local.writes == before


def test_an_existing_topic_is_refused_unless_it_may_exist(local: FakeCluster) -> None:
    create = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")
    local.run(*create)
    before = list(local.writes)

    assert failing(local.run(*create)) == "topic t already exists"

    result = local.run(*create, "--if-not-exists")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "topic t already exists\n"
    assert local.json(*create, "--if-not-exists") == []
    assert local.writes == before


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("t", "--partitions", "one", "--replication-factor", "1"),
        ("t", "--replica-assignment", "0", "--partitions", "1"),
        ("t", "--replica-assignment", "0", "--replication-factor", "1"),
        ("t", "--replica-assignment", "a:b"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--config", "x"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--strategy", "best"),
        ("t", "--topic", "t", "--partitions", "1", "--replication-factor", "1"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--timeout-ms", "-1"),
        ("t", "--partition", "1"),
        ("--from-file", "/nowhere/topics.json"),
        ("t", "--from-file", os.devnull),
        ("--from-file", os.devnull, "--partitions", "1"),
        ("--from-file", os.devnull, "--config", "a=b"),
    ],
)
def test_invalid_command_lines_are_usage_errors(
    cluster: FakeCluster, arguments: tuple[str, ...]
) -> None:
    cluster.is_reachable = False

    result = cluster.run("topics", "create", *arguments)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("regent: ")
    assert line.endswith("(regent topics create --help)")
