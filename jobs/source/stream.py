"""Reading topics as they grow.

The offsets of a micro-batch are decided here, kept in Spark's checkpoint, and read by its tasks:
so a batch that is run again, or after a restart, has the same records.
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
    """One is asked for offsets in the driver; copies of it read in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that records have not."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._opened: RecordStore | None = None
        self._target: Offsets | None = None
        self._latest: Offsets = {}

    # --- offsets, in the driver ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins."""
        there = self._store.partitions(self._options.subscription)
        check_names(self._options.starting, there)
        bounds = LogBounds.of(there, self._store)
        return to_json(resolve(self._options.starting, bounds, self._store))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one micro-batch takes."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the query ends: what comes later is for the next one."""
        self._target = self._store.latest(self._store.partitions(self._options.subscription))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch that begins at ``start`` ends.

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
        """Return how far the logs went when they were looked at last."""
        return to_json(self._latest) if self._latest else None

    def stop(self) -> None:
        """Let go of connections."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _store(self) -> RecordStore:
        if self._opened is None:
            self._opened = open_store(self._options)
        return self._opened

    def _ends(self, begin: Mapping[Any, int]) -> Offsets:
        """Return where the logs end now.

        None may end before where we are, or be gone. For a moment that may seem so: a new leader
        learns the high watermark from its followers, a new broker the topics from the controller.
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
        """Return what the tasks of a micro-batch read."""
        begin = from_json(start)
        ranges = [OffsetRange(p, begin.get(p, 0), until) for p, until in from_json(end).items()]
        return split(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one of them."""
        return read_range(self._options, self._schema, partition)


def _loss(begin: Mapping[Any, int], latest: Offsets) -> str:
    """Say what is missing of what was there before; nothing: it is all there."""
    for partition, offset in sorted(begin.items()):
        if partition not in latest:
            return f"{partition}: the partition is gone"
        if latest[partition] < offset:
            return f"{partition}: read up to {offset}, and the log ends at {latest[partition]}"
    return ""
