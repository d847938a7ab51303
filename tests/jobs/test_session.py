"""The JVM of a session that fails before the session exists."""

import threading
from pathlib import Path

import pytest

from regent.jobs.session import SparkFailedError, SparkJvm

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

TIMEOUT_S = 30.0


def test_a_jvm_that_does_not_start_reports_the_cause_and_leaves_no_files(tmp_path: Path):
    parent = tmp_path / "a directory"
    parent.mkdir()
    jvm = SparkJvm({"spark.master": "nonsense"}, parent_directory=parent)
    with pytest.raises(SparkFailedError, match=r"exit status 1\): .*Master must either be"):
        jvm.session(TIMEOUT_S)
    jvm.stop()
    assert not list(parent.iterdir())


def test_a_jvm_that_is_killed_while_it_starts_is_an_error_and_leaves_no_files(tmp_path: Path):
    exited = threading.Event()
    jvm = SparkJvm({}, parent_directory=tmp_path, on_exit=lambda _: exited.set())
    jvm.kill()
    with pytest.raises(SparkFailedError, match=r"did not start \(SIGKILL\)"):
        jvm.session(TIMEOUT_S)
    assert exited.wait(TIMEOUT_S)
    jvm.stop()
    jvm.stop()
    assert not list(tmp_path.iterdir())


def test_a_jvm_that_starts_too_slowly_is_ended(tmp_path: Path):
    jvm = SparkJvm({}, parent_directory=tmp_path)
    with pytest.raises(SparkFailedError, match=r"did not start within 0.1 s"):
        jvm.session(0.1)
    assert jvm.has_exited(TIMEOUT_S)
    jvm.stop()
