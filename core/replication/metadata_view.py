"""The metadata for a client of one listener.

Mirrors ``kafka.server.metadata.ZkMetadataCache.getTopicMetadata``. A broker counts as available to
a client only if it has an endpoint of the client's own listener (KIP-103).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, BrokerInfo, EndPoint
from regent.core.protocol.control import (
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
)
from regent.core.replication.metadata_cache import MetadataSnapshot


class PartitionView(NamedTuple):
    """One partition; ``leader`` is -1 if this client cannot reach it."""

    partition: int
    error_code: Errors
    leader: BrokerId
    leader_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


class TopicView(NamedTuple):
    """One topic with its partitions in ascending order."""

    topic: str
    topic_id: TopicId | None
    partitions: tuple[PartitionView, ...]


def topic_metadata(
    snapshot: MetadataSnapshot,
    topics: Collection[str],
    listener: str,
    *,
    error_unavailable_endpoints: bool = False,
    error_unavailable_listeners: bool = False,
) -> list[TopicView]:
    """Return the known topics, in the order of ``topics``.

    With ``error_unavailable_endpoints`` (Metadata version 0) replicas that the client cannot reach
    are omitted, and the partition has an error. With ``error_unavailable_listeners`` (from version
    6 on) a leader without that listener has its own error, LISTENER_NOT_FOUND.
    """
    return [
        TopicView(
            topic,
            snapshot.topic_ids.get(topic),
            tuple(
                _partition_view(
                    snapshot,
                    row,
                    listener,
                    error_unavailable_endpoints,
                    error_unavailable_listeners,
                )
                for row in sorted(snapshot.topics[topic].values())
            ),
        )
        for topic in topics
        if topic in snapshot.topics
    ]


def alive_endpoint(
    snapshot: MetadataSnapshot, broker_id: BrokerId, listener: str
) -> UpdateMetadataEndPoint | None:
    """Return the endpoint of a broker for clients of ``listener``; None: it has none."""
    broker = snapshot.brokers.get(broker_id)
    endpoints = broker.endpoints if broker is not None else ()
    return next((e for e in endpoints if e.listener == listener), None)


def alive_endpoints(
    snapshot: MetadataSnapshot, listener: str
) -> list[tuple[UpdateMetadataBroker, UpdateMetadataEndPoint]]:
    """Return the brokers that clients of ``listener`` can reach, in the order of their ids."""
    return [
        (broker, endpoint)
        for broker_id, broker in sorted(snapshot.brokers.items())
        if (endpoint := alive_endpoint(snapshot, broker_id, listener)) is not None
    ]


def inter_broker_endpoint(
    broker: UpdateMetadataBroker | BrokerInfo, listener: str, security_protocol: str
) -> str | None:
    """Return where brokers find another one: ``tcp://host:port``; None: it does not say.

    ``listener`` is the name of our own listener for brokers. A broker without such a listener, in a
    cluster whose settings are being changed, may have registered a PLAINTEXT endpoint for them. A
    broker of Kafka knows no such endpoint: its first listener with our security protocol is taken.
    """
    named = endpoint_named(broker, listener)
    found = None
    if named is None and broker.control_endpoint is None:
        found = next(
            (e for e in broker.endpoints if e.security_protocol == security_protocol), None
        )
    by_protocol = None if found is None else _endpoint_of(found)
    return named or by_protocol or broker.replication_endpoint


def endpoint_named(broker: UpdateMetadataBroker | BrokerInfo, listener: str) -> str | None:
    """Return where a broker has a listener of this name: ``tcp://host:port``; None: it has none."""
    found = next((e for e in broker.endpoints if e.listener == listener), None)
    return None if found is None else _endpoint_of(found)


def _endpoint_of(found: UpdateMetadataEndPoint | EndPoint) -> str:
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"tcp://{host}:{found.port}"


def leaderless(topic: str, row: UpdateMetadataPartition, live_brokers: Collection[BrokerId]) -> str:
    """Say that a partition has no leader, and which brokers could lead it; "" if it has one."""
    if row.leader in live_brokers:
        return ""
    sentence = f"partition {topic}-{row.partition_index} has no leader"
    absent = sorted(broker for broker in row.isr if broker not in live_brokers)
    if not absent:
        return sentence
    return f"{sentence}: it waits for broker {' or '.join(map(str, absent))}"


def _partition_view(
    snapshot: MetadataSnapshot,
    row: UpdateMetadataPartition,
    listener: str,
    error_unavailable_endpoints: bool,
    error_unavailable_listeners: bool,
) -> PartitionView:
    def available(replicas: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        if not error_unavailable_endpoints:
            return replicas
        return tuple(r for r in replicas if alive_endpoint(snapshot, r, listener) is not None)

    replicas, isr = available(row.replicas), available(row.isr)
    leader, error = row.leader, Errors.NONE
    if alive_endpoint(snapshot, row.leader, listener) is None:
        leader = NO_LEADER
        lacks_listener = row.leader in snapshot.brokers and error_unavailable_listeners
        error = Errors.LISTENER_NOT_FOUND if lacks_listener else Errors.LEADER_NOT_AVAILABLE
    elif len(replicas) < len(row.replicas) or len(isr) < len(row.isr):
        error = Errors.REPLICA_NOT_AVAILABLE
    return PartitionView(
        row.partition_index, error, leader, row.leader_epoch, replicas, isr, row.offline_replicas
    )
