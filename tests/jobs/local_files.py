"""The files of a job that has no need of Spark."""

from pyspark.sql import SparkSession

from regent.jobs.files import JobFiles


def _no_session() -> SparkSession:
    raise AssertionError("a file of this machine needs no session")


LOCAL_FILES = JobFiles(_no_session)
