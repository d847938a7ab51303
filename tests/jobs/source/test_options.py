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
    batch, stream = (read_options(TOPIC, is_stream=is_stream) for is_stream in (False, True))
    assert batch.subscription == stream.subscription == Subscription(topics=("t",))
    assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
    assert stream.starting.everywhere == LATEST
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert (batch.min_partitions, stream.max_offsets_per_trigger) == (1, None)
    assert batch.kafka == {"bootstrap.servers": "h:1"}


def test_all_options_can_be_set():
    options = read_options(
        {
            "Bootstrap.Servers": "h:1, h:2",
            "assign": '{"b": [1, 0], "a": [2]}',
            "startingOffsets": '{"b": {"0": -2, "1": 7}, "a": {"2": 0}}',
            "endingOffsets": '{"b": {"0": -1, "1": 9}, "a": {"2": 3}}',
            "minPartitions": "5",
            "failOnDataLoss": "False",
            "includeHeaders": "TRUE",
            "kafka.fetch.min.bytes": "7",
            "kafkaConsumer.pollTimeoutMs": "1500",
        },
        is_stream=False,
    )
    a, b0, b1 = TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)
    assert options.subscription == Subscription(assigned=(a, b0, b1))
    assert options.starting.offsets == {b0: -2, b1: 7, a: 0}
    assert options.ending.offsets == {b0: -1, b1: 9, a: 3}
    assert options.kafka == {"bootstrap.servers": "h:1, h:2", "fetch.min.bytes": "7"}
    assert (options.min_partitions, options.poll_timeout_s) == (5, 1.5)
    assert not options.fail_on_data_loss
    assert options.include_headers


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        (SERVERS, "exactly one of subscribe, subscribePattern, assign"),
        ({**TOPIC, "assign": '{"t": [0]}'}, "exactly one of"),
        ({**TOPIC, "logDirs": "/x"}, "not both"),
        ({**TOPIC, "startingOffset": "latest"}, "unknown option 'startingoffset'"),
        ({**TOPIC, "startingOffsets": "latest"}, "only a stream can start at the latest"),
        ({**TOPIC, "startingOffsets": "first"}, "startingOffsets='first': earliest, latest or"),
        ({**TOPIC, "startingOffsets": '{"t"'}, "startingOffsets is not JSON"),
        ({**TOPIC, "startingOffsets": '{"t": 5}'}, "startingOffsets: topic t: expected"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": -3}}'}, "-3 of t-0 is not an offset"),
        ({**TOPIC, "startingOffsets": '{"t": {"x": 3}}'}, "'x' is not a partition"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": "3"}}'}, "'3' of t-0 is not a number"),
        ({**TOPIC, "startingOffsets": '{"t": {"0": true}}'}, "True of t-0 is not a number"),
        ({**TOPIC, "endingOffsets": "earliest"}, "a read cannot end at the earliest offset"),
        ({**TOPIC, "startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "-1 of t-0 is not a time"),
        ({**TOPIC, "startingTimestamp": "now"}, "startingTimestamp='now': expected milliseconds"),
        ({**TOPIC, "endingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "-1 of t-0 is not a time"),
        (
            {**TOPIC, "startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy='earliest': error or latest",
        ),
        ({**TOPIC, "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({**TOPIC, "minPartitions": "0"}, "minPartitions='0' is not a number above 0"),
        ({**TOPIC, "failOnDataLoss": "no"}, "failOnDataLoss='no' is neither true nor false"),
        ({**TOPIC, "includeUncommitted": "true"}, "includeUncommitted is for logDirs"),
        ({**TOPIC, "kafka.acks": "1"}, "kafka.acks cannot be set"),
        ({**TOPIC, "kafka.enable.auto.commit": "true"}, "Spark's checkpoint keeps the offsets"),
        ({**SERVERS, "subscribe": " "}, "subscribe is empty"),
        ({**SERVERS, "subscribePattern": "("}, "subscribePattern='('"),
        ({**SERVERS, "assign": '{"t": []}'}, "topic t: expected a list"),
        ({**SERVERS, "assign": '{"t": [-1]}'}, "-1 is not a partition"),
        ({**SERVERS, "assign": "[]"}, "expected a JSON object"),
    ],
)
def test_invalid_options_of_a_batch_read_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)) as raised:
        read_options(options, is_stream=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({**TOPIC, "endingOffsets": "latest"}, "a stream has no end"),
        ({**TOPIC, "endingTimestamp": "5"}, "endingTimestamp is for batch reads"),
        ({**TOPIC, "maxOffsetsPerTrigger": "many"}, "'many' is not a number"),
    ],
)
def test_invalid_options_of_a_stream_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)):
        read_options(options, is_stream=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({**SERVERS, "subscribe": "t"}, "unknown option 'subscribe'"),
        ({**SERVERS, "topic": ""}, "topic is empty"),
        ({**SERVERS, "commitId": "x"}, "commitId is for a batch write with stagingLocation"),
        ({**SERVERS, "stagingLocation": "/s", "commitId": "../x"}, "letters, digits"),
        ({**SERVERS, "stagingLocation": "hdfs://h/s"}, "is not a directory of a file system"),
        ({**SERVERS, "kafka.enable.idempotence": "false"}, "every write is idempotent"),
    ],
)
def test_invalid_options_of_a_write_are_refused(options: dict[str, str], complaint: str):
    with pytest.raises(OptionError, match=re.escape(complaint)):
        write_options(options, is_stream=False)
