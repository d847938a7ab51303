"""One Spark session for all tests that need one: it costs seconds, and PySpark has only one."""

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from regent.config.java import JavaNotFoundError, find_java
from regent.jobs.session import SparkJvm
from regent.jobs.spark_settings import QUICK_START, ignore_user_settings
from tests.support.maven_jars import JarsUnavailableError
from tests.support.mini_hadoop import MiniHadoop
from tests.support.own_disks import OwnDisksUnavailableError, require_own_disks


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands see no profile of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of-the-user"))
    monkeypatch.delenv("REGENT_PROFILE", raising=False)


@pytest.fixture(scope="session")
def java() -> None:
    """Skip without Java, but fail in CI."""
    try:
        find_java()
    except JavaNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that only runs jobs; tests must not stop it. At its end nothing may be left."""
    del java
    directory = tmp_path_factory.mktemp("spark")
    ignore_user_settings()
    conf = {"spark.app.name": "tests", "spark.driver.memory": "512m"}
    conf["spark.master"] = "local[2,2]"  # a task that fails runs once more
    jvm = SparkJvm(conf, parent_directory=directory, jvm_options=QUICK_START)
    try:
        yield jvm.session()
    finally:
        complaints = Complaints()
        logging.getLogger().addHandler(complaints)
        jvm.stop(within_s=10)
        gc.collect()  # Py4J reports every object to the JVM
        logging.getLogger().removeHandler(complaints)
    assert not list(directory.iterdir())
    assert not complaints.messages


@pytest.fixture(scope="session")
def hadoop(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHadoop]:
    """A real HDFS and a real YARN; no container of YARN sees a file of a test.

    Skips where there are no jars of Hadoop, but fails in CI. Skips where no disk can be hidden.
    """
    del java
    hidden = tmp_path_factory.getbasetemp()
    try:
        require_own_disks(hidden)
        hadoop = MiniHadoop(hidden=hidden)
    except JarsUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    except OwnDisksUnavailableError as error:
        pytest.skip(str(error))
    with hadoop:
        yield hadoop


class Complaints(logging.Handler):
    """Collects logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        self.messages.append(record.getMessage())
