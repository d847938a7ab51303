"""How a job ends that is interrupted while it waits for the JVM."""

import subprocess
import sys

import click
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from regent.jobs.command import run_job

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


def test_a_stack_trace_that_py4j_logs_is_not_shown():
    ended = subprocess.run([sys.executable, "-c", _LOGS], capture_output=True, check=True)
    assert ended.stderr == b""
