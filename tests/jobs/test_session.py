"""The JVM of a session: what fails before the session exists, and its ports."""

import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from regent.jobs.session import SparkFailedError, SparkJvm
from tests.support.listening_sockets import (
    LOOPBACK,
    answers_of_spark,
    asks_for_token,
    listening_sockets,
)

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
    with pytest.raises(SparkFailedError, match=r"within 0.1 s: it was waiting for the JVM"):
        jvm.session(0.1)
    assert jvm.has_exited(TIMEOUT_S)
    jvm.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_port_of_a_jvm_refuses_a_stranger(spark: SparkSession):
    driver = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    sockets = [each for each in listening_sockets([driver]) if each.kind != "unix"]
    assert {each.address for each in sockets} == {LOOPBACK}
    of_spark = [each.port for each in sockets if not asks_for_token(each.port)]
    assert len(of_spark) == len(sockets) - 1 >= 2, "the other one is Py4J's"
    assert [answer for port in of_spark for answer in answers_of_spark(port)] == []
