"""Streaming reads of topics.

The reader decides the offsets of a micro-batch, Spark's checkpoint keeps them, and the tasks read
them. So a repeated batch has the same records, even after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from regent.jobs.source.batch import read_range
from regent.jobs.source.columns import arrow_schema
from regent.jobs.source.offset_range import OffsetRange, report_data_loss, split
from regent.jobs.source.offsets import (
    LogBounds,
    Offsets,
    check_names,
    from_json,
    limited,
    resolve,
    to_json,
)
from regent.jobs.source.options import OptionError, ReadOptions
from regent.jobs.source.record_store import RecordStore, open_store

_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.2


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader gives the offsets in the driver; copies of it read in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that records do not have."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._opened: RecordStore | None = None
        self._target: Offsets | None = None
        self._latest: Offsets = {}

    # --- offsets, in the driver ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the initial offsets of a query without a checkpoint."""
        there = self._store.partitions(self._options.subscription)
        check_names(self._options.starting, there)
        bounds = LogBounds.of(there, self._store)
        return to_json(resolve(self._options.starting, bounds, self._store))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offsets of the query: later records are for the next one."""
        self._target = self._store.latest(self._store.partitions(self._options.subscription))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end offsets of the micro-batch that begins at ``start``.

        Partitions that are new begin with their first record. Raises ``DataLossError``.
        """
        begin = from_json(start)
        self._latest = latest = self._ends(begin)
        if self._target is not None:
            bounds = {p: max(end, begin.get(p, 0)) for p, end in self._target.items()}
            latest = {p: min(end, bounds[p]) for p, end in latest.items() if p in bounds}
        if isinstance(limit, ReadMaxRows):
            latest = limited(begin, latest, limit.max_rows)
        return to_json(latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known end offsets."""
        return to_json(self._latest) if self._latest else None

    def stop(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _store(self) -> RecordStore:
        if self._opened is None:
            self._opened = open_store(self._options)
        return self._opened

    def _ends(self, begin: Mapping[Any, int]) -> Offsets:
        """Return the current end offsets.

        A lower end offset than before, or a missing partition, is a loss of data only if it lasts:
        a new leader learns the high watermark from its followers, and a new broker learns the
        topics from the controller.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            latest: Offsets = {}
            try:
                there = self._store.partitions(self._options.subscription)
                latest = self._store.latest(there)
            except OptionError as error:
                problem = str(error)
            else:
                problem = _loss(begin, latest)
            if not problem:
                return latest
            if time.monotonic() > deadline:
                report_data_loss(problem, is_error=self._options.fail_on_data_loss)
                return latest
            time.sleep(_PAUSE_S)

    # --- records, in the tasks ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges for the tasks of a micro-batch."""
        begin = from_json(start)
        ranges = [OffsetRange(p, begin.get(p, 0), until) for p, until in from_json(end).items()]
        return split(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range."""
        return read_range(self._options, self._schema, partition)


def _loss(begin: Mapping[Any, int], latest: Offsets) -> str:
    """Return which earlier records are missing; empty: none."""
    for partition, offset in sorted(begin.items()):
        if partition not in latest:
            return f"{partition}: the partition is gone"
        if latest[partition] < offset:
            return f"{partition}: read up to {offset}, and the log ends at {latest[partition]}"
    return ""
