"""Errors of Spark as one line."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from regent.jobs.java_errors import cause_in_log, explanation


@pytest.mark.spark
def test_an_error_in_a_python_worker_is_its_last_line(spark: SparkSession):
    with pytest.raises((Py4JJavaError, PythonException)) as caught:
        spark.sparkContext.parallelize([0]).map(lambda number: 1 // number).collect()
    text = explanation(caught.value)
    assert text == "ZeroDivisionError: integer division or modulo by zero"


ALWAYS = """\
[0.303s][warning][cds,dynamic] Unable to use shared archive. The top archive failed to load: x.jsa
[0.303s][warning][aot] An error has occurred while processing the AOT cache
OpenJDK 64-Bit Server VM warning: Sharing is only supported for boot loader classes
NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g
WARNING: Using incubator modules: jdk.incubator.vector
:: loading settings :: url = jar:file:/spark/jars/ivy-2.5.3.jar!/org/apache/ivy/ivysettings.xml
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
Setting Spark log level to "ERROR".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/28 21:51:18 WARN Utils: Your hostname, x, resolves to a loopback address: 127.0.1.1
26/11/28 21:51:18 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
26/11/28 21:51:19 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
\r[Stage 0:>                (0 + 1) / 1]\r        \r
26/11/28 21:51:19 INFO SparkContext: Running Spark version 4.3.0
"""
STACK = """\
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", ""),
        (ALWAYS, ""),
        (
            f'Exception in thread "main" org.apache.spark.SparkException: No master\n{STACK}',
            "No master",
        ),
        (
            f'Exception in thread "main" java.lang.RuntimeException: outer\n{STACK}'
            f"Caused by: java.net.ConnectException: Connection refused\n{STACK}",
            "java.net.ConnectException: Connection refused",
        ),
        (
            f"26/11/28 21:52:08 ERROR SparkContext: Error initializing SparkContext.\n"
            f"java.lang.IllegalArgumentException: requirement failed\n{STACK}"
            f"26/11/28 21:52:09 WARN MetricsSystem: Stopping a MetricsSystem that is not running\n"
            f"26/11/28 21:52:09 INFO SparkContext: Successfully stopped SparkContext\n",
            "java.lang.IllegalArgumentException: requirement failed",
        ),
        (
            "26/11/28 21:52:08 ERROR StandaloneSchedulerBackend: All masters are unresponsive!\n",
            "StandaloneSchedulerBackend: All masters are unresponsive!",
        ),
        (
            f"26/11/28 21:52:08 WARN ClientEndpoint: Failed to connect to master a:1\n"
            f"org.apache.spark.SparkException: Exception thrown in awaitResult\n{STACK}"
            f"Caused by: java.io.IOException: Failed to connect to a:1\n{STACK}",
            "java.io.IOException: Failed to connect to a:1",
        ),
        (
            "Invalid maximum heap size: -Xmx1x\nError: Could not create the Java Virtual Machine.\n"
            "Error: A fatal exception has occurred. Program will exit.\n",
            "Invalid maximum heap size: -Xmx1x",
        ),
        (
            "Error occurred during initialization of VM\nToo small maximum heap\n",
            "Too small maximum heap",
        ),
        (
            "bin/spark-class: line 97: /no/java: No such file or directory\n",
            "bin/spark-class: line 97: /no/java: No such file or directory",
        ),
        (
            "java.lang.OutOfMemoryError: Java heap space\n",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
    ],
)
@pytest.mark.parametrize(("before", "after"), [("", ""), (ALWAYS, ""), ("", ALWAYS)])
def test_the_cause_is_the_same_among_lines_that_are_always_there(
    log: str, cause: str, before: str, after: str
):
    assert cause_in_log(before + log + after) == cause
