"""The brokers that send and receive replicas during a reassignment, for its throttles.

Mirrors the move maps of ``kafka.admin.ReassignPartitionsCommand``. Two settings of a topic list the
throttled replicas as ``partition:broker`` pairs. The sources throttle what they send as leaders,
the destinations throttle what they fetch as followers (KIP-73).
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
    """Return the move to the replicas ``proposed``; None: the ongoing one.

    A move that replaces an ongoing one has the same sources: the replicas that the ongoing move
    adds may not be in sync.
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

    A source is not throttled as a destination.
    """
    return _throttles(moves, lambda move: move.destinations - move.sources)


def reassigning_brokers(moves: Collection[PartitionMove]) -> set[BrokerId]:
    """Return every broker that sends or receives: each needs a rate limit."""
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
