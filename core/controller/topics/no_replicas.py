"""Keeps new replicas off the brokers that take none (the setting ``no_replicas``).

Our own placement leaves these brokers out. Other tools may write topic znodes that name them, and a
controller of Kafka does not know the setting. A partition without a state has no records: before
its first leader is elected, another broker is put in the place of such a replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from regent.core.controller.assignments import write_assignments
from regent.core.controller.services import ControllerServices
from regent.core.model import BrokerId, BrokerInfo, ReplicaAssignment, TopicPartition


def keep_off(services: ControllerServices, partitions: Iterable[TopicPartition]) -> None:
    """Give other replicas to those of these partitions that have no state and name such brokers.

    A replica stays if no live broker of another host can have it. Raises ``ControllerMovedError``.
    """
    context = services.context
    barred = context.brokers_without_replicas
    if not barred:
        return
    replicas_of = context.partition_replica_assignment
    named = [
        p
        for p in partitions
        if context.partition_leadership_info(p) is None
        and not barred.isdisjoint(replicas_of(p))
        and not context.partition_full_replica_assignment(p).is_being_reassigned
    ]
    if not named:
        return
    states = services.store.read_partition_states(named)
    without_state = {p: tuple(replicas_of(p)) for p in named if p not in states}
    live = {b: context.registrations[b].info for b in context.live_broker_ids}
    moved = {
        p: ReplicaAssignment(replicas)
        for p, replicas in _placed_elsewhere(without_state, barred, live)
    }
    failures = write_assignments(services, moved)
    for topic_partition, assignment in moved.items():
        if topic_partition not in failures:
            context.update_partition_full_replica_assignment(topic_partition, assignment)
            services.outbox.note(
                "%s: replicas %s, because of no_replicas",
                topic_partition,
                list(assignment.replicas),
            )
    services.log(__name__).failures("%d partitions keep replicas where none may be", failures)


def _placed_elsewhere(
    partitions: Mapping[TopicPartition, tuple[BrokerId, ...]],
    barred: frozenset[BrokerId],
    live: Mapping[BrokerId, BrokerInfo],
) -> Iterator[tuple[TopicPartition, tuple[BrokerId, ...]]]:
    """Yield the partitions whose replicas change, with the new ones.

    Of the ``live`` brokers that are not ``barred`` and whose host has no replica of the partition,
    the one comes first whose rack has none, then the one with the fewest of these replicas.
    """

    def host(broker: BrokerId) -> str | BrokerId:
        return (live[broker].node_host if broker in live else None) or broker

    racks = {broker_id: info.rack for broker_id, info in live.items()}
    load = Counter(replica for replicas in partitions.values() for replica in replicas)
    for topic_partition, replicas in partitions.items():
        placed = list(replicas)
        for place, replica in enumerate(replicas):
            used_hosts = {host(b) for b in placed if b != replica}
            others = {b for b in live.keys() - barred - set(placed) if host(b) not in used_hosts}
            if replica not in barred or not others:
                continue
            used = {racks.get(other) for other in placed} - {None}
            chosen = min(others, key=lambda b: (racks[b] in used, load[b], b))
            load[chosen] += 1
            placed[place] = chosen
        if tuple(placed) != replicas:
            yield topic_partition, tuple(placed)
