"""The session with the data source, and the cluster of the worker."""

import pytest
from pyspark.sql import SparkSession

from regent.spark import register
from tests.support.breakable_cluster import BreakableCluster


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of all tests, with the data source registered."""
    register(spark)
    return spark


@pytest.fixture(scope="module")
def cluster(breakable_cluster: BreakableCluster) -> BreakableCluster:
    """Three brokers; a test that stops one must start it again."""
    return breakable_cluster
