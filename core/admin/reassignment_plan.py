"""Which brokers send and which receive while partitions move: what a throttle is set on.

Mirrors the move maps of ``kafka.admin.ReassignPartitionsCommand``. A throttle names the replicas it
holds for as ``partition:broker`` pairs in two settings of the topic: the sources throttle what they
send as leaders, the destinations what they fetch as followers (KIP-73).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """One partition's move: any source may lead while the destinations catch up."""

    sources: frozenset[BrokerId]
    destinations: frozenset[BrokerId]


def partition_move(
    current: ReplicaAssignment, proposed: Collection[BrokerId] | None
) -> PartitionMove:
    """Return the move to ``proposed``, or with None the one that is under way.

    A move that is overridden goes on from its own sources: what it has been adding is not in sync.
    """
    sources = frozenset(current.origin_replicas)
    if proposed is None:
        return PartitionMove(sources, frozenset(current.adding_replicas))
    return PartitionMove(sources, frozenset(proposed) - sources)


def leader_throttles(moves: Mapping[TopicPartition, PartitionMove]) -> dict[str, str]:
    """Return ``leader.replication.throttled.replicas`` of each topic."""
    return _throttles(moves, lambda move: move.sources)


def follower_throttles(moves: Mapping[TopicPartition, PartitionMove]) -> dict[str, str]:
    """Return ``follower.replication.throttled.replicas`` of each topic.

    What is source already is none of the destinations.
    """
    return _throttles(moves, lambda move: move.destinations - move.sources)


def reassigning_brokers(moves: Collection[PartitionMove]) -> set[BrokerId]:
    """Return every broker that sends or receives: those whose rate must be limited."""
    return {broker for move in moves for broker in move.sources | move.destinations}


def _throttles(
    moves: Mapping[TopicPartition, PartitionMove],
    brokers_of: Callable[[PartitionMove], Collection[BrokerId]],
) -> dict[str, str]:
    pairs: dict[str, list[str]] = {}
    for topic, partition in sorted(moves):
        named = pairs.setdefault(topic, [])
        brokers = brokers_of(moves[TopicPartition(topic, partition)])
        named += [f"{partition}:{broker}" for broker in sorted(brokers)]
    return {topic: ",".join(named) for topic, named in pairs.items()}
