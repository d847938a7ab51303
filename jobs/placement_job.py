"""Replica placement as one Spark SQL statement, for one topic or for millions of partitions.

The strategies are those of ``core.placement.replica_placer``, with which the tests compare. All
computation is in Catalyst expressions; no row passes through Python. The topics are cut into slices
of partitions with consecutive ids and indexes. The slices and the sequence of the brokers are JSON
parameters, so that the text of the statement is the same for every request of a strategy. Each task
parses one text with many slices: there is no shuffle, and the sequence is kept.

The rack-aware strategy walks over the brokers in their rack-alternated sequence, from ``1 + (shift
* racks) mod (n - 1)`` after the first replica. While racks have no replica it takes the first
broker of each new rack; a table has these brokers for every start. When every rack has a replica it
takes the next brokers that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import orjson
import pyarrow
from pyspark.sql import DataFrame, SparkSession

from regent.core.model import BrokerId
from regent.core.placement.copysets import Copyset
from regent.core.placement.replica_placer import (
    Strategy,
    broker_order,
    check,
    copyset_rotas,
    first_indexes,
    racks_in_use,
    runs,
)
from regent.core.protocol.placement import PlacedPartition, PlaceTopicsRequest

_SLICE: Final = 4096  # partitions exploded from one row, which limits the array
_ONE_TASK: Final = 200_000  # partitions up to which a second task costs more than it saves
_PER_TASK: Final = 1_000_000
_SLICES_PER_TASK: Final = 50_000  # a task parses them at once

_SLICE_FIELDS: Final = """'array<struct<topic string, partition int, size int, factor int,
  index bigint, start bigint, shift bigint, length int, offset int>>'"""
_SLICES: Final = f"SELECT inline(from_json(:slices, {_SLICE_FIELDS}))"
_SLICES_BY_TASK: Final = f"""
  SELECT inline(from_json(element_at(:slices, cast(id AS int) + 1), {_SLICE_FIELDS}))
  FROM range(0, :tasks, 1, :tasks)"""
_PARTITIONS: Final = """
WITH slices AS (
  SELECT topic, coalesce(partition, 0) AS partition, size, factor, coalesce(index, 0) AS index,
    coalesce(start, 0) AS start, coalesce(shift, 0) AS shift, coalesce(length, :n) AS length,
    coalesce(offset, 0) AS offset
  FROM ({slices})
), partitions AS (
  SELECT topic, partition + k AS partition, factor, offset,
    cast((index + k + start) % length AS int) AS first, shift + (index + k) div :n AS shift
  FROM (SELECT *, explode(sequence(0, size - 1)) AS k FROM slices)
)"""

_RING: Final = "(first + {j}) % :n"
_SHIFTED: Final = """if({j} = 0, first,
  (first + 1 + cast((shift + {j} - 1) % greatest(:n - 1, 1) AS int)) % :n)"""
_REPLICA: Final = "element_at(from_json(:brokers, 'array<int>'), 1 + {position})"
_UNROLLED: Final = 8  # up to this many replicas no lambda is used: Spark does not compile lambdas

_COPYSET: Final = """
SELECT topic, partition,
  element_at(from_json(:copysets, 'array<array<int>>'), offset + first + 1) AS replicas
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


def placement_frame(spark: SparkSession, request: PlaceTopicsRequest) -> DataFrame:
    """Return the placement as (topic string, partition int, replicas array<int>).

    Spark's partitions, and the rows in each, are sorted by (topic, partition).

    Raises:
        PlacementError: the request cannot be satisfied.
    """
    check(request)
    rotas = copyset_rotas(request)
    slices = _slices(request, {factor: len(rota) for factor, rota in rotas.items()})
    texts = _texts(slices, _partitions_of_a_task(spark, request))
    parameters: dict[str, Any] = {"slices": texts[0], "n": len(request.brokers)}
    if len(texts) > 1:
        parameters |= {"slices": texts, "tasks": len(texts)}
    statement = _PARTITIONS.format(slices=_SLICES_BY_TASK if len(texts) > 1 else _SLICES)
    rule, rule_parameters = _rule(request, rotas)
    return spark.sql(statement + rule, args=parameters | rule_parameters)


def _rule(
    request: PlaceTopicsRequest, rotas: Mapping[int, list[Copyset]]
) -> tuple[str, dict[str, str | int]]:
    """Return the end of the statement, and its parameters."""
    if rotas:
        copysets = [copyset for rota in rotas.values() for copyset in rota]
        return _COPYSET, {"copysets": orjson.dumps(copysets).decode()}
    brokers = broker_order(request)
    parameters: dict[str, str | int] = {"brokers": orjson.dumps(brokers).decode()}
    racks = racks_in_use(request)
    if racks:
        width = max((topic.replication_factor for topic in request.topics), default=1)
        return _RACK_AWARE, parameters | _rack_parameters(brokers, racks, width)
    position = _RING if request.strategy == Strategy.RING else _SHIFTED
    return _replica_by_replica(_REPLICA.format(position=position), request), parameters


def _replica_by_replica(replica: str, request: PlaceTopicsRequest) -> str:
    """Return the end of a statement, with the expression ``replica`` for the j-th replica."""
    factors = {topic.replication_factor for topic in request.topics}
    widest = max(factors, default=1)
    if widest > _UNROLLED:
        replicas = f"transform(sequence(0, factor - 1), j -> {replica.format(j='j')})"
    else:
        replicas = f"array({', '.join(replica.format(j=j) for j in range(widest))})"
        if len(factors) > 1:
            replicas = f"slice({replicas}, 1, factor)"
    return f"\nSELECT topic, partition, {replicas} AS replicas FROM partitions"


def _partitions_of_a_task(spark: SparkSession, request: PlaceTopicsRequest) -> int:
    total = sum(topic.partitions for topic in request.topics)
    if total <= _ONE_TASK:
        return total
    return -(-total // max(spark.sparkContext.defaultParallelism, total // _PER_TASK))


def _slices(
    request: PlaceTopicsRequest, lengths: Mapping[int, int]
) -> Iterator[dict[str, str | int]]:
    """Yield the topics in slices; ``lengths`` are those of the lists of copysets by factor.

    There may be a million, so zeros, and the number of brokers, are left out.
    """
    n = len(request.brokers)
    offsets = dict(zip(lengths, accumulate(lengths.values(), initial=0), strict=False))
    for run in runs(request):
        # The shift grows at each multiple of n after the first index of the run, but not at 0.
        shift = run.shift - (max(run.first_index, 1) - 1) // n
        for (topic, partitions, factor, start_partition), index in first_indexes(request, run):
            for done in range(0, partitions, _SLICE):
                numbers = {
                    "partition": start_partition + done,
                    "index": index + done,
                    "start": run.start,
                    "shift": shift,
                    "length": lengths.get(factor, 0),
                    "offset": offsets.get(factor, 0),
                }
                yield {
                    "topic": topic,
                    "size": min(_SLICE, partitions - done),
                    "factor": factor,
                    **{name: number for name, number in numbers.items() if number},
                }


def _texts(slices: Iterable[dict[str, str | int]], partitions: int) -> list[str]:
    """Return the slices as JSON, one text for each task with about ``partitions`` partitions."""
    texts = []
    waiting: list[dict[str, str | int]] = []
    size = 0
    for slice_ in slices:
        waiting.append(slice_)
        size += int(slice_["size"])
        if size >= partitions or len(waiting) == _SLICES_PER_TASK:
            texts.append(orjson.dumps(waiting).decode())
            waiting, size = [], 0
    if waiting or not texts:
        texts.append(orjson.dumps(waiting).decode())
    return texts


def _rack_parameters(
    brokers: Sequence[BrokerId], racks: Mapping[BrokerId, str], width: int
) -> dict[str, str | int]:
    """Return the racks by position, and for each position the next ``width`` racks."""
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
