"""Replica placement in the tasks of Spark, for one topic or for any number of partitions.

A task places ranges of rows. The same range gives the same rows, so a task that runs again does no
harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.jobs.placement_arrays import Loads, PlacementArrays, placement_arrays
from regent.jobs.tables import Batches, mapped

_SCHEMA: Final = "topic string, partition int, replicas array<int>"
_ONE_TASK: Final = 200_000  # partitions up to which a second task costs more than it saves
_ROWS_OF_TASK: Final = 2**20
_REPLICAS_AT_ONCE: Final = 2**18
_SUMS_OF_CORE: Final = 4  # tasks that each hand a sum to the driver


def place_with_spark(spark: SparkSession, request: PlaceTopicsRequest) -> list[PlacedPartition]:
    """Place every partition of a small request in one task; sorted by (topic, partition).

    Raises:
        PlacementError: the request cannot be satisfied; no job was run.
    """
    arrays = placement_arrays(request)
    ranges = spark.sparkContext.parallelize([(0, arrays.rows)], 1)
    [rows] = ranges.map(partial(_rows, arrays)).collect()
    return list(placed_partitions([rows]))


def placed_partitions(tables: Iterable[pyarrow.RecordBatch]) -> Iterator[PlacedPartition]:
    """Yield the rows of batches of (topic, partition, replicas)."""
    for table in tables:
        columns = (column.to_pylist() for column in table.columns)
        for topic, partition, replicas in zip(*columns, strict=True):
            yield PlacedPartition(topic, partition, tuple(replicas))


def placement_loads(spark: SparkSession, arrays: Broadcast[PlacementArrays]) -> Loads:
    """Return the loads of the brokers, without a row of the placement."""
    tasks = _ranges(spark, arrays.value)
    slices = min(len(tasks), _SUMS_OF_CORE * spark.sparkContext.defaultParallelism)
    sums = spark.sparkContext.parallelize(tasks, slices).mapPartitions(partial(_loads, arrays))
    return _sum(arrays.value, sums.collect())


def placement_table(spark: SparkSession, arrays: Broadcast[PlacementArrays]) -> DataFrame:
    """Return the rows of (topic, partition, replicas), sorted by the first two."""
    ranges = _ranges(spark, arrays.value)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return mapped(numbers, partial(_batches, arrays, ranges), _SCHEMA)


def batches_of(arrays: PlacementArrays, low: int, high: int) -> Batches:
    """Place the rows from ``low`` to before ``high``, some at a time."""
    step = max(1, _REPLICAS_AT_ONCE // arrays.widest)
    for first in range(low, high, step):
        yield arrays.place(first, min(first + step, high))[0]


def _ranges(spark: SparkSession, arrays: PlacementArrays) -> list[range]:
    """Return the rows of each task."""
    size = _ROWS_OF_TASK
    if arrays.rows > _ONE_TASK:
        size = min(size, -(-arrays.rows // spark.sparkContext.defaultParallelism))
    rows = range(arrays.rows)
    return [rows[first : first + size] for first in rows[::size]]


# --- on an executor -------------------------------------------------------------------------------


def _rows(arrays: PlacementArrays, bounds: tuple[int, int]) -> pyarrow.RecordBatch:
    return arrays.place(*bounds)[0]


def _loads(shared: Broadcast[PlacementArrays], ranges: Iterable[range]) -> Iterator[Loads]:
    arrays = shared.value
    step = max(1, _REPLICAS_AT_ONCE // arrays.widest)
    parts = (rows[first : first + step] for rows in ranges for first in range(0, len(rows), step))
    yield _sum(arrays, (arrays.place(part.start, part.stop)[1] for part in parts))


def _sum(arrays: PlacementArrays, parts: Iterable[Loads]) -> Loads:
    total = Loads(*np.zeros((2, len(arrays.broker_ids)), np.int64))
    for part in parts:
        for sums, added in zip(total, part, strict=True):
            sums += added
    return total


def _batches(shared: Broadcast[PlacementArrays], ranges: list[range], numbers: Batches) -> Batches:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            rows = ranges[number]
            for placed in batches_of(shared.value, rows.start, rows.stop):
                topics, *others = placed.columns
                columns = [topics.cast(pyarrow.string()), *others]
                yield pyarrow.RecordBatch.from_arrays(columns, placed.schema.names)
