"""Options are checked before any connection, and every error names one."""

import re

import pytest

from regent.core.model import TopicPartition
from regent.jobs.source.options import (
    EARLIEST,
    LATEST,
    OptionError,
    Subscription,
    read_options,
    write_options,
)

SERVERS = {"kafka.bootstrap.servers": "h:1"}
TOPIC = {**SERVERS, "subscribe": "t"}


def test_defaults_are_those_of_sparks_connector():
    options = read_options(TOPIC)
    assert options.subscription == Subscription(topics=("t",))
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.kafka == {"bootstrap.servers": "h:1"}


def test_all_options_can_be_set():
    options = read_options(
        {
            "Kafka.Bootstrap.Servers": "h:1, h:2",
            "assign": '{"b": [1, 0], "a": [2]}',
            "startingOffsets": '{"b": {"0": -2, "1": 7}, "a": {"2": 0}}',
            "startingTimestamp": "1700000000000",
            "endingOffsets": '{"b": {"0": -1, "1": 9}, "a": {"2": 3}}',
            "failOnDataLoss": "False",
            "includeHeaders": "TRUE",
            "kafka.fetch.min.bytes": "7",
        }
    )
    a, b0, b1 = TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)
    assert options.subscription == Subscription(assigned=(a, b0, b1))
    assert options.starting == {b0: -2, b1: 7, a: 0}
    assert options.since_ms == 1_700_000_000_000
    assert options.ending == {b0: -1, b1: 9, a: 3}
    assert options.kafka == {"bootstrap.servers": "h:1, h:2", "fetch.min.bytes": "7"}
    assert not options.fail_on_data_loss
    assert options.include_headers


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        (SERVERS, "exactly one of subscribe, subscribePattern, assign"),
        ({**TOPIC, "assign": '{"t": [0]}'}, "exactly one of"),
        ({**TOPIC, "logDirs": "/x"}, "not both"),
        ({**TOPIC, "minPartitions": "5"}, "regent has no option 'minpartitions'; it has subscribe"),
        ({**TOPIC, "minPartitions": "5"}, "Spark's Kafka connector (org.apache.spark:spark-sql-ka"),
        ({**TOPIC, "startingOffsets": "latest"}, "a batch read cannot begin at the latest offset"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": -1}}'}, "cannot begin at the latest offset"),
        ({**TOPIC, "startingOffsets": "first"}, "startingOffsets='first': earliest, latest or"),
        ({**TOPIC, "startingOffsets": '{"t"'}, "startingOffsets is not JSON"),
        ({**TOPIC, "startingOffsets": '{"t": 5}'}, "startingOffsets: topic t: expected"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": -3}}'}, "-3 of t-0 is not an offset"),
        ({**TOPIC, "startingOffsets": '{"t": {"x": 3}}'}, "'x' is not a partition"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": "3"}}'}, "'3' of t-0 is not an offset"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": true}}'}, "True of t-0 is not an offset"),
        ({**TOPIC, "endingOffsets": "earliest"}, "a batch read cannot end at the earliest offset"),
        ({**TOPIC, "startingTimestamp": "now"}, "startingTimestamp='now' is not a number"),
        ({**TOPIC, "failOnDataLoss": "no"}, "failOnDataLoss='no' is neither true nor false"),
        ({**TOPIC, "includeUncommitted": "true"}, "includeUncommitted is for logDirs"),
        ({**TOPIC, "kafka.acks": "1"}, "kafka.acks cannot be set"),
        ({**TOPIC, "kafka.enable.auto.commit": "true"}, "a read has no position to keep"),
        ({**SERVERS, "subscribe": " "}, "subscribe is empty"),
        ({**SERVERS, "subscribe": ","}, "subscribe=',' has no name"),
        ({**TOPIC, "startingOffsets": '{"t": {}}'}, "startingOffsets: topic t: expected"),
        ({**SERVERS, "subscribePattern": "("}, "subscribePattern='('"),
        ({**SERVERS, "assign": '{"t": []}'}, "topic t: expected a list"),
        ({**SERVERS, "assign": '{"t": [-1]}'}, "-1 is not a partition"),
        ({**SERVERS, "assign": "[]"}, "expected a JSON object"),
    ],
)
def test_invalid_options_of_a_read_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)) as raised:
        read_options(options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        (
            {**SERVERS, "subscribe": "t"},
            "regent has no option 'subscribe'; it has topic, batchNumber, kaf",
        ),
        ({**SERVERS, "topic": ""}, "topic is empty"),
        ({**SERVERS, "kafka.enable.idempotence": "false"}, "every write is idempotent"),
        ({**SERVERS, "kafka.transactional.id": "q"}, "only write_once writes in a transaction"),
        ({**SERVERS, "batchNumber": "1", "kafka.transactional.id": "q"}, "topic is missing"),
        ({**SERVERS, "batchNumber": "1", "topic": "t"}, "kafka.transactional.id is missing"),
        ({**SERVERS, "batchNumber": "-1", "topic": "t"}, "'-1' is not a number from 0 on"),
    ],
)
def test_invalid_options_of_a_write_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)):
        write_options(options)
