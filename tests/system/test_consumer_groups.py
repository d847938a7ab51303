"""Records and consumer groups from a shell, on one cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer

from regent.cli.main import cli
from regent.testing.regent_cluster import RegentCluster, unique_topic
from regent.testing.waits import eventually

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    options = ("--no-placement-service", "--brokers", "1")
    with RegentCluster(tmp_path_factory.mktemp("cluster"), *options) as cluster:
        yield cluster


def run(cluster: RegentCluster, *arguments: str, stdin: bytes = b"", exit_code: int = 0) -> Result:
    where = ("--data-dir", str(cluster.data_dir))
    result = CliRunner().invoke(cli, [*arguments, *where], input=stdin)
    assert result.exit_code == exit_code, result.output
    return result


def read(cluster: RegentCluster, topic: str, *options: str) -> list[dict[str, Any]]:
    lines = run(cluster, "consume", topic, "-o", "json", *options).stdout.splitlines()
    return [json.loads(line) for line in lines]


def new_topic(cluster: RegentCluster, *values: bytes, partitions: int = 1) -> str:
    topic = unique_topic("t")
    cluster.create_topic(topic, partitions, 1, {"retention.ms": "-1"})  # of any age
    run(cluster, "produce", topic, stdin=b"".join(value + b"\n" for value in values))
    return topic


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"] for row in rows]


@pytest.mark.nightly
def test_records_consumed_as_json_can_be_produced_again(cluster: RegentCluster) -> None:
    first, second = new_topic(cluster), new_topic(cluster)
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [{"key": "h", "value": "1"}], "timestamp_ms": 10**12},
        {"key": "k", "value": None, "headers": [], "timestamp_ms": 2 * 10**12},
        {"key_base64": "/w==", "value_base64": "/wA=", "headers": [{"key": "b", "value": None}]},
    ]
    text = "\n".join(map(json.dumps, records)).encode()
    run(cluster, "produce", first, "-i", "json", "--header", "all=yes", stdin=text)
    printed = run(cluster, "consume", first, "-o", "json").stdout_bytes
    run(cluster, "produce", second, "-i", "json", stdin=printed)

    copies = read(cluster, second)
    assert [{**row, "topic": first} for row in copies] == read(cluster, first)
    for wanted, copy in zip(records, copies, strict=True):
        added = {"key": "all", "value": "yes"}
        assert {**copy, **wanted, "headers": [*wanted["headers"], added]} == copy


@pytest.mark.nightly
def test_records_are_read_from_a_place_a_time_and_some_partitions(cluster: RegentCluster) -> None:
    topic = new_topic(cluster, partitions=2)
    for number in range(4):
        at = ("--partition", "1", "--timestamp", str(10**12 + number))
        run(cluster, "produce", topic, *at, "--key", "k", stdin=b"%d\n" % number)

    for options, expected in {
        ("--from-beginning",): "0123",
        ("--offset", "2"): "23",
        ("--offset", "9"): "",
        ("--offset", "-1"): "3",
        ("--offset", "-9", "--max-messages", "2"): "01",
        ("--offset", "latest"): "",
        ("--from-timestamp", str(10**12 + 1)): "123",
        ("--from-timestamp", str(10**12 + 9)): "",
        ("--partition", "0"): "",
        ("--partition", "1", "--isolation-level", "read_uncommitted"): "0123",
    }.items():
        assert "".join(values(read(cluster, topic, *options))) == expected, options
    error = run(cluster, "consume", topic, "--partition", "2", exit_code=1).stderr
    assert error == f"regent: topic {topic} has no partition 2: it has 2 partitions\n"


def test_a_pipe_gets_the_bytes_of_the_records(cluster: RegentCluster) -> None:
    topic = new_topic(cluster, b"\x1b[31mred\xff")
    printed = run(cluster, "consume", topic).stdout_bytes
    assert printed == f"{topic}-0 @0  ".encode() + b"\x1b[31mred\xff\n"


def offsets(cluster: RegentCluster, group: str) -> list[tuple[Any, ...]]:
    (described,) = json.loads(run(cluster, "groups", "describe", group, "-o", "json").stdout)
    return [
        (row["topic"], row["partition"], row["current_offset"], row["lag"])
        for row in described["partitions"]
    ]


@pytest.mark.nightly
def test_a_group_continues_where_it_stopped_and_is_reset_and_deleted(
    cluster: RegentCluster,
) -> None:
    topic, group = new_topic(cluster, b"a", b"b", b"c"), unique_topic("g")
    of_group = partial(read, cluster, topic, "--group", group)
    assert values(of_group("--max-messages", "2")) == ["a", "b"]
    assert offsets(cluster, group) == [(topic, 0, 2, 1)]
    assert values(of_group()) == ["c"]
    assert of_group() == []

    reset = ("groups", "reset-offsets", group, "--topic", topic)
    printed = run(cluster, *reset, "--to-earliest")
    assert printed.stdout.split()[-4:] == [group, topic, "0", "0"]
    assert printed.stderr == "nothing was changed: add --execute\n"
    assert offsets(cluster, group) == [(topic, 0, 3, 0)]
    run(cluster, "groups", "reset-offsets", group, "--all-topics", "--shift-by", "-2", "--execute")
    assert offsets(cluster, group) == [(topic, 0, 1, 2)]
    run(cluster, *reset, "--by-duration", "PT1H", "--execute")
    assert values(of_group()) == ["a", "b", "c"]

    printed = run(cluster, "groups", "describe", group)
    assert f"{group} {topic} 0 3 3 0 - - -".split() == printed.stdout.split()[-9:]
    assert printed.stderr == f"Consumer group '{group}' has no active members.\n"
    listed = {"group": group, "state": "Empty", "is_simple": False}
    assert listed in json.loads(run(cluster, "groups", "list", "-o", "json").stdout)
    assert group in run(cluster, "groups", "list").stdout.splitlines()

    assert run(cluster, "groups", "delete", group).stdout == f"Group {group} is deleted.\n"
    gone = f"regent: group {group} does not exist\n"
    assert run(cluster, "groups", "delete", group, exit_code=1).stderr == gone
    assert run(cluster, "groups", "describe", group, exit_code=1).stderr == gone


def test_a_group_with_members_is_shown_with_them_and_not_changed(cluster: RegentCluster) -> None:
    topic, group = new_topic(cluster, b"a", partitions=2), unique_topic("g")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
    with closing(Consumer({**settings, "client.id": "reader"})) as consumer:
        consumer.subscribe([topic])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        eventually(is_assigned, "both partitions are assigned")
        (described,) = json.loads(run(cluster, "groups", "describe", group, "-o", "json").stdout)
        (member,) = described["members"]
        assert (described["state"], described["coordinator_id"]) == ("Stable", 0)
        assert (member["client_id"], member["host"]) == ("reader", "/127.0.0.1")
        assert [row["partition"] for row in member["partitions"]] == [0, 1]
        row = run(cluster, "groups", "describe", group, "--members").stdout.splitlines()[-1]
        assert row.split()[-3:] == ["reader", "2", f"{topic}(0,1)"]
        row = run(cluster, "groups", "describe", group, "--state").stdout.splitlines()[-1]
        assert row.split()[-3:] == ["range", "Stable", "1"]
        assert f"{group}  Stable" in run(cluster, "groups", "list", "--state").stdout

        reset = ("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
        assert run(cluster, *reset, exit_code=1).stderr == (
            f"regent: group {group} has 1 member and is Stable: stop them first\n"
        )
        assert run(cluster, "groups", "delete", group, exit_code=1).stderr == (
            f"regent: group {group}: it has members: stop them first\n"
        )


def test_names_of_groups_that_a_script_could_misread_are_json(cluster: RegentCluster) -> None:
    topic = new_topic(cluster, b"a")
    names = {"odd\nlist\tname", " odd", "odd  name", '"odd"', "odd name", "\x1b[2Jodd"}
    for name in names:
        reset = ("groups", "reset-offsets", name, "--topic", topic, "--to-earliest", "--execute")
        assert len(run(cluster, *reset).stdout.splitlines()) == 2

    def read_name(shown: str) -> str:
        return str(json.loads(shown)) if shown.startswith('"') else shown

    listed = run(cluster, "groups", "list").stdout.splitlines()
    assert {name for name in map(read_name, listed) if "odd" in name} == names
    lines = run(cluster, "groups", "list", "--state").stdout.splitlines()
    rows = {read_name(line.split("  ")[0]): line.split()[-1] for line in lines if "odd" in line}
    assert rows == dict.fromkeys(names, "Empty")
    described = run(cluster, "groups", "describe", *names)
    shown = [read_name(line.split("  ")[0]) for line in described.stdout.splitlines()[1:]]
    assert sorted(shown) == sorted(names)
    assert len(described.stderr.splitlines()) == len(names)
    gone = run(cluster, "groups", "delete", *names).stdout.splitlines()
    deleted = [line.removeprefix("Group ").removesuffix(" is deleted.") for line in gone]
    assert sorted(map(read_name, deleted)) == sorted(names)
