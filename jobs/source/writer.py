"""Writes rows into topics: *at least once*, as Spark's Kafka connector does.

Each task sends its rows with an idempotent producer and waits until all in-sync replicas have them.
Nothing is lost, but when a task fails, its next attempt sends rows again. ``exactly_once`` writes
in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from regent.core.errors import RegentError
from regent.jobs.source.options import OptionError, WriteOptions

ANY_PARTITION: Final = -1
_POLL_S: Final = 0.1
_FULL_S: Final = 0.01  # pause until there may be room for a record
_TYPES: Final = {
    "topic": ("string",),
    "partition": ("int",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_DEFAULTS: Final = {
    "linger.ms": 20,
    "partitioner": "murmur2_random",  # as in Java's producer, so that a key keeps its partition
}
_FIXED: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "delivery.report.only.error": True,
    "log_level": 0,
}


class SendError(RegentError):
    """A record could not be sent, or was not acknowledged."""


class RowColumns:
    """The columns of a DataFrame by meaning; others are ignored, as by Spark's connector."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        """Raises ``OptionError`` if value or topic is missing, or a column has a wrong type."""
        types = {f.name: f.dataType.simpleString() for f in schema if f.name in _TYPES}
        for name, found in types.items():
            if found not in _TYPES[name]:
                allowed = " or ".join(_TYPES[name])
                raise OptionError(f"column {name} is {found}: it must be {allowed}")
        if "value" not in types:
            raise OptionError("there is no column value to write")
        if topic is None and "topic" not in types:
            raise OptionError("neither a column nor the option topic says where to write")
        self._topic = topic
        self._names = list(types)

    def rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yield the rows of an Arrow batch, as ``Producer.produce`` takes them.

        Raises ``SendError`` for one without a topic.
        """
        nothing: list[Any] = [None] * batch.num_rows
        columns = dict.fromkeys(_TYPES, nothing)
        columns |= {name: batch.column(name).to_pylist() for name in self._names}
        if self._topic is not None:  # it takes precedence over the column, as in the connector
            columns["topic"] = [self._topic] * batch.num_rows
        for topic, partition, key, value, headers in zip(*columns.values(), strict=True):
            if not topic:
                raise SendError("a row has no topic: NULL in column topic")
            yield {
                "topic": topic,
                "partition": ANY_PARTITION if partition is None else partition,
                "key": key,
                "value": value,
                "headers": [(h["key"], h["value"]) for h in headers] if headers else None,
            }


class RecordProducer:
    """An idempotent producer with ``acks=all``."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Make no connection yet; ``settings`` are librdkafka's. Raises ``OptionError``."""
        self._failure = ""
        callback = {"on_delivery": self._note_failure}
        try:
            self.client = Producer({**_DEFAULTS, **settings, **_FIXED, **callback})
        except KafkaException as error:
            raise OptionError(f"kafka.*: {error.args[0].str()}") from None

    def send_all(self, batches: Iterator[pa.RecordBatch], columns: RowColumns) -> None:
        """Send all rows, and wait until they are acknowledged. Raises ``SendError``.

        After any failure unsent rows are dropped, else a failed task would continue to send.
        """
        try:
            for batch in batches:
                for row in columns.rows(batch):
                    self._send(row)
            while not self._failure and self.client.flush(_POLL_S):
                continue
            self._check()
        except BaseException:
            self.client.purge()
            self.client.flush(_POLL_S)
            raise

    def _send(self, row: Mapping[str, Any]) -> None:
        """Send a row; wait while too many are in flight."""
        while True:
            self._check()
            try:
                self.client.produce(**row)
            except BufferError:
                self.client.poll(_FULL_S)
            except KafkaException as error:
                raise SendError(f"{row['topic']}: {error.args[0].str()}") from None
            else:
                return

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and not self._failure:
            number = message.partition()  # None: no partition was chosen
            place = message.topic() if number is None else f"{message.topic()}-{number}"
            self._failure = f"{place}: {error.str()}"

    def _check(self) -> None:
        if self._failure:
            raise SendError(self._failure)


class BatchWriter(DataSourceArrowWriter):
    """One write: each task sends its rows."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that cannot be written."""
        self._options = options
        self._columns = RowColumns(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Raises ``SendError``."""
        RecordProducer(self._options.kafka).send_all(iterator, self._columns)
        return WriterCommitMessage()
