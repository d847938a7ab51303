"""Replica placement as one Spark SQL statement, for one topic or for millions of partitions.

The rules are those of ``core.placement``, which is also the oracle of the tests. Everything is
Catalyst expressions and no row passes through Python. The topics, cut into slices of partitions
with consecutive ids and indexes, and the order of the brokers go in as JSON parameters, so that the
text of the statement is the same for every request of a strategy.

The walk of the rack-aware rule is looked up instead of stepped through. It goes round the brokers
in their rack-alternated order, beginning ``1 + (shift * racks) mod (n - 1)`` after the first
replica. While racks are left without a replica it takes the first broker of each rack that it
meets: for every broker to begin at, these are in a table. Once every rack has one it takes the
brokers that follow, except those taken already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson
import pyarrow
from pyspark.sql import DataFrame, SparkSession

from core.model import BrokerId
from core.placement import Strategy, broker_order, check, racks_in_use, runs
from core.protocol.placement import PlacedPartition, PlaceTopicsRequest
from jobs.session import QUICK_START, spark_session

_SLICE: Final = 4096  # partitions exploded from one row: bounds the array they are exploded from
_ONE_TASK: Final = 200_000  # partitions up to which a second task costs more than it saves
_PER_TASK: Final = 500_000

_PARTITIONS: Final = """
WITH slices AS (
  SELECT inline(from_json(:slices, 'array<struct<
    topic string, partition int, size int, factor int, index bigint, start bigint, shift bigint>>'))
), partitions AS (
  SELECT topic, partition + k AS partition, factor,
    cast((index + k + start) % :n AS int) AS first, shift + (index + k) div :n AS shift
  FROM (SELECT *, explode(sequence(0, size - 1)) AS k FROM {slices})
)"""
_SPREAD: Final = """(
  SELECT /*+ REPARTITION_BY_RANGE({tasks}, topic, partition) */ * FROM slices
  SORT BY topic, partition)"""

_RING: Final = """
SELECT topic, partition, transform(sequence(first, first + factor - 1),
  b -> element_at(from_json(:brokers, 'array<int>'), b % :n + 1)) AS replicas
FROM partitions"""

_SHIFTED: Final = """
SELECT topic, partition, transform(sequence(0, factor - 1),
  j -> element_at(from_json(:brokers, 'array<int>'), 1 + if(j = 0, first,
    (first + 1 + cast((shift + j - 1) % greatest(:n - 1, 1) AS int)) % :n))) AS replicas
FROM partitions"""

_RACK_AWARE: Final = """, walks AS (
  SELECT *, (first + 1 + cast(shift * :racks % greatest(:n - 1, 1) AS int)) % :n AS begin
  FROM partitions
), one_per_rack AS (
  SELECT *, concat(array(first), slice(filter(
    element_at(from_json(:nearest, 'array<array<int>>'), begin + 1),
    b -> element_at(from_json(:rack_of, 'array<int>'), b + 1)
      <> element_at(from_json(:rack_of, 'array<int>'), first + 1)
  ), 1, factor - 1)) AS chosen
  FROM walks
), rest AS (
  SELECT *, if(:racks = 1, begin - 1, element_at(chosen, -1)) AS last FROM one_per_rack
)
SELECT topic, partition, transform(
  if(factor <= :racks, chosen, concat(chosen, slice(filter(
    transform(sequence(1, factor), d -> (last + d) % :n),
    b -> NOT array_contains(chosen, b)
  ), 1, factor - :racks))),
  b -> element_at(from_json(:brokers, 'array<int>'), b + 1)) AS replicas
FROM rest"""


def place_with_spark(spark: SparkSession, request: PlaceTopicsRequest) -> list[PlacedPartition]:
    """Place every partition of the request in one job; sorted by (topic, partition).

    Raises:
        PlacementError: the request cannot be satisfied; no job was run.
    """
    return _rows(placement_frame(spark, request).toArrow())


def place_in_own_session(request: PlaceTopicsRequest) -> list[PlacedPartition]:
    """Place like ``place_with_spark`` in a session made for it, which takes seconds.

    Raises:
        PlacementError, JavaNotFoundError, SparkFailedError
    """
    check(request)
    with spark_session(app_name="regent-placement", jvm_options=QUICK_START) as spark:
        return place_with_spark(spark, request)


def placement_frame(spark: SparkSession, request: PlaceTopicsRequest) -> DataFrame:
    """Return the placement as (topic string, partition int, replicas array<int>).

    Its partitions, and the rows in each, are in the order of (topic, partition).

    Raises:
        PlacementError: the request cannot be satisfied.
    """
    check(request)
    brokers = broker_order(request)
    racks = racks_in_use(request)
    parameters: dict[str, str | int] = {
        "slices": orjson.dumps([*_slices(request)]).decode(),
        "brokers": orjson.dumps(brokers).decode(),
        "n": len(brokers),
    }
    if request.strategy == Strategy.RING:
        rule = _RING
    elif racks:
        rule = _RACK_AWARE
        width = max((topic.replication_factor for topic in request.topics), default=1)
        parameters |= _rack_parameters(brokers, racks, width)
    else:
        rule = _SHIFTED
    slices = "slices"
    total = sum(topic.partitions for topic in request.topics)
    if total > _ONE_TASK:
        tasks = max(spark.sparkContext.defaultParallelism, total // _PER_TASK)
        slices = _SPREAD.format(tasks=tasks)
    return spark.sql(_PARTITIONS.format(slices=slices) + rule, args=parameters)


def _slices(request: PlaceTopicsRequest) -> Iterator[dict[str, str | int]]:
    n = len(request.brokers)
    for run in runs(request):
        index = run.first_index
        # The shift grows at the multiples of n from the first index of the run on, but not at 0.
        shift = run.shift - (max(run.first_index, 1) - 1) // n
        for topic, partitions, factor, start_partition in run.topics:
            for offset in range(0, partitions, _SLICE):
                yield {
                    "topic": topic,
                    "partition": start_partition + offset,
                    "size": min(_SLICE, partitions - offset),
                    "factor": factor,
                    "index": index + offset,
                    "start": run.start,
                    "shift": shift,
                }
            index += partitions


def _rack_parameters(
    brokers: Sequence[BrokerId], racks: Mapping[BrokerId, str], width: int
) -> dict[str, str | int]:
    """Return the racks by position, and for each position the ``width`` racks met first from it."""
    number_of = {rack: number for number, rack in enumerate(sorted(set(racks.values())))}
    rack_of = [number_of[racks[broker]] for broker in brokers]
    nearest: list[list[int]] = [[] for _ in brokers]
    following: list[int] = []
    for position in reversed([*range(len(brokers)), *range(len(brokers))]):
        others = (p for p in following if rack_of[p] != rack_of[position])
        following = [position, *others][:width]
        nearest[position] = following
    return {
        "racks": len(number_of),
        "rack_of": orjson.dumps(rack_of).decode(),
        "nearest": orjson.dumps(nearest).decode(),
    }


def _rows(table: pyarrow.Table) -> list[PlacedPartition]:
    columns = (table.column(name).to_pylist() for name in ("topic", "partition", "replicas"))
    return [PlacedPartition(t, p, tuple(r)) for t, p, r in zip(*columns, strict=True)]
