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

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from regent.jobs.source.options import WriteOptions
from regent.jobs.source.writer import BatchWriter, RecordProducer, RowColumns, SendError

_QUERY_ID: Final = "sql.streaming.queryId"  # a local property of the jobs of a streaming query
_TIMEOUT_S: Final = 60.0


class OnceWriter(BatchWriter):
    """The write of one batch, which has one partition."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of the only task. Raises ``SendError``."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        send_once(iterator, self._columns, self._options, query_id or "")
        return WriterCommitMessage()


def send_once(
    batches: Iterator[pa.RecordBatch],
    columns: RowColumns,
    options: WriteOptions,
    query_id: str,
) -> None:
    """Send the rows of a batch in one transaction, unless it is done. Raises ``SendError``."""
    number = options.batch or 0
    name = options.kafka["transactional.id"]
    group = {"group.id": f"{name}-batches", "enable.auto.commit": False, "log_level": 0}
    place = KafkaPosition(options.topic or "", 0)
    producer = RecordProducer(options.kafka)
    client = producer.client
    with closing(Consumer({**options.kafka, **group})) as consumer:
        try:
            client.init_transactions(_TIMEOUT_S)
            done = consumer.committed([place], _TIMEOUT_S)[0]
            if done.error is not None:
                raise KafkaException(done.error)
            if done.metadata == query_id and done.offset > number:
                return
            client.begin_transaction()
            try:
                producer.send_all(batches, columns)
                mark = KafkaPosition(place.topic, 0, number + 1, query_id)
                client.send_offsets_to_transaction(
                    [mark], consumer.consumer_group_metadata(), _TIMEOUT_S
                )
                client.commit_transaction(_TIMEOUT_S)
            except BaseException:
                with suppress(KafkaException):
                    client.abort_transaction(_TIMEOUT_S)
                raise
        except KafkaException as error:
            text = f"batch {number} of {name} into {options.topic}"
            raise SendError(f"{text}: {error.args[0].str()}") from None
