"""``zookeeper`` as a process: it serves, ends, and replaces a dead member of an ensemble."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import start_ensemble
from regent.config.command_line import COMMAND
from regent.testing.waits import await_end, next_line, scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.ipv6 import needs_ipv6

TIMEOUT_S = scaled(30.0)

pytestmark = pytest.mark.system


@contextmanager
def zookeeper_command(
    data_dir: Path, port: int, *options: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yield the process and its first line."""
    command = [*COMMAND, "zookeeper"]
    with subprocess.Popen(
        [*command, "--data-dir", str(data_dir), "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process, next_line(process, "ZooKeeper is ready", TIMEOUT_S)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "host"),
    [
        (("--local-users", "same,12345"), "127.0.0.1"),
        pytest.param(("--host", "::1"), "[::1]", marks=needs_ipv6),
    ],
)
def test_it_prints_its_address_and_ends_when_interrupted(
    tmp_path: Path, options: tuple[str, ...], host: str
) -> None:
    with zookeeper_command(tmp_path / "zookeeper", 0, *options) as (process, line):
        found = re.fullmatch(rf"ready: ({re.escape(host)}:\d+)\n", line)
        assert found is not None, line
        client = ZooKeeperClient(found[1], 6_000, on_watch=lambda _: None)
        client.start(TIMEOUT_S)
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_its_heap_is_as_large_as_asked(tmp_path: Path) -> None:
    with zookeeper_command(tmp_path, 0, "--heap-mb", "99") as (process, _):
        assert b"-Xmx99m" in Path(f"/proc/{jvm_of(process.pid)}/cmdline").read_bytes().split(b"\0")


def test_the_death_of_its_server_is_reported(tmp_path: Path) -> None:
    with zookeeper_command(tmp_path, 0) as (process, _):
        os.kill(jvm_of(process.pid), signal.SIGKILL)
        said = await_end(process, "the command", TIMEOUT_S)
        assert process.returncode == 1
        assert said == f"regent: ZooKeeper ended by SIGKILL: see {tmp_path}\n"


@pytest.mark.parametrize("how", ["secure", "open"])
def test_the_acls_of_no_cluster_are_not_changed(tmp_path: Path, how: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("user:password\n")
    secret.chmod(0o600)
    with zookeeper_command(tmp_path / "zookeeper", 0) as (_, line):
        address = f"{line.removeprefix('ready: ').strip()}/mistyped"
        command = [*COMMAND, "zookeeper", "acl", how, "--zookeeper", address]
        done = subprocess.run(
            [*command, "--secret-file", str(secret)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        client = ZooKeeperClient(address, 10_000, on_watch=lambda _: None)
        try:
            client.start(TIMEOUT_S, create_chroot=False)
            assert client.get("/") is None, "the chroot was not created"
        finally:
            client.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"regent: no cluster at {address}: ")


@pytest.mark.nightly
def test_it_replaces_a_member_of_an_ensemble(tmp_path: Path) -> None:
    data_dirs = [tmp_path / f"zookeeper-{number}" for number in range(3)]
    servers = start_ensemble(data_dirs, [0, 0, 0])
    try:
        servers[1].stop()
        # It reports readiness when it has joined the quorum.
        with zookeeper_command(data_dirs[1], servers[1].port) as (_, line):
            assert line == f"ready: {servers[1].address}\n"
            configuration = (data_dirs[1] / "zoo.cfg").read_text()
            assert configuration.count("\nserver.") == 3
    finally:
        for server in servers:
            server.stop()


def jvm_of(pid: int) -> int:
    """Return the process id of the only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
