"""Columns that can be written, and those that cannot."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from regent.jobs.source import RegentDataSource
from regent.jobs.source.options import OptionError
from regent.jobs.source.writer import ANY_PARTITION, Row, RowColumns, SendError

STRING, BINARY, INT = StringType(), BinaryType(), IntegerType()


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "topic", "complaint"),
    [
        (schema_of(key=STRING), "t", "no column value"),
        (schema_of(value=STRING), None, "neither a column nor the option topic"),
        (schema_of(value=INT), "t", "column value is int: it must be string or binary"),
        (schema_of(value=STRING, topic=BINARY), None, "topic is binary: it must be string"),
        (
            schema_of(value=STRING, partition=LongType()),
            "t",
            "column partition is bigint: it must be int",
        ),
        (
            schema_of(value=STRING, headers=MapType(STRING, BINARY)),
            "t",
            "it must be array<struct<key",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    schema: StructType, topic: str | None, complaint: str
):
    with pytest.raises(OptionError, match=complaint):
        RowColumns(schema, topic)


def test_the_option_overrides_the_column_and_other_columns_are_ignored():
    schema = schema_of(offset=LongType(), topic=STRING, value=STRING, partition=INT, key=BINARY)
    batch = pa.record_batch(
        {
            "offset": [5, 6],
            "topic": ["a", "b"],
            "value": ["x", None],
            "partition": pa.array([3, None], "int32"),
            "key": [None, b"k"],
        }
    )
    rows = list(RowColumns(schema, None).rows(batch))
    assert rows == [Row("a", 3, None, "x", []), Row("b", ANY_PARTITION, b"k", None, [])]
    assert [row.topic for row in RowColumns(schema, "t").rows(batch)] == ["t", "t"]


def test_rows_without_a_topic_and_other_modes_than_append_are_refused():
    batch = pa.record_batch({"value": [b"x"], "topic": pa.array([None], "string")})
    with pytest.raises(SendError, match="a row has no topic"):
        list(RowColumns(schema_of(value=BINARY, topic=STRING), None).rows(batch))
    with pytest.raises(OptionError, match="use the mode append"):
        RegentDataSource({}).writer(schema_of(value=BINARY), overwrite=True)
