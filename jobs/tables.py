"""Tables that executors compute in Python and write with Spark's own writers and committers.

The driver sees no row. Spark writes ``_SUCCESS`` last: a directory without it is not complete.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeAlias

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import _create_udf
from pyspark.util import PythonEvalType

from regent.jobs.files import path_to_write

Batches: TypeAlias = Iterator[pyarrow.RecordBatch]

_CANCEL_S: Final = 0.2


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

    Ctrl-C ends the job of Spark first. When this returns or raises, no task writes any more, and
    the directory can be removed.
    """
    context = frame.sparkSession.sparkContext
    tag = f"regent-{secrets.token_hex(8)}"

    def write() -> None:
        context.addJobTag(tag)  # of the jobs of this thread
        writer = frame.write.mode("append").partitionBy(*partition_by)
        if file_format == "parquet":
            writer = writer.option("compression", "zstd")
        writer.format(file_format).save(path_to_write(location))

    with ThreadPoolExecutor(1, "table") as thread:
        written = thread.submit(write)
        try:
            written.result()
        except KeyboardInterrupt:
            while not written.done():  # the job may begin after it was cancelled
                context.cancelJobsWithTag(tag)
                wait([written], _CANCEL_S)
            raise
