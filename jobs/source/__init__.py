"""The Spark data source ``regent``: topics as DataFrames, with the columns and options of Spark's
Kafka connector, in pure Python over Arrow batches.

``spark.dataSource.register(RegentDataSource)``, then ``spark.read.format("regent")``, and the same
with ``readStream``, ``write`` and ``writeStream``. Records come through the Kafka port of any
cluster (``kafka.bootstrap.servers``), or from the files of brokers (``logDirs``). With
``pushDownFilters=true`` a query's conditions on topic, partition, offset and timestamp narrow what
is read; ``jobs.source.batch`` says why this is not the default. ``jobs.source.writer`` has the
guarantees of writers.

Options of a read, of which exactly one of the first three:

===============================  ==================================================================
``subscribe``                    topics, separated by commas
``subscribePattern``             a regular expression for whole names of topics
``assign``                       partitions: ``{"topic": [0, 1]}``
``startingOffsets``              ``earliest`` (a batch read's default), ``latest`` (a stream's), or
                                 ``{"topic": {"0": 23, "1": -2}}``: -2 earliest, -1 latest
``startingTimestamp``            milliseconds since 1970: the first record since then
``startingOffsetsByTimestamp``   the same of each partition: ``{"topic": {"0": 1700000000000}}``
``…OffsetsByTimestampStrategy``  ``latest``: where there is no such record, begin at the end
``endingOffsets``                ``latest``, or as above; of batch reads
``endingTimestamp``              (``endingOffsetsByTimestamp``): before the first record since then
``maxOffsetsPerTrigger``         how many records a micro-batch takes; of streams
``minPartitions``                the least number of tasks of a read; default one for each partition
``failOnDataLoss``               ``false``: continue after records that are lost, instead of failing
``includeHeaders``               ``true``: add a column of headers
``includeUncommitted``           ``true``: beyond the high watermark too; of ``logDirs``
``kafkaConsumer.pollTimeoutMs``  how long a task waits for records, 120000
``kafka.*``                      librdkafka's settings
===============================  ==================================================================

Of a write: ``topic`` (or a column), ``stagingLocation``, ``commitId``, ``kafka.*``.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from regent.jobs.source.batch import BatchReader, FilteringBatchReader
from regent.jobs.source.columns import record_schema
from regent.jobs.source.options import read_options, write_options
from regent.jobs.source.stream import StreamReader
from regent.jobs.source.writer import BatchWriter, StreamWriter


class RegentDataSource(DataSource):
    """The object that Spark makes for each query; it checks options before it connects."""

    @classmethod
    def name(cls) -> str:
        """Return the short name; ``kafka`` is Spark's own."""
        return "regent"

    def schema(self) -> StructType:
        """Return the default columns of a read."""
        is_set = str(self.options.get("includeHeaders", "")).strip().lower() == "true"
        return record_schema(include_headers=is_set)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch. Raises ``OptionError``."""
        options = read_options(self.options, is_stream=False)
        kind = FilteringBatchReader if options.push_down_filters else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the reader of a stream. Raises ``OptionError``."""
        return StreamReader(read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch. Raises ``OptionError``."""
        options = write_options(self.options, is_stream=False)
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer of micro-batches. Raises ``OptionError``."""
        del overwrite  # the output mode `complete`: all rows are appended each time, as by Kafka's
        return StreamWriter(write_options(self.options, is_stream=True), schema)
