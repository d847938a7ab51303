"""Reads through the Kafka protocol, with librdkafka, from any Kafka cluster.

librdkafka follows changes of leaders. While a partition has no leader, no records arrive. Only
committed transactions are read, unless ``isolation.level`` says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPosition

from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.jobs.source.columns import record_batch
from regent.jobs.source.offsets import OffsetRange
from regent.jobs.source.options import LATEST, OptionError, ReadOptions, Subscription

T = TypeVar("T")

_ROWS: Final = 10_000  # in a record batch for Spark
_POLL_S: Final = 0.1  # how long such a batch may take to fill
_REQUEST_S: Final = 10.0
_PATIENCE_S: Final = 60.0  # without a record or an answer: time for the election of a leader
_NEW_TOPIC_S: Final = 2.0  # time until every broker knows it
_PAUSE_S: Final = 0.2
_DEFAULTS: Final = {"fetch.wait.max.ms": 100, "queued.max.messages.kbytes": 32 * 1024}
_FIXED: Final = {
    "group.id": "regent-data-source",  # librdkafka requires it; it is not used
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "log_level": 0,  # problems are reported as errors
}


class BrokersError(RegentError):
    """The brokers did not answer in time; the message ends with their last error."""


class KafkaPort:
    """One consumer, which no other thread or process uses."""

    def __init__(self, options: ReadOptions) -> None:
        """Make no connection yet. Raises ``OptionError`` for settings of librdkafka."""
        self._report_data_loss = options.report_data_loss
        self._servers = options.kafka["bootstrap.servers"]
        self._trouble = "no error"
        reset = {"auto.offset.reset": "error" if options.fail_on_data_loss else "earliest"}
        on_error = {"error_cb": self._note_trouble}
        try:
            self._consumer = Consumer({**_DEFAULTS, **options.kafka, **_FIXED, **reset, **on_error})
        except KafkaException as error:
            raise OptionError(f"kafka.*: {error.args[0].str()}") from None

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions to read, sorted. Raises ``OptionError`` if one does not exist."""

        def ask() -> list[TopicPartition]:
            topics = self._consumer.list_topics(timeout=_REQUEST_S).topics
            there = (TopicPartition(t, n) for t, topic in topics.items() for n in topic.partitions)
            return subscription.select(there, f"the cluster at {self._servers}")

        return self._retried(ask)

    def list_offsets(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset since a time: ``NO_OFFSET`` if there is none.

        The time may be ``EARLIEST`` or ``LATEST``: the log start offset, the last stable offset.
        """

        def ask() -> dict[TopicPartition, int]:
            wanted = [KafkaPosition(*p, time_ms) for p in partitions]
            found = self._consumer.offsets_for_times(wanted, timeout=_REQUEST_S) if wanted else []
            for position in found:
                if position.error is not None:
                    raise KafkaException(position.error)
            return {TopicPartition(p.topic, p.partition): p.offset for p in found}

        return self._retried(ask)

    def located(self, wanted: OffsetRange) -> OffsetRange:
        """Return the same range: librdkafka finds the leader."""
        return wanted

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order. Raises DataLossError and BrokersError."""
        self._consumer.assign([KafkaPosition(*wanted.partition, wanted.start)])
        position, deadline = wanted.start, time.monotonic() + _PATIENCE_S
        while position < wanted.end:
            polled = self._consumer.consume(_ROWS, _POLL_S)
            messages = [message for message in polled if message.error() is None]
            if messages:
                deadline = time.monotonic() + _PATIENCE_S
                position = max(position, (messages[-1].offset() or 0) + 1)
                yield _batch_of(messages, wanted, schema)
            if len(messages) < len(polled):
                events = (message for message in polled if message.error() is not None)
                position = max([position, *(self._end_of(event, wanted) for event in events)])
            if time.monotonic() > deadline:
                self._give_up(wanted, position)
                return

    def _end_of(self, event: Message, wanted: OffsetRange) -> int:
        """Return the offset that a read has reached with an event that is not a record."""
        error, partition = event.error(), wanted.partition
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            return event.offset() or 0  # beyond the last record there may be transaction markers
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._report_data_loss(f"{partition}: records from offset {wanted.start} on are gone")
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self._report_data_loss(f"{partition}: the topic is gone")
            return wanted.end
        self._note_trouble(error)
        return 0

    def _give_up(self, wanted: OffsetRange, position: int) -> None:
        end = self.list_offsets([wanted.partition], LATEST)[wanted.partition]
        text = f"{wanted.partition}: offsets {position} to {wanted.end - 1}"
        if end >= wanted.end:
            raise BrokersError(f"{text} did not arrive in {_PATIENCE_S:g} s: {self._trouble}")
        self._report_data_loss(f"{text} are gone, the log ends at {end}")

    def _retried(self, ask: Callable[[], T]) -> T:
        """Return the answer to a request; retry while a topic is new or elects a leader."""
        started = time.monotonic()
        while True:
            try:
                return ask()
            except OptionError:
                if time.monotonic() > started + _NEW_TOPIC_S:
                    raise
            except KafkaException as error:
                if time.monotonic() > started + _PATIENCE_S:
                    text = f"the brokers at {self._servers} did not answer"
                    raise BrokersError(f"{text}: {error.args[0].str()}") from None
            time.sleep(_PAUSE_S)

    def _note_trouble(self, error: KafkaError) -> None:
        self._trouble = error.str()


def _batch_of(
    messages: Sequence[Message], wanted: OffsetRange, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the messages inside a range."""

    def each(value_of: Callable[[Message], Any]) -> Callable[[pa.DataType], pa.Array]:
        return lambda kind: pa.array(list(map(value_of, messages)), kind)

    makers = {"key": each(Message.key), "value": each(Message.value), "headers": each(_headers_of)}
    makers["timestamp"] = each(lambda message: message.timestamp()[1] * 1000)
    makers["timestampType"] = each(lambda message: message.timestamp()[0] - 1)  # from 1 on
    offsets = np.array(list(map(Message.offset, messages)), np.int64)
    return record_batch(wanted, offsets, makers, schema)


def _headers_of(message: Message) -> list[dict[str, Any]] | None:
    headers = message.headers() or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs] or None
