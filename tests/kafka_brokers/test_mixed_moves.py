"""Kafka's own tools move replicas and delete records where both kinds of brokers have some."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from regent.core.model import TopicPartition
from tests.kafka_brokers.mixed_cluster import LOG_DIRS, RULERS, MixedCluster
from tests.kafka_brokers.moved_cluster import BROKERS

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

LARGE: Final = b"x" * 10_000
ENOUGH: Final = 300
"""So many large records are more than a follower gets in one answer."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_tools_of_kafka_move_replicas_between_brokers_and_directories_of_both_kinds(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"moved-under-{ruler}"
    first, second = (TopicPartition(topic, number) for number in range(2))
    large = [LARGE] * ENOUGH
    mixed.create(ours, topic, (kafka, ours), (ours, kafka))
    for partition in (first, second):
        mixed.produce(partition, large)

    _cancel_a_slow_move(mixed, tmp_path, first)
    mixed.await_state(first, kafka, {kafka, ours}, [kafka, ours])
    if other in mixed.cluster.ours or (ruler, mixed.version) != ("kafka", "2.8.2"):
        mixed.await_no_log(first, other)  # Kafka 2.8 ignores its own StopReplica of this epoch

    plan = mixed.reassignment(tmp_path, topic, (ours, other), (kafka, other))
    mixed.reassign(kafka, plan, "--throttle", "50000000")
    mixed.await_state(first, ours, {ours, other}, [ours, other])
    mixed.await_state(second, kafka, {kafka, other}, [kafka, other])
    mixed.await_no_log(first, kafka)
    mixed.await_no_log(second, ours)
    assert "throttled" not in mixed.tool(ours, "TopicCommand", "--describe", "--topic", topic)

    plan = mixed.reassignment(tmp_path, topic, (other, ours), (other, kafka))
    mixed.reassign(ours, plan)
    mixed.await_state(first, ours, {ours, other}, [other, ours])
    mixed.elect_preferred(kafka, tmp_path, (first, second))
    for partition, follower in ((first, ours), (second, kafka)):
        mixed.await_state(partition, other, {other, follower})

    for partition, broker in ((first, ours), (second, kafka)):
        plan = mixed.move_to_directory(tmp_path, partition, broker)
        (former,) = mixed.cluster.folders_of(broker, str(partition))
        mixed.reassign(other, plan)
        (name,) = {*LOG_DIRS} - {former.parent.name}
        expected = {former.parent.name: [], name: [str(partition)]}
        assert mixed.directories(kafka, broker, topic) == expected
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [*large, b"later"], broker, other)

    mixed.tool(ours, "TopicCommand", "--delete", "--topic", topic)
    mixed.await_deletion(topic, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_a_move_goes_on_under_a_controller_of_the_other_kind(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"handed-over-by-{ruler}"
    mixed.create(other, topic, (kafka, ours), (ours, kafka))
    partitions = [TopicPartition(topic, number) for number in range(2)]
    for partition in partitions:
        mixed.produce(partition, [LARGE] * ENOUGH)
    plan = mixed.begin_slow_move(kafka, tmp_path, topic, (other, ours), (other, kafka))
    of_plan = ("ReassignPartitionsCommand", "--reassignment-json-file", plan)

    mixed.let_rule(*(kind for kind in RULERS if kind != ruler))
    assert "in progress" in mixed.tool(kafka, *of_plan, "--verify")
    mixed.reassign(ours, plan, "--additional", "--throttle", "50000000")
    for partition, stays in zip(partitions, (ours, kafka), strict=True):
        mixed.await_state(partition, None, {other, stays}, [other, stays])
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [LARGE] * ENOUGH + [b"later"], other, stays)
    mixed.await_no_log(partitions[0], kafka)
    mixed.await_no_log(partitions[1], ours)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_new_replicas_begin_where_the_log_was_deleted_up_to(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    """In the middle of a batch: the replicas have the whole one, clients see only its end."""
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"shortened-under-{ruler}"
    mixed.create(other, topic, (kafka,), (ours,))
    partitions = [TopicPartition(topic, number) for number in range(2)]
    values = [b"%d" % number * 1_000 for number in range(1_000)]
    for partition in partitions:
        mixed.produce(partition, values)
    mixed.delete_records(other, tmp_path, dict.fromkeys(partitions, 302))

    placed = [(ours, other, kafka), (kafka, other, ours)]
    mixed.reassign(kafka, mixed.reassignment(tmp_path, topic, *placed))
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.await_state(partition, None, {*replicas}, replicas)
        mixed.await_values(partition, values[300:], *replicas[:2])
    mixed.elect_preferred(other, tmp_path, partitions)
    for partition, (leader, *_) in zip(partitions, placed, strict=True):
        mixed.await_state(partition, leader, {*BROKERS})
        assert mixed.read(partition, len(values) - 302) == (302, values[302:])


def _cancel_a_slow_move(mixed: MixedCluster, folder: Path, partition: TopicPartition) -> None:
    """Move a partition to the third broker so slowly that it does not end; then cancel it."""
    _, _, kafka, ours, other = mixed
    tool = "ReassignPartitionsCommand"
    path = mixed.begin_slow_move(ours, folder, partition.topic, (other, kafka))
    plan = ("--reassignment-json-file", path)
    listed = mixed.tool(kafka, tool, "--list")
    assert re.search(rf"{partition}: .*adding: {other}\.", listed), listed
    assert "in progress" in mixed.tool(ours, tool, *plan, "--verify")
    mixed.tool(kafka, tool, *plan, "--cancel")
    assert "No partition reassignments found" in mixed.tool(ours, tool, "--list")
