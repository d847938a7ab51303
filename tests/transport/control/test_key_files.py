"""Files of keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from regent.config.cluster_location import KEYS_OF_COMMAND
from regent.core.security.roles import KeyOwner
from regent.testing.waits import eventually, scaled
from regent.transport.control import key_files
from regent.transport.control.key_files import (
    KeyFileError,
    KeysDirectory,
    doubt_of_keys,
    keys_of_command,
    make_secret,
    new_key_pair,
    read_secret,
    secret_at,
)
from tests.support.descriptors import SHORTAGE, no_descriptor_left


def test_a_secret_is_made_once_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curve.secret"
    keys = secret_at(path)
    assert secret_at(path) == keys
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["curve.secret"]


def test_processes_that_make_a_secret_at_once_have_the_same(tmp_path: Path) -> None:
    path = tmp_path / "curve.secret"
    found: list[object] = []
    threads = [Thread(target=lambda: found.append(secret_at(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(scaled(10))
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_secret_key_is_never_printed() -> None:
    keys = new_key_pair()
    for text in (repr(keys), str(keys), f"{keys}", f"{[keys]}"):
        assert keys.secret not in text
        assert keys.public in text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_secret_that_others_may_read_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "curve.secret"
    make_secret(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"has mode {mode:04o}.* chmod 600 {path}"):
        secret_at(path)


@pytest.mark.parametrize("content", ["", "a\nb\n", "\xff", "0" * 64, f"{'0' * 64}\n{'1' * 64}\n"])
def test_a_file_without_a_pair_of_keys_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "curve.secret"
    path.touch(0o600)
    path.write_text(content, encoding="latin-1")
    with pytest.raises(KeyFileError, match=str(path)):
        secret_at(path)


def test_the_public_key_of_another_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curve.secret"
    path.touch(0o600)
    path.write_text(f"{new_key_pair().public}\n{new_key_pair().secret}\n")
    with pytest.raises(KeyFileError, match="belongs to it"):
        read_secret(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_keys_that_root_allows_before_the_first_start_belong_to_the_owner_of_the_folder(
    tmp_path: Path,
) -> None:
    os.chown(tmp_path, 12345, 12346)
    directory = KeysDirectory(tmp_path / "broker" / "keys")
    directory.allow("alice", new_key_pair().public)
    made = (*tmp_path.rglob("*"),)
    assert [path.name for path in made] == ["broker", "keys", "allowed", "alice.key"]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(12345, 12346)}


def test_a_missing_secret_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"operator\.secret: No such file.* keys make"):
        KeysDirectory(tmp_path).operator()


def test_allowed_keys_and_revoked_ones_are_seen_at_once(tmp_path: Path) -> None:
    directory = KeysDirectory(tmp_path / "keys")
    alice, old, new = (new_key_pair().public for _ in range(3))
    assert directory.peer(alice) is None
    directory.allow("alice", alice)
    directory.allow("broker-1", old, new)
    assert directory.peer(alice) == KeyOwner("alice")
    assert directory.peer(old) == directory.peer(new) == KeyOwner.broker(1)
    directory.allow("broker-1", new)
    assert directory.peer(old) is None
    assert directory.revoke("alice") == 1
    assert directory.peer(alice) is None
    with pytest.raises(KeyFileError, match="alice has no such key"):
        directory.revoke("alice")


def test_a_revoked_key_counts_never_again_whoever_allows_it(tmp_path: Path) -> None:
    directory, broker = KeysDirectory(tmp_path), KeyOwner.broker(2)
    first, second, third = (new_key_pair().public for _ in range(3))
    directory.allow("broker-2", first, second)
    assert directory.revoke("broker-2", first) == 1
    assert (directory.peer(first), directory.peer(second)) == (None, broker)
    with pytest.raises(KeyFileError, match=rf"{first} was revoked .*revoked.*another"):
        directory.allow("broker-2", first)
    directory.file_of("broker-3").write_text(first)
    assert directory.peer(first) is None, "as if somebody had copied an old folder here"
    assert not directory.may_register(KeyOwner.broker(4), first)
    assert directory.may_register(KeyOwner.broker(4), third)
    assert directory.revoke("broker-2") == 1
    assert not directory.may_register(broker, third), "nothing of broker 2 is believed"
    directory.allow("broker-2", third)
    assert directory.peer(third) == broker
    assert KeysDirectory(tmp_path).revoked() == dict.fromkeys((first, second), "broker-2")


def test_a_broker_may_be_revoked_where_only_its_registration_is_believed(tmp_path: Path) -> None:
    directory, key = KeysDirectory(tmp_path), new_key_pair().public
    assert directory.may_register(KeyOwner.broker(2), key)
    assert directory.revoke("broker-2") == 0
    assert not directory.may_register(KeyOwner.broker(2), key)
    assert directory.revoke("broker-3", key) == 1
    assert not directory.may_register(KeyOwner.broker(3), key)
    assert directory.may_register(KeyOwner.broker(3), new_key_pair().public)


def test_registrations_do_not_count_where_other_users_may_write_the_revoked_keys(
    tmp_path: Path,
) -> None:
    directory, key = KeysDirectory(tmp_path), new_key_pair().public
    directory.allow("alice", key)
    directory.revoke("broker-2", new_key_pair().public)
    (tmp_path / "revoked").chmod(0o777)
    directory = KeysDirectory(tmp_path)
    assert directory.peer(key) is None
    assert not directory.may_register(KeyOwner.broker(3), new_key_pair().public)
    with pytest.raises(KeyFileError, match="revoked has mode 0777"):
        directory.revoked()


@pytest.mark.parametrize("name", ["", "../alice", ".hidden", "a/b", "a b", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyFileError, match="is not a name"):
        KeysDirectory(tmp_path).allow(name, new_key_pair().public)


def test_a_public_key_of_another_form_is_refused(tmp_path: Path) -> None:
    directory = KeysDirectory(tmp_path)
    for key in ("", "00", "g" * 64, new_key_pair().public.upper()):
        with pytest.raises(KeyFileError, match="is not a public key"):
            directory.allow("alice", key)


def test_the_key_of_commands_is_allowed_and_can_be_replaced(tmp_path: Path) -> None:
    directory = KeysDirectory(tmp_path)
    first = directory.make_operator()
    assert directory.make_operator() == first == directory.operator()
    assert directory.peer(first.public) == KeyOwner("operator")
    second = directory.make_operator(replace=True)
    assert directory.peer(first.public) is None
    assert directory.peer(second.public) == KeyOwner("operator")


def test_a_command_finds_its_key_in_the_given_directory_or_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, data_dir = tmp_path / "given", tmp_path / "data"
    monkeypatch.setattr(KEYS_OF_COMMAND, "given", None)
    monkeypatch.setattr(KEYS_OF_COMMAND, "data_dir", data_dir)
    assert keys_of_command() != keys_of_command(), "there is none: nobody knows these"
    assert all(name in doubt_of_keys() for name in ("--keys", "REGENT_KEYS", "--data-dir"))
    there = KeysDirectory(data_dir / "keys").make_operator()
    assert keys_of_command() == there
    assert doubt_of_keys() == "is our key allowed there?"
    monkeypatch.setattr(KEYS_OF_COMMAND, "given", given)
    with pytest.raises(KeyFileError, match="given"):
        keys_of_command()


def test_keys_in_a_file_that_was_changed_in_place_are_seen_soon(tmp_path: Path) -> None:
    directory = KeysDirectory(tmp_path)
    old, new = new_key_pair().public, new_key_pair().public
    directory.allow("alice", old)
    assert directory.peer(old)
    with (tmp_path / "allowed" / "alice.key").open("r+") as file:
        file.write(f"{new}\n")
    eventually(lambda: directory.peer(new), "the new key is allowed")
    assert directory.peer(old) is None


def test_a_change_right_after_another_is_not_missed(tmp_path: Path) -> None:
    directory = KeysDirectory(tmp_path)
    key = new_key_pair().public
    directory.allow("alice", key)
    time = (tmp_path / "allowed").stat().st_mtime_ns
    assert directory.peer(key)
    directory.revoke("alice")
    os.utime(tmp_path / "allowed", ns=(time, time))  # as in the same tick of the clock
    eventually(lambda: directory.peer(key) is None, "the key is revoked")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("what", ["allowed", "allowed/alice.key"])
def test_what_other_users_may_write_allows_nobody(
    tmp_path: Path, what: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / what, new_key_pair().public
    KeysDirectory(tmp_path).allow("alice", key)
    path.chmod(mode | (0o111 if path.is_dir() else 0))
    assert KeysDirectory(tmp_path).peer(key) is None
    assert "may connect" in caplog.text or "may not connect" in caplog.text
    with pytest.raises(KeyFileError, match=rf"{path} has mode .* chmod go-w {path}"):
        KeysDirectory(tmp_path).allowed()


def test_a_file_that_cannot_be_used_does_not_refuse_the_others(tmp_path: Path) -> None:
    directory, key = KeysDirectory(tmp_path), new_key_pair().public
    directory.allow("alice", key)
    directory.allow("bob", new_key_pair().public)
    (tmp_path / "allowed" / "bob.key").chmod(0o666)
    (tmp_path / "allowed" / "carol.key").write_text("\xe9", encoding="latin-1")
    assert directory.peer(key) == KeyOwner("alice")


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Let each file system call for a path fail, as with a stale handle or without permission."""
    aside = path.rename(path.with_name("aside"))
    path.symlink_to(path.name)
    yield
    path.unlink()
    aside.rename(path)


@pytest.mark.parametrize("what", ["", "allowed", "revoked", "allowed/alice.key", "descriptors"])
def test_what_cannot_be_read_for_a_moment_still_counts(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "_LOOK_S", 0.0)
    folder = tmp_path / "keys"
    directory, changes = KeysDirectory(folder), KeysDirectory(folder)
    alice, broker, revoked = (new_key_pair().public for _ in range(3))
    changes.allow("alice", alice)
    changes.allow("broker-1", broker)
    changes.revoke("broker-3", revoked)
    assert directory.peer(alice)
    with no_descriptor_left() if what == "descriptors" else unreadable(folder / what):
        for _ in range(3):
            assert directory.peer(alice) == KeyOwner("alice")
            assert directory.peer(broker) == KeyOwner.broker(1)
            assert directory.is_revoked(revoked)
            assert not directory.may_register(KeyOwner.broker(3), revoked)
            assert not directory.may_register(KeyOwner.broker(1), revoked)
            assert directory.may_register(KeyOwner.broker(4), new_key_pair().public)
    assert len(caplog.messages) == 1
    assert "cannot be read" in caplog.text
    changes.revoke("alice")
    assert directory.peer(alice) is None


def test_nothing_is_forgotten_wherever_the_descriptors_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "_LOOK_S", 0.0)
    directory, alice, revoked = KeysDirectory(tmp_path), *(new_key_pair().public for _ in range(2))
    directory.allow("alice", alice)
    directory.revoke("broker-2", revoked)
    assert directory.peer(alice)
    for opened in range(20):
        new = new_key_pair().public
        directory.allow("bob", new)
        with SHORTAGE.after(opened, tmp_path):
            assert directory.peer(alice)
            assert directory.is_revoked(revoked)
        assert directory.peer(new), "the files are read again"
        if not SHORTAGE.is_met:
            break
    assert 4 < opened < 19


def test_who_is_revoked_while_another_file_cannot_be_read_does_not_come_in(tmp_path: Path) -> None:
    directory, alice, bob = KeysDirectory(tmp_path), new_key_pair().public, new_key_pair().public
    directory.allow("alice", alice)
    directory.allow("bob", bob)
    assert directory.peer(alice)
    with unreadable(directory.file_of("bob")):
        directory.file_of("alice").unlink()
        assert directory.peer(alice) is None
        assert directory.peer(bob)


@pytest.mark.parametrize("what", ["", "revoked", "revoked/broker-2.key"])
def test_nobody_comes_in_before_the_revoked_keys_were_read_once(tmp_path: Path, what: str) -> None:
    folder, alice = tmp_path / "keys", new_key_pair().public
    KeysDirectory(folder).allow("alice", alice)
    KeysDirectory(folder).revoke("broker-2", new_key_pair().public)
    with unreadable(folder / what):
        directory = KeysDirectory(folder)
        assert directory.peer(alice) is None
        assert not directory.may_register(KeyOwner.broker(3), new_key_pair().public)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_writes_keys_for_the_user_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir(mode=0o700)
    for path in (tmp_path, tmp_path / "allowed"):
        os.chown(path, 65534, 65534)
    directory = KeysDirectory(tmp_path)
    directory.allow("alice", new_key_pair().public)
    make_secret(tmp_path / "curve.secret")
    for path in (tmp_path / "allowed" / "alice.key", tmp_path / "curve.secret"):
        assert path.stat().st_uid == 65534
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert directory.allowed().keys() == {"alice"}


def test_directories_are_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory, key = KeysDirectory(tmp_path / "new" / "keys"), new_key_pair().public
        directory.allow("alice", key)
    finally:
        os.umask(before)
    assert directory.peer(key) == KeyOwner("alice")
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in tmp_path.rglob("*")} == {0}
