"""The columns of a record, named and typed as in Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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

from regent.jobs.source.offsets import OffsetRange
from regent.jobs.source.options import OptionError

Makers: TypeAlias = Mapping[str, Callable[[pa.DataType], pa.Array]]
"""By the name of a column: what makes it, of an Arrow type."""

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


def record_batch(
    wanted: OffsetRange, offsets: npt.NDArray[np.int64], makers: Makers, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the records inside a range; only the columns of ``schema`` are made.

    ``offsets`` are ascending, and ``makers`` have the other columns, outside the range as well.
    """
    topic, partition = wanted.partition
    known: Makers = {
        "topic": lambda kind: pa.repeat(pa.scalar(topic, kind), len(offsets)),
        "partition": lambda kind: pa.repeat(pa.scalar(partition, kind), len(offsets)),
        "offset": lambda kind: pa.array(offsets, kind),
        **makers,
    }
    arrays = [known[field.name](field.type) for field in schema]
    first, end = np.searchsorted(offsets, (wanted.start, wanted.end))
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(first, end - first)
