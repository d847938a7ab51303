"""Replica placement in the tasks of Spark, for one topic or for any number of partitions.

A task places ranges of rows. The same range gives the same rows, so a task that runs again does no
harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession

from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.jobs.placement_arrays import PlacementArrays, placement_arrays
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


def placement_frame(spark: SparkSession, arrays: PlacementArrays) -> DataFrame:
    """Return the rows of (topic, partition, replicas), sorted by the first two."""
    size = _ROWS_OF_TASK
    if arrays.rows > _ONE_TASK:
        size = min(size, -(-arrays.rows // spark.sparkContext.defaultParallelism))
    rows = range(arrays.rows)
    ranges = [rows[first : first + size] for first in rows[::size]]
    shared = spark.sparkContext.broadcast(arrays)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return mapped(numbers, partial(_batches, shared, ranges), _SCHEMA)


# --- on an executor -------------------------------------------------------------------------------


def _rows(arrays: PlacementArrays, bounds: tuple[int, int]) -> pyarrow.RecordBatch:
    return arrays.place(*bounds)


def _batches(shared: Broadcast[PlacementArrays], ranges: list[range], numbers: Batches) -> Batches:
    """Place ranges of rows, some rows at a time."""
    step = max(1, _REPLICAS_AT_ONCE // shared.value.widest)
    for batch in numbers:
        for rows in (ranges[number] for number in batch.column(0).to_pylist()):
            for first in rows[::step]:
                placed = shared.value.place(first, min(first + step, rows.stop))
                topics, *others = placed.columns
                columns = [topics.cast(pyarrow.string()), *others]
                yield pyarrow.RecordBatch.from_arrays(columns, placed.schema.names)
