"""The Spark data source ``regent``: what Spark's own Kafka connector cannot do.

- ``logDirs`` reads topics from the files of brokers, which need not run, with the connector's
  columns;
- ``journals`` follows the journals of the controllers, a stream of lines;
- ``write_once`` writes a batch exactly once, in a transaction.

For everything else, batches and streams through brokers, use the connector. docs/spark.md shows
both, and the options. Spark finds an installed Regent by itself (``jobs/pyspark_regent.py``), but
no checkout: ``regent.spark.register(session)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from regent.jobs.source.columns import record_schema
from regent.jobs.source.exactly_once import OnceWriter
from regent.jobs.source.journal_source import LINES, JournalStreamReader
from regent.jobs.source.log_directories import LogReader
from regent.jobs.source.options import (
    BATCH_NUMBER,
    CONNECTOR,
    OptionError,
    journal_options,
    read_options,
    reads_journals,
    write_options,
)


class RegentDataSource(DataSource):
    """The object that Spark makes for each query; it checks options before it reads."""

    @classmethod
    def name(cls) -> str:
        """Return the short name; ``kafka`` is Spark's own."""
        return "regent"

    def schema(self) -> StructType | str:
        """Return the default columns of a read. Raises ``OptionError``."""
        if reads_journals(self.options):
            journal_options(self.options)
            return LINES
        return record_schema(include_headers=read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises ``OptionError``."""
        if reads_journals(self.options):
            raise OptionError("journals are followed by a stream: regent.spark.events reads them")
        return LogReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> OnceWriter:
        """Return the writer of ``write_once``. Raises ``OptionError``."""
        del overwrite  # records cannot be overwritten, and write_once appends
        return OnceWriter(write_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of journals, or one that raises ``OptionError``."""
        if reads_journals(self.options):
            return JournalStreamReader(self.options)
        return StreamRefusal()

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Raise ``OptionError``."""
        del schema, overwrite
        text = "regent writes streams with write_once in foreachBatch"
        raise OptionError(f"{text}; or use the format kafka, {CONNECTOR}")


class StreamRefusal(DataSourceStreamReader):
    """Raises in its first call: Spark 4.3 hides the error of a ``streamReader`` that raises."""

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Raise ``OptionError``."""
        raise OptionError(f"regent reads no streams of topics: use the format kafka, {CONNECTOR}")

    def read(self, partition: InputPartition) -> NoReturn:
        """Never called."""
        raise AssertionError(partition)


def register(spark: SparkSession) -> None:
    """Make the format ``regent`` known to a session, where Spark does not find it by itself."""
    spark.dataSource.register(RegentDataSource)


def write_once(frame: DataFrame, number: int, options: Mapping[str, str]) -> None:
    """Write the rows of batch ``number`` of a query, unless they are already written.

    For ``foreachBatch``, or for batches that the caller numbers upwards. The options are
    ``kafka.bootstrap.servers``, ``topic``, ``kafka.transactional.id`` and other ``kafka.*``. The
    transactional id belongs to one query at a time: another one that uses it ends the transaction
    of the first. A streaming query with a new checkpoint is another query: its numbers count from
    the start. Consumers with ``isolation.level=read_committed`` see the batch when it is complete.

    One task sends all rows: the columns ``value``, ``key``, ``partition`` and ``headers``; others
    are ignored. It has ``kafka.transaction.timeout.ms`` (60000) for them. Brokers forget the number
    after ``offsets.retention.minutes``, seven days, without a batch. When it fails, with an error
    of Spark, write the same batch again. Raises ``OptionError``.
    """
    options = {**options, BATCH_NUMBER: str(number)}
    write_options(options)  # an error inside of Spark's would have many lines
    register(frame.sparkSession)
    writer = frame.repartition(1).write.format(RegentDataSource.name()).options(**options)
    writer.mode("append").save()
