"""One broker: every part of it, started in order and stopped in the reverse.

Mirrors ``kafka.server.KafkaServer``. The main thread builds the broker, waits for the reason to
stop, and asks the controller for a controlled shutdown itself: the Broker actor must go on obeying
meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypedDict

from pykka import ActorDeadError, ActorRef

from actors.broker import Broker, BrokerState, BrokerStatus, Registered
from actors.config_listener import ConfigsChanged, start_config_listener
from actors.controlled_shutdown import (
    AskableRef,
    ControlledShutdownSettings,
    ask_for_controlled_shutdown,
)
from actors.controller_event_manager import ControllerEventManager, ControllerListener
from actors.event_journal import EventJournalFile
from actors.guardian import Guardian
from actors.inbox import Asked, ClearAndPut, InboxFullError, Reply
from actors.machine_settings import controller_settings, replication_settings
from actors.metrics import BrokerMetrics, MetricsServer
from actors.placeholder_listener import PlaceholderListener
from actors.replication import Replication
from actors.request_router import RequestRouter, controller_client_id
from actors.request_send_thread import DeliverySettings
from actors.runtime import start_actor, stop_actor
from actors.scheduler import Scheduler
from actors.topic_ids import RandomTopicIds
from actors.watchdog import Watchdog
from config.settings import Settings
from core.controller.controller import Controller
from core.controller.events import ControllerEvent, Expire, RegisterBrokerAndReelect, Startup
from core.errors import BrokerIdInUseError, Errors, SessionExpiredError
from core.model import UNKNOWN_BROKER_EPOCH, BrokerId, BrokerInfo, EndPoint, TopicPartition
from core.protocol.broker import ShutdownBrokerResponse
from core.protocol.controller import ControlledShutdownRequest
from core.replication.metadata_cache import MetadataSnapshot
from storage.empty_logs import EmptyLogs
from storage.log_directory import LogDirectory
from transport.client import RequestClient
from transport.remote_ref import RemoteActorRef
from transport.server import ControlServer, IncomingRequest
from transport.sockets import new_context
from zk.admin_znodes import ConfigEntityChangeNotificationZNode
from zk.client import ZooKeeperClient
from zk.cluster_identity import check_end_points, join_cluster
from zk.operations import WatchEvent
from zk.session import SessionKeeper
from zk.store import ZkControllerStore
from zk.watches import controller_event

logger = logging.getLogger(__name__)

_ACTOR_TIMEOUT_S = 10.0
_REGISTRATION_RETRY_S = 0.2
_SESSION_CLOSE_TIMEOUT_S = 3.0


class BrokerAddress(TypedDict):
    """What the broker says about itself once it serves."""

    id: BrokerId
    host: str
    port: int
    control_port: int
    replication_port: int
    metrics_port: int


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Which broker this is, and where its things are; ``run_path`` is the program's own file."""

    broker_id: BrokerId
    zookeeper: str
    data_dir: Path
    run_path: str


class BrokerProcess(ControllerListener):
    """A broker from start to end; ``start``, ``wait`` and ``shut_down`` belong to one thread."""

    def __init__(self, options: BrokerOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._status = BrokerStatus()
        self._undo = ExitStack()
        self._stop_requested = threading.Event()
        self._hurry = threading.Event()
        self._shutdown_replies: list[Reply] = []
        self._router: RequestRouter | None = None
        self._is_serving = False
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        self._attempts = count(1)  # of this broker's controller to deliver its orders

    # --- start ---

    def start(self) -> BrokerAddress:
        """Start everything and register; return once the broker obeys and may be elected.

        Raises a ``RegentError`` of one line when it cannot; nothing is left running then.
        """
        try:
            return self._start()
        except BaseException:
            self._hurry.set()
            self._undo.close()
            raise

    def _start(self) -> BrokerAddress:
        broker_id, config = self._options.broker_id, self._settings.broker
        self._status.become(BrokerState.STARTING)
        log_directory = LogDirectory(self._options.data_dir / "log")
        log_directory.open(broker_id)
        self._undo.callback(log_directory.close)
        port = self._listen(config.port, "kafka-listener").port
        metrics = MetricsServer(config.host, config.metrics_port)
        self._undo.callback(metrics.close)
        self._context = new_context()
        self._undo.callback(self._context.destroy, linger=0)
        self._start_broker_actor()
        replication_endpoint = self._replication.listen(self._broker)
        server = self._start_control_server()
        info = BrokerInfo(
            broker_id=broker_id,
            endpoints=(EndPoint("PLAINTEXT", config.host, port),),
            rack=config.rack or None,
            control_endpoint=server.endpoint,
            replication_endpoint=replication_endpoint,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        self._join(info, log_directory)
        published = self._metrics(server)
        metrics.publish(published)
        self._undo.callback(metrics.withdraw, published)
        return BrokerAddress(
            id=broker_id,
            host=config.host,
            port=port,
            control_port=_port(server.endpoint),
            replication_port=_port(replication_endpoint),
            metrics_port=metrics.port,
        )

    def _metrics(self, server: ControlServer) -> BrokerMetrics:
        broker, controller = self._broker._actor_weakref(), self._controller._actor_weakref()
        assert broker is not None
        assert controller is not None
        return BrokerMetrics(broker, controller, self._keeper, server, self._status, self._watchdog)

    def _listen(self, port: int, name: str) -> PlaceholderListener:
        listener = PlaceholderListener(self._settings.broker.host, port, name)
        self._undo.callback(listener.close)
        return listener

    def _start_broker_actor(self) -> None:
        self._watchdog = Watchdog()
        self._watchdog.start()
        self._undo.callback(self._watchdog.stop)
        self._scheduler = Scheduler()
        self._undo.callback(self._scheduler.shutdown)
        self._replication = Replication(
            self._context, self._options.broker_id, self._settings, self._scheduler
        )
        self._broker: ActorRef[Broker] = start_actor(
            Broker,
            _ACTOR_TIMEOUT_S,
            self._options.broker_id,
            EmptyLogs(),
            self._status,
            request_shutdown=self.request_stop,
            open_fetch_channel=self._replication.open_channel,
            scheduler=self._scheduler,
            settings=replication_settings(self._settings),
            on_isrs_proposed=self._replication.wake,
        )
        self._undo.callback(stop_actor, self._broker, _ACTOR_TIMEOUT_S)
        self._undo.callback(self._replication.stop)
        actor = self._broker._actor_weakref()
        assert actor is not None
        self._cache = actor.cache

    def _start_control_server(self) -> ControlServer:
        config = self._settings.broker
        server = ControlServer(
            self._context,
            f"tcp://{config.host}:{config.control_port}",
            self._dispatch,
            name="control-server",
        )
        server.start()
        self._undo.callback(server.stop)
        return server

    def _join(self, info: BrokerInfo, log_directory: LogDirectory) -> None:
        """Open the session, register, and stand for election."""
        guardian = Guardian(self._options.run_path, self._options.zookeeper)
        guardian.start()
        self._undo.callback(guardian.dismiss)
        self._keeper = SessionKeeper(
            self._options.zookeeper,
            self._settings.zookeeper.session_timeout_ms,
            on_watch=self._on_watch,
            on_session_starting=guardian.watch_session,
            on_established=self._on_established,
            on_expired=self._on_expired,
        )
        store = ZkControllerStore(self._keeper)
        self._start_controller_actor(info, store)
        self._keeper.start(self._settings.zookeeper.connection_timeout_ms / 1000)
        store.create_persistent_paths()
        log_directory.join_cluster(info.broker_id, join_cluster(self._keeper))
        check_end_points(store, info)
        session_id = self._register(info, store)
        self._is_serving = True
        self._tell_controller(Startup())
        self._look_at_configs()
        with suppress(SessionExpiredError):
            if self._keeper.session_id == session_id:
                return
        self._tell_controller(RegisterBrokerAndReelect())  # the session changed under our feet

    def _start_controller_actor(self, info: BrokerInfo, store: ZkControllerStore) -> None:
        config = self._settings.controller
        journal = EventJournalFile(self._options.data_dir / "events.jsonl", info.broker_id)
        self._undo.callback(journal.close)
        self._controller: ActorRef[ControllerEventManager] = start_actor(
            ControllerEventManager,
            _ACTOR_TIMEOUT_S,
            info.broker_id,
            Controller(
                info,
                store,
                RandomTopicIds(self._cache),
                controller_settings(self._settings),
            ),
            self._open_channel,
            scheduler=self._scheduler,
            journal=journal,
            listener=self,
            may_announce=self._may_announce,
            delivery=DeliverySettings(config.request_timeout_ms, config.retry_backoff_ms),
        )
        # Ends the session last: that is the moment the others see this broker die.
        self._undo.callback(self._keeper.close, _SESSION_CLOSE_TIMEOUT_S)
        self._undo.callback(stop_actor, self._controller, _ACTOR_TIMEOUT_S)
        self._replication.propose_isrs(self._controller, self._keeper)
        self._undo.callback(self._replication.stop)  # again: before the session ends
        self._configs = start_config_listener(
            info.broker_id, self._keeper, config, self._tell_controller
        )
        self._undo.callback(stop_actor, self._configs, _ACTOR_TIMEOUT_S)

    def _register(self, info: BrokerInfo, store: ZkControllerStore) -> int:
        """Register, waiting for a former life's session to expire; return the session's id."""
        deadline = time.monotonic() + 1.5 * self._settings.zookeeper.session_timeout_ms / 1000 + 1
        while True:
            try:
                session_id = self._keeper.session_id
                self.on_broker_registered(store.register_broker(info))
            except (BrokerIdInUseError, SessionExpiredError) as error:
                if time.monotonic() > deadline or self._stop_requested.is_set():
                    raise
                logger.info("%s; trying again", error)
                self._stop_requested.wait(_REGISTRATION_RETRY_S)
            else:
                self._status.become(BrokerState.RUNNING_AS_BROKER)
                return session_id

    # --- what other threads tell ---

    def _dispatch(self, incoming: IncomingRequest) -> None:
        if self._router is None and self._is_serving:
            self._router = RequestRouter(self._broker, self._controller)
        if self._router is None:
            incoming.reply.fail(Errors.BROKER_NOT_AVAILABLE)
        else:
            self._router(incoming)

    def _on_watch(self, watch: WatchEvent) -> None:
        event = controller_event(watch)
        if event is not None:
            self._tell_controller(event)
        elif watch.path == ConfigEntityChangeNotificationZNode.PATH:
            self._look_at_configs()

    def _on_established(self, client: ZooKeeperClient) -> None:
        del client
        if self._is_serving:
            self._tell_controller(RegisterBrokerAndReelect())
            self._look_at_configs()

    def _look_at_configs(self) -> None:
        with suppress(ActorDeadError):
            self._configs.tell(ConfigsChanged())

    def _on_expired(self) -> Future[None]:
        """Have the controller resign; the next session waits for it."""
        resigned: Future[None] = Future()
        reply = Reply.of(lambda _: resigned.set_result(None))
        try:
            self._controller.tell(ClearAndPut(Asked(Expire(), reply)))
        except ActorDeadError:
            resigned.set_result(None)
        return resigned

    def _tell_controller(self, event: ControllerEvent) -> None:
        try:
            self._controller.tell(event)
        except ActorDeadError:
            logger.debug("The controller has stopped; %s is dropped", event)
        except InboxFullError as full:
            logger.error("%s; %s is dropped", full, event)

    def _open_channel(self, endpoint: str) -> RequestClient:
        return RequestClient(
            self._context,
            endpoint,
            client_id=controller_client_id(self._options.broker_id),
            correlation_ids=self._attempts,
        )

    def _may_announce(self) -> bool:
        try:
            return self._keeper.client.lease_valid()
        except SessionExpiredError:
            return False

    def on_broker_registered(self, broker_epoch: int) -> None:
        """Learn our broker epoch."""
        self._broker_epoch = broker_epoch
        with suppress(ActorDeadError):
            self._broker.tell(Registered(broker_epoch))

    def on_role_changed(self, is_active: bool, controller_epoch: int) -> None:
        """Show the role in the broker's state."""
        del controller_epoch
        self._status.become(
            BrokerState.RUNNING_AS_CONTROLLER if is_active else BrokerState.RUNNING_AS_BROKER
        )

    # --- stop ---

    def request_stop(self, reply: Reply | None = None, *, hurry: bool = False) -> None:
        """Ask the main thread to shut down; ``hurry``: without moving anything away first.

        From any thread, but not from a signal handler: it takes a lock the main thread may hold.
        """
        if reply is not None:
            self._shutdown_replies.append(reply)
        if hurry:
            self._hurry.set()
        self._stop_requested.set()

    @property
    def is_stopping(self) -> bool:
        """Whether a stop has been requested."""
        return self._stop_requested.is_set()

    def wait(self) -> None:
        """Wait until somebody requests a stop."""
        while not self._stop_requested.wait(60):
            pass

    def shut_down(self) -> tuple[TopicPartition, ...]:
        """Hand over, then stop everything; return the partitions nobody could take over."""
        self._status.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        remaining: tuple[TopicPartition, ...] = ()
        if not self._hurry.is_set():
            remaining = self._hand_over()
        for reply in self._shutdown_replies:
            reply.set(ShutdownBrokerResponse(Errors.NONE, remaining))
        self._status.become(BrokerState.BROKER_SHUTTING_DOWN)
        self._undo.close()
        self._status.become(BrokerState.NOT_RUNNING)
        return remaining

    def _hand_over(self) -> tuple[TopicPartition, ...]:
        broker_id, config = self._options.broker_id, self._settings.broker
        with ExitStack() as refs:

            def find_controller(cluster: MetadataSnapshot) -> AskableRef | None:
                if cluster.controller_id == broker_id:
                    return self._controller
                controller = cluster.controller
                if controller is None or controller.control_endpoint is None:
                    return None
                client_id = f"broker-{broker_id}"
                return refs.enter_context(
                    RemoteActorRef(self._context, controller.control_endpoint, client_id=client_id)
                )

            return ask_for_controlled_shutdown(
                lambda: ControlledShutdownRequest(broker_id, self._broker_epoch),
                lambda: self._cache.snapshot,
                find_controller,
                ControlledShutdownSettings(
                    config.controlled_shutdown_max_retries,
                    config.controlled_shutdown_retry_backoff_ms / 1000,
                    config.controlled_shutdown_timeout_ms / 1000,
                ),
                self._hurry,
            )


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
