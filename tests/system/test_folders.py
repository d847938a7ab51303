"""A cluster of an ordinary user in a folder with any name, also where the locale knows only ASCII.

Root starts it as ``nobody``, if that user can reach the checkout and the temporary folder.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regent.config.command_line import COMMAND
from regent.testing.waits import await_end, next_line, scaled

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

NAME = '数据 ü \\ "x"'
START_S = 180.0


class OrdinaryUser:
    """Runs commands with a folder of its own and with a locale, on behalf of a user."""

    def __init__(self, folder: Path, locale: Mapping[str, str]) -> None:
        self.folder = folder
        home = {"HOME": str(folder / "none"), "TMPDIR": str(folder)}
        self._options: dict[str, Any] = {
            "env": {"PATH": os.environ["PATH"], **home, **locale},
            "cwd": folder,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "encoding": "utf-8",
        }
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            as_nobody = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            if self._can_work(as_nobody):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
                self._options |= as_nobody

    def _can_work(self, user: Mapping[str, Any]) -> bool:
        options = {**self._options, **user, "timeout": scaled(60.0)}
        try:
            return subprocess.run([*COMMAND, "--version"], **options).returncode == 0
        except PermissionError:
            return False

    @contextmanager
    def cluster(self, data_dir: Path, *arguments: str) -> Iterator[None]:
        """Run a cluster of one broker for the block."""
        command = (*COMMAND, "cluster", "--data-dir", str(data_dir), "--base-port", "0")
        options = ("--brokers", "1", "--no-internal-topics", *arguments)
        with subprocess.Popen([*command, *options], **self._options) as process:
            try:
                line = next_line(process, "the cluster is ready", START_S)
                assert line.startswith("ready: "), line
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    said = await_end(process, "the cluster", START_S)
                finally:
                    process.kill()
            assert process.returncode == 0, said

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run([*COMMAND, *arguments], timeout=scaled(START_S), **self._options)


@pytest.fixture
def ordinary_user() -> Iterator[Callable[[Mapping[str, str]], OrdinaryUser]]:
    # Not below pytest's folder, which is closed to other users.
    with tempfile.TemporaryDirectory(prefix="regent-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield lambda locale: OrdinaryUser(Path(folder), locale)


@pytest.mark.parametrize(
    ("locale", "placement"),
    [
        pytest.param({"LC_ALL": "C"}, "--placement-service", marks=pytest.mark.spark),
        pytest.param({"LANG": "C"}, "--no-placement-service", marks=pytest.mark.nightly),
        pytest.param({"LANG": "C.UTF-8"}, "--no-placement-service", marks=pytest.mark.nightly),
    ],
)
def test_a_cluster_serves_in_a_folder_with_any_name_and_after_the_folder_was_moved(
    ordinary_user: Callable[[Mapping[str, str]], OrdinaryUser],
    locale: Mapping[str, str],
    placement: str,
) -> None:
    user = ordinary_user(locale)
    parent = user.folder / NAME
    where = ("--data-dir", str(parent / "data"))

    with user.cluster(parent / "data", placement):
        created = user.run("topics", "create", "orders", "--partitions", "2", *where)
        assert created.stdout.startswith("Created topic orders (2 partitions"), created.stderr
        with_spark = "the placement service starts" in created.stderr
        assert with_spark == (placement == "--placement-service"), created.stderr

    assert [path.name for path in user.folder.iterdir()] == [NAME]
    moved = ("--data-dir", str(parent.rename(user.folder / "资料") / "data"))
    with user.cluster(Path(moved[1]), "--no-placement-service"):
        assert user.run("topics", "list", "--names", *moved).stdout == "orders\n"
    assert [path.name for path in user.folder.iterdir()] == ["资料"]

    hint = user.run("status", *where).stderr.split("`")[1]
    assert shlex.split(hint)[-2:] == list(where)
