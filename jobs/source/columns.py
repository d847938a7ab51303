"""The columns of records, named and typed as in Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
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
from regent.records.record import read_records, read_varint, signed, value_of
from regent.records.record_batch import BatchHeader

Payload: TypeAlias = tuple[BatchHeader, bytes]
"""The header of a batch, and its records, decompressed."""

_MAX_BYTES: Final = 2**31 - 1  # as Arrow's binary columns can hold
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


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The input of a task: a partition from ``start`` to before ``end``, in its log."""

    partition: TopicPartition
    start: int
    end: int
    directory: str


def record_schema(*, include_headers: bool) -> StructType:
    """Return the columns of a read without a selection."""
    return _WITH_HEADERS if include_headers else _COLUMNS


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form of a requested schema, which may have fewer columns than a record.

    Raises ``OptionError`` for a column that a record does not have, or has with another type.
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


# --- decoding -------------------------------------------------------------------------------------


def decode(payloads: Sequence[Payload], wanted: OffsetRange, schema: pa.Schema) -> pa.RecordBatch:
    """Return the records of the batches inside a range, with the columns of ``schema``.

    Raises ``ValueError`` if records are not well-formed.
    """
    if sum(len(data) for _, data in payloads) > _MAX_BYTES:
        raise ValueError("too many bytes of records at once")
    columns: dict[str, list[Any]] = {name: [] for name in _WITH_HEADERS.names}
    has_values, has_headers = ("value" in schema.names), ("headers" in schema.names)
    for header, data in payloads:
        kind = int(header.stamps_append_time)
        for start, end, delta_ms, delta, key, value_at in read_records(data, header.record_count):
            offset = header.base_offset + delta
            if not wanted.start <= offset < wanted.end:
                continue
            time_ms = header.max_timestamp if kind else header.base_timestamp + delta_ms
            columns["key"].append(key)
            columns["offset"].append(offset)
            columns["timestamp"].append(1000 * time_ms)
            columns["timestampType"].append(kind)
            if has_values:
                columns["value"].append(value_of(data, value_at, end))
            if has_headers:
                columns["headers"].append(_headers(data, start, end))
    count = len(columns["offset"])
    columns["topic"], columns["partition"] = ([part] * count for part in wanted.partition)
    try:
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
    except (pa.ArrowInvalid, OverflowError) as error:
        raise ValueError(f"an impossible number: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(data: bytes, start: int, end: int) -> list[dict[str, Any]] | None:
    """Return the headers of the record there."""
    rows: list[dict[str, Any]] = []
    try:
        _, at = read_varint(data, start)
        _, at = read_varint(data, at + 1)  # after the attributes
        _, at = read_varint(data, at)
        for _ in ("key", "value"):
            _, at = _field(data, at)
        count, at = read_varint(data, at)
        for _ in range(signed(count)):
            key, at = _field(data, at)
            value, at = _field(data, at)
            if at > end:
                break
            rows.append({"key": (key or b"").decode(errors="replace"), "value": value})
    except IndexError:
        at = end + 1
    if at > end:
        raise ValueError(f"the headers of the record at {start} exceed it")
    return rows or None


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    number, at = read_varint(data, at)
    size = signed(number)
    return None if size < 0 else data[at : at + size], at + max(size, 0)
