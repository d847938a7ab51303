"""The port that Kafka clients connect to, and the handlers of their requests.

The port is bound before the broker registers, because the registration contains it. Clients that
connect earlier are answered once the broker is ready. Mirrors the list of handlers in
``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from regent.actors.coordinator_log import begin_verification
from regent.broker.api.acls import acl_apis
from regent.broker.api.authentication import authentication_apis
from regent.broker.api.authorization import with_authorization
from regent.broker.api.client_quotas import client_quota_apis
from regent.broker.api.configs import ConfigAlterations, ConfigView, alter_config_apis, config_apis
from regent.broker.api.consumer_group_heartbeat import consumer_group_heartbeat_apis
from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.delete_records import delete_records_apis
from regent.broker.api.describe_cluster import describe_cluster_apis
from regent.broker.api.describe_producers import describe_producers_apis
from regent.broker.api.features import feature_apis
from regent.broker.api.fetch import fetch_apis
from regent.broker.api.find_coordinator import find_coordinator_apis
from regent.broker.api.group_offsets import group_offset_apis
from regent.broker.api.groups import group_apis
from regent.broker.api.log_dirs import log_dir_apis
from regent.broker.api.metadata import metadata_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.api.old_clients import ZooKeeperOffsets
from regent.broker.api.partitions import partition_apis
from regent.broker.api.produce import produce_apis
from regent.broker.api.producer_ids import producer_id_apis
from regent.broker.api.scram_credentials import scram_credential_apis
from regent.broker.api.topics import topic_apis
from regent.broker.api.transactions import (
    TransactionHandlers,
    transaction_apis,
    transaction_apis_of_brokers,
)
from regent.broker.api.txn_offset_commit import TxnOffsetCommitHandler
from regent.broker.broker_settings import LISTENER, StartedBroker, described_settings
from regent.broker.group_service import BrokerGroupService
from regent.broker.machine_settings import dynamic_values, kafka_limits, with_values
from regent.broker.topic_service import BrokerTopicService
from regent.broker.transaction_service import BrokerTransactionService
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.config.threads import at_once, named_executor
from regent.core.admin.config_alterations import BrokerConfigManager
from regent.core.admin.config_handlers import values_in_force
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import RegentError
from regent.core.log_dirs import LocalLogDirectories
from regent.core.model import BrokerId
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.security.acl_cache import AclCache
from regent.core.security.authorizer import ALLOW_ALL, Authorizer
from regent.core.setting import SettingValues
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.connection import KafkaLimits
from regent.transport.kafka.listener import KafkaListener, listen
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.kafka.metrics import ListenerMetrics
from regent.transport.kafka.replies import Replies
from regent.transport.local_users import EVERYBODY, LocalUsers
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.stores.consumer_offsets import ZkConsumerOffsets
from regent.zk.stores.producer_ids import ZkProducerIds

logger = logging.getLogger(__name__)

_ZOOKEEPER_CALLS = 2  # threads: the event loop must not wait for ZooKeeper
_RECORD_CHECKERS = 4  # threads at most; requests for the same partition keep their order


@dataclass(frozen=True, slots=True)
class Served:
    """The parts of a broker that answer its clients."""

    replica_manager: ReplicaManager
    cache: MetadataCache
    topics: BrokerTopicService
    groups: BrokerGroupService
    zookeeper: ZooKeeper
    cluster_id: Callable[[], str | None]
    started: StartedBroker
    log_directories: LocalLogDirectories
    log_mover: ReplicaAlterLogDirsManager
    transactions: BrokerTransactionService | None = None
    """None: clients are not told of transactions."""
    authorizer: Authorizer = ALLOW_ALL
    acls: AclCache | None = None
    """None: there is no authorizer."""


class KafkaEndpoint:
    """The Kafka port of a broker. Used by the thread that starts and stops the broker."""

    reconfigurable_configs: Final = (
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        settings: Settings,
        quotas: QuotaManagers,
        loop: ListenerLoop | None = None,
        users: LocalUsers = EVERYBODY,
    ) -> None:
        """Bind the port. Raises ``PortInUseError``, or ``RegentError`` for an unusable address."""
        self._broker_id = broker_id
        self._settings = settings
        self._quotas = quotas
        self._loop = loop
        self._users = users
        self._listening = listen(settings.broker.host, settings.broker.port)
        self.port: int = self._listening.getsockname()[1]
        self._calls = named_executor(_ZOOKEEPER_CALLS, "zookeeper-calls")
        self._queries = named_executor(1, "long-queries")
        # For records beside the event loop. Few threads limit the memory.
        self._record_checker = named_executor(at_once(_RECORD_CHECKERS), "record-validation")
        self._large_checker = named_executor(1, "large-batches")
        self._unpacker = named_executor(1, "unpacking")
        self._record_reader = named_executor(1, "record-reader")
        self._listener: KafkaListener | None = None
        self._values = self._started = dynamic_values(settings)
        self._lock = threading.Lock()  # older limits never replace newer ones

    @property
    def metrics(self) -> ListenerMetrics | None:
        """The metrics of clients' connections; None before ``serve``."""
        return None if self._listener is None else self._listener.metrics

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Change the limits of connections."""
        del old
        with self._lock:
            self._values = new
            self._limit_connections()

    def set_quotas(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Set the quotas of clients. Clients that wait may have waited for a wrong quota."""
        self._quotas.configure(configs)
        with self._lock:
            if self._listener is not None:
                self._listener.end_waits()

    def serve(self, served: Served) -> None:
        """Answer clients from now on."""
        host, limits = self._settings.broker.host, kafka_limits(self._settings)
        apis = with_authorization(self._apis(served), served.authorizer)
        listener = KafkaListener(
            host,
            self.port,
            apis,
            limits,
            quotas=self._quotas,
            loop=self._loop,
            users=self._users,
        )
        listener.start(self._listening)
        with self._lock:
            self._listener = listener
            self._limit_connections()

    def close(self) -> None:
        """Finish the requests in progress, then close every connection. Idempotent."""
        if self._listener is None:
            self._listening.close()
        else:
            self._listener.close()
        executors = (self._calls, self._queries, self._record_checker, self._large_checker)
        for executor in (*executors, self._unpacker, self._record_reader):
            executor.shutdown(wait=False, cancel_futures=True)

    def _limit_connections(self) -> None:
        try:
            limits = self._limits(self._values)
            if self._listener is not None:
                self._listener.limit_connections(limits)
        except RegentError as error:
            logger.error("The limits of connections stay as they are: %s", error)

    def _limits(self, values: SettingValues) -> KafkaLimits:
        """Return the limits of clients; raises ``RegentError`` if they contradict each other."""
        broker = with_values(self._settings.broker, values, self.reconfigurable_configs)
        return kafka_limits(replace(self._settings, broker=broker))

    def _check(self, overrides: Mapping[str, str]) -> None:
        """Raise ``RegentError`` if overrides of this broker contradict each other."""
        if not overrides.keys().isdisjoint(self.reconfigurable_configs):
            self._limits(values_in_force(self._started, overrides, KAFKA_SETTINGS))

    def _zookeeper_offsets(self, zookeeper: ZooKeeper) -> ZooKeeperOffsets:
        max_metadata = self._settings.groups.offset_metadata_max_bytes
        return ZooKeeperOffsets(ZkConsumerOffsets(zookeeper), self._calls, max_metadata)

    def _apis(self, served: Served) -> Sequence[KafkaApi]:
        replicas, cache, zookeeper = served.replica_manager, served.cache, served.zookeeper
        may_create = self._settings.broker.auto_create_topics_enable
        create_missing = served.topics.create_missing if may_create else None
        producer_ids = ZkProducerIds(zookeeper, self._broker_id)
        groups, transactions = CoordinatorRequests(served.groups.coordinator), served.transactions
        return [
            *metadata_apis(cache, LISTENER, served.cluster_id, create_missing),
            *describe_cluster_apis(cache, LISTENER, served.cluster_id),
            *produce_apis(
                replicas,
                cache,
                LISTENER,
                self._record_checker,
                transactions,
                (self._large_checker, self._unpacker),
            ),
            *fetch_apis(replicas, cache, LISTENER, self._record_reader, serves_followers=False),
            *offset_apis(replicas, self._record_reader, serves_followers=False),
            *delete_records_apis(replicas),
            *self._apis_of_topics_and_configs(served),
            *find_coordinator_apis(
                served.groups.partitions,
                cache,
                LISTENER,
                served.topics.create_missing,
                served.topics.coordinator_obstacle,
                None if transactions is None else transactions.partitions,
            ),
            *producer_id_apis(
                producer_ids.take_block,
                self._calls,
                None if transactions is None else CoordinatorRequests(transactions.coordinator),
            ),
            *group_apis(groups),
            *group_offset_apis(groups, cache, self._zookeeper_offsets(zookeeper)),
            *consumer_group_heartbeat_apis(),
            *describe_producers_apis(replicas, cache, self._queries),
            *log_dir_apis(replicas, served.log_directories, served.log_mover, self._queries),
            *acl_apis(served.acls, self._calls),
            *authentication_apis(),
            *feature_apis(),
            *(() if transactions is None else _apis_of_transactions(transactions, served, groups)),
        ]

    def _apis_of_topics_and_configs(self, served: Served) -> Sequence[KafkaApi]:
        described = described_settings(self._settings, self._broker_id, served.started)
        configs = ZkConfigStore(served.zookeeper)
        view = ConfigView(self._broker_id, served.cache, described, configs.read_configs)
        brokers = BrokerConfigManager(configs, KAFKA_SETTINGS, described, self._check)
        alterations = ConfigAlterations(self._broker_id, served.topics, brokers, self._calls)
        quotas = configs.read_client_quotas
        return [
            *topic_apis(served.topics, view.broker_settings, self._calls),
            *partition_apis(served.topics),
            *config_apis(view, self._calls),
            *alter_config_apis(alterations),
            *client_quota_apis(quotas, configs.change_config, self._calls),
            *scram_credential_apis(configs.read_configs, quotas, self._calls),
        ]


def apis_of_other_brokers(
    transactions: BrokerTransactionService, group_partitions: CoordinatorPartitions
) -> Sequence[KafkaApi]:
    """Return what other brokers ask beside their fetches."""
    return transaction_apis_of_brokers(_transaction_handlers(transactions, group_partitions))


def _transaction_handlers(
    transactions: BrokerTransactionService, group_partitions: CoordinatorPartitions
) -> TransactionHandlers:
    return TransactionHandlers(
        CoordinatorRequests(transactions.coordinator),
        transactions.partitions,
        group_partitions,
        transactions.markers,
        Replies(),
    )


def _apis_of_transactions(
    service: BrokerTransactionService, served: Served, groups: CoordinatorRequests
) -> Sequence[KafkaApi]:
    group_partitions = served.groups.partitions
    return [
        *transaction_apis(_transaction_handlers(service, group_partitions)),
        *TxnOffsetCommitHandler(
            groups,
            group_partitions,
            partial(begin_verification, served.replica_manager),
            service,
            served.cache,
            Replies(),
        ).apis(),
    ]
