"""Validation of topic names, settings and assignments."""

from __future__ import annotations

import pytest

from regent.core.admin.topic_settings import TOPIC_SETTINGS, topic_config_problem
from regent.core.topic_validation import (
    TopicNames,
    assignment_problem,
    topic_name_problem,
)


@pytest.mark.parametrize("name", ["a", "payments", "A.b_c-9", "...", "a" * 249, "__offsets"])
def test_valid_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        (".", 'cannot be "."'),
        ("..", 'cannot be "."'),
        ("a" * 250, "has 250 characters"),
        ("a b", "other characters"),
        ("a/b", "other characters"),
        ("naïve", "other characters"),
        ("a\n", "other characters"),
        ("a\x00", "other characters"),
    ],
)
def test_invalid_names(name: str, problem: str) -> None:
    found = topic_name_problem(name)
    assert found is not None
    assert problem in found


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    names = TopicNames(["a.b", "c"])

    assert names.collision("a_b") == "a.b"
    assert names.collision("a.b") is None
    assert names.collision("a-b") is None
    names.add("x_y.z")
    assert names.collision("x.y_z") == "x_y.z"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", "9223372036854775807"),
        ("min.insync.replicas", "2"),
        ("max.message.bytes", "+1048588"),
        ("unclean.leader.election.enable", "TRUE"),
        ("preallocate", "false"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", ""),
        ("retention.ms", " 5 "),
        ("compression.gzip.level", "-1"),
        ("remote.storage.enable", "FALSE"),
        ("compression.type", "zstd"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "0.5"),
        ("min.cleanable.dirty.ratio", "1"),
        ("min.cleanable.dirty.ratio", ".25"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
        ("message.format.version", "2.8-IV1"),
    ],
)
def test_valid_settings(name: str, value: str) -> None:
    assert topic_config_problem(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("retention.msec", "1", "is not a setting of topics; did you mean retention.ms?"),
        ("colour", "red", "is not a setting of topics"),
        ("retention.ms", "-2", "must be a number from -1"),
        ("retention.ms", "9223372036854775808", "must be a number"),
        ("retention.ms", "1e3", "must be a number"),
        ("retention.ms", "", "must be a number"),
        ("retention.ms", "٣", "must be a number"),
        ("min.insync.replicas", "0", "must be a number from 1"),
        ("segment.bytes", "13", "must be a number from 14"),
        ("preallocate", "yes", "must be true or false"),
        ("cleanup.policy", "compact,purge", "must be one of compact, delete"),
        ("cleanup.policy", "compact,", "must be one of"),
        ("compression.type", "brotli", "must be one of"),
        ("message.timestamp.type", "createtime", "must be one of"),
        ("min.cleanable.dirty.ratio", "1.1", "must be a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "must be a number from 0 to 1"),
        ("leader.replication.throttled.replicas", "0-1", "must be * or"),
        ("message.format.version", "bogus", "must be a version of Kafka"),
        ("compression.gzip.level", "0", "must be -1, or a number from 1 to 9"),
        ("remote.storage.enable", "true", "must be false: there is no tiered storage"),
    ],
)
def test_invalid_settings(name: str, value: str, problem: str) -> None:
    found = topic_config_problem(name, value)
    assert found is not None
    assert problem in found


KAFKA_3_9 = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]
"""What ``LogConfig.configNames`` of Kafka 3.9 returns."""


def test_every_topic_setting_of_kafka_is_known_and_ours_have_a_name_of_their_own() -> None:
    ours = {name for name in TOPIC_SETTINGS if name.startswith("regent.")}
    assert sorted(TOPIC_SETTINGS.keys() - ours) == KAFKA_3_9


def test_every_setting_has_a_check() -> None:
    lenient = {name for name in TOPIC_SETTINGS if topic_config_problem(name, "nonsense!") is None}
    assert lenient == set()


def test_a_valid_assignment_has_replicas_on_live_brokers() -> None:
    assert assignment_problem([(0, 1), (1, 0)], {0, 1, 2}, {0, 1}) is None


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ([(0, 1), ()], "partition 1 has no replicas"),
        ([(0, 0)], "partition 0 has two replicas on one broker"),
        ([(0, 1), (1,)], "partition 1 has 1 replicas, but partition 0 has 2"),
        ([(0, 7)], "broker 7 is not registered; registered are 0, 1, 2"),
    ],
)
def test_invalid_assignments(assignment: list[tuple[int, ...]], problem: str) -> None:
    assert assignment_problem(assignment, {0, 1, 2}, {0, 1, 2}) == problem
