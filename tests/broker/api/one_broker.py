"""One broker in this process: real replicas behind a real listener; the test is the controller."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from regent.broker.api.fetch import fetch_apis
from regent.broker.api.metadata import metadata_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.api.produce import produce_apis
from regent.broker.api.producer_ids import producer_id_apis
from regent.core.model import BrokerId
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.sasl_server import SaslListener
from regent.transport.kafka.tls import ServerTls
from tests.support.led_partitions import lead
from tests.support.world import live_broker

BROKER = 1


class OneBroker:
    """Leads ``topics`` (name → partition count) with ``isr`` in sync; tests are the followers."""

    def __init__(
        self,
        logs: ReplicaLogs,
        topics: Mapping[str, int],
        isr: tuple[BrokerId, ...] = (BROKER,),
        tls: ServerTls | None = None,
        sasl: SaslListener | None = None,
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
                *metadata_apis(cache, lambda: "one-broker-cluster"),
                *produce_apis(self.replica_manager, cache, self._executor),
                *fetch_apis(self.replica_manager, cache, self._executor),
                *offset_apis(self.replica_manager, self._executor),
                *producer_id_apis(lambda: range(1000), self._executor),
            ],
            tls=tls,
            sasl=sasl,
        )

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.listener.port}"

    def start(self) -> None:
        """Start the listener and lead the topics."""
        self.listener.start()
        self.lead(leader_epoch=0)

    def lead(self, leader_epoch: int, leader: BrokerId = BROKER) -> None:
        """Apply the control requests that make ``leader`` lead the topics."""
        lead(
            self.replica_manager,
            live_broker(BROKER, port=self.listener.port),
            self._topics,
            self._isr,
            leader=leader,
            leader_epoch=leader_epoch,
        )

    def close(self) -> None:
        """Stop."""
        self.listener.close(0.1)
        self._executor.shutdown()
