"""How a job ends that is interrupted, also while it waits for the JVM."""

import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from regent.jobs.command import run_job
from regent.jobs.new_directory import new_directory
from regent.testing.waits import scaled
from tests.jobs.local_files import LOCAL_FILES

_LOGS = """
import logging, click
from regent.jobs.command import run_job

@click.command()
def job():
    logging.exception("KeyboardInterrupt while sending command.")

run_job(job, "job", [], None)
"""


@click.command()
def _interrupted() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise Py4JNetworkError("Answer from Java side is empty")  # noqa: B904


@click.command()
def _failing() -> None:
    raise Py4JError("the JVM has ended")


def test_an_error_of_py4j_because_of_ctrl_c_is_no_failure(capfd: pytest.CaptureFixture[str]):
    assert run_job(_interrupted, "job", [], None) == 130
    assert run_job(_failing, "job", [], None) == 1
    assert capfd.readouterr().err == "regent jobs job: the JVM has ended\n"


def test_sigterm_ends_a_job_as_ctrl_c_does(tmp_path: Path):
    @click.command()
    def job() -> None:
        with new_directory(str(tmp_path / "out"), LOCAL_FILES):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    assert run_job(job, "job", [], None) == 130
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stack_trace_that_py4j_logs_is_not_shown():
    ended = subprocess.run(
        [sys.executable, "-c", _LOGS], capture_output=True, check=True, timeout=scaled(60)
    )
    assert ended.stderr == b""
