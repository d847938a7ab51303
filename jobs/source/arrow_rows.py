"""Converts messages of librdkafka to columns, without an object for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
)

from regent.core.model import TopicPartition
from regent.jobs.source.columns import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE

_TIMESTAMP_TYPES: Final = {
    TIMESTAMP_NOT_AVAILABLE: NO_TIMESTAMP_TYPE,
    TIMESTAMP_CREATE_TIME: CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME: LOG_APPEND_TIME,
}


def message_batch(
    messages: Sequence[Message], topic_partition: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the messages of one partition with the columns of ``schema``."""
    arrays = [_BUILDERS[field.name](messages, topic_partition, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with the same value in all its rows."""
    return pa.repeat(pa.scalar(value, kind), count)


def _keys(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    return pa.array(list(map(Message.key, messages)), kind)


def _values(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    return pa.array(list(map(Message.value, messages)), kind)


def _topics(
    messages: Sequence[Message], topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    return constant(topic_partition.topic, kind, len(messages))


def _partitions(
    messages: Sequence[Message], topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    return constant(topic_partition.partition, kind, len(messages))


def _offsets(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    return pa.array(list(map(Message.offset, messages)), kind)


def _timestamps(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    times = map(Message.timestamp, messages)
    return pa.array([time_ms * 1000 for _, time_ms in times], pa.int64()).cast(kind)


def _timestamp_types(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    times = map(Message.timestamp, messages)
    return pa.array([_TIMESTAMP_TYPES[type_] for type_, _ in times], kind)


def _headers(
    messages: Sequence[Message], _topic_partition: TopicPartition, kind: pa.DataType
) -> pa.Array:
    rows: list[list[dict[str, Any]] | None] = []
    for headers in map(Message.headers, messages):
        pairs = headers.items() if isinstance(headers, dict) else headers or ()
        rows.append([{"key": key, "value": value} for key, value in pairs] or None)
    return pa.array(rows, kind)


_BUILDERS: Final[
    Mapping[str, Callable[[Sequence[Message], TopicPartition, pa.DataType], pa.Array]]
] = {
    "key": _keys,
    "value": _values,
    "topic": _topics,
    "partition": _partitions,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
