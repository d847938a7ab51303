"""A cluster of three real brokers with many partitions, and what its brokers know of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from time import monotonic

from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.protocol.broker import MetadataPartition
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.client.operations import Create
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import TopicZNode

TIMEOUT_S = 300.0
TOPICS_AT_ONCE = 20


def elapsed_ms(since: float) -> float:
    """Return the milliseconds since a monotonic instant."""
    return round((monotonic() - since) * 1000, 1)


def create_topics(cluster: RegentCluster, topics: int, partitions: int) -> list[str]:
    """Create topics placed in a ring, and wait until the last is led.

    Each topic begins with the next broker: all brokers lead the same number of partitions.
    """
    names = [f"topic-{number:05d}" for number in range(topics)]
    writes = []
    for first, name in enumerate(names):
        assignments = {
            partition: ReplicaAssignment(tuple((first + partition + j) % 3 for j in range(3)))
            for partition in range(partitions)
        }
        topic_id = encode_topic_id(os.urandom(16))
        writes.append(Create(TopicZNode.path(name), TopicZNode.encode(topic_id, assignments)))
    cluster.zookeeper.multi_many(
        [writes[i : i + TOPICS_AT_ONCE] for i in range(0, topics, TOPICS_AT_ONCE)]
    )
    last = names[-1]
    eventually(lambda: len(cluster.partition_states(last)) == partitions, "all is led", TIMEOUT_S)
    return names


def are_updated(cluster: RegentCluster, survivors: list[int], epoch: int, count: int) -> bool:
    """Return whether the survivors' caches have the new controller, and need no other broker."""
    return all(
        (told.controller_epoch, len(told.partitions)) == (epoch, count)
        and all(p.leader in survivors and set(p.isr) <= set(survivors) for p in told.partitions)
        for told in map(cluster.metadata, survivors)
    )


def await_everywhere(
    cluster: RegentCluster,
    brokers: Collection[BrokerId],
    is_so: Callable[[MetadataPartition], bool],
) -> None:
    """Wait until the caches of all these brokers have only such partitions."""
    for broker in brokers:
        eventually(
            lambda: all(map(is_so, cluster.metadata(broker).partitions)),  # noqa: B023
            "all caches are so",
            TIMEOUT_S,
        )
