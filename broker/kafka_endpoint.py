"""The ports that Kafka clients connect to, and the handlers of their requests.

They are bound before the broker registers, because the registration contains them. Clients that
connect earlier are answered once the broker is ready. One of the listeners may be that of brokers
too: what a controller and other brokers ask is answered as soon as the broker has registered,
because it is a controller that makes it ready. Mirrors the list of handlers in
``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, Protocol

from pykka import ActorRef

from regent.actors.broker import Broker
from regent.actors.coordinator_log import begin_verification
from regent.broker.api.acls import acl_apis
from regent.broker.api.authentication import authentication_apis
from regent.broker.api.authorization import with_authorization
from regent.broker.api.client_quotas import client_quota_apis
from regent.broker.api.configs import ConfigAlterations, ConfigView, alter_config_apis, config_apis
from regent.broker.api.consumer_group_heartbeat import consumer_group_heartbeat_apis
from regent.broker.api.control_requests import ControlledBroker, control_apis
from regent.broker.api.controller_requests import (
    AskController,
    ControllerAccess,
    controller_apis,
)
from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.delegation_tokens import delegation_token_apis
from regent.broker.api.delete_records import delete_records_apis
from regent.broker.api.describe_cluster import describe_cluster_apis
from regent.broker.api.describe_producers import describe_producers_apis
from regent.broker.api.features import feature_apis
from regent.broker.api.fetch import TopicNamesById, fetch_apis
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
from regent.broker.api.registered_followers import BrokerSenders, RegisteredFollowers
from regent.broker.api.scram_credentials import scram_credential_apis
from regent.broker.api.topics import topic_apis
from regent.broker.api.transactions import (
    HangingTransactions,
    TransactionHandlers,
    transaction_apis,
    transaction_apis_of_brokers,
)
from regent.broker.api.txn_offset_commit import TxnOffsetCommitHandler
from regent.broker.broker_settings import StartedBroker, described_settings
from regent.broker.group_service import BrokerGroupService
from regent.broker.listener_security import ListenerKeys, ListenerSecurity, security_of
from regent.broker.machine_settings import (
    LIMITS_OF_CONNECTIONS,
    broker_passwords,
    dynamic_rows,
    dynamic_values,
    kafka_limits,
)
from regent.broker.topic_service import BrokerTopicService
from regent.broker.transaction_service import BrokerTransactionService
from regent.broker.user_credentials import UserCredentials
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.config.threads import at_once, named_executor
from regent.core.admin.config_alterations import BrokerConfigManager
from regent.core.admin.config_handlers import values_in_force
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.errors import RegentError
from regent.core.log_dirs import LocalLogDirectories
from regent.core.model import BrokerId, EndPoint
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.security.acl_cache import AclCache
from regent.core.security.authorizer import ALLOW_ALL, Authorizer
from regent.core.security.delegation_token_manager import DelegationTokenManager
from regent.core.security.scram import CredentialProvider
from regent.core.setting import SettingValues
from regent.transport.kafka.acceptor import SharedLimits
from regent.transport.kafka.api import (
    Answering,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
)
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import KafkaListener, listen
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.kafka.metrics import ListenerMetrics
from regent.transport.kafka.replies import Replies
from regent.transport.local_users import EVERYBODY, LocalUsers
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.stores.consumer_offsets import ZkConsumerOffsets
from regent.zk.stores.controller_store import has_led_partitions, is_broker_of_kafka
from regent.zk.stores.producer_ids import ZkProducerIds

logger = logging.getLogger(__name__)

_ZOOKEEPER_CALLS = 2  # threads: the event loop must not wait for ZooKeeper
_RECORD_CHECKERS = 4  # threads at most; requests for the same partition keep their order
_BEFORE_CLIENTS: Final = frozenset(
    {
        KafkaApiKey.LEADER_AND_ISR,
        KafkaApiKey.STOP_REPLICA,
        KafkaApiKey.UPDATE_METADATA,
        KafkaApiKey.CONTROLLED_SHUTDOWN,
        KafkaApiKey.SASL_HANDSHAKE,
        KafkaApiKey.SASL_AUTHENTICATE,
        KafkaApiKey.ALTER_PARTITION,
        KafkaApiKey.ALLOCATE_PRODUCER_IDS,
    }
)
"""What is answered although the broker does not know the cluster yet."""


class OwnController(Protocol):
    """The controller of this process; thread-safe."""

    @property
    def ask(self) -> AskController:
        """Asks it."""
        ...

    def is_active(self) -> bool:
        """Whether it is the active one."""
        ...


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
    wake_replication: Callable[[], None] = lambda: None
    """Called after a fetch of a follower, while ISR proposals wait."""
    tokens: DelegationTokenManager | None = None
    """None: there are no delegation tokens."""
    authorizer: Authorizer = ALLOW_ALL
    acls: AclCache | None = None
    """None: there is no authorizer."""
    authorizer_of_brokers: Authorizer = ALLOW_ALL
    """Decides on a listener of brokers that is not the only one."""
    controller: OwnController | None = None
    """None: brokers are not answered as by a controller."""
    broker: ActorRef[Broker] | None = None
    """None: no controller of Kafka rules this broker."""


class KafkaEndpoint:
    """The Kafka ports of a broker. Used by the thread that starts and stops the broker."""

    reconfigurable_configs: Final = LIMITS_OF_CONNECTIONS

    def __init__(
        self,
        broker_id: BrokerId,
        settings: Settings,
        quotas: QuotaManagers,
        loop: ListenerLoop | None = None,
        users: LocalUsers = EVERYBODY,
        credentials: CredentialProvider | None = None,
    ) -> None:
        """Bind the ports. Raises ``PortInUseError``, or ``RegentError`` for an unusable address."""
        self._broker_id = broker_id
        self._settings = settings
        self._quotas = quotas
        self._loop = loop
        self._users = users
        listeners = settings.listeners
        both = (
            () if listeners.of_brokers_only else (listeners.inter_broker, listeners.control_plane)
        )
        self._of_brokers = [endpoint for endpoint in both if endpoint is not None]
        """The listener that is for brokers too; None: they have one of their own."""
        self._is_ready = asyncio.Event()  # of the loop
        self._undo = ExitStack()
        self._listening: dict[EndPoint, socket.socket] = {}
        self._security: dict[EndPoint, ListenerSecurity] = {}
        with self._undo:
            for endpoint in settings.listeners.of_clients:
                known = credentials or UserCredentials()
                security = self._security[endpoint] = security_of(endpoint, settings, known)
                if security.sasl is not None:
                    self._undo.callback(security.sasl.close)
                listening = self._undo.enter_context(listen(endpoint.host, endpoint.port))
                self._listening[endpoint] = listening
            self._undo = self._undo.pop_all()
        self.keys = ListenerKeys(settings)
        self.keys.add({e.listener: one.tls for e, one in self._security.items() if one.tls})
        self._calls = named_executor(_ZOOKEEPER_CALLS, "zookeeper-calls")
        self._calls_of_brokers = named_executor(1, "calls-of-brokers")  # clients do not delay them
        self._queries = named_executor(1, "long-queries")
        # For records beside the event loop. Few threads limit the memory.
        self._record_checker = named_executor(at_once(_RECORD_CHECKERS), "record-validation")
        self._large_checker = named_executor(1, "large-batches")
        self._unpacker = named_executor(1, "unpacking")
        self._record_reader = named_executor(1, "record-reader")
        self._listeners: dict[str, KafkaListener] = {}
        self._waiting: dict[EndPoint, KafkaListener] = {}
        self._values = self._started = dynamic_values(settings)
        self._lock = threading.Lock()  # older limits never replace newer ones

    @cached_property
    def ports(self) -> Mapping[str, int]:
        """The ports of the listeners for clients, by their names."""
        return {e.listener: sock.getsockname()[1] for e, sock in self._listening.items()}

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return next(iter(self.ports.values()))

    @property
    def metrics(self) -> Mapping[str, ListenerMetrics]:
        """The metrics of clients' connections by listeners; empty before ``serve``.

        The metrics of requests are those of all listeners together.
        """
        return {name: listener.metrics for name, listener in self._listeners.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons that kept clients out in the last minute, one line each."""
        return tuple(line for metrics in self.metrics.values() for line in metrics.warnings)

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
            for listener in self._listeners.values():
                listener.end_waits()

    def serve(self, served: Served) -> None:
        """Answer other brokers from now on, and clients from ``admit_clients`` on."""
        self._serving = loop = self._loop or self._undo.enter_context(
            closing(ListenerLoop("kafka-listener"))
        )
        apis, first = self._apis(served), next(iter(self._listening))
        of_clients = with_authorization(apis, served.authorizer)
        shared = SharedLimits(kafka_limits(self._settings, first.listener), self._quotas)
        listeners: dict[EndPoint, KafkaListener] = {}
        for endpoint in self._listening:
            if endpoint not in self._of_brokers:
                listeners[endpoint] = self._listener(endpoint, of_clients, loop, shared)
                continue
            authorizer, its_own = served.authorizer, shared
            if self._settings.listeners.keeps_brokers_apart(endpoint.listener):
                authorizer = served.authorizer_of_brokers
                limits = kafka_limits(self._settings, endpoint.listener)
                its_own = SharedLimits(limits, self._quotas)
            of_all = with_authorization(self._with_those_of_brokers(apis, served), authorizer)
            held = [self._held(api) for api in of_all]
            listeners[endpoint] = self._listener(endpoint, held, loop, its_own)
        for listener in listeners.values():
            listener.metrics.requests = listeners[first].metrics.requests
        for endpoint in self._of_brokers:
            listeners[endpoint].start(self._listening[endpoint])
        self._waiting = {e: listeners[e] for e in listeners if e not in self._of_brokers}
        with self._lock:
            self._listeners = {e.listener: listener for e, listener in listeners.items()}
            self._limit_connections()

    def admit_clients(self) -> None:
        """Answer clients from now on; ``serve`` comes first."""
        self._serving.call(self._is_ready.set)
        for endpoint, listener in self._waiting.items():
            listener.start(self._listening[endpoint])
        with self._lock:
            self._limit_connections()

    def _listener(
        self,
        endpoint: EndPoint,
        apis: Sequence[KafkaApi],
        loop: ListenerLoop,
        shared: SharedLimits,
    ) -> KafkaListener:
        name, is_only = endpoint.listener, len(self._listening) == 1
        return KafkaListener(
            endpoint.host,
            self.ports[name],
            apis,
            kafka_limits(self._settings, name),
            "kafka-listener" if is_only else f"kafka-listener-{name}",
            loop=loop,
            users=self._users,
            endpoint=endpoint,
            shared=shared,
            tls=self._security[endpoint].tls,
            sasl=self._security[endpoint].sasl,
        )

    def _held(self, api: KafkaApi) -> KafkaApi:
        """Return an API that is answered when the broker is ready, unless it makes it ready."""
        if api.key in _BEFORE_CLIENTS:
            return api
        is_ready, handle = self._is_ready, api.handle

        async def wait(request: KafkaRequest) -> KafkaAnswer:
            await is_ready.wait()
            return await handle(request)

        def held(request: KafkaRequest) -> Answering:
            return handle(request) if is_ready.is_set() else wait(request)

        return KafkaApi(api.key, api.min_version, api.max_version, held)

    def close(self) -> None:
        """Finish the requests in progress, then close every connection. Idempotent."""
        for listener in self._listeners.values():
            listener.close()
        self._undo.close()
        calls = (self._calls, self._calls_of_brokers, self._queries)
        checkers = (self._record_checker, self._large_checker)
        for executor in (*calls, *checkers, self._unpacker, self._record_reader):
            executor.shutdown(wait=False, cancel_futures=True)

    def _limit_connections(self) -> None:
        try:
            for name, listener in self._listeners.items():
                listener.limit_connections(self._limits(self._values, name))
        except RegentError as error:
            logger.error("The limits of connections stay as they are: %s", error)

    def _limits(self, values: SettingValues, listener: str) -> KafkaLimits:
        """Return the limits of clients; raises ``RegentError`` if they contradict each other."""
        return kafka_limits(self._settings, listener, values)

    def _check(self, overrides: Mapping[str, str]) -> None:
        """Raise ``RegentError`` if overrides of this broker contradict each other."""
        if not overrides.keys().isdisjoint(self.reconfigurable_configs):
            values = values_in_force(self._started, overrides, dynamic_rows(self._settings, {}))
            self._limits(values, next(iter(self.ports)))

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
            *metadata_apis(cache, served.cluster_id, create_missing),
            *describe_cluster_apis(cache, served.cluster_id),
            *produce_apis(
                replicas,
                cache,
                self._record_checker,
                transactions,
                (self._large_checker, self._unpacker),
            ),
            *self._apis_of_readers(served),
            *delete_records_apis(replicas),
            *self._apis_of_topics_and_configs(served),
            *find_coordinator_apis(
                served.groups.partitions,
                cache,
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
            *delegation_token_apis(served.tokens, self._calls),
            *feature_apis(),
            *self._apis_of_transactions(served, groups),
        ]

    def _apis_of_readers(self, served: Served) -> Sequence[KafkaApi]:
        """Return what consumers use."""
        replicas, reader = served.replica_manager, self._record_reader
        return [
            *fetch_apis(replicas, served.cache, reader, serves_followers=False),
            *offset_apis(replicas, reader, serves_followers=False),
        ]

    def _apis_of_transactions(
        self, served: Served, groups: CoordinatorRequests
    ) -> Sequence[KafkaApi]:
        if (service := served.transactions) is None:
            return ()
        group_partitions = served.groups.partitions
        handlers = _transaction_handlers(service, group_partitions)
        hanging = HangingTransactions(served.replica_manager, self._queries)
        return [
            *transaction_apis(handlers, hanging),
            *TxnOffsetCommitHandler(
                groups,
                group_partitions,
                partial(begin_verification, served.replica_manager),
                service,
                served.cache,
                Replies(),
            ).apis(),
        ]

    def _with_those_of_brokers(
        self, apis: Sequence[KafkaApi], served: Served
    ) -> Sequence[KafkaApi]:
        """Return the APIs of a listener for both clients and brokers."""
        replicas, cache, reader = served.replica_manager, served.cache, self._record_reader
        registered, transactions = RegisteredFollowers(cache), served.transactions
        more = [
            *fetch_apis(
                replicas,
                cache,
                reader,
                on_proposals=served.wake_replication,
                registered=registered,
            ),
            *offset_apis(replicas, reader, registered=registered),
        ]
        if transactions is not None:
            handlers = _transaction_handlers(transactions, served.groups.partitions)
            of_brokers = self._settings.of_listener(self._settings.listeners.inter_broker_name)
            user = of_brokers.sasl.sasl_inter_broker_user
            senders = BrokerSenders(cache, user, self._queries)
            more += transaction_apis(handlers, senders)
        if served.controller is not None:
            access = ControllerAccess(
                served.controller.is_active,
                served.controller.ask,
                lambda broker_id: ZkProducerIds(served.zookeeper, broker_id).take_block(),
                self._calls_of_brokers,
            )
            more += controller_apis(access, TopicNamesById(cache), registered)
        if served.broker is not None:
            ruled = ControlledBroker(
                self._broker_id,
                served.broker,
                partial(is_broker_of_kafka, served.zookeeper),
                partial(has_led_partitions, served.zookeeper),
                lambda: cache.snapshot.is_complete,
                self._calls_of_brokers,
            )
            more += control_apis(ruled)
        return list(({api.key: api for api in apis} | {api.key: api for api in more}).values())

    def _apis_of_topics_and_configs(self, served: Served) -> Sequence[KafkaApi]:
        described = described_settings(self._settings, self._broker_id, served.started)
        configs = ZkConfigStore(served.zookeeper)
        view = ConfigView(self._broker_id, served.cache, described, configs.read_configs)
        brokers = BrokerConfigManager(
            *(configs, KAFKA_SETTINGS, described, self._check, self.keys.check),
            broker_passwords(self._settings),
        )
        alterations = ConfigAlterations(self._broker_id, served.topics, brokers, self._calls)
        quotas = configs.read_client_quotas
        return [
            *topic_apis(served.topics, view.broker_settings, self._calls),
            *partition_apis(served.topics),
            *config_apis(view, self._calls),
            *alter_config_apis(alterations),
            *client_quota_apis(quotas, configs.change_config, self._calls),
            *scram_credential_apis(
                configs.read_configs, quotas, configs.change_config, self._calls
            ),
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
