"""``topics config``."""

from __future__ import annotations

import json

import pytest

from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import FakeCluster, failing

SET = ("topics", "config", "t")
CONFIG = "/config/topics/t"
CHANGE = "/config/changes/config_change_0000000000"


@pytest.fixture
def one(cluster: FakeCluster) -> FakeCluster:
    """A topic that overrides two configurations."""
    cluster.with_brokers(1)
    cluster.put_topic("t", {0: (0,)})
    overrides = {"segment.ms": "7", "retention.ms": "-1"}
    cluster.zookeeper.put(CONFIG, ConfigEntityZNode.encode(overrides))
    return cluster


def test_overrides_are_shown(one: FakeCluster) -> None:
    assert one.run(*SET).stdout.splitlines() == [
        "NAME          VALUE",
        "retention.ms  -1",
        "segment.ms    7",
    ]
    assert one.json("topics", "config", "--topic", "t") == {
        "topic": "t",
        "config": {"retention.ms": "-1", "segment.ms": "7"},
    }


def test_a_topic_without_overrides_has_an_empty_answer(one: FakeCluster) -> None:
    one.put_topic("plain", {0: (0,)})

    result = one.run("topics", "config", "plain")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "topic plain overrides nothing\n"
    assert one.json("topics", "config", "plain") == {"topic": "plain", "config": {}}


def test_configurations_are_set_and_removed_in_one_write_with_a_notification(
    one: FakeCluster,
) -> None:
    changes = ("--set", "min.insync.replicas = 2", "--unset", "segment.ms")

    answer = one.json(*SET, *changes, "--set", "retention.ms=5")

    assert answer["config"] == {"min.insync.replicas": "2", "retention.ms": "5"}
    snapshot = one.zookeeper.snapshot()
    assert ConfigEntityZNode.decode(snapshot[CONFIG].data) == answer["config"]
    assert json.loads(snapshot[CHANGE].data) == {"version": 2, "entity_path": "topics/t"}


@pytest.mark.parametrize(
    ("added", "config"),
    [
        ("cleanup.policy=[compact,delete]", {"cleanup.policy": "compact,delete"}),
        ("retention.ms=9,segment.ms=8", {"retention.ms": "9", "segment.ms": "8"}),
        (
            "cleanup.policy=[compact,delete], retention.ms = 9",
            {"cleanup.policy": "compact,delete", "retention.ms": "9"},
        ),
        ("cleanup.policy=compact,delete", {"cleanup.policy": "compact,delete"}),
        ("leader.replication.throttled.replicas=[0:1,1:2]", "0:1,1:2"),
        ("leader.replication.throttled.replicas=0:1,1:2", "0:1,1:2"),
        ("follower.replication.throttled.replicas=[]", {}),
    ],
)
def test_the_notation_of_kafka_configs_is_read(
    one: FakeCluster, added: str, config: str | dict[str, str]
) -> None:
    name = added.partition("=")[0]

    answer = one.json(*SET, "--add-config", added)["config"]

    wanted = {name: config} if isinstance(config, str) else config
    assert {**answer, **wanted} == answer
    assert answer.keys() == {"retention.ms", "segment.ms", name, *wanted}


def test_several_overrides_are_removed_at_once(one: FakeCluster) -> None:
    assert one.json(*SET, "--delete-config", "retention.ms, segment.ms")["config"] == {}


def test_overrides_that_cannot_be_used_are_not_shown_as_in_force(one: FakeCluster) -> None:
    overrides = {"segment.ms": "bad", "retention.ms": "-1", "no.such.setting": "x"}
    one.zookeeper.put(CONFIG, ConfigEntityZNode.encode(overrides))

    result = one.run(*SET)

    assert result.stdout.splitlines() == ["NAME          VALUE", "retention.ms  -1"]
    first, second = result.stderr.splitlines()
    assert first.startswith("topic t config no.such.setting is not a setting of topics")
    assert second == (
        "topic t config segment.ms must be a number from 1 to 9223372036854775807, not 'bad'; it is"
        " ignored, remove it with --unset"
    )
    assert one.json(*SET) == {
        "topic": "t",
        "config": {"retention.ms": "-1"},
        "ignored": {"no.such.setting": "x", "segment.ms": "bad"},
    }
    assert "Configs: retention.ms=-1\n" in one.run("topics", "describe", "t").stdout


def test_kafkas_names_of_the_options_work(one: FakeCluster) -> None:
    answer = one.json(*SET, "--config", "preallocate=true", "--delete-config", "retention.ms")

    assert answer["config"] == {"preallocate": "true", "segment.ms": "7"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("--set", "retention.msec=1"), "retention.msec is not a setting of topics; did you mean"),
        (("--set", "colour=red"), "colour is not a setting of topics; those are cleanup.policy, "),
        (
            ("--set", "unclean.leader.election.enable=maybe"),
            "unclean.leader.election.enable must be true or false, not 'maybe'",
        ),
        (("--set", "min.insync.replicas=0"), "min.insync.replicas must be a number from 1 to"),
        (("--unset", "flush.ms"), "flush.ms is not overridden; the overrides are retention.ms, "),
    ],
)
def test_an_invalid_configuration_is_named_and_nothing_is_written(
    one: FakeCluster, change: tuple[str, ...], problem: str
) -> None:
    line = failing(one.run(*SET, "--set", "preallocate=true", *change))

    assert line.startswith(f"topic t config {problem}")
    assert one.writes.count(CONFIG) == 1
    assert CHANGE not in one.writes


def test_an_invalid_override_is_refused_at_creation_too(local: FakeCluster) -> None:
    """Row ULE-05."""
    flag = "unclean.leader.election.enable"
    shape = ("--partitions", "1", "--replication-factor", "1")

    line = failing(local.run("topics", "create", "t", *shape, "--config", f"{flag}=invalid"))

    assert line == f"topic t config {flag} must be true or false, not 'invalid'"
    assert "/brokers/topics/t" not in local.writes


def test_an_unknown_configuration_can_be_removed(one: FakeCluster) -> None:
    one.zookeeper.put(CONFIG, ConfigEntityZNode.encode({"colour": "red"}))

    assert one.json(*SET, "--unset", "colour")["config"] == {}


def test_unknown_topics_and_unreadable_configurations_are_named(one: FakeCluster) -> None:
    for name in ("nope", ".."):
        change = ("topics", "config", name, "--set", "retention.ms=1")
        assert failing(one.run(*change)) == f"topic {name} does not exist"
    one.zookeeper.put(CONFIG, b"garbage")
    assert "not JSON" in failing(one.run(*SET))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("t", "--set", "retention.ms"),
        ("t", "--set", "a=1", "--set", "a=2"),
        ("t", "--set", "a=1", "--unset", "a"),
    ],
)
def test_invalid_command_lines_are_usage_errors(
    one: FakeCluster, arguments: tuple[str, ...]
) -> None:
    assert one.run("topics", "config", *arguments).exit_code == 2
