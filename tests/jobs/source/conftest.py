"""The session knows the source; the cluster is one for all tests here."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from regent.jobs.source import RegentDataSource
from tests.support.breakable_cluster import BreakableCluster


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of all tests, which knows the source."""
    spark.dataSource.register(RegentDataSource)
    return spark


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableCluster]:
    """Three brokers that a test may end, if it starts them again."""
    with BreakableCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
