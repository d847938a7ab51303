"""``reassign --generate``: proposes an assignment and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from regent.client.moves import ReassignmentError
from regent.core.errors import BadDataError
from regent.core.model import NO_ASSIGNMENT, BrokerId, BrokerRegistration, TopicPartition
from regent.core.placement.replica_placer import IndexScope, Strategy, place
from regent.core.ports import TopicAssignment
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.zk.stores.admin_store import ZkAdminStore


class Proposal(NamedTuple):
    """The current and the proposed replicas of partitions."""

    current: dict[TopicPartition, tuple[BrokerId, ...]]
    proposed: dict[TopicPartition, tuple[BrokerId, ...]]


def propose(
    admin: ZkAdminStore,
    topics: Collection[str],
    brokers: Mapping[BrokerId, BrokerRegistration],
    *,
    rack_aware: bool,
) -> Proposal:
    """Propose new replicas, on ``brokers``, of all partitions of ``topics``.

    Racks are used if ``rack_aware`` and if the brokers have racks. Raises ``ReassignmentError``,
    ``PlacementError`` and ``BadDataError``.
    """
    assignments = _read(admin, topics)
    specs = [
        PlacementSpec(topic, len(assignment.partitions), _replication_factor(assignment), 0)
        for topic, assignment in sorted(assignments.items())
    ]
    strategy = _strategy(brokers, rack_aware=rack_aware)
    request = PlaceTopicsRequest(
        topics=tuple(specs),
        brokers=tuple(PlacementBroker(b, broker.info.rack, 0) for b, broker in brokers.items()),
        strategy=strategy,
        start_index="0",
        index=IndexScope.BATCH,
        seed=0,
    )
    current = {
        TopicPartition(topic, partition): replicas.origin_replicas
        for topic, assignment in sorted(assignments.items())
        for partition, replicas in assignment.partitions.items()
    }
    # Both are sorted; the ids of a topic's partitions are 0, 1, … unless its znode is broken.
    placed = (row.replicas for row in place(request))
    return Proposal(current, dict(zip(current, placed, strict=True)))


def _read(admin: ZkAdminStore, topics: Collection[str]) -> dict[str, TopicAssignment]:
    found = admin.topics.read_topics(topics)
    absent = [f"topic {topic} does not exist" for topic in topics if topic not in found]
    if absent:
        raise ReassignmentError("\n".join(absent))
    assignments = {}
    for topic, assignment in found.items():
        if isinstance(assignment, BadDataError):
            raise assignment
        assignments[topic] = assignment
    return assignments


def _replication_factor(assignment: TopicAssignment) -> int:
    return len(next(iter(assignment.partitions.values()), NO_ASSIGNMENT).origin_replicas)


def _strategy(brokers: Mapping[BrokerId, BrokerRegistration], *, rack_aware: bool) -> str:
    without = [b for b, broker in sorted(brokers.items()) if broker.info.rack is None]
    if not rack_aware or len(without) == len(brokers):
        return Strategy.RING.value
    if without:
        raise ReassignmentError(
            f"not all brokers have a rack (broker {without[0]} has none): give every broker one, or"
            " add --disable-rack-aware"
        )
    return Strategy.RACK_AWARE.value
