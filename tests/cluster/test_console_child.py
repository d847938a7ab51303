"""The console's process begins with the first connection to its port."""

from __future__ import annotations

import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from regent.cluster.child_process import DeathPipe
from regent.cluster.cluster_plan import ClusterPlan
from regent.cluster.console_child import ConsoleChild
from regent.cluster.process_supervisor import ProcessSupervisor, SupervisionListener
from regent.testing.waits import scaled

SERVE_ONE = """
import socket, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
listener = socket.socket(fileno=int(options["--listening-fd"]))
print("ready: here", flush=True)
connection, _ = listener.accept()
connection.sendall(open(options["--token-file"]).read().encode())
connection.close()
"""
"""Answers one connection with the token, and ends."""

FAIL = "import sys; sys.exit('regent: no')"


class Console(SupervisionListener):
    """A port with a program behind it, and what was said."""

    def __init__(self, data_dir: Path, program: str, port: int = 0) -> None:
        self.said: list[str] = []
        self.exits = 0
        self.processes = ProcessSupervisor(self)
        self.pipe = DeathPipe()
        plan = ClusterPlan(
            program=(sys.executable, "-c", program),
            data_dir=data_dir,
            broker_count=0,
            base_port=0,
            zookeeper=None,
            zookeeper_nodes=1,
            session_timeout_ms=6_000,
            config=None,
            placement_service=False,
            restart=False,
            console_port=port,
        )
        self.console = ConsoleChild(plan, self.processes, self.pipe, self.said.append)

    def on_exit(self, child: object, status: int, restart_in_s: float | None) -> None:
        self.exits += 1
        self.console.ended()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.console.port), scaled(10))

    def answer(self) -> bytes:
        """Connect, supervise until the process has ended, and return what it sent."""
        exits = self.exits
        with self.connect() as connection:
            assert self.processes.wait(lambda: self.exits > exits, scaled(20))
            return connection.recv(100)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Console]:
    """A console that answers one connection in each run."""
    with running(Console(tmp_path, SERVE_ONE)) as console:
        yield console


@contextmanager
def running(console: Console) -> Iterator[Console]:
    with closing(console.pipe), console.processes, closing(console.console):
        yield console


def test_no_process_runs_until_somebody_connects(opened: Console, tmp_path: Path) -> None:
    address = opened.console.open()
    assert address is not None
    assert not opened.processes.wait(lambda: opened.console.child.pid is not None, 0.1)
    token = (tmp_path / "console.token").read_text()
    assert address == f"http://127.0.0.1:{opened.console.port}/?token={token}"
    assert opened.answer() == token.encode()


def test_a_console_that_has_ended_begins_again_with_the_next_connection(opened: Console) -> None:
    opened.console.open()
    assert opened.answer() == opened.answer() != b""


def test_a_console_that_cannot_start_is_not_started_again_and_again(tmp_path: Path) -> None:
    with running(Console(tmp_path, FAIL)) as console:
        console.console.open()
        with console.connect():
            assert console.processes.wait(lambda: console.exits > 0, scaled(20))
        assert console.console.port == 0
        assert not console.processes.wait(lambda: console.exits > 1, 0.1)


def test_a_port_that_is_in_use_is_replaced_and_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        wanted = other.getsockname()[1]
        with running(Console(tmp_path, SERVE_ONE, wanted)) as console:
            console.console.open()
            found = console.console.port
            assert found not in (0, wanted)
            assert console.said == [f"port {wanted} for the console is in use; it is on {found}"]


def test_only_the_user_can_read_the_token(opened: Console, tmp_path: Path) -> None:
    opened.console.open()
    assert stat.S_IMODE((tmp_path / "console.token").stat().st_mode) == 0o600
    opened.console.close()
    assert not (tmp_path / "console.token").exists()
