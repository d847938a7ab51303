"""Files with secrets: what others may read is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from regent.config.private_files import read_private, write_private
from regent.core.errors import RegentError
from regent.transport.control.key_files import new_key_pair, read_secret
from regent.zk.client.login import read_login


def test_a_private_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, "x")
    assert read_private(path, "a key") == b"x"
    path.chmod(0o400)
    assert read_private(path, "a key") == b"x"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o601])
def test_a_file_that_others_may_use_is_refused_with_its_mode_and_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "secret"
    write_private(path, "x")
    path.chmod(mode)
    with pytest.raises(RegentError) as raised:
        read_private(path, "a key")
    assert str(raised.value) == (
        f"{path} has mode {mode:04o}, so other users may read a key in it: make it private with"
        f" `chmod 600 {path}`"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegentError, match="with a key, cannot be read: No such file"):
        read_private(tmp_path / "none", "a key")


KEYS = new_key_pair()


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("x", lambda path: read_private(path, "a key")),
        ("regent:password", read_login),
        (f"{KEYS.public}\n{KEYS.secret}\n", read_secret),
    ],
    ids=["private", "login", "keys"],
)
def test_root_may_give_a_secret_to_the_group_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, read: Callable[[Path], object]
) -> None:
    """So Kubernetes gives secrets to a process."""
    path = tmp_path / "secret"
    write_private(path, content)
    path.chmod(0o440)
    owner = path.stat()
    if owner.st_uid != 0:
        pytest.skip("only root has files of root")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read(path)
    path.chmod(0o444)
    with pytest.raises(RegentError):
        read(path)
