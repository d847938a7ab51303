"""``zookeeper backup`` and ``restore``: what a cluster is set to, beside its topics."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from regent.core.security.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.zk.codecs.topic_znodes import random_uuid
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.znodes import ClusterIdZNode
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_zookeeper import FakeZooKeeper

CONFIGS = {
    "brokers/<default>": {"log.retention.ms": "1000"},
    "brokers/1": {"leader.replication.throttled.rate": "5"},
    "users/alice": {"SCRAM-SHA-256": "salt=YQ==,stored_key=YQ==", "producer_byte_rate": "10"},
    "users/alice/clients/app": {"consumer_byte_rate": "7"},
    "clients/<default>": {"request_percentage": "3"},
    "ips/10.0.0.1": {"connection_creation_rate": "2"},
}
READ = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
WRITE = AccessControlEntry("User:bob", "*", AclOperation.WRITE, AclPermissionType.DENY)
ACLS = {
    ResourcePattern(ResourceType.TOPIC, "orders", PatternType.LITERAL): frozenset({READ, WRITE}),
    ResourcePattern(ResourceType.GROUP, "app-", PatternType.PREFIXED): frozenset({READ}),
}


def stores(cluster: FakeCluster) -> tuple[ZkConfigStore, ZkAclStore]:
    """Return the stores of a cluster."""
    zookeeper = FakeZooKeeper(cluster.zookeeper)
    return ZkConfigStore(zookeeper), ZkAclStore(zookeeper)


def given(wanted: Mapping[str, str], _: object) -> Mapping[str, str | None]:
    """Return what a setting is to be, whatever it was."""
    return wanted


def fill(cluster: FakeCluster) -> None:
    """Write all settings and ACLs."""
    configs, acls = stores(cluster)
    for entity, overrides in CONFIGS.items():
        configs.change_config(entity, partial(given, overrides))
    acls.create_paths()
    for pattern, entries in ACLS.items():
        acls.change(pattern, entries.union)


@pytest.fixture
def file(cluster: FakeCluster, tmp_path: Path) -> Path:
    """A backup of a cluster with settings of every kind."""
    fill(cluster)
    path = tmp_path / "settings.json"
    assert cluster.run("zookeeper", "backup", str(path)).stdout == f"Wrote 8 znodes to {path}.\n"
    return path


def test_all_settings_and_acls_are_there_again_in_another_cluster(file: Path):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = FakeCluster()
    try:
        assert other.run("zookeeper", "restore", str(file)).stdout.endswith(
            "8 of 8 znodes are written.\n"
        )
        configs, acls = stores(other)
        assert configs.read_configs(list(CONFIGS)) == CONFIGS
        assert acls.read_all() == ACLS
        assert {change.entity for change in configs.read_changes()} == set(CONFIGS)
        assert {change.pattern for change in acls.read_changes()} == set(ACLS)
    finally:
        other.close()


def test_what_the_file_does_not_have_stays_and_what_is_there_is_not_written(
    cluster: FakeCluster, file: Path
):
    configs, acls = stores(cluster)
    configs.change_config("brokers/1", lambda _: {"log.retention.bytes": "9"})
    configs.change_config("users/alice", lambda _: {"producer_byte_rate": "99"})
    (orders, _) = ACLS
    acls.change(orders, lambda _: frozenset({WRITE}))
    dry = cluster.run("zookeeper", "restore", "--dry-run", str(file)).stdout
    assert dry.splitlines() == [
        "/config/users/alice",
        "/kafka-acl/Topic/orders",
        "2 of 8 znodes differ.",
    ]
    cluster.run("zookeeper", "restore", str(file))
    assert configs.read_configs(["brokers/1", "users/alice"]) == {
        "brokers/1": {**CONFIGS["brokers/1"], "log.retention.bytes": "9"},
        "users/alice": CONFIGS["users/alice"],
    }
    assert acls.read_all() == ACLS
    assert cluster.run("zookeeper", "restore", str(file)).stdout == "0 of 8 znodes are written.\n"


@pytest.mark.parametrize("path", ["/config/users", "/config/brokers", "/kafka-acl/Topic"])
def test_what_may_not_be_listed_is_not_left_out(cluster: FakeCluster, tmp_path: Path, path: str):
    """Without the login of ZooKeeper there seem to be no users."""
    fill(cluster)
    cluster.zookeeper.deny(path)
    result = cluster.run("zookeeper", "backup", str(tmp_path / "settings.json"))
    assert result.exit_code == 1
    assert path in result.stderr
    assert not (tmp_path / "settings.json").exists()
    if path == "/config/users":
        assert path in cluster.run("users", "list").stderr
        assert path in cluster.run("migrate", "check").output


def test_a_file_is_not_written_over(cluster: FakeCluster, file: Path):
    result = cluster.run("zookeeper", "backup", str(file))
    assert result.exit_code == 1
    assert result.stderr == f"regent: {file} exists already: choose a new name\n"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "not JSON"),
        ("[]", "it is no backup of settings: it has no znodes"),
        ('{"version": 2, "znodes": {}}', "its version is 2: this release reads 1"),
        ('{"version": 1, "znodes": {"/brokers/ids/1": {}}}', "is no znode of settings"),
        ('{"version": 1, "znodes": {"/config/topics/t": {}}}', "is no znode of settings"),
        (
            '{"version": 1, "znodes": {"/config/users/a": {"version": 1, "config": 5}}}',
            "/config/users/a",
        ),
        ('{"version": 1, "znodes": {"/kafka-acl/Topic/a": {"version": 1}}}', "acls"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_and_nothing_is_written(
    cluster: FakeCluster, tmp_path: Path, document: str, told: str
):
    path = tmp_path / "settings.json"
    path.write_text(document)
    path.chmod(0o600)
    before = list(cluster.writes)
    result = cluster.run("zookeeper", "restore", str(path))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert str(path) in line
    assert told in line
    assert cluster.writes == before


def test_a_file_that_others_can_read_is_refused(cluster: FakeCluster, file: Path):
    file.chmod(0o644)
    result = cluster.run("zookeeper", "restore", str(file))
    assert result.exit_code == 1
    assert "chmod" in result.stderr


# --- the whole tree -------------------------------------------------------------------------------


def test_a_whole_tree_is_restored_where_no_cluster_is(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster)
    cluster.with_brokers(1)
    cluster.put_topic("t", {0: (0,)})
    cluster.put("/cluster/id", ClusterIdZNode.encode(random_uuid()))
    file = tmp_path / "tree.json"
    wrote = cluster.run("zookeeper", "backup", str(file), "--whole-tree").stdout
    assert wrote.startswith("Wrote ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = list(cluster.writes)
    refused = cluster.run("zookeeper", "restore", str(file))
    assert refused.exit_code == 1
    assert refused.stderr.startswith("regent: brokers are registered here: 0: stop them")
    assert cluster.writes == before
    other = FakeCluster()
    try:
        monkeypatch.setenv("REGENT_ZOOKEEPER", "other:2181")
        dry = other.run("zookeeper", "restore", str(file), "--dry-run").stdout
        assert "znodes are missing" in dry
        assert other.run("topics", "list", "--names").stdout == ""
        result = other.run("zookeeper", "restore", str(file))
        assert "znodes are written" in result.stdout
        assert "remove control-plane.properties" in result.stderr
        assert other.run("topics", "list", "--names").stdout == "t\n"
        configs, acls = stores(other)
        assert configs.read_configs(list(CONFIGS)) == CONFIGS
        assert acls.read_all() == ACLS
        again = other.run("zookeeper", "restore", str(file))
        assert "there is a cluster here already (/cluster/id)" in again.stderr
    finally:
        other.close()
