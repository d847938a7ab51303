"""The part of planning in Spark: it counts and filters, so that few rows are loaded.

Work on partitions is in Catalyst expressions. The driver gets counts by broker, and the rows of the
partitions to plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import BrokerId
from regent.jobs.assignment_source import IS_SOUND
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.model import NO_RACK, UNLIMITED, Brokers, Partitions

_DENSE_IDS: Final = 1 << 20  # up to this id an array is used instead of a list of ids
_FEW: Final = 4
_SAMPLE_SCALE: Final = 1 << 20


class BrokerLoad(NamedTuple):
    """The replicas and preferred leaderships of a broker, and those of them that may move."""

    replicas: int
    movable: int
    leaders: int
    movable_leaders: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The assignment and the brokers to plan for; ``movable`` is by index, as in Brokers."""

    frame: DataFrame
    can_move: Column
    brokers: Brokers
    movable: Sequence[int]
    movable_partitions: int
    partitions: int
    unsound: int  # of them

    def indexes(self, broker_ids: Iterable[BrokerId]) -> list[int]:
        """Return the indexes of brokers that are listed or hold replicas."""
        index = {broker_id: number for number, broker_id in enumerate(self.brokers.ids)}
        return [index[broker_id] for broker_id in broker_ids]

    def load(self, condition: Column, sizes: pyarrow.Table | None, *, every: bool) -> Partitions:
        """Load the partitions to plan, which meet a condition; ``every``: all that may move.

        ``sizes`` are topic, partition and bytes; a partition that is missing there has size 0.
        """
        found = self.frame.filter(self.can_move if every else self.can_move & condition)
        table = (
            found.select("topic", "partition", "replicas", condition.alias("is_planned"))
            .toArrow()
            .combine_chunks()
            .sort_by([("topic", "ascending"), ("partition", "ascending")])
        )
        column = table["replicas"].combine_chunks()
        lengths = column.value_lengths().to_numpy()
        replicas = np.full((len(lengths), lengths.max(initial=0)), -1, np.int32)
        is_used = np.arange(replicas.shape[1]) < lengths[:, None]
        replicas[is_used] = self._to_indexes(column.flatten().to_numpy())
        planned = np.flatnonzero(table["is_planned"].to_numpy())
        of_row = np.zeros(len(table), np.int64) if sizes is None else _sizes_of(table, sizes)
        return Partitions(table["topic"], table["partition"].to_numpy(), replicas, of_row, planned)

    def _to_indexes(self, broker_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the indexes of brokers that are listed or hold replicas."""
        ids = np.array(self.brokers.ids, np.int64)
        order = np.argsort(ids).astype(np.int32)
        return order[np.searchsorted(ids, broker_ids, sorter=order)]

    def holds_any(self, broker_ids: Iterable[BrokerId]) -> Column:
        """Return the condition that a replica is on one of some brokers."""
        return _any_replica(f"{{}} IN ({_listed(set(broker_ids))})")

    def sample(self, chances: Mapping[BrokerId, float], seed: int) -> Column:
        """Return the condition that selects a random share of each broker's partitions."""
        limits = {b: min(_SAMPLE_SCALE, int(p * _SAMPLE_SCALE) + 1) for b, p in chances.items()}
        drawn = f"pmod(xxhash64(topic, partition, {seed}L), {_SAMPLE_SCALE})"
        return _any_replica(f"{drawn} < {_lookup('{}', limits, 0)}")

    def spreads(self) -> dict[tuple[int, int], int]:
        """Count the partitions that may move, by (live replicas, racks)."""
        usable = range(self.brokers.usable)
        racks = {self.brokers.ids[b]: self.brokers.racks[b] for b in usable}
        known = F.expr(
            f"filter(transform(replicas, b -> {_lookup('b', racks, NO_RACK)}), r -> r >= 0)"
        )
        counts = (
            self.frame.filter(self.can_move)
            .select(known.alias("racks"))
            .groupBy(F.size("racks").alias("f"), F.size(F.array_distinct("racks")).alias("s"))
            .count()
            .toArrow()
            .to_pylist()
        )
        return {(row["f"], row["s"]): row["count"] for row in counts}


def _sizes_of(table: pyarrow.Table, sizes: pyarrow.Table) -> npt.NDArray[np.int64]:
    keys = ["topic", "partition"]
    numbered = table.select(keys).append_column("number", pyarrow.array(np.arange(len(table))))
    known = numbered.join(sizes, keys).sort_by("number")
    of_row: npt.NDArray[np.int64] = known["bytes"].fill_null(0).to_numpy()
    return of_row


def topic_condition(wanted: Sequence[str], excluded: Sequence[str]) -> Column:
    """Return the condition that a topic matches one of ``wanted`` and none of ``excluded``."""
    condition = F.lit(True)
    if wanted:
        condition = F.col("topic").rlike(_regex(wanted))
    return condition & ~F.col("topic").rlike(_regex(excluded)) if excluded else condition


def survey(
    frame: DataFrame, can_move: Column, listed: Sequence[PlannedBroker], *, is_rack_aware: bool
) -> Survey:
    """Count the loads of brokers; those that are not listed count as dead."""
    loads, unsound = broker_loads(frame, can_move)
    listed = sorted(listed)
    usable = [broker.broker_id for broker in listed]
    ids = usable + sorted(loads.keys() - set(usable))
    none = BrokerLoad(0, 0, 0, 0)
    held = [loads.get(broker_id, none) for broker_id in ids]
    dead = len(ids) - len(usable)
    unlimited = [UNLIMITED] * dead
    capacities = [UNLIMITED if b.capacity is None else b.capacity for b in listed] + unlimited
    names = sorted({broker.rack or "" for broker in listed})
    numbers = {name: number for number, name in enumerate(names)}
    racks = [numbers[b.rack or ""] if is_rack_aware else 0 for b in listed] + [NO_RACK] * dead
    brokers = Brokers(
        ids,
        len(usable),
        racks,
        capacities,
        [load.replicas for load in held],
        [load.leaders for load in held],
    )
    return Survey(
        frame,
        can_move,
        brokers,
        [load.movable for load in held],
        sum(load.movable_leaders for load in held),
        sum(load.leaders for load in held) + unsound,
        unsound,
    )


def broker_loads(frame: DataFrame, can_move: Column) -> tuple[dict[BrokerId, BrokerLoad], int]:
    """Count replicas and preferred leaderships by broker in valid rows, and the invalid rows.

    Both in one job, because reading the assignment takes longer than counting.
    """
    is_first = F.col("position") == 0
    replicas = F.expr(f"CASE WHEN {IS_SOUND} THEN replicas END")
    table = (
        frame.select(replicas.alias("replicas"), can_move.alias("can"))
        .select(F.posexplode_outer("replicas").alias("position", "broker"), "can")
        .groupBy("broker")
        .agg(
            F.count("*").alias("replicas"),
            F.count_if("can").alias("movable"),
            F.count_if(is_first).alias("leaders"),
            F.count_if(is_first & F.col("can")).alias("movable_leaders"),
        )
        .toArrow()
    )
    rows = {row.pop("broker"): BrokerLoad(**row) for row in table.to_pylist()}
    unsound = rows.pop(None, None)
    return rows, unsound.replicas if unsound else 0


def replicas_by_rack(survey: Survey, counts: Sequence[int]) -> dict[int, int]:
    """Sum up counts of the usable brokers by rack."""
    sums: Counter[int] = Counter()
    for broker in range(survey.brokers.usable):
        sums[survey.brokers.racks[broker]] += counts[broker]
    return dict(sums)


def _regex(globs: Sequence[str]) -> str:
    """Return a regular expression for names like one of the globs (``*`` and ``?``)."""
    wild = {"*": ".*", "?": "."}
    alternatives = ("".join(wild.get(c) or re.escape(c) for c in glob) for glob in globs)
    return f"^({'|'.join(alternatives)})$"


def _any_replica(condition: str) -> Column:
    """Return whether any replica meets a condition, in which ``{}`` is the replica.

    The first few are tested without lambdas, which Spark does not compile.
    """
    few = " OR ".join(f"({condition.format(f'get(replicas, {i})')})" for i in range(_FEW))
    rest = f"exists(slice(replicas, {_FEW + 1}, size(replicas)), b -> {condition.format('b')})"
    return F.expr(f"coalesce({few}, false) OR (size(replicas) > {_FEW} AND {rest})")


def _lookup(variable: str, values: Mapping[BrokerId, int], default: int) -> str:
    """Return SQL for the value of a broker; the cost does not depend on their number."""
    if max(values) < _DENSE_IDS:
        dense = [default] * (max(values) + 1)
        for broker_id, value in values.items():
            dense[broker_id] = value
        array = f"from_json('{orjson.dumps(dense).decode()}', 'array<int>')"
        return f"coalesce(try_element_at({array}, {variable} + 1), {default})"
    brokers_of: dict[int, list[BrokerId]] = {}
    for broker_id, value in values.items():
        brokers_of.setdefault(value, []).append(broker_id)
    cases = " ".join(
        f"WHEN {variable} IN ({_listed(ids)}) THEN {value}" for value, ids in brokers_of.items()
    )
    return f"CASE {cases} ELSE {default} END"


def _listed(broker_ids: Collection[BrokerId]) -> str:
    return ",".join(map(str, sorted(broker_ids)))
