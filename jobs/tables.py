"""Tables that executors compute in Python and write with Spark's own writers and committers.

The driver sees no row. Spark writes ``_SUCCESS`` last: a directory without it is not complete.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

import pyarrow
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

from regent.jobs.command import InputError
from regent.jobs.files import JobFiles, path_to_write
from regent.jobs.java_errors import explanation
from regent.jobs.session import DIRECTORY_PREFIX

Batches: TypeAlias = Iterator[pyarrow.RecordBatch]

_COUNTED: Final = ("partition", "replicas.list.element")  # columns of a placement
_OF_SPARK: Final = "spark_catalog"
_END_S: Final = 30.0
_POLL_S: Final = 0.1


def mapped(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str | StructType
) -> DataFrame:
    """Return what ``function`` makes of the batches of each task.

    ``DataFrame.mapInArrow`` does the same, but asks for pandas, which it does not use.
    """
    udf = _create_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = udf(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(columns._jc, False, None), frame.sparkSession)


def write_files(
    frame: DataFrame, location: str, file_format: str, *, partition_by: Sequence[str] = ()
) -> None:
    """Write the rows into an empty or absent directory, in the format of a writer of Spark.

    The columns of a placement are half as large in Parquet without dictionaries of their numbers.
    After an error or Ctrl-C the tasks are ended before this raises, so that the directory can be
    removed.
    """
    writer = frame.write.mode("append").partitionBy(*partition_by).format(file_format)
    if file_format == "parquet":
        writer = writer.option("compression", "zstd")
        writer = writer.options(**{f"parquet.enable.dictionary#{c}": "false" for c in _COUNTED})
    _write(frame.sparkSession, partial(writer.save, path_to_write(location)))


def write_table(
    frame: DataFrame, name: str, *, appends: bool = False, partition_by: Sequence[str] = ()
) -> None:
    """Write a frame into the table ``catalog.database.table`` of its session.

    The table is new, or with ``appends`` may be there with the same columns. Its catalog chooses
    the format. An error or Ctrl-C: see ``write_files``. Raises ``InputError``.
    """
    writer = frame.write.mode("append" if appends else "errorifexists").partitionBy(*partition_by)
    try:
        _write(frame.sparkSession, partial(writer.saveAsTable, name))
    except AnalysisException as error:
        raise InputError(f"table {name}: {explanation(error)}") from None


@contextmanager
def new_catalog_table(
    spark: SparkSession, name: str, files: JobFiles, *, partition_by: Sequence[str] = ()
) -> Iterator[Callable[[DataFrame], None]]:
    """Yield what writes a frame into a new table of a catalog; an error removes it again.

    Raises ``InputError`` if there is such a table, or no place where one would stay.
    """
    location = _checked_location(spark, name, files)
    is_written = False

    def write(frame: DataFrame) -> None:
        nonlocal is_written
        write_table(frame, name, partition_by=partition_by)
        is_written = True

    try:
        yield write
    except BaseException:
        with suppress(InputError, PySparkException, Py4JError, OSError):
            if is_written:
                spark.sql("DROP TABLE IF EXISTS IDENTIFIER(:name)", {"name": name})
            elif location is not None and not spark.catalog.tableExists(name):
                files.remove(location)  # Spark would refuse the next attempt because of it
        raise


def _checked_location(spark: SparkSession, name: str, files: JobFiles) -> str | None:
    """Return where Spark's own catalog will have the files of a new table; None: another has it."""
    database, _, table = name.rpartition(".")
    database = database or spark.catalog.currentDatabase()
    catalog = database.partition(".")[0] if "." in database else spark.catalog.currentCatalog()
    try:
        is_there = spark.catalog.tableExists(name)
        place = spark.catalog.getDatabase(database).locationUri
    except PySparkException as error:
        raise InputError(f"table {name}: {explanation(error)}") from None
    if is_there:
        raise InputError(f"table {name} exists already: choose a new name for --table")
    if DIRECTORY_PREFIX in (place or ""):
        raise InputError(
            f"table {name} would be removed with the session of this job: name a directory that"
            " stays (--conf spark.sql.warehouse.dir=DIR), or a catalog"
        )
    if not place or catalog != _OF_SPARK:
        return None
    location = f"{place.rstrip('/')}/{table.strip('`').lower()}"
    if files.entry(location) is not None and files.entries(location):
        raise InputError(
            f"table {name}: {location} is not empty (perhaps an interrupted job left it): remove"
            " it, or choose a new name for --table"
        )
    return location


def _write(spark: SparkSession, write: Callable[[], None]) -> None:
    """Write; after an error or Ctrl-C end the tasks first."""
    context = spark.sparkContext
    group = f"regent-{secrets.token_hex(8)}"

    def write_in_group() -> None:
        context.setJobGroup(group, "writing a table")  # of this thread
        write()

    thread = ThreadPoolExecutor(1, "table")
    written = thread.submit(write_in_group)
    try:
        written.result()
    except BaseException:
        deadline = time.monotonic() + _END_S
        with suppress(Py4JError, OSError):  # the JVM has ended
            while time.monotonic() < deadline and (
                not written.done() or _active_tasks(context, group)
            ):
                context.cancelJobGroup(group)  # again: the job may begin after it was cancelled
                wait([written], _POLL_S)
                time.sleep(_POLL_S)
        raise
    finally:
        thread.shutdown(wait=False)


def _active_tasks(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numActiveTasks for stage in stages if stage)
