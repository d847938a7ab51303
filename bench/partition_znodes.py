"""Writes the znodes of many topics to ZooKeeper, in few round trips."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk.client.operations import Create, Operation
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import (
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicPartitionZNode,
    TopicZNode,
)

REPLICATION_FACTOR = 3
_BYTES_AT_ONCE = 250_000  # of a multi: well below ZooKeeper's limit of 1 MB
_BYTES_OF_A_CREATE = 60  # beside its path and data
_MULTIS_AT_ONCE = 100  # so that not all of them are in memory


def topic_sizes(partitions: int, topic_size: int) -> dict[str, int]:
    """Return the names of topics that have so many partitions together, and their sizes."""
    return {
        f"topic-{first // topic_size:07d}": min(topic_size, partitions - first)
        for first in range(0, partitions, topic_size)
    }


def replicas_of(number: int, brokers: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    """Return the replicas of the partition with this number of a topic: a ring of brokers."""
    return tuple(brokers[(number + j) % len(brokers)] for j in range(REPLICATION_FACTOR))


def write_topics(
    zookeeper: ZooKeeperClient,
    sizes: Mapping[str, int],
    brokers: Sequence[BrokerId],
    *,
    with_states: bool,
) -> None:
    """Create topics; ``with_states``: as if a controller had elected all leaders already."""
    pending: list[list[Operation]] = []
    room = 0
    for topic, size in sizes.items():
        for create in _creates(topic, size, brokers, with_states=with_states):
            room -= len(create.path) + len(create.data) + _BYTES_OF_A_CREATE
            if room < 0:
                if len(pending) == _MULTIS_AT_ONCE:
                    zookeeper.multi_many(pending)
                    pending = []
                pending.append([])
                room = _BYTES_AT_ONCE
            pending[-1].append(create)
    zookeeper.multi_many(pending)


def _creates(
    topic: str, size: int, brokers: Sequence[BrokerId], *, with_states: bool
) -> Iterator[Create]:
    """Yield what creates a topic, parents first."""
    topic_id = encode_topic_id(os.urandom(16))
    assignments = {n: ReplicaAssignment(replicas_of(n, brokers)) for n in range(size)}
    yield Create(TopicZNode.path(topic), TopicZNode.encode(topic_id, assignments))
    if not with_states:
        return
    yield Create(TopicPartitionsZNode.path(topic), TopicPartitionsZNode.encode(topic_id))
    for number, assignment in assignments.items():
        name = TopicPartition(topic, number)
        led = LeaderAndIsr(assignment.replicas[0], assignment.replicas)
        state = TopicPartitionStateZNode.encode(LeaderIsrAndControllerEpoch(led, 0))
        yield Create(TopicPartitionZNode.path(name))
        yield Create(TopicPartitionStateZNode.path(name), state)
