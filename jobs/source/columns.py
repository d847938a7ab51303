"""The columns of records, named and typed as in Spark's Kafka connector.

Records of magic 2 are decoded into columns, thousands at a time. Mirrors
``org.apache.kafka.common.record.DefaultRecord``. Python reads only the lengths of records in
sequence. All other numbers are decoded with numpy, and Arrow slices keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
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
from regent.records.record import read_varint, signed
from regent.records.record_batch import BatchHeader

Numbers: TypeAlias = npt.NDArray[np.int64]
Payload: TypeAlias = tuple[BatchHeader, bytes]
"""The header of a batch, and its records, decompressed."""

LARGEST_MS: Final = (2**63 - 1) // 1000
"""The last time that Spark can hold: it has microseconds. Kafka takes later ones."""

_MAX_VARINT_BYTES: Final = 10
_MAX_BYTES: Final = 2**31 - 1  # as Arrow's binary columns can hold
_PADDING: Final = bytes(_MAX_VARINT_BYTES)  # so that a varint can be decoded at the very end
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

    The batches are sorted by offset. Raises ``ValueError`` if records are not well-formed.
    """
    data = b"".join((*(records for _, records in payloads), _PADDING))
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{len(data)} bytes of records at once")
    starts = _record_starts(payloads, data)
    counts = [header.record_count for header, _ in payloads]

    def each(field: str) -> Numbers:
        """Return a field of the batch header for each record."""
        values = [getattr(header, field) for header, _ in payloads]
        return np.repeat(np.array(values, np.int64), counts)

    time_deltas, at = _varints(data, starts + 1)  # after the attributes
    offset_deltas, at = _varints(data, at)
    offsets = each("base_offset") + offset_deltas
    key_sizes, keys_at = _varints(data, at)
    value_sizes, values_at = _varints(data, keys_at + np.maximum(key_sizes, 0))
    headers_at = values_at + np.maximum(value_sizes, 0)

    def times() -> Numbers:
        is_appended = each("stamps_append_time") > 0
        times_ms = each("base_timestamp") + time_deltas
        times_ms = np.where(is_appended, each("max_timestamp"), times_ms)
        return 1000 * times_ms.clip(-LARGEST_MS, LARGEST_MS)

    topic, partition = wanted.partition
    makers: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "key": lambda kind: _slices(data, keys_at, key_sizes, kind),
        "value": lambda kind: _slices(data, values_at, value_sizes, kind),
        "topic": lambda kind: pa.repeat(pa.scalar(topic, kind), len(offsets)),
        "partition": lambda kind: pa.repeat(pa.scalar(partition, kind), len(offsets)),
        "offset": lambda kind: pa.array(offsets, kind),
        "timestamp": lambda kind: pa.array(times(), pa.int64()).cast(kind),
        "timestampType": lambda kind: pa.array(each("stamps_append_time"), pa.int64()).cast(kind),
        "headers": lambda kind: pa.array([_headers(data, at) for at in headers_at.tolist()], kind),
    }
    arrays = [makers[field.name](field.type) for field in schema]
    first, end = np.searchsorted(offsets, (wanted.start, wanted.end))
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(first, end - first)


def _record_starts(payloads: Sequence[Payload], data: bytes) -> Numbers:
    """Return the start of each record's body.

    Sizes of one or two bytes, which are nearly all, are read in place: calls would take longer.
    """
    starts: list[int] = []
    at = 0
    for header, records in payloads:
        before, end = len(starts), at + len(records)
        while at < end:
            size = data[at]
            at += 1
            if size > 127:
                more = data[at]
                at += 1
                size += (more << 7) - 128
                if more > 127:
                    size, at = read_varint(data, at - 2)
            starts.append(at)
            at += size >> 1
            if size & 1:
                text = f"a record of the batch at {header.base_offset} has a negative length"
                raise ValueError(text)
        if at != end or len(starts) - before != header.record_count:
            text = f"{len(starts) - before} records instead of {header.record_count}"
            raise ValueError(f"the batch at {header.base_offset} has {text}")
    return np.array(starts, np.int64)


def _varints(data: bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return the zigzag numbers at these positions, and their ends."""
    _check(data, at)
    numbers = np.frombuffer(data, np.uint8)
    first = numbers[at]
    value = (first & 0x7F).astype(np.uint64)
    end = at + 1
    unfinished = np.flatnonzero(first >= 0x80)
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        if not len(unfinished):
            break
        byte = numbers[end[unfinished]]
        value[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        end[unfinished] += 1
        unfinished = unfinished[byte >= 0x80]
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), end


def _check(data: bytes, at: Numbers) -> None:
    # A wrong size leads out of the records; the padding has a number at their end.
    if len(at) and not 0 <= at.min() <= at.max() <= len(data) - _MAX_VARINT_BYTES:
        raise ValueError("a record's fields do not fit into it")


def _slices(data: bytes, at: Numbers, sizes: Numbers, kind: pa.DataType) -> pa.Array:
    """Return a binary column of slices of the data; a size of -1 is null."""
    ends = at + np.maximum(sizes, 0)
    _check(data, ends)
    bounds = np.column_stack((at, ends)).astype(np.int32).ravel()
    if (np.diff(bounds) < 0).any():
        raise ValueError("records overlap")
    # Every second slice is one of ours; the others are the gaps between them.
    pieces = pa.BinaryArray.from_buffers(
        kind, max(len(bounds) - 1, 0), [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    wanted = pa.array(np.arange(0, len(bounds), 2), mask=sizes < 0)
    return pieces.take(wanted)


def _headers(data: bytes, at: int) -> list[dict[str, Any]] | None:
    rows: list[dict[str, Any]] = []
    try:
        count, at = read_varint(data, at)
        for _ in range(signed(count)):
            key, at = _field(data, at)
            value, at = _field(data, at)
            rows.append({"key": (key or b"").decode(errors="replace"), "value": value})
    except IndexError:
        raise ValueError("the headers of a record do not fit into it") from None
    return rows or None


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    number, at = read_varint(data, at)
    size = signed(number)
    return None if size < 0 else data[at : at + size], at + max(size, 0)
