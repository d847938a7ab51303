"""Replica placement in the tasks of Spark, for one topic or for millions of partitions.

The driver broadcasts the arrays of the request once. A task places a range of rows, encodes them,
and hands them to the driver. The same range gives the same bytes, so a task that runs again does no
harm. The driver runs jobs of limited size, one after another: their results are in its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow
from pyspark import Broadcast
from pyspark.sql import SparkSession

from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.jobs.placement_arrays import PlacementArrays, placement_arrays
from regent.jobs.placement_output import Part, decoded, encoded, placed_partitions

_ONE_TASK: Final = 200_000  # partitions up to which a second task costs more than it saves
_ROWS_OF_TASK: Final = 2**20
_REPLICAS_OF_TASK: Final = 2**21
_TASKS_OF_JOB: Final = 32


def place_with_spark(spark: SparkSession, request: PlaceTopicsRequest) -> list[PlacedPartition]:
    """Place every partition of the request in one job; sorted by (topic, partition).

    Raises:
        PlacementError: the request cannot be satisfied; no job was run.
    """
    return list(placed_partitions(placed_tables(spark, request)))


def placed_tables(spark: SparkSession, request: PlaceTopicsRequest) -> Iterator[pyarrow.Table]:
    """Return rows of (topic, partition, replicas), sorted by the first two.

    Raises:
        PlacementError: the request cannot be satisfied.
    """
    return map(decoded, placed_parts(spark, placement_arrays(request)))


def placed_parts(spark: SparkSession, arrays: PlacementArrays) -> Iterator[Part]:
    """Yield the rows in their sequence.

    RDDs pass on bytes as they are. ``DataFrame.mapInArrow`` needs pandas, and copies them through
    rows.
    """
    context = spark.sparkContext
    size = _rows_of_task(arrays, context.defaultParallelism)
    tasks = range(-(-arrays.rows // size))
    shared = arrays if len(tasks) <= 1 else context.broadcast(arrays)
    for first in tasks[::_TASKS_OF_JOB]:
        numbers = tasks[first : first + _TASKS_OF_JOB]
        job = context.parallelize(numbers, len(numbers))
        yield from job.mapPartitions(partial(_place, shared, size)).collect()
    if isinstance(shared, Broadcast):
        shared.destroy()


def _rows_of_task(arrays: PlacementArrays, parallelism: int) -> int:
    most = max(1, min(_ROWS_OF_TASK, _REPLICAS_OF_TASK // arrays.widest))
    return most if arrays.rows <= _ONE_TASK else min(most, -(-arrays.rows // parallelism))


def _place(
    shared: PlacementArrays | Broadcast[PlacementArrays],
    size: int,
    numbers: Iterable[int],
) -> Iterator[Part]:
    """Place and encode on an executor."""
    arrays = shared.value if isinstance(shared, Broadcast) else shared
    for number in numbers:
        rows, loads = arrays.place(number * size, min((number + 1) * size, arrays.rows))
        yield Part(encoded(rows), loads)
