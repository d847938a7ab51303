"""The JVM of a session: what fails before the session exists, and its ports."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.client.doctor.listening_sockets import listening_sockets
from regent.client.doctor.spark_ports import LOOPBACK, SparkPort, spark_port
from regent.jobs.session import SparkFailedError, SparkJvm
from regent.testing.waits import scaled

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

TIMEOUT_S = scaled(30.0)


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
    context: Any = spark.sparkContext
    blocks = context._jsc.sc().getExecutorMemoryStatus().keys().head()
    of_spark = {int(blocks.rpartition(":")[2]), int(context.getConf().get("spark.driver.port"))}
    of_py4j = context._gateway.gateway_parameters.port
    sockets = listening_sockets([context._jvm.java.lang.ProcessHandle.current().pid()])
    addresses = {each.port: each.address for each in sockets if each.kind != "unix"}
    assert {addresses[port] for port in (*of_spark, of_py4j)} == {LOOPBACK}
    assert len(of_spark) == 2
    assert {spark_port(port, TIMEOUT_S) for port in of_spark} == {SparkPort.RPC}
    assert spark_port(of_py4j, TIMEOUT_S) is SparkPort.PY4J
