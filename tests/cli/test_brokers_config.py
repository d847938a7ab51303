"""``brokers config``."""

from __future__ import annotations

import json

import pytest

from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import FakeCluster, failing

OF_ALL = "/config/brokers/<default>"
CHANGE = "/config/changes/config_change_0000000000"


@pytest.fixture
def one(cluster: FakeCluster) -> FakeCluster:
    """A broker with a setting in ZooKeeper."""
    cluster.with_brokers(1)
    config = ConfigEntityZNode.encode({"log.retention.ms": "7"})
    cluster.zookeeper.put("/config/brokers/0", config)
    return cluster


def config_of(cluster: FakeCluster, path: str) -> dict[str, str]:
    return ConfigEntityZNode.decode(cluster.zookeeper.snapshot()[path].data)


def test_settings_are_shown(one: FakeCluster) -> None:
    shown = ["NAME              VALUE", "log.retention.ms  7"]
    assert one.run("brokers", "config", "0").stdout.splitlines() == shown
    assert one.run("brokers", "config", "--default").stderr == "broker default overrides nothing\n"


def test_settings_of_a_broker_are_changed_with_a_notification(one: FakeCluster) -> None:
    changes = ("--set", "max.connections=5", "--unset", "log.retention.ms")

    answer = one.json("brokers", "config", "0", *changes)

    assert answer == {"broker": 0, "config": {"max.connections": "5"}}
    assert config_of(one, "/config/brokers/0") == {"max.connections": "5"}
    notification = json.loads(one.zookeeper.snapshot()[CHANGE].data)
    assert notification == {"version": 2, "entity_path": "brokers/0"}


def test_kafkas_names_of_the_options_work(one: FakeCluster) -> None:
    one.json("brokers", "config", "--broker", "0", "--delete-config", "log.retention.ms")
    one.json("brokers", "config", "--broker-defaults", "--add-config", "log.roll.ms=5")

    assert config_of(one, "/config/brokers/0") == {}
    assert config_of(one, OF_ALL) == {"log.roll.ms": "5"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("0", "--set", "log.roll.ms=x"), "broker 0 config log.roll.ms must be a number"),
        (("--default", "--set", "ssl.protocol=TLSv1.3"), "broker id must be specified"),
        (("--default", "--set", "num.partitions=1"), "restart the broker"),
        (("0", "--unset", "log.roll.ms"), "is not overridden; the overrides are log.retention.ms"),
    ],
)
def test_settings_that_brokers_cannot_get_are_refused(
    one: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in failing(one.run("brokers", "config", *arguments))
    assert CHANGE not in one.zookeeper.snapshot()


def test_a_setting_that_nothing_reads_is_stored_with_a_hint(one: FakeCluster) -> None:
    result = one.run("brokers", "config", "0", "--set", "log.roll.mss=1", "--set", "my.own=x")

    assert (result.exit_code, result.stderr.splitlines()) == (
        0,
        [
            "log.roll.mss is no setting of Regent or Kafka, and nothing here reads it; did you mean"
            " log.roll.ms?",
            "my.own is no setting of Regent or Kafka, and nothing here reads it",
        ],
    )
    assert config_of(one, "/config/brokers/0")["my.own"] == "x"


@pytest.mark.parametrize("arguments", [(), ("0", "--default"), ("0", "--set", "log.roll.ms")])
def test_brokers_config_needs_a_broker_or_all_and_values(
    one: FakeCluster, arguments: tuple[str, ...]
) -> None:
    assert one.run("brokers", "config", *arguments).exit_code == 2
