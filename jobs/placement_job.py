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
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import BrokerId
from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from regent.jobs.placement_arrays import PlacementArrays, placement_arrays
from regent.jobs.tables import Batches, mapped

_SCHEMA: Final = "topic string, partition int, replicas array<int>"
_LOADS_SCHEMA: Final = "broker int, replicas bigint, leaders bigint"
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
    return _over_ranges(spark, arrays, _batches, _SCHEMA)


def placement_loads(
    spark: SparkSession, arrays: PlacementArrays
) -> dict[BrokerId, tuple[int, int]]:
    """Count the replicas and the preferred leaderships of each broker that gets some.

    The rows are placed for it and not kept: that is faster than to pass them through the JVM.
    """
    frame = _over_ranges(spark, arrays, _loads, _LOADS_SCHEMA)
    counts = frame.groupBy("broker").agg(
        F.sum("replicas").alias("replicas"), F.sum("leaders").alias("leaders")
    )
    rows = counts.toArrow().to_pylist()
    return {row["broker"]: (row["replicas"], row["leaders"]) for row in rows if row["replicas"]}


def _over_ranges(
    spark: SparkSession,
    arrays: PlacementArrays,
    work: Callable[[Broadcast[PlacementArrays], list[range], Batches], Batches],
    schema: str,
) -> DataFrame:
    """Let tasks do the work for ranges of the rows, in their order."""
    size = _ROWS_OF_TASK
    if arrays.rows > _ONE_TASK:
        size = min(size, -(-arrays.rows // spark.sparkContext.defaultParallelism))
    rows = range(arrays.rows)
    ranges = [rows[first : first + size] for first in rows[::size]]
    shared = spark.sparkContext.broadcast(arrays)
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return mapped(numbers, partial(work, shared, ranges), schema)


# --- on an executor -------------------------------------------------------------------------------


def _rows(arrays: PlacementArrays, bounds: tuple[int, int]) -> pyarrow.RecordBatch:
    return arrays.place(*bounds)


def _batches(shared: Broadcast[PlacementArrays], ranges: list[range], numbers: Batches) -> Batches:
    for low, high in _steps(shared, ranges, numbers):
        placed = shared.value.place(low, high)
        topics, *others = placed.columns
        columns = [topics.cast(pyarrow.string()), *others]
        yield pyarrow.RecordBatch.from_arrays(columns, placed.schema.names)


def _loads(shared: Broadcast[PlacementArrays], ranges: list[range], numbers: Batches) -> Batches:
    ids = shared.value.broker_ids
    replicas, leaders = np.zeros((2, len(ids)), np.int64)
    for low, high in _steps(shared, ranges, numbers):
        more_replicas, more_leaders = shared.value.loads(low, high)
        replicas += more_replicas
        leaders += more_leaders
    yield pyarrow.record_batch({"broker": ids, "replicas": replicas, "leaders": leaders})


def _steps(
    shared: Broadcast[PlacementArrays], ranges: list[range], numbers: Batches
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of some rows at a time, of the ranges of a task."""
    step = max(1, _REPLICAS_AT_ONCE // shared.value.widest)
    for batch in numbers:
        for rows in (ranges[number] for number in batch.column(0).to_pylist()):
            for first in rows[::step]:
                yield first, min(first + step, rows.stop)
