"""Errors of Spark as one line."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from regent.jobs.java_errors import explanation

pytestmark = pytest.mark.spark


def test_an_error_in_a_python_worker_is_its_last_line(spark: SparkSession):
    with pytest.raises((Py4JJavaError, PythonException)) as caught:
        spark.sparkContext.parallelize([0]).map(lambda number: 1 // number).collect()
    text = explanation(caught.value)
    assert text == "ZeroDivisionError: integer division or modulo by zero"
