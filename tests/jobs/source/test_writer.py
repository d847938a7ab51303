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
from regent.jobs.source.writer import ANY_PARTITION, RecordProducer, RowColumns, SendError

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
    first = {"topic": "a", "partition": 3, "key": None, "value": "x", "headers": None}
    other = {"topic": "b", "partition": ANY_PARTITION, "key": b"k", "value": None, "headers": None}
    assert rows == [first, other]
    assert [row["topic"] for row in RowColumns(schema, "t").rows(batch)] == ["t", "t"]


def test_a_record_that_was_not_sent_is_named_by_its_topic():
    producer = RecordProducer({"bootstrap.servers": "127.0.0.1:9", "message.timeout.ms": "200"})
    rows = iter([pa.record_batch({"value": [b"x"]})])
    with pytest.raises(SendError, match=r"^orders: Local: Message timed out$"):
        producer.send_all(rows, RowColumns(schema_of(value=BINARY), "orders"))


def test_rows_without_a_topic_and_other_modes_than_append_are_refused():
    batch = pa.record_batch({"value": [b"x"], "topic": pa.array([None], "string")})
    with pytest.raises(SendError, match="a row has no topic"):
        list(RowColumns(schema_of(value=BINARY, topic=STRING), None).rows(batch))
    with pytest.raises(OptionError, match="use the mode append"):
        RegentDataSource({}).writer(schema_of(value=BINARY), overwrite=True)
