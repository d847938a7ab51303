"""Reads the records that exist when a query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from regent.jobs.source.columns import arrow_schema
from regent.jobs.source.kafka_port import KafkaPort
from regent.jobs.source.log_directories import LogDirectories
from regent.jobs.source.offsets import NO_OFFSET, LogBounds, OffsetRange
from regent.jobs.source.options import EARLIEST, LATEST, ReadOptions


class BatchReader(DataSourceReader):
    """One task for each partition with records."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that records do not have."""
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read now: a snapshot, of committed records.

        Raises OptionError, DataLossError and BrokersError.
        """
        options = self._options
        with closing(self._open()) as store:
            there = store.partitions(options.subscription)
            bounds = LogBounds(*(store.list_offsets(there, at) for at in (EARLIEST, LATEST)))
            starts = bounds.resolve("startingOffsets", options.starting)
            ends = bounds.resolve("endingOffsets", options.ending)
            if options.since_ms is not None:
                found = store.list_offsets(there, options.since_ms)
                starts = {p: bounds.latest[p] if o == NO_OFFSET else o for p, o in found.items()}
            wanted = (OffsetRange(p, starts[p], max(starts[p], ends[p])) for p in there)
            existing = [bounds.existing(r, options.report_data_loss) for r in wanted]
            return [store.located(found) for found in existing if found.end > found.start]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range; nothing for the placeholder of an empty read."""
        if isinstance(partition, OffsetRange):
            with closing(self._open()) as store:
                yield from store.read(partition, self._schema)

    def _open(self) -> LogDirectories | KafkaPort:
        return LogDirectories(self._options) if self._options.log_dirs else KafkaPort(self._options)
