"""Writes a numbered batch of rows into a topic exactly once, and visible all at once.

One task sends all rows in one transaction (KIP-98). The same transaction commits the number of the
batch, as the offset of a consumer group that nobody is in. So the rows and the number become
visible together, or never. A repeated batch finds its number, and does nothing.

After any failure the next try is right. It begins with ``init_transactions``: brokers end the
transaction of the try before and refuse its requests from then on, so what it has committed is
known, and a task that still runs somewhere cannot commit. Rows that a repeated batch computes in
another way do no harm: of an earlier try all rows are visible, or none.

Spark brings the rows to the task by a shuffle. Its disks are those of the executors, and it
computes lost parts again; then the task begins again, too. No other place keeps rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from regent.core.errors import RegentError
from regent.jobs.source.options import OptionError, WriteOptions

BATCHES: Final = "-batches"
"""The end of the name of a group whose offset, of partition 0, is the number of a batch."""

_ANY_PARTITION: Final = -1
_POLL_S: Final = 0.1
_POLLS: Final = 20
_FULL_S: Final = 0.01  # pause until there may be room for a record
_TIMEOUT_S: Final = 60.0
_QUERY_ID: Final = "sql.streaming.queryId"  # a local property of the jobs of a streaming query
_TYPES: Final = {
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


class OnceWriter(DataSourceArrowWriter):
    """The write of one batch, which has one partition."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises ``OptionError`` if value is missing, or a column has a wrong type."""
        types = {f.name: f.dataType.simpleString() for f in schema if f.name in _TYPES}
        for name, found in types.items():
            if found not in _TYPES[name]:
                allowed = " or ".join(_TYPES[name])
                raise OptionError(f"column {name} is {found}: it must be {allowed}")
        if "value" not in types:
            raise OptionError("there is no column value to write")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of the only task. Raises ``SendError``."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        send_once(iterator, self._options, query_id or "")
        return WriterCommitMessage()


def send_once(batches: Iterable[pa.RecordBatch], options: WriteOptions, query_id: str) -> None:
    """Send the rows of a batch in one transaction, unless it is done. Raises ``SendError``."""
    number, name = options.number, options.kafka["transactional.id"]
    group = {"group.id": f"{name}{BATCHES}", "enable.auto.commit": False, "log_level": 0}
    place = KafkaPosition(options.topic, 0)
    failures = _Failures()

    try:
        callback = {"on_delivery": failures.on_delivery, "error_cb": failures.on_error}
        client = Producer({**_DEFAULTS, **options.kafka, **_FIXED, **callback})
        with closing(Consumer({**options.kafka, **group})) as consumer:
            client.init_transactions(_TIMEOUT_S)
            done = consumer.committed([place], _TIMEOUT_S)[0]
            if done.error is not None:
                raise KafkaException(done.error)
            if done.metadata == query_id and done.offset > number:
                return
            client.begin_transaction()
            is_committed = False
            try:
                _send_all(client, batches, options.topic, failures)
                mark = KafkaPosition(place.topic, 0, number + 1, query_id)
                client.send_offsets_to_transaction(
                    [mark], consumer.consumer_group_metadata(), _TIMEOUT_S
                )
                client.commit_transaction(_TIMEOUT_S)
                is_committed = True
            except (KafkaException, SendError) as error:
                failures.await_reason(client, error)
                raise
            finally:
                if not is_committed:
                    with suppress(KafkaException):  # rows that are not sent yet never will be
                        client.abort_transaction(_TIMEOUT_S)
    except (KafkaException, SendError) as error:
        text = f"batch {number} of {name} into {options.topic}"
        told = error.args[0]
        said = told if isinstance(told, str) else f"{text}: {told.str()}"
        raise SendError("; ".join([said, *failures.reasons])) from None


class _Failures:
    """What librdkafka tells of records that were not sent, and why a producer cannot go on."""

    def __init__(self) -> None:
        self.of_records: list[str] = []
        self.reasons: list[str] = []

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a record that was not sent."""
        if error is not None:
            of = message.partition()  # None: no partition was chosen
            where = message.topic() if of is None else f"{message.topic()}-{of}"
            self.of_records.append(f"{where}: {error.str()}")

    def on_error(self, error: KafkaError) -> None:
        """Note why the producer cannot go on; other errors are repaired by librdkafka."""
        if error.fatal():
            self.reasons.append(error.str())

    def await_reason(self, client: Producer, error: KafkaException | SendError) -> None:
        """Wait for the reason: a call that fails may say "fatal error" and no more."""
        told = error.args[0]
        is_fatal = isinstance(told, KafkaError) and told.code() == KafkaError._FATAL
        for _ in range(_POLLS if is_fatal else 1):
            if not self.reasons:
                client.poll(_POLL_S)

    def check(self) -> None:
        """Raise ``SendError`` if a record was not sent."""
        if self.of_records:
            raise SendError(self.of_records[0])


def _send_all(
    client: Producer, batches: Iterable[pa.RecordBatch], topic: str, failures: _Failures
) -> None:
    """Send all rows, and wait until they are acknowledged. Raises ``SendError``."""
    for row in chain.from_iterable(_rows(batch, topic) for batch in batches):
        failures.check()
        while True:
            try:
                client.produce(**row)
                break
            except BufferError:
                client.poll(_FULL_S)
                failures.check()
    while client.flush(_POLL_S):
        failures.check()
    failures.check()


def _rows(batch: pa.RecordBatch, topic: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch, as ``Producer.produce`` takes them."""
    nothing: list[Any] = [None] * batch.num_rows
    columns = dict.fromkeys(_TYPES, nothing)
    columns |= {name: batch[name].to_pylist() for name in _TYPES if name in batch.schema.names}
    for partition, key, value, headers in zip(*columns.values(), strict=True):
        yield {
            "topic": topic,
            "partition": _ANY_PARTITION if partition is None else partition,
            "key": key,
            "value": value,
            "headers": [(h["key"], h["value"]) for h in headers] if headers else None,
        }
