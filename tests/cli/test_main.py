"""The root of the command line: lazy commands, one-line errors, exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from regent import __version__
from regent.cli.lazy_group import LazyCommand
from regent.cli.main import COMMANDS, RegentGroup, cli
from regent.config.command_line import COMMAND
from regent.core.errors import BadDataError
from regent.testing.waits import scaled


def test_help_lists_every_public_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])

    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert (f"\n  {name} " in result.stdout) is (command.summary is not None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics",),
        ("topics", "create"),
        ("topics", "list"),
        ("topics", "describe"),
        ("topics", "alter"),
        ("brokers",),
        ("brokers", "list"),
        ("brokers", "shutdown"),
        ("controller", "show"),
        ("controller", "move"),
        ("metadata",),
        ("status",),
        ("events",),
    ],
)
def test_every_command_has_help(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--help"])

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: regent {' '.join(arguments)} ")


@pytest.mark.parametrize("arguments", [(), ("topics",), ("brokers",), ("controller",), ("jobs",)])
def test_a_group_without_a_command_shows_its_help(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 2
    assert "Usage: regent" in result.stderr


def test_an_unknown_command_is_a_usage_error_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["topcs", "list"])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "regent: No such command 'topcs': did you mean topics or top? (regent --help)\n"
    )


def test_a_missing_module_fails_only_when_its_command_is_called() -> None:
    commands = {"missing": LazyCommand("regent.cli.no_such_module", "missing", "Missing.")}
    root = RegentGroup("regent", commands=commands)

    assert CliRunner().invoke(root, ["--help"]).exit_code == 0

    result = CliRunner().invoke(root, ["missing"])

    assert result.exit_code == 1
    assert result.stderr.startswith("regent: the command missing cannot be loaded: No module")


DENIED = "regent: /root/data: Permission denied\n"


class FailingGroup(RegentGroup):
    """A root with one command, ``c``, which raises ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("regent", commands={})
        self.error = error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        def fail() -> None:
            raise self.error

        return click.Command("c", callback=fail)


@pytest.mark.parametrize(
    ("error", "exit_code", "stderr"),
    [
        (BadDataError("/controller: not JSON"), 1, "regent: /controller: not JSON\n"),
        (BadDataError("one\ntwo"), 1, "regent: one\nregent: two\n"),
        (click.ClickException("no"), 1, "regent: no\n"),
        (click.UsageError("what?"), 2, "regent: what? (regent c --help)\n"),
        (PermissionError(13, "Permission denied", "/root/data"), 1, DENIED),
        (KeyboardInterrupt(), 130, "\n"),
        (SystemExit(7), 7, ""),
    ],
)
def test_every_expected_error_is_one_line_and_an_exit_code(
    error: BaseException, exit_code: int, stderr: str
) -> None:
    result = CliRunner().invoke(FailingGroup(error), ["c"])

    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("groups", "describe", "\udcff"),
        ("consume", "t", "--group=g\udcff"),
        ("produce", "t", "--key", "\udcff"),
        ("topics", "list", "--exclude", "\udcff"),
    ],
)
def test_a_name_that_is_not_utf_8_is_a_usage_error_and_the_name_of_a_file_may_be(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("regent: ")
    assert "is not UTF-8" in result.stderr
    monkeypatch.chdir(tmp_path)
    Path("\udcff").write_bytes(b"")
    named = CliRunner().invoke(cli, ("topics", "list", "--data-dir", "\udcff"))
    assert "UTF-8" not in named.stderr


def test_an_unexpected_error_keeps_its_traceback() -> None:
    result = CliRunner().invoke(FailingGroup(ZeroDivisionError()), ["c"])

    assert isinstance(result.exception, ZeroDivisionError)


# --- a real process -------------------------------------------------------------------------------


def regent(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "command",
    [COMMAND, (sys.executable, "run.py"), (Path(sys.executable).with_name("regent"),)],
    ids=["python -m regent", "python run.py", "regent"],
)
def test_all_entry_points_run_the_same_program(command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [*command, "--version"],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert result.stdout == f"regent {__version__}\n"


UNWRITABLE = b"regent: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["--version", "--help", "certs list --dir ."])
def test_a_full_disk_of_stdout_is_one_line_and_a_failure(words: str, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*COMMAND, *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=scaled(30),
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert result.stderr == UNWRITABLE
    assert result.returncode == 1


def test_what_a_command_has_not_flushed_is_also_found_unwritable() -> None:
    program = """
import sys
import click
from regent.cli.main import RegentGroup

class Group(RegentGroup):
    def get_command(self, ctx, cmd_name):
        return click.Command("c", callback=lambda: sys.stdout.write("text") and None)

Group("regent", commands={}).main(["c"])
"""
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=scaled(30),
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    assert result.stderr == UNWRITABLE
    assert result.returncode == 1


def test_a_command_without_stdout_does_its_work() -> None:
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "--version"],
        stderr=subprocess.PIPE,
        timeout=scaled(30),
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_the_program_ignores_modules_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("click", "config", "core"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from here')")
    command = [*COMMAND, "topics", "--help"]

    subprocess.run(command, capture_output=True, timeout=scaled(30), check=True, cwd=tmp_path)


def test_the_program_runs(tmp_path: Path) -> None:
    result = regent("topics", "list", REGENT_DATA_DIR=str(tmp_path), REGENT_ZOOKEEPER="")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"regent: no cluster in {tmp_path}")


def test_listing_topics_does_not_import_spark_actors_or_tables() -> None:
    program = """
import sys
from contextlib import contextmanager
from regent.cli.main import cli
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

server = FakeZooKeeperServer()
server.put("/brokers/topics/t")

@contextmanager
def open_fake(address, limit_s):
    yield FakeZooKeeper(server)

try:
    cli(["topics", "list", "--names", "--zookeeper", "fake:1"], obj=open_fake)
finally:
    print(sorted({"pyspark", "zmq", "pykka", "rich", "msgpack", "pyarrow"} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=True,
    )

    assert result.stdout == "t\n[]\n"


def test_ctrl_c_while_waiting_for_zookeeper_exits_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(scaled(20))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen(
            [*COMMAND, "brokers", "list", "--zookeeper", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                connection, _ = listener.accept()  # never answered
                with connection:
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=scaled(10))
            finally:
                process.kill()
    assert (process.returncode, out, err) == (130, b"", b"\n")
