"""``regent keys``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from regent.broker.broker_keys import BrokerKeys
from regent.cli.main import cli
from regent.config.cluster_location import CLUSTER_FILE
from regent.config.tables.broker import BrokerConfig
from regent.core.security.roles import KeyOwner
from regent.transport.control.key_files import (
    BROKER_SECRET,
    KeyFileError,
    KeysDirectory,
    make_secret,
    new_key_pair,
    read_secret,
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeysDirectory:
    """The directory that the commands use."""
    monkeypatch.setenv("REGENT_KEYS", str(tmp_path / "keys"))
    return KeysDirectory(tmp_path / "keys")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments])


def test_make_prints_the_public_key_and_keeps_an_old_one(directory: KeysDirectory) -> None:
    first, second = run("make"), run("make")
    assert first.exit_code == second.exit_code == 0
    assert first.output == second.output == f"{directory.operator().public}\n"


def test_without_an_option_the_keys_are_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGENT_KEYS", raising=False)
    assert run("make", "--data-dir", str(tmp_path / "data")).exit_code == 0
    assert KeysDirectory(tmp_path / "data" / "keys").operator()


def test_a_key_is_allowed_where_the_broker_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGENT_KEYS", raising=False)
    cluster, in_cluster, alone = tmp_path / "c", tmp_path / "c" / "broker-1", tmp_path / "b"
    KeysDirectory(cluster / "keys").make_operator()
    (cluster / CLUSTER_FILE).write_text("{}")
    for broker in (in_cluster, alone):
        make_secret(broker / BROKER_SECRET)
    places = {
        cluster: cluster,
        in_cluster: cluster,
        alone: alone,
        tmp_path / "new": tmp_path / "new",
    }
    for number, (data_dir, place) in enumerate(places.items()):
        result = run("allow", f"a{number}", new_key_pair().public, "--data-dir", str(data_dir))
        file = place / "keys" / "allowed" / f"a{number}.key"
        assert result.stdout == f"a{number} is allowed as operator: {file}\n"
        assert file.exists()
        assert ("nobody reads" in result.stderr) is (data_dir.name == "new")


def test_allow_show_and_revoke(directory: KeysDirectory) -> None:
    alice, old, new = (new_key_pair().public for _ in range(3))
    folder = directory.path / "allowed"
    said = f"alice is allowed as operator: {folder}/alice.key\n"
    assert run("allow", "alice", alice.upper()).output == said
    said = f"broker-2 is allowed as broker: {folder}/broker-2.key\n"
    assert run("allow", "broker-2", old).output == said
    assert run("allow", "broker-2", new).exit_code == 0
    assert json.loads(run("show", "-o", "json").output) == [
        {"name": "alice", "role": "operator", "public_key": alice},
        {"name": "broker-2", "role": "broker", "public_key": old},
        {"name": "broker-2", "role": "broker", "public_key": new},
    ]
    assert alice in run("show").output
    assert run("revoke", "broker-2", old).output == "broker-2: 1 revoked, 1 still allowed.\n"
    assert directory.peer(old) is None
    assert directory.peer(new) == KeyOwner.broker(2)
    assert run("revoke", "alice").output == "alice: 1 revoked, 0 still allowed.\n"
    assert directory.peer(alice) is None
    result = run("revoke", "broker-2")
    assert result.stdout == "broker-2: 1 revoked, 0 still allowed.\n"
    assert "believed again after" in result.stderr
    assert "keys allow broker-2 NEW_KEY" in result.stderr
    assert directory.peer(new) is None
    shown = json.loads(run("show", "-o", "json").output)
    assert [(row["name"], row["role"]) for row in shown] == [
        ("alice", "revoked"),
        ("broker-2", "revoked"),
        ("broker-2", "revoked"),
    ]
    assert run("allow", "broker-2", old).exit_code == 1


def test_a_broker_is_revoked_on_a_machine_that_has_no_key_of_it(directory: KeysDirectory) -> None:
    """There its registration was believed."""
    key = new_key_pair().public
    directory.allow("broker-1", new_key_pair().public)
    result = run("revoke", "broker-2", key)
    assert result.stdout == "broker-2: 1 revoked, 0 still allowed.\n"
    assert f"the key {key} was not known here" in result.stderr
    assert directory.is_revoked(key)
    assert not run("revoke", "broker-2", key).stderr, "it is known by now"
    result = run("revoke", "broker-3")
    assert result.stdout == "broker-3: 0 revoked, 0 still allowed.\n"
    assert "keys allow broker-3 NEW_KEY" in result.stderr


def test_a_key_of_somebody_else_is_revoked_and_named(directory: KeysDirectory) -> None:
    key = new_key_pair().public
    directory.allow("broker-1", key)
    result = run("revoke", "broker-2", key)
    assert f"the key {key} is that of broker-1" in result.stderr
    assert directory.peer(key) is None


@pytest.mark.parametrize("folder", ["c", "c/broker-1", "b"])
def test_a_key_is_revoked_where_a_broker_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.delenv("REGENT_KEYS", raising=False)
    KeysDirectory(tmp_path / "c" / "keys").make_operator()
    (tmp_path / "c" / CLUSTER_FILE).write_text("{}")
    for data_dir in (tmp_path / "c" / "broker-1", tmp_path / "b"):
        BrokerKeys(1, data_dir, BrokerConfig(), lambda _: None).stop()
    result = run("revoke", "broker-1", "--data-dir", str(tmp_path / folder))
    assert result.stdout == "broker-1: 1 revoked, 0 still allowed.\n"
    assert KeysDirectory(tmp_path / folder[0] / "keys").allowed()["broker-1"] == []


@pytest.mark.parametrize("option", ["", "--data-dir", "--keys"])
@pytest.mark.parametrize("arguments", [["broker-2"], ["broker-2", new_key_pair().public], ["al"]])
def test_nothing_is_revoked_where_no_broker_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, arguments: list[str]
) -> None:
    monkeypatch.delenv("REGENT_KEYS", raising=False)
    monkeypatch.delenv("REGENT_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    if option == "--keys":  # that of commands on another machine
        KeysDirectory(tmp_path / "other").make_operator()
    elif option == "--data-dir":  # of a broker with the setting keys_dir
        make_secret(tmp_path / "other" / BROKER_SECRET)
    else:  # as if `keys allow` had been in the wrong folder, too
        KeysDirectory(tmp_path / "data" / "keys").allow("broker-2", new_key_pair().public)
    before = sorted(tmp_path.rglob("*"))
    result = run("revoke", *arguments, *([option, "other"] if option else []))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "nothing is revoked" in result.stderr
    assert "--data-dir" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_key_that_is_not_there_is_not_rotated(directory: KeysDirectory) -> None:
    result = run("rotate")
    assert result.exit_code == 1
    assert "to replace: name its folder with --data-dir or --keys" in result.stderr
    assert not directory.path.exists()


def test_what_cannot_be_revoked_or_allowed_is_an_error(directory: KeysDirectory) -> None:
    assert run("revoke", "nobody").exit_code == 1
    assert run("revoke", "nobody", new_key_pair().public).exit_code == 1
    assert run("allow", "alice", "not a key").exit_code == 1
    assert run("allow", "../alice", new_key_pair().public).exit_code == 1
    assert directory.allowed() == {}


def test_rotate_replaces_the_key_of_commands(directory: KeysDirectory) -> None:
    old = directory.make_operator().public
    new = run("rotate").output.strip()
    assert directory.operator().public == new != old
    assert directory.peers == {new: KeyOwner("operator")}


def test_rotate_replaces_the_key_of_a_broker_and_allows_both_until_it_starts(
    directory: KeysDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "broker-1" / "curve.secret"
    old = make_secret(path).public
    directory.allow("broker-1", old)
    new = run("rotate", "--broker", str(tmp_path / "broker-1")).output.strip()
    assert read_secret(path).public == new
    assert directory.peers == {old: KeyOwner.broker(1), new: KeyOwner.broker(1)}


def test_a_rotation_that_failed_can_be_repeated(
    directory: KeysDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker must not have a key that nobody allows."""
    path = tmp_path / "broker-1" / "curve.secret"
    old = make_secret(path).public
    directory.allow("broker-1", old)
    for step in ("regent.cli.keys.make_secret", "regent.cli.keys.KeysDirectory.allow"):
        with monkeypatch.context() as failing:

            def fail(*_: object, **__: object) -> NoReturn:
                raise KeyFileError("no space left")

            failing.setattr(step, fail)
            assert run("rotate", "--broker", str(path.parent)).exit_code == 1
        assert read_secret(path).public == old
    new = run("rotate", "--broker", str(path.parent)).output.strip()
    assert read_secret(path).public == new
    assert directory.peers[new] == KeyOwner.broker(1)


def test_a_rotation_says_where_else_the_new_key_is_to_be_allowed(
    directory: KeysDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "broker-1" / "curve.secret"
    make_secret(path)
    result = run("rotate", "--broker", str(path.parent))
    new = result.stdout.strip()
    assert f"keys allow broker-N {new}" in result.stderr
    assert str(directory.path) in result.stderr
