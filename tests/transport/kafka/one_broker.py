"""A broker in one process: real replicas behind a real listener, and a test for its controller."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from core.model import BrokerId
from core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from core.replica_logs import ReplicaLogs
from core.replication.metadata_cache import MetadataCache
from core.replication.replica_manager import ReplicaManager
from transport.kafka.fetch import fetch_apis
from transport.kafka.listener import KafkaListener
from transport.kafka.metadata import metadata_apis
from transport.kafka.offsets import offset_apis
from transport.kafka.produce import produce_apis
from transport.kafka.producer_ids import producer_id_apis

BROKER = 1


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class OneBroker:
    """Leads ``topics`` (name → number of partitions) with ``isr`` in sync; followers are tests."""

    def __init__(
        self,
        logs: ReplicaLogs,
        topics: Mapping[str, int],
        isr: tuple[BrokerId, ...] = (BROKER,),
    ) -> None:
        self._topics = topics
        self._isr = isr
        cache = MetadataCache()
        self.replica_manager = ReplicaManager(BROKER, logs, cache, lock=threading.RLock())
        self._executor = ThreadPoolExecutor(1)
        self.listener = KafkaListener(
            "127.0.0.1",
            0,
            [
                *metadata_apis(cache, "PLAINTEXT", lambda: "one-broker-cluster"),
                *produce_apis(self.replica_manager),
                *fetch_apis(self.replica_manager),
                *offset_apis(self.replica_manager),
                *producer_id_apis(lambda: range(1000), self._executor),
            ],
        )

    @property
    def address(self) -> str:
        """Where clients begin."""
        return f"127.0.0.1:{self.listener.port}"

    def start(self) -> None:
        """Listen, and lead."""
        self.listener.start()
        self.order(leader_epoch=0)

    def order(self, leader_epoch: int, leader: BrokerId = BROKER) -> None:
        """Give the orders of a controller."""
        header = ControlHeader(BROKER, 1, -1)
        isr = self._isr
        leading = tuple(
            LeaderAndIsrTopic(
                topic,
                None,
                tuple(
                    LeaderAndIsrPartition(
                        index, 1, leader, leader_epoch, isr, 0, isr, (), (), True, 0
                    )
                    for index in range(count)
                ),
            )
            for topic, count in self._topics.items()
        )
        known = tuple(
            UpdateMetadataTopic(
                topic,
                None,
                tuple(
                    UpdateMetadataPartition(index, 1, leader, leader_epoch, isr, 0, isr, ())
                    for index in range(count)
                ),
            )
            for topic, count in self._topics.items()
        )
        endpoint = UpdateMetadataEndPoint("PLAINTEXT", "127.0.0.1", self.listener.port, "PLAINTEXT")
        alive = UpdateMetadataBroker(BROKER, -1, (endpoint,), None, None, None)
        manager = self.replica_manager
        manager.handle(
            header, LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, leading, ()), now_ms()
        )
        manager.handle(header, UpdateMetadataRequest(known, (alive,)), now_ms())

    def close(self) -> None:
        """End."""
        self.listener.close(0.1)
        self._executor.shutdown()
