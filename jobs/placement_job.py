"""Replica placement in the tasks of Spark, for one topic or for any number of partitions.

A task places ranges of rows. The same range gives the same rows, so a task that runs again does no
harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow
from pyspark import Accumulator, AccumulatorParam, Broadcast
from pyspark.sql import DataFrame, SparkSession

from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.jobs.placement_arrays import Loads, PlacementArrays, placement_arrays
from regent.jobs.tables import Batches, mapped

_SCHEMA: Final = "topic string, partition int, replicas array<int>"
_ONE_TASK: Final = 200_000  # partitions up to which a second task costs more than it saves
_ROWS_OF_TASK: Final = 2**20
_REPLICAS_AT_ONCE: Final = 2**18


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


class _Sum(AccumulatorParam[Loads]):
    """Adds the loads of tasks. Spark counts each task once, also if it runs again."""

    def zero(self, value: Loads) -> Loads:
        """Return loads of zero."""
        return Loads(*map(np.zeros_like, value))

    def addInPlace(self, value1: Loads, value2: Loads) -> Loads:  # noqa: N802
        """Return the sum."""
        for total, added in zip(value1, value2, strict=True):
            total += added
        return value1


def placement_loads(spark: SparkSession, arrays: Broadcast[PlacementArrays]) -> Loads:
    """Return the loads of the brokers, without a row of the placement."""
    ranges, found = _ranges(spark, arrays.value), _found(spark, arrays.value)
    tasks = spark.sparkContext.parallelize(ranges, len(ranges))
    tasks.foreach(partial(_exhaust, arrays, found))
    return found.value


def placement_table(
    spark: SparkSession, arrays: Broadcast[PlacementArrays]
) -> tuple[DataFrame, Accumulator[Loads]]:
    """Return the rows of (topic, partition, replicas), sorted by the first two, and the loads.

    The loads are there when the rows have been written, once.
    """
    ranges, found = _ranges(spark, arrays.value), _found(spark, arrays.value)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return mapped(numbers, partial(_batches, arrays, ranges, found), _SCHEMA), found


def batches_of(arrays: PlacementArrays, rows: range, add: Callable[[Loads], None]) -> Batches:
    """Place a range of rows, some at a time; ``add`` gets the loads of each batch."""
    step = max(1, _REPLICAS_AT_ONCE // arrays.widest)
    for first in rows[::step]:
        placed, loads = arrays.place(first, min(first + step, rows.stop))
        add(loads)
        yield placed


def _found(spark: SparkSession, arrays: PlacementArrays) -> Accumulator[Loads]:
    none = Loads(*np.zeros((2, len(arrays.broker_ids)), np.int64))
    return spark.sparkContext.accumulator(none, _Sum())


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


def _exhaust(shared: Broadcast[PlacementArrays], found: Accumulator[Loads], rows: range) -> None:
    for _ in batches_of(shared.value, rows, found.add):
        pass


def _batches(
    shared: Broadcast[PlacementArrays],
    ranges: list[range],
    found: Accumulator[Loads],
    numbers: Batches,
) -> Batches:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for placed in batches_of(shared.value, ranges[number], found.add):
                topics, *others = placed.columns
                columns = [topics.cast(pyarrow.string()), *others]
                yield pyarrow.RecordBatch.from_arrays(columns, placed.schema.names)
