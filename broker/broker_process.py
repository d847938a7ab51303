"""One broker: starts all of its parts in order and stops them in reverse order.

Mirrors ``kafka.server.KafkaServer``. The main thread builds the broker, waits for a request to
stop, and asks the controller for a controlled shutdown itself, because the Broker actor must
handle control requests during it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pykka import ActorDeadError

from regent.actors.broker import (
    Broker,
    BrokerCallbacks,
    BrokerState,
    BrokerStatus,
    LogDirectoryFailed,
    Registered,
)
from regent.actors.config_listener import Following
from regent.actors.controller_event_manager import ControllerListener
from regent.actors.inbox import InboxFullError, Reply
from regent.actors.request_router import RequestRouter, screen_of
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler
from regent.actors.transaction_markers import PartitionMarkers
from regent.actors.watchdog import Watchdog
from regent.broker.broker_authorizer import BrokerAuthorizer
from regent.broker.broker_controller import BrokerController
from regent.broker.broker_keys import BrokerKeys
from regent.broker.broker_registration import (
    BrokerAddress,
    EndOfBroker,
    InSomeSession,
    known_at_start,
    register,
    taken_end_points,
    warn_of_open_listeners,
)
from regent.broker.broker_settings import described_settings
from regent.broker.broker_storage import BrokerStorage
from regent.broker.controlled_shutdown import hand_over
from regent.broker.delegation_token_service import BrokerDelegationTokens
from regent.broker.group_service import BrokerGroupService
from regent.broker.internal_topics import metadata_warnings
from regent.broker.kafka_endpoint import KafkaEndpoint, Served, apis_of_other_brokers
from regent.broker.listener_security import controllers_of_kafka
from regent.broker.machine_settings import (
    controller_settings,
    dynamic_rows,
    dynamic_values,
    followed_configs,
    replication_settings,
)
from regent.broker.metrics.broker_metrics import BrokerMetrics, GuardianMetrics, TopicMetrics
from regent.broker.metrics.coordinator_metrics import GroupMetrics, TransactionMetrics
from regent.broker.metrics.listener_metrics import KafkaClientMetrics, QuotaMetrics
from regent.broker.metrics.metric_table import MetricSource
from regent.broker.metrics.metrics_server import MetricsServer, open_metrics_server
from regent.broker.partition_warnings import partition_warnings
from regent.broker.readiness import Readiness, Starting
from regent.broker.replication import Replication
from regent.broker.topic_ids import RandomTopicIds
from regent.broker.topic_service import BrokerTopicService
from regent.broker.transaction_service import BrokerTransactionService
from regent.broker.user_credentials import UserCredentials
from regent.broker.zookeeper_checks import ZooKeeperChecks
from regent.cluster.guardian import Guardian
from regent.config.addresses import port_of, tcp_endpoint
from regent.config.settings import Settings
from regent.config.threads import thread_names_begin_with
from regent.core.admin.config_handlers import TopicConfigHandler
from regent.core.admin.dynamic_config_manager import DynamicConfigManager
from regent.core.controller.controller import Controller
from regent.core.controller.events import ControllerEvent, RegisterBrokerAndReelect, Startup
from regent.core.errors import Errors, RegentError, SessionExpiredError, StorageError
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, BrokerInfo, TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import ShutdownBrokerResponse
from regent.core.protocol.controller import ControlledShutdownRequest
from regent.core.quota.quota_managers import QuotaManagers
from regent.transport.control.codec import max_request_bytes
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.kafka.listener_loop import ListenerLoop
from regent.transport.local_users import local_users
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import WatchEvent
from regent.zk.client.session import SessionKeeper
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.cluster_identity import PROGRESS_MARK, check_cluster, join_cluster
from regent.zk.stores.controller_store import ZkControllerStore, read_control_facts
from regent.zk.stores.producer_ids import ZkProducerIds
from regent.zk.stores.watches import controller_event
from regent.zk.znodes import ConfigEntityChangeNotificationZNode

_ACTOR_TIMEOUT_S = 10.0
_SESSION_CLOSE_TIMEOUT_S = 3.0
_FIRST_METADATA_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The identity, addresses and directories of a broker."""

    broker_id: BrokerId
    zookeeper: str
    data_dir: Path


class BrokerProcess(ControllerListener):
    """A broker from start to end; one thread calls ``start``, ``wait`` and ``shut_down``."""

    def __init__(self, options: BrokerOptions, settings: Settings) -> None:
        self._options, self._settings = options, settings
        self._quotas = QuotaManagers(settings.quotas)
        self._authorizer = BrokerAuthorizer(settings.authorizer)
        self._status = BrokerStatus()
        self._undo = ExitStack()
        self._leave = ExitStack()  # ends the session
        self._stop_requested = threading.Event()
        self._in_some_session = InSomeSession(settings, self._stop_requested)
        self._at_once = threading.Event()
        self._shutdown_replies: list[Reply] = []
        self._router: RequestRouter | None = None
        self._is_serving = False
        self._is_told = threading.Event()  # of all partitions
        self._failure: RegentError | None = None  # the reason if the broker stops by itself
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        self._end = EndOfBroker(options.broker_id)

    @property
    def is_serving(self) -> bool:
        """Whether the broker was registered, so that it must be shut down."""
        return self._is_serving

    # --- start ---

    def start(self) -> BrokerAddress:
        """Start all parts and register; return once the broker handles control requests.

        If it cannot, raises a one-line ``RegentError`` and leaves nothing running.
        """
        try:
            with thread_names_begin_with(self._settings.broker.thread_name_prefix):
                return self._start()
        except BaseException as error:
            self._at_once.set()
            if isinstance(error, SessionExpiredError) and self._failure is not None:
                error = self._failure  # why there is no other session
            self._end.note(error)
            self._undo.close()
            raise error

    def _start(self) -> BrokerAddress:
        broker_id, config = self._options.broker_id, self._settings.broker
        self._status.become(BrokerState.STARTING)
        self._undo.callback(self._leave.close)  # last, as in Kafka: then the folder is free
        self._storage = BrokerStorage(broker_id, self._settings, self._options.data_dir)
        self._users = local_users(config.local_users)
        metrics = open_metrics_server(self._settings, self._users)  # logs may take very long
        metrics.probes = Starting(self._storage.logs)
        self._undo.callback(metrics.close)
        self._storage.open()
        self._undo.callback(self._storage.close)
        self._tokens = BrokerDelegationTokens(broker_id, self._settings)
        self._credentials = UserCredentials(self._tokens)
        self._keys = BrokerKeys(broker_id, self._options.data_dir, config, self.on_must_end)
        self._undo.callback(self._keys.stop)
        warn_of_open_listeners(self._settings, self._status)
        self._start_broker_actor()
        self._kafka_endpoint = self._open_kafka_endpoint()
        others = apis_of_other_brokers(self._transactions, self._groups.partitions)
        ports = self._replication.listen(self._broker_view, others, self._authorizer.for_brokers)
        self._kafka_endpoint.keys.add(self._replication.tls, self._replication.client_tls)
        server = self._start_control_server()
        advertised, self._end_points, self._started = known_at_start(
            self._settings,
            self._options.zookeeper,
            self._options.data_dir,
            {**self._kafka_endpoint.ports, **ports},
            port_of(server.endpoint),
            self._keys.own.public,
            lambda e: self._controller.tell(e),
        )
        key = self._keys.own.public
        info = advertised.broker_info(broker_id, config, key)
        self._join(info)
        self._in_some_session(self._tokens.load)
        self._serve()
        self._publish(metrics, server)
        return advertised.address(broker_id, metrics.port, self._keys.own.public)

    def _serve(self) -> None:
        """Answer other brokers, then clients."""
        self._kafka_endpoint.serve(
            Served(
                self._replica_manager,
                self._cache,
                self._topics,
                self._groups,
                self._keeper,
                lambda: self._cluster_id,
                self._started,
                self._storage.logs,
                self._storage.move_logs(self._replica_manager),
                self._transactions,
                self._replication.wake,
                self._tokens.manager,
                self._authorizer.for_clients,
                self._authorizer.acls,
                self._authorizer.for_brokers,
                self._controller,
                self._broker,
            )
        )
        # Until then clients would be refused, and a refused one asks again much later.
        self._is_told.wait(_FIRST_METADATA_TIMEOUT_S)
        coordinated = (self._groups.partitions, self._transactions.partitions)
        self._status.add_warner(partial(metadata_warnings, self._cache, coordinated))
        self._kafka_endpoint.admit_clients()

    def _publish(self, metrics: MetricsServer, server: ControlServer) -> None:
        """Serve the metrics until the broker stops."""
        sources: list[MetricSource] = [
            BrokerMetrics(
                self._broker_view,
                self._storage.logs,
                self._controller.view,
                self._keeper,
                server,
                self._status,
                self._watchdog,
                self._users,
                self._authorizer.acls,
            ),
            TopicMetrics(self._topics),
            GuardianMetrics(self._guardian),
            QuotaMetrics(self._quotas),
            GroupMetrics(self._groups.groups, self._groups.loads),
            KafkaClientMetrics(
                lambda: self._kafka_endpoint.metrics,
                self._replica_manager,
                self._replication.fetch_metrics,
            ),
            TransactionMetrics(self._transactions.marker_manager, self._transactions.loads),
        ]
        is_active = self._controller.is_active
        metrics.probes = Readiness(self._replica_manager, self._status, self._cache, is_active)
        for published in sources:
            metrics.publish(published)
            self._undo.callback(metrics.withdraw, published)

    def _open_kafka_endpoint(self) -> KafkaEndpoint:
        """Listen for Kafka clients, which are answered once the broker is ready."""
        broker_id, users = self._options.broker_id, self._users
        endpoint = KafkaEndpoint(
            broker_id, self._settings, self._quotas, self._loop, users, self._credentials
        )
        self._status.add_warner(lambda: endpoint.warnings)
        self._undo.callback(endpoint.close)
        return endpoint

    def _start_broker_actor(self) -> None:
        self._watchdog = Watchdog()
        self._watchdog.start()
        self._undo.callback(self._watchdog.stop)
        self._scheduler = Scheduler()
        self._undo.callback(self._scheduler.shutdown)
        self._loop = ListenerLoop()
        self._undo.callback(self._loop.close)
        broker_id = self._options.broker_id
        base = self._keys.context, broker_id, self._settings, self._scheduler
        self._replication = Replication(*base, self._loop, self._users, self._credentials)
        self._topics = BrokerTopicService(*base)
        self._status.add_warner(self._topics.coordinator_warnings)
        self._status.add_warner(self._replication.packet_loss.warnings)
        actor = Broker(
            broker_id,
            self._storage.logs,
            self._status,
            BrokerCallbacks(
                self.request_stop,
                lambda header: read_control_facts(self._keeper, broker_id, header),
                on_isrs_proposed=self._replication.wake,
                on_metadata_changed=self._on_metadata_changed,
                on_replicas_offline=self._on_replicas_offline,
                on_suspects_changed=self._on_suspects_changed,
                catch_up_with_configs=lambda: self._config_listener.catch_up(),
                load_topic_configs=lambda topics: self._configs.load(topics),
            ),
            open_fetch_channel=self._replication.open_fetch_channel,
            scheduler=self._scheduler,
            settings=replication_settings(self._settings),
            run_beside=self._storage.run_beside,
        )
        self._broker_view = actor.view
        self._cache, self._replica_manager = actor.cache, actor.replica_manager
        self._cache.when_complete(self._is_told.set)
        self._start_coordinators()
        self._broker = launch(actor)
        self._undo.callback(stop_actor, self._broker, _ACTOR_TIMEOUT_S)
        self._undo.callback(self._replication.stop)

    def _start_coordinators(self) -> None:
        self._groups = BrokerGroupService(self._settings, self._cache)
        self._groups.start(self._replica_manager, self._scheduler)
        self._undo.callback(self._groups.stop)
        broker_id, answer_ms = self._options.broker_id, self._settings.controller.request_timeout_ms
        self._transactions = BrokerTransactionService(
            broker_id, self._settings, self._cache, self._replication.open_transaction_channel
        )
        self._transactions.start(
            self._replica_manager,
            self._scheduler,
            target=PartitionMarkers(self._replica_manager, self._scheduler, answer_ms),
            groups=self._groups.coordinator,
            take_block=lambda: ZkProducerIds(self._keeper, broker_id).take_block(),
        )
        self._undo.callback(self._transactions.stop)
        self._status.add_warner(partial(partition_warnings, self._replica_manager))

    def _start_control_server(self) -> ControlServer:
        config = self._settings.broker
        server = ControlServer(
            self._keys.own,
            self._keys,
            tcp_endpoint(config.host, config.control_port),
            self._dispatch,
            name="control-server",
            max_frame_bytes=max_request_bytes(ApiKey.LEADER_AND_ISR),  # the largest request
            screen=screen_of(self._broker_view),
            users=self._users,
        )
        server.start(self.on_must_end)
        self._undo.callback(server.stop)
        return server

    def _join(self, info: BrokerInfo) -> None:
        """Open the session, register, and take part in controller elections."""
        self._info = info
        self._guardian = Guardian(self._options.zookeeper)
        self._guardian.start()
        self._leave.callback(self._guardian.dismiss)
        timeout_ms = self._settings.zookeeper.session_timeout_ms
        self._keeper = SessionKeeper(
            self._options.zookeeper,
            timeout_ms,
            on_watch=self._on_watch,
            on_session_starting=self._on_session_starting,
            on_established=lambda _: self._on_session(),
            on_expired=self._on_expired,
        )
        store = ZkControllerStore(self._keeper, self._storage.logs.check_cluster)
        self._storage.follow(self._keeper)
        self._start_controller(info, store)
        self._keys.follow(self._keeper)
        self._keeper.start(self._settings.zookeeper.connection_timeout_ms / 1000)
        step = self._in_some_session
        session_id = step(lambda: self._keeper.session_id)
        self._cluster_id = self._storage.logs.cluster_id or step(lambda: join_cluster(self._keeper))
        step(lambda: self._configs.load({name.topic for name in self._storage.logs.hosted()}))
        self._status.add_warner(self._storage.warnings)
        self._storage.start_maintenance(self._replica_manager, self._on_log_directory_failed)
        step(store.create_persistent_paths)
        follows = self._keeper, info.broker_id, self._scheduler, self._undo
        step(lambda: self._authorizer.start(*follows))
        step(self._config_listener.catch_up)
        info = replace(info, endpoints=self._end_points.current)
        step(lambda: self._storage.note_that_no_log_is_lost(self._keeper))
        registered = info, self._storage.logs.suspects, self._keeper, store
        broker_epoch = step(lambda: register(*registered, timeout_ms, self._stop_requested))
        self._storage.logs.join_cluster(self._cluster_id)  # not before: its id may be in use
        self.on_broker_registered(broker_epoch)
        self._status.become(BrokerState.RUNNING_AS_BROKER)
        self._is_serving = True
        self._controller.tell(Startup())
        checks = ZooKeeperChecks(
            *(self._keeper, self._storage.logs, self._controller.tell, self._controller.is_active),
            lambda denied: self._config_listener.look_if(denied or self._configs.unreadable),
        )
        self._undo.callback(checks.stop)
        self._config_listener.look()
        with suppress(SessionExpiredError):
            if self._keeper.session_id == session_id:
                return
        self._on_session()  # there is a new one already

    def _start_controller(self, info: BrokerInfo, store: ZkControllerStore) -> None:
        self._end.follow(self._keeper)
        self._leave.callback(self._keeper.close, _SESSION_CLOSE_TIMEOUT_S)
        self._undo.callback(lambda: self._leave.close() if self._at_once.is_set() else None)
        controller = Controller(
            *(info, store),
            RandomTopicIds(self._cache, self._storage.logs),
            controller_settings(self._settings),
            accepted_epoch=lambda: self._replica_manager.controller_epoch,
            suspects=self._storage.logs.suspects,
            on_suspects_listed=partial(self._storage.announce_replaceable, self._replica_manager),
        )
        self._controller = BrokerController(
            info.broker_id,
            controller,
            self._settings,
            context=self._keys.context,
            keeper=self._keeper,
            scheduler=self._scheduler,
            journal_file=self._options.data_dir / "events.jsonl",
            listener=self,
        )
        self._undo.callback(self._controller.stop)
        self._topics.start(
            self._cache,
            self._keeper,
            self._controller.is_active,
            self._quotas.controller_mutation,
            self._authorizer.for_clients,
        )
        self._undo.callback(self._topics.stop)
        self._replication.propose_isrs(self._controller.ref, self._keeper)
        self._undo.callback(self._replication.stop)  # it must also stop before the session ends
        self._follow_configs(info.broker_id)

    def _follow_configs(self, broker_id: BrokerId) -> None:
        """Let the parts of this broker follow the configurations in ZooKeeper."""
        described = described_settings(self._settings, broker_id, self._started)
        started, throttles = dynamic_values(self._settings), self._replica_manager.quotas
        of_clients = self._kafka_endpoint, self._kafka_endpoint.keys
        parts = throttles, *of_clients, self._storage, self._controller
        self._configs = DynamicConfigManager(
            broker_id,
            followed_configs(self._settings, broker_id, self._keeper),
            dynamic_rows(self._settings, described),
            started,
            TopicConfigHandler(self._storage.logs, throttles, started, threading.Lock()),
            (*parts, self._topics, self._transactions, self._end_points, self._replication),
            tell_controller=self._controller.tell,
            set_client_quotas=partial(self._credentials.replace, self._kafka_endpoint.set_quotas),
        )
        self._config_listener = Following(f"config-listener-{broker_id}", self._configs)
        self._undo.callback(self._config_listener.close)
        self._tokens.follow(self._keeper, self._scheduler, self._undo)

    # --- callbacks on other threads ---

    def _dispatch(self, incoming: IncomingRequest) -> None:
        if self._router is None and self._is_serving:
            self._router = self._topics.router(self._broker, *self._controller.refs)
        if self._router is None:
            incoming.reply.fail(Errors.BROKER_NOT_AVAILABLE)
        else:
            self._router(incoming)

    def _on_watch(self, watch: WatchEvent) -> None:
        event = controller_event(watch, self._options.broker_id)
        if event is not None:
            self._controller.tell(event)
        elif watch.path == ConfigEntityChangeNotificationZNode.PATH:
            self._config_listener.look()
        elif not self._authorizer.on_watch(watch.path):
            self._tokens.on_watch(watch.path)

    def _on_metadata_changed(self) -> None:
        with ExitStack() as calls:  # all of them, also if one fails
            calls.callback(self._transactions.on_metadata_changed)
            calls.callback(self._groups.on_metadata_changed)
            calls.callback(self._topics.wake)
            calls.callback(self._keys.on_metadata_changed, self._cache.snapshot)

    def _on_session_starting(self, client: ZooKeeperClient) -> None:
        """Pass the session to the guardian, and check that its data belong to our cluster."""
        self._guardian.watch_session(client.credentials)
        try:
            check_cluster(client, self._storage.logs)
            client.require_write(PROGRESS_MARK, self._storage.logs.seen.mark)
        except SessionExpiredError:
            raise
        except RegentError as error:
            self.on_must_end(error)
            raise

    def _on_session(self) -> None:
        if self._is_serving:
            self._controller.tell(RegisterBrokerAndReelect())
            self._config_listener.look()
            self._authorizer.on_session()
            self._storage.on_session()
            self._tokens.on_session()

    def _on_expired(self) -> Future[None]:
        """Let the controller resign; the next session waits for it.

        Record ZooKeeper's newest zxid now, so that the next session can refuse older data.
        """
        self._storage.note_zxid()
        return self._controller.expire()

    def _on_log_directory_failed(self) -> None:
        with suppress(ActorDeadError, InboxFullError):  # the next request reports it again
            self._broker.tell(LogDirectoryFailed())

    def _on_replicas_offline(self) -> None:
        """Ask the controller for other leaders; stop if no log directory is left."""
        try:
            self._storage.announce_failure()
        except StorageError as error:
            self.on_must_end(error)

    def _on_suspects_changed(self, event: ControllerEvent) -> None:
        """Save the suspect replicas and report them to the controller."""
        self._storage.logs.save_suspects()
        self._controller.tell(event)

    def on_broker_registered(self, broker_epoch: int) -> None:
        """Pass on our new broker epoch, unless another broker took our addresses meanwhile."""
        info = replace(self._info, endpoints=self._end_points.current)
        taken = taken_end_points(self._keeper, info, broker_epoch)
        if taken is not None:
            self.on_must_end(taken)
            return
        self._broker_epoch = broker_epoch
        with suppress(ActorDeadError):
            self._broker.tell(Registered(broker_epoch))
        self._end.forget()

    def on_must_end(self, reason: RegentError) -> None:
        """Shut down without a controlled shutdown."""
        self._failure = self._failure or reason
        self.request_stop(at_once=True)

    def on_role_changed(self, is_active: bool, controller_epoch: int) -> None:
        """Show the role in the broker's state."""
        del controller_epoch
        self._status.become(
            BrokerState.RUNNING_AS_CONTROLLER if is_active else BrokerState.RUNNING_AS_BROKER
        )

    # --- stop ---

    def request_stop(self, reply: Reply | None = None, *, at_once: bool = False) -> None:
        """Ask the main thread to shut down; ``at_once``: without a controlled shutdown.

        Thread-safe, but not for signal handlers: it takes a lock that the main thread may hold.
        """
        if reply is not None:
            self._shutdown_replies.append(reply)
        if at_once:
            self._at_once.set()
        self._stop_requested.set()

    def read_keys_again(self) -> None:
        """Take changed files of the keys of TLS into use. Thread-safe, once the broker serves."""
        self._kafka_endpoint.keys.read_again()

    def wait(self) -> None:
        """Wait until a stop is requested."""
        while not self._stop_requested.wait(60):
            pass

    def shut_down(self) -> tuple[TopicPartition, ...]:
        """Do a controlled shutdown, then stop everything; return partitions without a new leader.

        If the broker stops by itself, raise the reason, a ``RegentError``, at the end.
        """
        self._status.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        remaining: tuple[TopicPartition, ...] | None = None
        if not self._at_once.is_set():
            self._replica_manager.begin_shutdown()
            remaining = hand_over(
                lambda: ControlledShutdownRequest(self._options.broker_id, self._broker_epoch),
                lambda: self._cache.snapshot,
                self._controller.ref,
                self._keys.context,
                controllers_of_kafka(self._settings, f"broker-{self._options.broker_id}"),
                self._settings.broker,
                self._at_once,
                lambda: self._keeper.state is ConnectionState.CONNECTED,
            )
        if remaining is None:
            remaining = ()
            self._at_once.set()  # others lead only when the session has ended
        for reply in self._shutdown_replies:
            reply.set(ShutdownBrokerResponse(Errors.NONE, remaining))
        self._status.become(BrokerState.BROKER_SHUTTING_DOWN)
        self._storage.note_zxid()
        self._end.note(self._failure)
        self._undo.close()
        self._status.become(BrokerState.NOT_RUNNING)
        if self._failure is not None:
            raise self._failure
        return remaining
