"""One Spark session for all the tests that take one: it costs seconds, and PySpark has only one."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from config.java import JavaNotFoundError, find_java
from jobs.session import QUICK_START, spark_session


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
def spark(java: None) -> Iterator[SparkSession]:
    """A session that only runs jobs; a test must not stop it."""
    del java
    with spark_session(app_name="tests", jvm_options=QUICK_START) as session:
        yield session
