"""``regent users``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regent.config.private_files import write_private
from regent.core.security.plain import parsed_users
from regent.core.security.scram import ScramMechanism, derive, parsed_credential
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import FakeCluster


def config(cluster: FakeCluster, path: str) -> dict[str, str]:
    return ConfigEntityZNode.decode(cluster.zookeeper.snapshot()[f"/config/{path}"].data)


def logs_in(cluster: FakeCluster, path: str, mechanism: ScramMechanism, password: str) -> bool:
    stored = parsed_credential(mechanism, config(cluster, path)[mechanism.value])
    return derive(mechanism, password, stored.salt, stored.iterations) == stored


def test_a_user_is_added_listed_and_removed(cluster: FakeCluster, tmp_path: Path) -> None:
    password = tmp_path / "password"
    write_private(password, "alice's secret\n")
    cluster.put("/config/users/alice", ConfigEntityZNode.encode({"producer_byte_rate": "5"}))
    added = cluster.run("users", "add", "alice", "--password-file", str(password))
    assert added.output == "alice may log in with SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    for mechanism in ScramMechanism:
        assert logs_in(cluster, "users/alice", mechanism, "alice's secret")
    listed = cluster.run("users", "list", "-o", "json")
    assert json.loads(listed.output) == [
        {"user": "alice", "mechanism": mechanism.value, "iterations": 4096}
        for mechanism in ScramMechanism
    ]
    removed = cluster.run("users", "remove", "alice", "--mechanism", "SCRAM-SHA-256")
    assert removed.output == "alice may no longer log in with SCRAM-SHA-256.\n"
    assert config(cluster, "users/alice").keys() == {"producer_byte_rate", "SCRAM-SHA-512"}
    assert cluster.run("users", "remove", "alice").exit_code == 0
    assert config(cluster, "users/alice") == {"producer_byte_rate": "5"}
    again = cluster.run("users", "remove", "alice")
    assert again.exit_code == 1
    assert "no such password" in again.output


def test_a_password_is_asked_for_twice(cluster: FakeCluster) -> None:
    arguments = ("users", "add", "a b", "--mechanism", "SCRAM-SHA-512", "--iterations", "5000")
    added = cluster.run(*arguments, stdin=b"secret\nsecret\n")
    assert added.exit_code == 0
    assert "secret" not in added.output
    assert logs_in(cluster, "users/a%20b", ScramMechanism.SCRAM_SHA_512, "secret")
    assert cluster.run(*arguments, stdin=b"secret\nother\n").exit_code != 0


def test_a_password_file_must_be_private(cluster: FakeCluster, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o644)
    refused = cluster.run("users", "add", "alice", "--password-file", str(password))
    assert refused.exit_code == 1
    assert f"chmod 600 {password}" in refused.output
    assert "/config/users/alice" not in cluster.writes


@pytest.mark.parametrize("name", ["", "ü", "a\nb"])
def test_a_name_that_cannot_log_in_is_refused(cluster: FakeCluster, name: str) -> None:
    refused = cluster.run("users", "add", name, stdin=b"secret\nsecret\n")
    assert refused.exit_code == 1
    assert "printable ASCII" in refused.output


def test_a_line_for_plain_has_the_hash_of_the_password(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    write_private(password, "secret")
    printed = cluster.run("users", "line", "alice", "--password-file", str(password))
    assert "secret" not in printed.output
    assert parsed_users(printed.output, b"")["alice"].matches("secret")
    assert cluster.run("users", "line", "a:b", "--password-file", str(password)).exit_code == 1


def test_a_damaged_credential_is_listed_as_such(cluster: FakeCluster) -> None:
    cluster.put("/config/users/u", ConfigEntityZNode.encode({"SCRAM-SHA-256": "salt=x"}))
    assert "damaged" in cluster.run("users", "list").output
