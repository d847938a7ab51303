"""Tables that executors compute in Python and write with Spark's own writers and committers.

The driver sees no row. Spark writes ``_SUCCESS`` last: a directory without it is not complete.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final, TypeAlias

import pyarrow
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

from regent.jobs.files import path_to_write

Batches: TypeAlias = Iterator[pyarrow.RecordBatch]

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


def write_table(
    frame: DataFrame, location: str, file_format: str, *, partition_by: Sequence[str] = ()
) -> None:
    """Write the rows into an empty or absent directory, in the format of a writer of Spark.

    After an error or Ctrl-C the tasks are ended before this raises, so that the directory can be
    removed.
    """
    context = frame.sparkSession.sparkContext
    group = f"regent-{secrets.token_hex(8)}"

    def write() -> None:
        context.setJobGroup(group, f"writing {file_format}")  # of this thread
        writer = frame.write.mode("append").partitionBy(*partition_by)
        if file_format == "parquet":
            writer = writer.option("compression", "zstd")
        writer.format(file_format).save(path_to_write(location))

    thread = ThreadPoolExecutor(1, "table")
    written = thread.submit(write)
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
