"""Writes DataFrames into topics: at least once, or exactly once through a staging directory.

By default each task sends its rows with an idempotent producer and ``acks=all``. Nothing is lost,
but after a failure the next attempt sends rows again. That is the guarantee of Spark's Kafka sink:
*at least once*.

With ``stagingLocation``, a directory that driver and executors share, tasks only stage their rows;
the driver's commit sends the rows of the attempts that succeeded, *exactly once*, even if tasks ran
twice or failed. ``jobs.source.staged_commit`` has the method and its limits.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from regent.jobs.source.options import OptionError, WriteOptions
from regent.jobs.source.outgoing import RecordProducer, RowColumns
from regent.jobs.source.staged_commit import StagedCommit

_INCOMING: Final = "incoming"
_NO_QUERY: Final = "stream"
_QUERY_ID: Final = "sql.streaming.queryId"  # a local property of the jobs of a query


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):
    """The result of a task, and its streaming query: rows sent, or staged in ``path``."""

    count: int
    path: Path | None
    query_id: str | None


class _Writer:
    """The work of both writers in a task."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = RowColumns(schema, options.topic)

    def _write(self, batches: Iterator[pa.RecordBatch], name: str) -> TaskRows:
        if self._options.staging is not None:
            return _stage(batches, self._options.staging / _INCOMING / name)
        return self._send(batches)

    def _send(self, batches: Iterator[pa.RecordBatch]) -> TaskRows:
        producer, count = RecordProducer(self._options.kafka), 0
        try:
            for batch in batches:
                for row in self._columns.rows(batch):
                    producer.send(row)
                count += batch.num_rows
            producer.finish()
        except BaseException:
            producer.abandon()  # else a failed task would continue to send
            raise
        return TaskRows(count, None, _query_id())

    def _commit(self, messages: list[WriterCommitMessage | None], key: str) -> None:
        rows = [message for message in messages if isinstance(message, TaskRows)]
        if self._options.staging is not None and rows:
            # Another query with an empty checkpoint counts from 0 again.
            directory = self._options.staging / (rows[0].query_id or "")
            commit = StagedCommit(directory, key, self._options.kafka, self._columns)
            commit.run([row.path for row in rows if row.path is not None])

    def _drop(self, name: str) -> None:
        """Drop the staged rows under a name, including those of tasks that failed or ran twice."""
        if self._options.staging is not None:
            shutil.rmtree(self._options.staging / _INCOMING / name, ignore_errors=True)


class BatchWriter(DataSourceArrowWriter, _Writer):
    """One write. With ``commitId`` it is done once, even if it is repeated."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises ``OptionError`` for columns that cannot be written."""
        if overwrite:
            raise OptionError("records cannot be overwritten: use the mode append")
        super().__init__(options, schema)
        self._key = f"write-{options.commit_id or uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Send or stage the rows of one task. Raises ``SendError``."""
        return self._write(iterator, self._key)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send the staged rows."""
        self._commit(messages, self._key)
        self._drop(self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows; sent rows cannot be removed."""
        self._drop(self._key)


class StreamWriter(DataSourceStreamArrowWriter, _Writer):
    """The micro-batches of a query, by their number in the query's checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        """Send or stage the rows of one task. Raises ``SendError``."""
        return self._write(iterator, _query_id() or _NO_QUERY)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Send the staged rows of this micro-batch."""
        self._commit(messages, f"batch-{batch_id}")
        self._drop_of_query(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Drop the staged rows; sent rows cannot be removed."""
        del batch_id
        self._drop_of_query(messages)

    def _drop_of_query(self, messages: list[WriterCommitMessage | None]) -> None:
        for query_id in {row.query_id for row in messages if isinstance(row, TaskRows)}:
            self._drop(query_id or _NO_QUERY)


def _stage(batches: Iterator[pa.RecordBatch], directory: Path) -> TaskRows:
    """Write the rows of one task to a file of its own."""
    first = next(batches, None)
    if first is None:
        return TaskRows(0, None, _query_id())
    directory.mkdir(parents=True, exist_ok=True)
    path, count = directory / f"{uuid.uuid4().hex}.arrow", 0
    try:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema) as rows:
            for batch in chain((first,), batches):
                rows.write_batch(batch)
                count += batch.num_rows
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return TaskRows(count, path, _query_id())


def _query_id() -> str | None:
    """Return the id of the task's streaming query, None if it has none."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_QUERY_ID)
