"""Control requests that a test sends to the replicas of a broker."""

from __future__ import annotations

import time
from collections.abc import Mapping

from regent.core.model import BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.replica_manager import ReplicaManager


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def lead(
    manager: ReplicaManager,
    broker: UpdateMetadataBroker,
    topics: Mapping[str, int],
    isr: tuple[BrokerId, ...],
    *,
    topic_id: str | None = None,
    leader: BrokerId | None = None,
    leader_epoch: int = 0,
    coordinated_partitions: int = 0,
) -> None:
    """Let ``leader`` lead topics (name → number of partitions); ``None`` is the broker itself."""
    led_by = broker.broker_id if leader is None else leader
    header = ControlHeader(broker.broker_id, 1, -1)
    leading, known = [], []
    for topic, count in topics.items():
        led = tuple(
            LeaderAndIsrPartition(index, 1, led_by, leader_epoch, isr, 0, isr, (), (), True, 0)
            for index in range(count)
        )
        rows = tuple(
            UpdateMetadataPartition(index, 1, led_by, leader_epoch, isr, 0, isr, ())
            for index in range(count)
        )
        leading.append(LeaderAndIsrTopic(topic, topic_id, led))
        known.append(UpdateMetadataTopic(topic, topic_id, rows, coordinated_partitions))
    leaderships = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, tuple(leading), ())
    manager.handle(header, leaderships, now_ms())
    manager.handle(header, UpdateMetadataRequest(tuple(known), (broker,), lists_all=True), now_ms())
