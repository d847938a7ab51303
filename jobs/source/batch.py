"""Batch reads: the records that exist when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from regent.jobs.source.columns import arrow_schema
from regent.jobs.source.filters import PushedFilters
from regent.jobs.source.offset_range import OffsetRange, existing_range, split
from regent.jobs.source.offsets import LogBounds, check_names, resolve
from regent.jobs.source.options import ReadOptions
from regent.jobs.source.record_store import open_store


class BatchReader(DataSourceReader):
    """One task or more for each partition; offsets are fixed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that records do not have."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read now: a snapshot, up to the high watermarks.

        Raises OptionError, DataLossError and BrokersError.
        """
        options, filters = self._options, self._filters
        with closing(open_store(options)) as store:
            there = store.partitions(options.subscription)
            check_names(options.starting, there)
            check_names(options.ending, there)
            bounds = LogBounds.of([p for p in there if filters.admits(p)], store)
            starts = resolve(options.starting, bounds, store)
            ends = resolve(options.ending, bounds, store)
            ranges = [
                existing_range(
                    filters.narrow(OffsetRange(partition, start, ends[partition])),
                    bounds.earliest[partition],
                    bounds.latest[partition],
                    fail_on_data_loss=options.fail_on_data_loss,
                )
                for partition, start in starts.items()
            ]
            return split(store.without_old(ranges), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition."""
        return read_range(self._options, self._schema, partition)


class FilteringBatchReader(BatchReader):
    """Reads only records that can meet the conditions of a query.

    Spark 4.3 keeps the planned ranges with the loaded DataFrame, and uses them for the next query
    of the same DataFrame too, and for both sides of a union: these see too few records. So it is
    off by default, and only for DataFrames that are used once. Needs
    ``spark.sql.python.filterPushdown.enabled``.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that narrow the read; return those that Spark must evaluate."""
        return [condition for condition in filters if not self._filters.take(condition)]


def read_range(
    options: ReadOptions, schema: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range; nothing for the placeholder of an empty read."""
    if isinstance(partition, OffsetRange):
        with closing(open_store(options)) as store:
            yield from store.read(partition, schema)
