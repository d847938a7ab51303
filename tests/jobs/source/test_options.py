"""Options and columns are checked first, and every error names one."""

import re

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
from regent.jobs.source.options import (
    OptionError,
    Subscription,
    read_options,
    write_options,
)

LOGS = {"logDirs": "/x"}
TOPIC = {**LOGS, "subscribe": "t"}
SERVERS = {"kafka.bootstrap.servers": "h:1"}
WRITE = {**SERVERS, "batchNumber": "3", "topic": "t", "kafka.transactional.id": "q"}


def test_defaults_are_those_of_sparks_connector():
    options = read_options(TOPIC)
    assert options.subscription == Subscription(topics=("t",))
    assert options.fail_on_data_loss
    assert not options.include_headers


def test_all_options_can_be_set():
    options = read_options(
        {
            "LogDirs": "/x, /y",
            "subscribePattern": "orders.*",
            "failOnDataLoss": "False",
            "includeHeaders": "TRUE",
            "includeUncommitted": "true",
        }
    )
    assert options.subscription == Subscription(pattern="orders.*")
    assert options.log_dirs == ("/x", "/y")
    assert options.include_uncommitted
    assert not options.fail_on_data_loss
    assert options.include_headers


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "regent reads logDirs, the log directories of brokers, or journals"),
        (
            {**SERVERS, "subscribe": "t"},
            "to read through brokers use the format kafka, Spark",
        ),
        ({**TOPIC, **SERVERS}, "use the format kafka, Spark's Kafka connector (org.apache.spark"),
        (LOGS, "exactly one of subscribe, subscribePattern"),
        ({**TOPIC, "subscribePattern": "t"}, "exactly one of"),
        ({**TOPIC, "minPartitions": "5"}, "regent has no option 'minpartitions'; it has subscribe"),
        ({**TOPIC, "minPartitions": "5"}, "Spark's Kafka connector (org.apache.spark:spark-sql-ka"),
        ({**TOPIC, "failOnDataLoss": "no"}, "failOnDataLoss='no' is neither true nor false"),
        ({**LOGS, "subscribe": " "}, "subscribe is empty"),
        ({**LOGS, "subscribe": ","}, "subscribe=',' has no name"),
        ({"subscribe": "t", "logDirs": ","}, "logDirs=',' has no name"),
        ({**LOGS, "subscribePattern": "("}, "subscribePattern='('"),
    ],
)
def test_invalid_options_of_a_read_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)) as raised:
        read_options(options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({**WRITE, "kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({**SERVERS, "topic": "t"}, "only with write_once: use the format kafka, Spark's Kafka co"),
        (
            {**SERVERS, "subscribe": "t"},
            "regent has no option 'subscribe'; it has topic, batchNumber",
        ),
        ({**WRITE, "topic": ""}, "topic is empty"),
        ({**WRITE, "kafka.acks": "1"}, "kafka.acks cannot be set"),
        ({**WRITE, "kafka.enable.idempotence": "false"}, "every write is idempotent"),
        ({**SERVERS, "batchNumber": "1", "kafka.transactional.id": "q"}, "topic is missing"),
        ({**SERVERS, "batchNumber": "1", "topic": "t"}, "kafka.transactional.id is missing"),
        ({**WRITE, "batchNumber": "-1"}, "'-1' is not a number from 0 on"),
    ],
)
def test_invalid_options_of_a_write_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)):
        write_options(options)


def test_settings_of_librdkafka_are_passed_on():
    options = write_options({**WRITE, "Kafka.Linger.MS": "7"})
    assert (options.number, options.topic) == (3, "t")
    assert options.kafka == {"bootstrap.servers": "h:1", "transactional.id": "q", "linger.ms": "7"}


STRING, BINARY, INT = StringType(), BinaryType(), IntegerType()


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (schema_of(key=STRING), "no column value"),
        (schema_of(value=INT), "column value is int: it must be string or binary"),
        (
            schema_of(value=STRING, partition=LongType()),
            "column partition is bigint: it must be int",
        ),
        (schema_of(value=STRING, headers=MapType(STRING, BINARY)), "it must be array<struct<key"),
    ],
)
def test_columns_that_cannot_be_written_are_named(schema: StructType, complaint: str):
    with pytest.raises(OptionError, match=complaint):
        RegentDataSource(WRITE).writer(schema, overwrite=False)
