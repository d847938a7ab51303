"""The session with the data source, and one cluster for all tests here."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from regent.spark import register
from tests.support.breakable_cluster import BreakableCluster


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of all tests, with the data source registered."""
    register(spark)
    return spark


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableCluster]:
    """Three brokers; a test that stops one must start it again."""
    with BreakableCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
