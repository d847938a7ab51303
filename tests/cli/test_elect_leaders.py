"""``elect-leaders``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from tests.support.fake_cluster import FakeCluster

ALL = ("elect-leaders", "--election-type", "preferred", "--all-topic-partitions")
ONE = ("elect-leaders", "--election-type", "unclean", "--topic", "t", "--partition", "1")
NOT_NEEDED = ApiError(Errors.ELECTION_NOT_NEEDED, "t-2: broker 0 leads already")
FAILED = ApiError(Errors.PREFERRED_LEADER_NOT_AVAILABLE, "t-3: broker 1 is not in the ISR")
EVERY = {3: FAILED, 2: NOT_NEEDED, 1: NO_ERROR}


@pytest.fixture
def one(cluster: FakeCluster) -> FakeCluster:
    cluster.with_brokers(1)
    answer(cluster, {1: NO_ERROR})
    metadata(cluster, 2)
    return cluster


def answer(cluster: FakeCluster, results: Mapping[int, ApiError]) -> None:
    """Set the outcomes of elections in t; broker 2 is elected."""
    by_partition = {TopicPartition("t", number): result for number, result in results.items()}
    elected = dict.fromkeys((p for p, result in by_partition.items() if result is NO_ERROR), 2)
    response = ElectLeadersResponse.of(by_partition, leaders=elected)
    cluster.answers[ElectLeadersRequest] = lambda _: response


def metadata(cluster: FakeCluster, *leaders: int) -> None:
    """Set the leaders of t-1 in the brokers' metadata, one for each request."""
    known = list(leaders)

    def describe(_: object) -> DescribeMetadataResponse:
        leader = known.pop(0) if len(known) > 1 else known[0]
        rows = (
            MetadataPartition("t", None, 0, 2, 1, 1, (), (), (), 1),
            MetadataPartition("t", None, 1, leader, 1, 1, (), (), (), 1),
        )
        return DescribeMetadataResponse(Errors.NONE, 0, "RunningAsController", 0, 1, (), rows)

    cluster.answers[DescribeMetadataRequest] = describe


def asked(cluster: FakeCluster) -> ElectLeadersRequest:
    (request,) = (r for r in cluster.received if isinstance(r, ElectLeadersRequest))
    return request


def test_a_partition_gets_the_elected_leader(one: FakeCluster) -> None:
    result = one.run(*ONE)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "Successfully completed leader election (UNCLEAN) for partitions t-1\n"
    )
    assert asked(one) == ElectLeadersRequest.of(ElectionType.UNCLEAN, (TopicPartition("t", 1),))


def test_the_command_returns_when_the_brokers_know_the_leader(one: FakeCluster) -> None:
    metadata(one, -1, 0, 2)

    assert one.run(*ONE).exit_code == 0
    assert one.received.count(DescribeMetadataRequest(("t",))) == 3


def test_a_leader_that_brokers_do_not_know_in_time_is_a_failure(one: FakeCluster) -> None:
    metadata(one, 0)

    result = one.run(*ONE, "--timeout-ms", "200")

    assert result.exit_code == 1
    assert result.stdout.startswith("Successfully completed leader election")
    assert result.stderr == ("regent: 1 new leader not known to the brokers after 200 ms: of t-1\n")


def test_every_outcome_is_printed_in_kafkas_words(one: FakeCluster) -> None:
    answer(one, EVERY)

    result = one.run(*ALL)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions t-1",
        "Valid replica already elected for partitions t-2",
    ]
    assert result.stderr.splitlines() == [
        "regent: Error completing leader election (PREFERRED) for partition: t-3: broker 1 is not"
        " in the ISR",
        "regent: 1 partition could not be elected",
    ]
    assert asked(one) == ElectLeadersRequest.of(ElectionType.PREFERRED, None)


def test_of_many_partitions_the_first_are_named(one: FakeCluster) -> None:
    failed, unneeded = range(100, 130), range(200, 225)
    answer(one, dict.fromkeys(failed, FAILED) | dict.fromkeys(unneeded, NOT_NEEDED))

    result = one.run(*ALL)

    assert result.stdout.rstrip().endswith("t-218, t-219 and 5 more")
    lines = result.stderr.splitlines()
    assert len(lines) == 22
    assert lines[-2:] == [
        "regent: … and 10 more errors (-o json has them all)",
        "regent: 30 partitions could not be elected",
    ]


def test_every_outcome_is_a_row_in_json(one: FakeCluster) -> None:
    answer(one, EVERY)

    rows = one.json(*ALL, exit_code=1)

    assert [row["result"] for row in rows] == ["elected", "not needed", "failed"]
    assert rows[0] == {
        "topic": "t",
        "partition": 1,
        "result": "elected",
        "leader": 2,
        "error": None,
        "message": "",
    }
    assert rows[2]["error"] == "PREFERRED_LEADER_NOT_AVAILABLE"


def test_an_election_that_is_not_needed_is_a_success(one: FakeCluster) -> None:
    answer(one, {2: NOT_NEEDED})

    result = one.run(*ONE)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Valid replica already elected for partitions t-2\n"


def test_a_run_without_needed_elections_is_a_success(one: FakeCluster) -> None:
    answer(one, {})

    result = one.run(*ALL)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no partition needed an election\n"
    assert one.json(*ALL) == []


def test_the_partitions_of_a_file_are_elected(one: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 1}]}))
    command = ("elect-leaders", "--election-type", "PREFERRED", "--path-to-json-file", str(file))

    assert one.run(*command).exit_code == 0
    assert asked(one).partitions == (TopicPartition("t", 1),)

    file.write_text("{}")
    result = one.run(*command)
    assert result.exit_code == 1
    assert "file.json: partitions is missing" in result.stderr


def test_a_controller_that_refuses_is_named(one: FakeCluster) -> None:
    one.answers[ElectLeadersRequest] = lambda _: ElectLeadersResponse.of(
        {}, ApiError(Errors.REQUEST_TIMED_OUT)
    )

    result = one.run(*ALL)

    assert result.exit_code == 1
    assert result.stderr == "regent: the controller answered REQUEST_TIMED_OUT\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all-topic-partitions",),
        ("--election-type", "random", "--all-topic-partitions"),
        ("--election-type", "preferred"),
        ("--election-type", "preferred", "--topic", "t"),
        ("--election-type", "preferred", "--partition", "0"),
        ("--election-type", "preferred", "--all-topic-partitions", "--partition", "0"),
        (*ONE[1:], "--all-topic-partitions"),
    ],
)
def test_invalid_command_lines_are_usage_errors(
    one: FakeCluster, arguments: tuple[str, ...]
) -> None:
    assert one.run("elect-leaders", *arguments).exit_code == 2


def test_two_sources_of_partitions_are_not_called_missing(one: FakeCluster) -> None:
    kind = ("elect-leaders", "--election-type", "preferred")
    sources = "one of --all-topic-partitions, --topic and --path-to-json-file"
    both = one.run(*kind, "--all-topic-partitions", "--topic", "t", "--partition", "0")
    assert f"only {sources} may be given" in both.stderr
    assert f": {sources} is needed" in one.run(*kind).stderr
    assert one.received == []
