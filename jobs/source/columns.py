"""The columns of a record, named and typed as in Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from regent.core.model import TopicPartition
from regent.jobs.source.options import OptionError

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1  # librdkafka's numbers are greater by one

_HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_COLUMNS: Final = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
_WITH_HEADERS: Final = StructType([*_COLUMNS.fields, StructField("headers", _HEADERS)])


def record_schema(*, include_headers: bool) -> StructType:
    """Return the columns of a read without a selection."""
    return _WITH_HEADERS if include_headers else _COLUMNS


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form of a requested schema, which may have fewer columns.

    Raises ``OptionError`` for a column that records do not have, or have with another type.
    """
    known = {field.name: field.dataType for field in _WITH_HEADERS}
    for field in schema:
        if field.name not in known:
            names = ", ".join(known)
            raise OptionError(f"a record has no column {field.name!r}: it has {names}")
        if field.dataType != known[field.name]:
            wanted, real = field.dataType.simpleString(), known[field.name].simpleString()
            raise OptionError(f"column {field.name} of a record is {real}, not {wanted}")
    return to_arrow_schema(schema, timezone="UTC")


def columns_schema(*names: str) -> pa.Schema:
    """Return the Arrow schema of the columns with these names."""
    return arrow_schema(StructType([_WITH_HEADERS[name] for name in names]))


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with the same value in all its rows."""
    return pa.repeat(pa.scalar(value, kind), count)


def message_batch(
    messages: Sequence[Message], topic_partition: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the messages of one partition with the columns of ``schema``."""
    arrays = [_column(f.name, f.type, messages, topic_partition) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    name: str, kind: pa.DataType, messages: Sequence[Message], topic_partition: TopicPartition
) -> pa.Array:
    match name:
        case "key" | "value" | "offset":
            return pa.array(list(map(getattr(Message, name), messages)), kind)
        case "topic" | "partition":
            return constant(getattr(topic_partition, name), kind, len(messages))
        case "timestamp":
            times = map(Message.timestamp, messages)
            return pa.array([time_ms * 1000 for _, time_ms in times], pa.int64()).cast(kind)
        case "timestampType":
            times = map(Message.timestamp, messages)
            return pa.array([type_ - 1 for type_, _ in times], kind)
        case "headers":
            return pa.array(list(map(_headers, messages)), kind)
        case _:
            raise AssertionError(name)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    headers = message.headers() or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs] or None
