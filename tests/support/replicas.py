"""Control requests that make brokers lead and follow."""

from __future__ import annotations

from collections.abc import Mapping

from regent.actors.broker import Broker, StopFetching
from regent.actors.control_request_check import ControlRequestReceived
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchPartition, FetchRequest, FetchTopic
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataRequest,
)
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from tests.support.stage import Stage, actor_of, ask
from tests.support.world import live_broker

PARTITION = TopicPartition("payments", 0)
CONTROLLER = 9
HEADER = ControlHeader(CONTROLLER, 1, -1)


def lead_and_follow(
    leader: BrokerId,
    replicas: tuple[BrokerId, ...],
    *,
    isr: tuple[BrokerId, ...],
    leader_epoch: int = 0,
    partition_epoch: int = 0,
) -> ControlRequestReceived:
    """Return a LeaderAndIsr request for all replicas of ``PARTITION``; in epoch 0 it is new."""
    is_new = leader_epoch == 0
    row = LeaderAndIsrPartition(
        0, 1, leader, leader_epoch, isr, partition_epoch, replicas, (), (), is_new, 0
    )
    topic = LeaderAndIsrTopic(PARTITION.topic, None, (row,))
    return ControlRequestReceived(
        HEADER, LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
    )


def alive(
    endpoints: Mapping[BrokerId, str],
    *,
    controller: BrokerId = CONTROLLER,
    control_endpoint: str | None = None,
) -> ControlRequestReceived:
    """Return an UpdateMetadata request with these brokers and their replication endpoints."""
    brokers = tuple(
        live_broker(broker_id, control_endpoint=control_endpoint, replication_endpoint=endpoint)
        for broker_id, endpoint in endpoints.items()
    )
    is_next = controller != CONTROLLER
    header = ControlHeader(controller, HEADER.controller_epoch + is_next, -1)
    return ControlRequestReceived(header, UpdateMetadataRequest((), brokers))


def fetch(replica_id: BrokerId, *, max_wait_ms: int = 0, leader_epoch: int = 0) -> FetchRequest:
    """Return the fetch of a follower with an empty log."""
    row = FetchPartition(PARTITION.partition, leader_epoch, 0, -1, 0)
    return FetchRequest(replica_id, -1, max_wait_ms, (FetchTopic(PARTITION.topic, None, (row,)),))


def leader_of_two(stage: Stage, endpoints: Mapping[BrokerId, str]) -> Broker:
    """Start broker 1 as the leader; broker 2 has caught up and fetches nothing more."""
    ref = stage.broker(1)
    ask(ref, StopFetching())
    ask(ref, alive(endpoints))
    ask(ref, lead_and_follow(1, (1, 2), isr=(1,)))
    actor = actor_of(ref)
    actor.replica_manager.fetch(fetch(2), 0, lambda _: None)
    return actor


def hosted_as(role: Role, manager: ReplicaManager) -> int:
    """Return how many replicas have a role, as the metrics count them."""
    return sum(partition.role is role for partition in list(manager.partitions.values()))
