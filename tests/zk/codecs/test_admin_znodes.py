"""Znodes of administration are read in the formats of all tools and written as Kafka does."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.zk.codecs.admin_znodes import ProducerIdBlock, sequence_number
from regent.zk.znodes import (
    ConfigEntityChangeNotificationSequenceZNode,
    ConfigEntityZNode,
    DeleteTopicsTopicZNode,
    IsrChangeNotificationSequenceZNode,
    LogDirEventNotificationSequenceZNode,
    PreferredReplicaElectionZNode,
    ProducerIdBlockZNode,
    ReassignPartitionsZNode,
)

Json: TypeAlias = dict[str, Any]


def bytes_of(value: object) -> bytes:
    return json.dumps(value).encode()


def test_paths_are_kafkas() -> None:
    assert DeleteTopicsTopicZNode.path("orders") == "/admin/delete_topics/orders"
    assert ConfigEntityZNode.path("brokers", "<default>") == "/config/brokers/<default>"
    assert IsrChangeNotificationSequenceZNode.PATH_PREFIX == "/isr_change_notification/isr_change_"
    assert (
        LogDirEventNotificationSequenceZNode.PATH_PREFIX
        == "/log_dir_event_notification/log_dir_event_"
    )
    assert (
        ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX == "/config/changes/config_change_"
    )


WRITTEN: list[tuple[bytes, Json]] = [
    (
        ReassignPartitionsZNode.encode({TopicPartition("foo", 0): (1, 2)}),
        {"version": 1, "partitions": [{"topic": "foo", "partition": 0, "replicas": [1, 2]}]},
    ),
    (
        PreferredReplicaElectionZNode.encode([TopicPartition("t", 0)]),
        {"version": 1, "partitions": [{"topic": "t", "partition": 0}]},
    ),
    (
        IsrChangeNotificationSequenceZNode.encode([TopicPartition("t", 0)]),
        {"version": 1, "partitions": [{"topic": "t", "partition": 0}]},
    ),
    (
        LogDirEventNotificationSequenceZNode.encode(3),
        {"version": 1, "broker": 3, "event": 1},
    ),
    (
        ConfigEntityZNode.encode({"min.insync.replicas": "2"}),
        {"version": 1, "config": {"min.insync.replicas": "2"}},
    ),
    (
        ConfigEntityChangeNotificationSequenceZNode.encode("topics/orders"),
        {"version": 2, "entity_path": "topics/orders"},
    ),
    (
        ProducerIdBlockZNode.encode(ProducerIdBlock(1, 0, 999)),
        {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"},
    ),
]


@pytest.mark.parametrize(("written", "expected"), WRITTEN)
def test_znodes_are_written_as_kafka_writes_them(written: bytes, expected: Json) -> None:
    assert json.loads(written) == expected
    assert b" " not in written
    assert b"\n" not in written


def test_reassignments_of_every_tool_are_read() -> None:
    compact = b'{"version":"1","partitions":[{"topic":"t","partition":0,"replicas":[4,3,1]}]}'
    sorted_with_log_dirs = (
        b'{"partitions": [{"log_dirs": ["any", "any", "any"], "partition": 0, '
        b'"replicas": [4,3,1], "topic": "t"}], "version": 1}'
    )
    for written in (compact, sorted_with_log_dirs):
        assert ReassignPartitionsZNode.decode(written) == {TopicPartition("t", 0): (4, 3, 1)}


def test_a_partition_named_twice_is_elected_once_but_not_reassigned() -> None:
    twice = {"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}] * 2}
    assert PreferredReplicaElectionZNode.decode(bytes_of(twice)) == (TopicPartition("t", 0),)
    with pytest.raises(BadDataError, match="once"):
        ReassignPartitionsZNode.decode(bytes_of(twice))


def test_configuration_changes_of_both_versions_are_read() -> None:
    decode = ConfigEntityChangeNotificationSequenceZNode.decode
    assert decode(b'{"version":2,"entity_path":"topics/orders"}') == "topics/orders"
    old = b'{"version":1,"entity_type":"topics","entity_name":"orders"}'
    assert decode(old) == "topics/orders"
    with pytest.raises(BadDataError, match="version"):
        decode(b'{"version":3,"entity_path":"topics/orders"}')


def test_a_configuration_may_be_empty_or_lack_its_version() -> None:
    assert ConfigEntityZNode.decode(b"") == {}
    assert ConfigEntityZNode.decode(b"{}") == {}
    assert ConfigEntityZNode.decode(b'{"config":{"k":"v"}}') == {"k": "v"}
    with pytest.raises(BadDataError, match="k must be a string, not 1"):
        ConfigEntityZNode.decode(b'{"config":{"k":1}}')


def test_an_empty_producer_id_znode_has_no_block() -> None:
    assert ProducerIdBlockZNode.decode(b"") is None


def test_notifications_are_numbered_by_the_last_ten_digits_of_their_name() -> None:
    assert sequence_number("isr_change_0000000012") == 12
    with pytest.raises(BadDataError):
        sequence_number("isr_change_12")
