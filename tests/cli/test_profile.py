"""Profiles: how commands find a cluster by its name, and what counts before a profile."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.profiles import profiles_file
from regent.config.cluster_location import KEYS_OF_COMMAND
from regent.zk.client.zookeeper import ZooKeeper
from tests.support.fake_cluster import FakeCluster, failing, write_cluster_file

LIST = ("topics", "list")


@pytest.fixture
def asked(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of ZooKeeper that commands open; nothing in the environment names one."""
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    addresses: list[str] = []
    opened = cluster.open

    def open_noted(address: str, limit_s: float | None) -> AbstractContextManager[ZooKeeper]:
        addresses.append(address)
        return opened(address, limit_s)

    monkeypatch.setattr(cluster, "open", open_noted)
    return addresses


def add(cluster: FakeCluster, name: str, *options: str) -> None:
    result = cluster.run("profile", "add", name, *options)
    assert (result.exit_code, result.stdout) == (0, f"Added profile {name}.\n"), result.stderr


def test_a_profile_is_named_by_the_option_the_environment_or_use(
    cluster: FakeCluster, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        add(cluster, name, "--zookeeper", f"{name}:1")
    assert cluster.run("profile", "use", "a").exit_code == 0
    assert cluster.run(*LIST).exit_code == 0
    monkeypatch.setenv("REGENT_PROFILE", "b")
    cluster.run(*LIST)
    cluster.run(*LIST, "--profile", "c")
    assert asked == ["a:1", "b:1", "c:1"]


def test_a_profile_is_used_where_nothing_else_names_a_cluster(
    cluster: FakeCluster, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster_file(tmp_path, zookeeper="local:1")
    add(cluster, "a", "--zookeeper", "a:1")
    cluster.run("profile", "use", "a")
    cluster.run(*LIST, "--zookeeper", "option:1")
    cluster.run(*LIST, "--data-dir", str(tmp_path))
    monkeypatch.setenv("REGENT_ZOOKEEPER", "variable:1")
    cluster.run(*LIST)
    cluster.run(*LIST, "--profile", "a")
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    monkeypatch.setenv("REGENT_DATA_DIR", str(tmp_path))
    cluster.run(*LIST)
    cluster.run(*LIST, "--profile", "a")
    assert asked == ["option:1", "local:1", "variable:1", "a:1", "local:1", "a:1"]


def test_two_names_of_clusters_are_refused(cluster: FakeCluster, asked: list[str]) -> None:
    add(cluster, "a", "--zookeeper", "a:1")
    result = cluster.run(*LIST, "--profile", "a", "--zookeeper", "b:1")
    assert result.exit_code == 2
    assert "--profile and --zookeeper both name a cluster" in result.stderr
    assert asked == []


def test_keys_and_command_config_are_the_profiles_unless_options_name_others(
    cluster: FakeCluster, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, other, properties = tmp_path / "keys", tmp_path / "other", tmp_path / "c.properties"
    keys.mkdir()
    other.mkdir()
    properties.write_text("security.protocol=SSL\n")
    monkeypatch.setenv("REGENT_KEYS", str(other))
    files = ("--keys", str(keys), "--command-config", str(properties))
    add(cluster, "a", "--zookeeper", "a:1", *files)
    cluster.run(*LIST, "--profile", "a")
    assert KEYS_OF_COMMAND.given == keys
    assert SECURITY_OF_COMMAND.protocol.value == "SSL"
    cluster.run(*LIST, "--profile", "a", "--keys", str(other))
    assert KEYS_OF_COMMAND.given == other
    assert asked == ["a:1", "a:1"]


def test_keys_of_a_profile_are_not_used_for_another_cluster(
    cluster: FakeCluster, asked: list[str], tmp_path: Path
) -> None:
    add(cluster, "a", "--zookeeper", "a:1", "--keys", str(tmp_path))
    cluster.run("profile", "use", "a")
    cluster.run(*LIST, "--zookeeper", "b:1")
    assert KEYS_OF_COMMAND.given is None
    assert asked == ["b:1"]


def test_brokers_of_a_profile_are_asked_without_zookeeper(
    cluster: FakeCluster, asked: list[str]
) -> None:
    cluster.with_brokers(1)
    add(cluster, "a", "--bootstrap-server", f"127.0.0.1:{cluster.ports[0].port}")
    result = cluster.run("topics", "create", "t", "--profile", "a")
    assert result.exit_code == 0, result.stderr
    assert asked == []
    needs_zookeeper = failing(cluster.run("users", "list", "--profile", "a"))
    assert "the profile a has no ZooKeeper" in needs_zookeeper


def test_profiles_are_listed_and_removed(cluster: FakeCluster, asked: list[str]) -> None:
    add(cluster, "b", "--zookeeper", "b:1")
    add(cluster, "a", "--bootstrap-server", "h:1")
    cluster.run("profile", "use", "b")
    assert [(row["name"], row["used"]) for row in cluster.json("profile", "list")] == [
        ("a", False),
        ("b", True),
    ]
    rows = cluster.run("profile", "list").stdout.splitlines()
    assert [row.split() for row in rows[1:]] == [
        ["a", "no", "-", "h:1", "-", "-"],
        ["b", "yes", "b:1", "-", "-", "-"],
    ]
    assert cluster.run("profile", "remove", "b").stdout == "Removed profile b.\n"
    assert [row["used"] for row in cluster.json("profile", "list")] == [False]
    assert cluster.run("profile", "use", "--none").exit_code == 0
    assert asked == []


def test_the_file_is_private_and_must_stay_so(cluster: FakeCluster) -> None:
    add(cluster, "a", "--zookeeper", "a:1")
    path = profiles_file()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    path.chmod(0o644)
    assert f"chmod 600 {path}" in failing(cluster.run("profile", "list"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"profiles": []}',
        '{"profiles": {"a": 1}}',
        '{"profiles": {"a": {"zookeeper": 1}}}',
        '{"profiles": {"a": {"password": "x"}}}',
        '{"profiles": {}, "used": 1}',
    ],
)
def test_a_damaged_file_is_named(cluster: FakeCluster, text: str) -> None:
    add(cluster, "a", "--zookeeper", "a:1")
    profiles_file().write_text(text)
    assert f"{profiles_file()} is no file of profiles" in failing(cluster.run("profile", "list"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("profile", "use", "x"), "there is no profile 'x'; the profiles are: a"),
        (("profile", "remove", "x"), "there is no profile 'x'"),
        (("profile", "add", "a", "--zookeeper", "z:1"), "there is a profile a already"),
        (("profile", "add", "a/b", "--zookeeper", "z:1"), "'a/b' cannot name a profile"),
        ((*LIST, "--profile", "x"), "there is no profile 'x'"),
    ],
)
def test_a_wrong_name_is_one_line(
    cluster: FakeCluster, words: tuple[str, ...], expected: str
) -> None:
    add(cluster, "a", "--zookeeper", "a:1")
    assert expected in failing(cluster.run(*words))


def test_a_profile_must_name_a_cluster(cluster: FakeCluster) -> None:
    for words in (("add", "a"), ("use",), ("use", "a", "--none")):
        assert cluster.run("profile", *words).exit_code == 2
    assert not profiles_file().exists()


def test_paths_are_kept_absolute(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").mkdir()
    add(cluster, "a", "--zookeeper", "a:1", "--keys", "keys")
    stored = json.loads(profiles_file().read_text())["profiles"]["a"]
    assert stored == {"zookeeper": "a:1", "keys": str(tmp_path / "keys")}
