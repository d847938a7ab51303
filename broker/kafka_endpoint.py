"""The port that Kafka clients connect to, and the handlers of their requests.

The port is bound before the broker registers, because the registration contains it. Clients that
connect earlier are answered once the broker is ready. Mirrors the list of handlers in
``kafka.server.KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from regent.api.config_changes import config_change_apis
from regent.api.configs import ConfigView, config_apis
from regent.api.delete_records import delete_records_apis
from regent.api.describe_producers import describe_producers_apis
from regent.api.fetch import fetch_apis
from regent.api.log_dirs import log_dir_apis
from regent.api.metadata import metadata_apis
from regent.api.offsets import offset_apis
from regent.api.produce import produce_apis
from regent.api.producer_ids import producer_id_apis
from regent.api.topics import topic_apis
from regent.broker.broker_settings import broker_settings
from regent.broker.machine_settings import kafka_limits
from regent.broker.topic_service import BrokerTopicService
from regent.config.settings import Settings
from regent.core.log_dirs import LocalLogDirectories
from regent.core.model import BrokerId
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.listener import KafkaListener, listen
from regent.transport.kafka.metrics import ListenerMetrics
from regent.zk.client.operations import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.stores.producer_ids import ZkProducerIds

LISTENER = "PLAINTEXT"
_ZOOKEEPER_CALLS = 2  # threads: the event loop must not wait for ZooKeeper


@dataclass(frozen=True, slots=True)
class Served:
    """The parts of a broker that answer its clients."""

    replica_manager: ReplicaManager
    cache: MetadataCache
    topics: BrokerTopicService
    zookeeper: ZooKeeper
    cluster_id: Callable[[], str | None]
    log_directories: LocalLogDirectories
    log_mover: ReplicaAlterLogDirsManager


class KafkaEndpoint:
    """The Kafka port of a broker. Used by the thread that starts and stops the broker."""

    def __init__(self, broker_id: BrokerId, settings: Settings) -> None:
        """Bind the port. Raises ``PortInUseError``, or ``RegentError`` for an unusable address."""
        self._broker_id = broker_id
        self._settings = settings
        self._listening = listen(settings.broker.host, settings.broker.port)
        self.port: int = self._listening.getsockname()[1]
        self._calls = ThreadPoolExecutor(_ZOOKEEPER_CALLS, thread_name_prefix="zookeeper-calls")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="long-queries")
        self._listener: KafkaListener | None = None

    @property
    def metrics(self) -> ListenerMetrics | None:
        """The metrics of clients' connections; None before ``serve``."""
        return None if self._listener is None else self._listener.metrics

    def serve(self, served: Served) -> None:
        """Answer clients from now on."""
        host, limits = self._settings.broker.host, kafka_limits(self._settings)
        self._listener = KafkaListener(host, self.port, self._apis(served), limits)
        self._listener.start(self._listening)

    def close(self) -> None:
        """Finish the requests in progress, then close every connection. Idempotent."""
        if self._listener is None:
            self._listening.close()
        else:
            self._listener.close()
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._queries.shutdown(wait=False, cancel_futures=True)

    def _apis(self, served: Served) -> Sequence[KafkaApi]:
        replicas, cache, zookeeper = served.replica_manager, served.cache, served.zookeeper
        view = ConfigView(
            self._broker_id,
            cache,
            broker_settings(self._settings, self._broker_id),
            ZkConfigStore(zookeeper).read_configs,
        )
        may_create = self._settings.broker.auto_create_topics_enable
        create_missing = served.topics.create_missing if may_create else None
        producer_ids = ZkProducerIds(zookeeper, self._broker_id)
        return [
            *metadata_apis(cache, LISTENER, served.cluster_id, create_missing),
            *produce_apis(replicas),
            *fetch_apis(replicas),
            *offset_apis(replicas),
            *delete_records_apis(replicas),
            *topic_apis(served.topics),
            *config_apis(view, self._calls),
            *config_change_apis(served.topics),
            *producer_id_apis(producer_ids.take_block, self._calls),
            *describe_producers_apis(replicas, cache, self._queries),
            *log_dir_apis(replicas, served.log_directories, served.log_mover, self._queries),
        ]
