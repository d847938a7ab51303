"""One broker process of the simulation: the real core, without threads, sockets and a clock."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from regent.broker.api.fetch import TopicNamesById
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.controller import Controller
from regent.core.controller.effects import error_response
from regent.core.controller.events import ControllerEvent, RequestId
from regent.core.controller.quarantine import resignation
from regent.core.controller.services import ControllerSettings
from regent.core.errors import (
    BadDataError,
    Errors,
    RegentError,
    SessionExpiredError,
    UnreadableError,
)
from regent.core.model import (
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    SuspectReplicas,
)
from regent.core.ports import ControlFacts
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerRequest,
)
from regent.core.protocol.transactions import VerifyPartitionsRequest, WriteMarkersRequest
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from regent.zk.client.operations import ConnectionLossError, WatchEvent
from regent.zk.stores import cluster_identity
from regent.zk.stores.controller_store import (
    ZkControllerStore,
    has_led_partitions,
    is_broker_of_kafka,
    read_control_facts,
)
from regent.zk.stores.watches import controller_event
from regent.zk.znodes import (
    ConfigEntityChangeNotificationZNode,
    DelegationTokenChangeNotificationZNode,
    TopicsZNode,
)
from tests.simulation.channel import FEW_REQUESTS, REQUEST_TIMEOUT_MS, Channel
from tests.simulation.client_requests import (
    ConsumeRequest,
    DeleteRecordsRequest,
    GroupCall,
    ProduceRequest,
    TransactionCall,
)
from tests.simulation.config_listener import ConfigListener
from tests.simulation.coordinator_server import CoordinatorServer
from tests.simulation.disk import TOPIC_CONFIGS
from tests.simulation.fetchers import Fetchers
from tests.simulation.group_server import GroupServer, GroupWorld
from tests.simulation.isr_writer import SimulatedIsrWriter
from tests.simulation.kafka_channel import KafkaChannel
from tests.simulation.kafka_protocol import (
    OUR_RELEASE,
    EpochEndsRequest,
    EpochEndsResponse,
    KafkaAnswer,
    KafkaCall,
    KafkaRelease,
    control_answer,
    controller_call,
    kafka_endpoint,
    read_control_call,
    read_controller_answer,
    read_controller_call,
)
from tests.simulation.log_care import LogCare
from tests.simulation.network import AnswerBody, Exchange, Network
from tests.simulation.record_server import RecordServer
from tests.simulation.records import RecordObserver
from tests.simulation.simulated_logs import SimulatedDisk
from tests.simulation.tokens import TokenFollower, wall_clock_ms
from tests.simulation.transaction_server import TransactionServer, TransactionWorld
from tests.simulation.virtual_time import VirtualTime
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

KafkaAnswerer: TypeAlias = Callable[[AnswerBody], None]

CHECKPOINT_INTERVAL_MS = 5_000
MAX_EVENTS = 100_000
APPENDS_PER_RACE = 5
PREFETCH_MS = 20
PROPOSAL_BACKOFF_MS = 100
SUSPECTS_DELAY_MS = 50
SHUTDOWN_ATTEMPTS = 3
SHUTDOWN_BACKOFF_MS = 500


class PlantedError(Exception):
    """An error that no handler expects."""


@dataclass(slots=True)
class SimulatedWorld:
    """What all brokers share."""

    time: VirtualTime
    network: Network
    zookeeper: FakeZooKeeperServer
    controller_settings: Callable[[], ControllerSettings]
    replication_settings: ReplicationSettings
    topic_numbers: Iterator[int]
    stop: Callable[[SimulatedBroker], None]
    handle_control_request: Callable[
        [SimulatedBroker, Exchange], ControlResponse | ControlRequestRefusedError
    ]
    handle: Callable[[SimulatedBroker, ControllerEvent], list[fx.Effect]]
    observer: RecordObserver
    on_control_request: Callable[[SimulatedBroker, fx.SendControlRequest], None]
    # Whether the answer to an ISR that a leader has written is lost.
    is_answer_lost: Callable[[AlterPartitionRequest], bool] = lambda request: False
    check_delay_ms: Callable[[], int] = lambda: 0  # after the read about an unknown controller
    events_handled: int = 0  # by controllers
    inbox_limit: int = MAX_EVENTS  # of events for one controller
    channel_limit: int = FEW_REQUESTS  # of unanswered requests for one broker
    channels_send_two: bool = True  # see may_be_unanswered_together; else one at a time
    has_threads: bool = False  # they read the disk, and control requests overtake appends
    control_requests_received: int = 0  # by all brokers, accepted or not
    groups: GroupWorld | None = None  # None: no broker coordinates groups
    transactions: TransactionWorld | None = None  # None: no broker coordinates transactions
    releases: dict[str, KafkaRelease] = field(default_factory=dict)  # of the listener of brokers
    on_obeyed: Callable[[SimulatedBroker, ControlRequest], None] = lambda broker, request: None
    kafka_may_rule: bool = False  # a broker of Kafka may be elected

    def release_at(self, endpoint: str) -> KafkaRelease:
        """Return what listens at an endpoint, as ApiVersions would say."""
        return self.releases[endpoint]


class CountedTopicIds:
    """Topic ids that are the same in every run."""

    def __init__(self, cache: MetadataCache, numbers: Iterator[int]) -> None:
        self._cache = cache
        self._numbers = numbers

    def new_topic_id(self) -> str:
        """Return the next id."""
        return f"{next(self._numbers):021d}A"  # base64url of a UUID

    def last_known(self, topic: str) -> str | None:
        """Return the id in the broker's metadata cache."""
        return self._cache.snapshot.topic_ids.get(topic)


class CurrentSession(FakeZooKeeper):
    """The present session of a broker; a new one replaces it after it expires."""

    def __init__(self, server: FakeZooKeeperServer, on_watch: Callable[[WatchEvent], None]) -> None:
        self._on_watch = on_watch
        super().__init__(server, on_watch, wait=self._cannot_wait)

    def renew(self) -> None:
        """Open a new session."""
        self._session_id = self.server.open_session(self._on_watch)

    def _cannot_wait(self) -> None:
        # A real client waits for the connection and gives the session up after its timeout.
        self.server.expire(self._session_id)
        self.server.reconnect(self._session_id)


class SimulatedStore(ZkControllerStore):
    """Reads the ``min.insync.replicas`` that leaders use for their topics' logs."""

    def read_min_insync_replicas(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the settings of the simulated disks where ZooKeeper has none."""
        of_disks = {t: TOPIC_CONFIGS[t].min_insync_replicas for t in topics if t in TOPIC_CONFIGS}
        return {**of_disks, **super().read_min_insync_replicas(topics)}


class SimulatedBroker:
    """One process: a controller with its queue and channels, replicas, fetchers, a session."""

    release = OUR_RELEASE
    is_of_kafka = False

    def __init__(
        self, world: SimulatedWorld, broker_id: BrokerId, port: int, disk: SimulatedDisk
    ) -> None:
        self.world = world
        self.broker_id = broker_id
        self.port = port
        self.control_endpoint = f"tcp://broker-{broker_id}:{port}"
        self.replication_endpoint = f"tcp://replication-{broker_id}:{port}"
        self.client_endpoint = f"tcp://broker-{broker_id}:{port}/clients"
        self.kafka_endpoint = f"tcp://127.0.0.1:{port}"  # of brokers of Kafka
        self.is_paused = False
        self.is_dead = False
        self.is_leaving = False  # asked to hand over
        self.is_handling = False  # its controller is handling an event
        self.event: ControllerEvent | None = None  # the last event that it began to handle
        self.broker_epoch = -1
        self.handled_events = 0
        self.shutdowns_begun: dict[Exchange, int] = {}  # the number of that event
        self.inbox: deque[ControllerEvent] = deque()
        self.channels: dict[BrokerId, Channel] = {}
        self.unanswered: dict[RequestId, Exchange] = {}
        self.disk = disk
        disk.on_unlocked = self._on_unlocked
        disk.has_threads = lambda: world.has_threads
        self._unlocked_appends = 0
        self.cache = MetadataCache()
        self.replica_manager = ReplicaManager(
            broker_id,
            disk,
            self.cache,
            world.replication_settings,
            run_beside=self._run_beside,
        )
        self.session = CurrentSession(world.zookeeper, self._on_watch)
        self.settings = world.controller_settings()
        self.info = self._info()
        self.controller = self._new_controller(SimulatedStore(self.session, disk.check_cluster))
        self._request_ids = itertools.count(1)
        self._kafka_calls: dict[Exchange, KafkaAnswerer] = {}  # by what they mean
        self._topic_names = TopicNamesById(self.cache)
        self._registered = RegisteredFollowers(self.cache)
        self._facts: dict[Exchange, ControlFacts] = {}  # of requests that are handled later
        self.record_server = RecordServer(self)
        self._fetchers = self._new_fetchers()
        self._proposal: Exchange | None = None
        self._may_propose_from_ms = 0
        self._lists_suspects_at_ms = 0
        self.suspect_listings = 0
        self._isr_writer = SimulatedIsrWriter(self)
        self.configs = ConfigListener(self)
        has_tokens = self.settings.delegation_tokens_are_on
        self.tokens = TokenFollower(self) if has_tokens else None
        self._log_care = LogCare(self)
        self.groups = None if world.groups is None else GroupServer(self, world.groups)
        self.transactions: TransactionServer | None = None
        if world.transactions is not None:
            self.transactions = TransactionServer(self, world.transactions)

    def _info(self) -> BrokerInfo:
        """Return what it registers."""
        return BrokerInfo(
            self.broker_id,
            (EndPoint("PLAINTEXT", "127.0.0.1", self.port),),
            control_endpoint=self.control_endpoint,
            replication_endpoint=self.replication_endpoint,
        )

    def _new_controller(self, store: ZkControllerStore) -> Controller:
        controller = Controller(
            self.info,
            store,
            CountedTopicIds(self.cache, self.world.topic_numbers),
            self.settings,
            lambda: self.replica_manager.controller_epoch,
            self.disk.suspects,
            self._on_suspects_listed,
        )
        controller.flush_to(self._perform)
        return controller

    def _new_fetchers(self) -> Fetchers:
        return Fetchers(self)

    def note_end(self, *, is_clean: bool) -> None:
        """Note in the log directories what the end of this process leaves there."""

    @property
    def coordinators(self) -> list[CoordinatorServer]:
        """Its coordinators."""
        return [server for server in (self.groups, self.transactions) if server is not None]

    def coordinator_of(self, topic: str) -> CoordinatorServer | None:
        """Return the coordinator whose records a topic has."""
        return next((server for server in self.coordinators if server.topic == topic), None)

    def start(self) -> None:
        """Listen, register, and start the periodic tasks."""
        self.world.network.listen(self.control_endpoint, self)
        self.world.network.listen(self.replication_endpoint, self)
        self.world.network.listen(self.client_endpoint, self)
        self.world.network.listen(self.kafka_endpoint, self)
        self.world.releases[self.kafka_endpoint] = self.release
        self._mark_logs_known()
        self.tell(events.RegisterBrokerAndReelect())
        self.configs.look_soon()
        if self.tokens is not None:
            self.tokens.look_soon(is_new_session=True)
        self._fetchers.fetch_again_and_again()
        self._checkpoint_again_and_again()
        self._shrink_again_and_again()
        self._log_care.verify_again_and_again()
        if self.settings.isr_changes_through_zookeeper:
            self._isr_writer.propagate_again_and_again()

    def move(self, info: BrokerInfo) -> None:
        """Register with other addresses, in the same broker epoch."""
        self.info = self.controller._registration.info = info
        self.tell(events.BrokerModifications(self.broker_id))

    def listen_at(self, control_endpoint: str, replication_endpoint: str) -> None:
        """Listen at these endpoints instead of the former ones."""
        network = self.world.network
        network.unlisten(self.control_endpoint, self.replication_endpoint)
        self.control_endpoint = control_endpoint
        self.replication_endpoint = replication_endpoint
        network.listen(control_endpoint, self)
        network.listen(replication_endpoint, self)

    def _mark_logs_known(self) -> None:
        """In a cluster without topics a new log directory cannot have lost a log."""
        if not self.disk.knows_all and not self.world.zookeeper.children_of(TopicsZNode.PATH):
            self.disk.note_lost(())
            self.disk.save_suspects()

    @property
    def now_ms(self) -> int:
        """The monotonic clock of its machine; each machine's clock began at another time."""
        return self.world.time.now_ms + self.disk.clock_ms

    @property
    def controller_ms(self) -> int:
        """The clock of its controller: where there are tokens, a wall clock that may jump."""
        if self.tokens is None:
            return self.now_ms
        return wall_clock_ms(self.world.time.now_ms) + self.disk.wall_clock_ahead_ms

    # --- the controller ---

    def tell(self, event: ControllerEvent) -> None:
        """Queue an event, unless the same trigger is queued already."""
        key = events.collapse_key(event)
        if key is not None and any(events.collapse_key(queued) == key for queued in self.inbox):
            return
        if len(self.inbox) < self.world.inbox_limit or events.is_always_queued(event):
            self.inbox.append(event)
            return
        refused = error_response(event)
        if refused is not None:
            self._perform([refused])
        elif events.EventsLost() not in self.inbox:
            queued, self.inbox = self.inbox, deque([events.EventsLost()])
            for waiting in queued:
                if events.is_always_queued(waiting):
                    self.inbox.append(waiting)
                elif (refused := error_response(waiting)) is not None:
                    self._perform([refused])

    def ask(self, exchange: Exchange) -> None:
        """Queue a request, which is answered exactly once."""
        request_id = next(self._request_ids)
        self.unanswered[request_id] = exchange
        assert isinstance(exchange.request, ControllerRequest)
        self.tell(events.event_of(exchange.request, request_id))

    def handle_next(self) -> None:
        """Process one event and perform its effects."""
        event = self.event = self.inbox.popleft()
        self.handled_events += 1
        self.world.events_handled += 1
        if isinstance(event, events.ControlledShutdown):
            self.shutdowns_begun[self.unanswered[event.request_id]] = self.handled_events
        self.is_handling = True
        try:
            self._perform(self.world.handle(self, event))
        except (PlantedError, UnreadableError) as error:  # reads may be denied while a term begins
            self._resign_because(event, error)
        finally:
            self.is_handling = False

    def _resign_because(self, event: ControllerEvent, error: Exception) -> None:
        """Resign as the actor does when a handler raises an unexpected error."""
        now_ms = self.controller_ms
        try:
            self._perform(self.controller.handle(resignation(event, error), now_ms))
        except (PlantedError, UnreadableError):
            self._perform(self.controller.handle(events.Expire(), now_ms))
            self.tell(events.Reelect())
        refused = error_response(event, Errors.UNKNOWN_SERVER_ERROR)
        if refused is not None and refused.request_id in self.unanswered:
            self._perform([refused])

    def handle(self, event: ControllerEvent) -> list[fx.Effect]:
        """Let the controller handle an event; return its effects."""
        effects = self.controller.handle(event, self.controller_ms)
        self.controller.context.validate()
        return effects

    def notice_expiry(self) -> None:
        """Let the controller resign, then open a new session, as the session keeper does."""
        preempted, self.inbox = self.inbox, deque()
        self.handled_events += 1
        self.world.events_handled += 1
        self._perform(self.controller.handle(events.Expire(), self.controller_ms))
        for event in preempted:
            if isinstance(event, events.StandAgain | events.UncleanLeaderElectionEnable):
                self.tell(event)
            refused = error_response(event)
            if refused is not None:
                self._perform([refused])
        self._note_how_far_zookeeper_is()
        self.session.renew()
        self._check_cluster()
        self._log_care.announce_if_due()
        self.tell(events.RegisterBrokerAndReelect())
        self.configs.look_soon()
        if self.tokens is not None:
            self.tokens.look_soon(is_new_session=True)

    def _note_how_far_zookeeper_is(self) -> None:
        with suppress(ConnectionLossError, SessionExpiredError):  # a ping
            self.world.zookeeper.read_data(self.session.session_id, "/", watch=False)
        self.disk.note_seen(zxid=self.session.newest_zxid)

    def _check_cluster(self) -> None:
        """Check the cluster id of ZooKeeper's data, as the session keeper does first."""
        hook, self.session.hook = self.session.hook, None
        try:
            cluster_identity.check_cluster(self.session, self.disk)
        finally:
            self.session.hook = hook

    def has_session(self) -> bool:
        """Whether the present session is valid, as far as this broker knows."""
        return self.session.server.is_alive(self.session.session_id)

    def _on_watch(self, watch: WatchEvent) -> None:
        event = controller_event(watch, self.broker_id)
        if self.is_dead:
            return
        if event is not None:
            self.tell(event)
        elif watch.path == ConfigEntityChangeNotificationZNode.PATH:
            self.configs.look_soon()
        elif watch.path == DelegationTokenChangeNotificationZNode.PATH and self.tokens is not None:
            self.tokens.look_soon()

    def _perform(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)
        for channel in self.channels.values():
            channel.send_next()

    def _perform_one(self, effect: fx.Effect) -> None:
        match effect:
            case fx.AddBroker(registration):
                self._close_channel(registration.info.broker_id)
                self.channels[registration.info.broker_id] = self._new_channel(registration)
            case fx.RemoveBroker(broker_id):
                self._close_channel(broker_id)
            case fx.SendControlRequest(broker_id):
                self.world.on_control_request(self, effect)
                channel = self.channels.get(broker_id)
                if channel is not None:
                    channel.put(effect)
            case fx.SendResponse(request_id, response):
                assert request_id in self.unanswered, f"AnsweredOnce: {request_id} {response}"
                self._answer(self.unanswered.pop(request_id), response)  # type: ignore[arg-type]
            case fx.ScheduleEvent(after_ms, event):
                self.world.time.schedule(self, after_ms, lambda: self.tell(event), event)
            case fx.CancelScheduledEvents():
                self.world.time.cancel_events(self)
            case _:
                self._perform_of_broker(effect)

    def _perform_of_broker(self, effect: fx.Effect) -> None:
        match effect:
            case fx.BrokerRegistered(broker_epoch):
                self.broker_epoch = self.replica_manager.broker_epoch = broker_epoch
            case fx.BrokerMustEnd(reason):
                raise reason
            case _:
                pass

    def _new_channel(self, registration: BrokerRegistration) -> Channel:
        is_of_kafka = registration.info.is_of_kafka
        return (KafkaChannel if is_of_kafka else Channel)(self, registration)

    def _answer(self, exchange: Exchange, answer: AnswerBody) -> None:
        """Answer a request, which may be a broker of Kafka's."""
        answerer = self._kafka_calls.pop(exchange, None)
        if answerer is None:
            self.world.network.answer(exchange, answer)
            return
        self.world.network.on_answered(exchange, answer)
        answerer(answer)

    def _close_channel(self, broker_id: BrokerId) -> None:
        channel = self.channels.pop(broker_id, None)
        if channel is not None:
            channel.send_next()
            channel.close()

    # --- what arrives ---

    def receive(self, exchange: Exchange) -> None:  # noqa: C901 - one case for each kind
        """Apply a control request, answer a fetch, or queue a request for the controller.

        A broker that has not registered yet sends no answer; a real one answers that it is not
        available. In both cases the sender tries again.
        """
        if self.broker_epoch < 0:
            return
        request = exchange.request
        match request:
            case KafkaCall():
                self.receive_call(exchange, request)
            case EpochEndsRequest(queries):
                ends = self.replica_manager.offsets_for_leader_epoch(queries)
                self.world.network.answer(exchange, EpochEndsResponse(ends))
            case FetchRequest() if self._refuses_fetch(exchange, request):
                pass
            case FetchRequest() | ProduceRequest() | ConsumeRequest() | DeleteRecordsRequest():
                self.record_server.serve(exchange)
            case GroupCall():
                assert self.groups is not None
                self.groups.serve(exchange)
            case TransactionCall():
                assert self.transactions is not None
                self.transactions.serve(exchange)
            case WriteMarkersRequest() | VerifyPartitionsRequest():
                assert self.transactions is not None
                self.transactions.take(exchange)
            case LeaderAndIsrRequest() | StopReplicaRequest() | UpdateMetadataRequest():
                if not self._obey(exchange, request):
                    return
            case _:
                self.ask(exchange)
        self.acted()

    def _refuses_fetch(self, exchange: Exchange, request: FetchRequest) -> bool:
        """Whether a fetch is refused as a whole that comes to the listener of Kafka's brokers."""
        if exchange.endpoint != self.kafka_endpoint:
            return False
        refusal = self._registered.refusal(request.replica_id, request.replica_epoch)
        if refusal is None:
            return False
        self.world.network.answer(exchange, FetchResponse(refusal))
        return True

    def receive_call(self, exchange: Exchange, call: KafkaCall) -> None:
        """Handle what came in Kafka's protocol, as ``api.control_requests`` and its neighbour."""
        if isinstance(call.request, AlterPartitionRequest | ControlledShutdownRequest):
            self._receive_of_broker(exchange, call)
        else:
            self._receive_of_controller(exchange, call)

    def _receive_of_broker(self, exchange: Exchange, call: KafkaCall) -> None:
        asked = read_controller_call(call, self._topic_names)

        def answerer(answer: AnswerBody) -> None:
            self.world.network.answer(exchange, asked.answer(call, answer))

        request, refusal = asked.request, Errors.NOT_CONTROLLER
        if self.is_controller:
            who = request.broker_id, request.broker_epoch
            refusal = self._registered.refusal_by_controller(*who)
        if refusal is not Errors.NONE:
            is_proposal = isinstance(request, AlterPartitionRequest)
            answerer(
                AlterPartitionResponse(refusal)
                if is_proposal
                else ControlledShutdownResponse(refusal)
            )
            return
        meant = replace(exchange, request=request)
        self._kafka_calls[meant] = answerer
        self.ask(meant)

    @property
    def is_controller(self) -> bool:
        """Whether it is the active controller, of either kind."""
        return self.controller.is_active

    def _receive_of_controller(self, exchange: Exchange, call: KafkaCall) -> None:
        """Let a controller of Kafka rule; what it must repeat is not answered."""
        asked, request = read_control_call(call)
        is_kafkas = self._is_kafkas(asked.controller_id)
        if is_kafkas is None:
            return
        if not is_kafkas:
            refused = control_answer(call, asked, Errors.CLUSTER_AUTHORIZATION_FAILED)
            self.world.network.answer(exchange, refused)
            return
        if isinstance(request, UpdateMetadataRequest) and not request.lists_all:
            has_none = self.cache.snapshot.is_complete or self._has_led_partitions()
            request = replace(request, lists_all=not has_none)
        header = ControlHeader(
            asked.controller_id,
            asked.controller_epoch,
            asked.broker_epoch,
            broker_id=self.broker_id,
        )
        meant = replace(exchange, header=header, request=request)

        def answerer(answer: AnswerBody) -> None:
            is_refused = isinstance(answer, ControlRequestRefusedError)
            if is_refused or answer.error_code is Errors.UNKNOWN_SERVER_ERROR:  # type: ignore[union-attr]
                return
            answered = control_answer(call, asked, answer)  # type: ignore[arg-type]
            self.world.network.answer(exchange, answered)

        self._kafka_calls[meant] = answerer
        self._obey(meant, request)

    def _is_kafkas(self, broker_id: BrokerId) -> bool | None:
        """Whether a broker is one of Kafka's; None: that is not known now."""
        hook, self.session.hook = self.session.hook, None
        try:
            return is_broker_of_kafka(self.session, broker_id)
        except RegentError:
            return None
        finally:
            self.session.hook = hook

    def _has_led_partitions(self) -> bool:
        hook, self.session.hook = self.session.hook, None
        try:
            return has_led_partitions(self.session)
        except RegentError:
            return True
        finally:
            self.session.hook = hook

    def _obey(self, exchange: Exchange, request: ControlRequest) -> bool:
        """Handle a control request; return False if that must be done later."""
        if self._is_checked_later(exchange):
            return False
        if isinstance(request, LeaderAndIsrRequest) and not self.configs.prepare(request):
            return False  # the controller sends it again
        # A refused leader may repeat its request for ever and notify all brokers each time.
        self.world.control_requests_received += not isinstance(request, UpdateMetadataRequest)
        self._answer(exchange, self.world.handle_control_request(self, exchange))
        if isinstance(request, UpdateMetadataRequest):
            self._log_care.announce_replaceable_logs()
            for server in self.coordinators:
                server.on_metadata_changed()
        return True

    def _on_unlocked(self) -> None:
        """Let the thread of control requests act before the one that appends, now and then.

        More often while the leader refuses other partitions: their next LeaderAndIsr is under way.
        """
        network = self.world.network
        self._unlocked_appends += 1
        is_race = self._fetchers.has_errors or not self._unlocked_appends % APPENDS_PER_RACE
        if not self.world.has_threads or not is_race:
            return
        for number in list(network.deliverable()):
            packet = network.packets[number]
            if packet.answer is None and packet.exchange.endpoint == self.control_endpoint:
                network.deliver(number)
                return

    def _run_beside(self, work: Callable[[], None]) -> None:
        """Do work of another thread a little later."""

        def do() -> None:
            work()
            self.acted()

        self.world.time.schedule(self, PREFETCH_MS, do)

    def acted(self) -> None:
        """Show the replicas to the observer and send their proposals."""
        self.world.observer.on_acted(self)
        self._propose()
        if self.replica_manager.take_suspect_changes():
            self.disk.save_suspects()
            self._lists_suspects_at_ms = self.world.time.now_ms + SUSPECTS_DELAY_MS
            self.world.time.schedule(
                self, SUSPECTS_DELAY_MS, lambda: self.tell(events.SuspectReplicasChanged())
            )
        if self.replica_manager.take_given_up():
            self.tell(events.ReplicasGivenUp(self.replica_manager.broker_epoch))

    def _on_suspects_listed(self, suspects: SuspectReplicas) -> None:
        self.suspect_listings += 1
        self.replica_manager.on_suspects_listed(suspects)
        self._log_care.announce_replaceable_logs()

    @property
    def is_about_to_list_suspects(self) -> bool:
        """Whether it will list its suspect replicas again after their last change."""
        return self.world.time.now_ms < self._lists_suspects_at_ms

    def handle_control_request(
        self, exchange: Exchange
    ) -> ControlResponse | ControlRequestRefusedError:
        """Apply or refuse a control request; an error is no answer, see ``Channel``."""
        request, header = exchange.request, exchange.header
        assert isinstance(request, LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest)
        assert header is not None
        try:
            if not self._is_admitted(exchange, self._facts.pop(exchange, None)):
                assert self._is_admitted(exchange, self._read_facts(header))
        except ControlRequestRefusedError as refused:
            return refused
        return self.replica_manager.handle(header, request, self.now_ms)

    def _is_admitted(self, exchange: Exchange, facts: ControlFacts | None) -> bool:
        assert exchange.header is not None
        is_metadata = isinstance(exchange.request, UpdateMetadataRequest)
        return self.replica_manager.fence.admit(exchange.header, facts, is_metadata=is_metadata)

    def _read_facts(self, header: ControlHeader) -> ControlFacts:
        """Read what ZooKeeper says of a sender. No fault interrupts it: it reads only."""
        hook, self.session.hook = self.session.hook, None
        try:
            return read_control_facts(self.session, self.broker_id, header)
        except BadDataError as error:
            raise ControlRequestRefusedError(Errors.NOT_CONTROLLER, str(error)) from error
        except RegentError as error:
            raise ControlRequestRefusedError(Errors.BROKER_NOT_AVAILABLE, str(error)) from error
        finally:
            self.session.hook = hook

    def _is_checked_later(self, exchange: Exchange) -> bool:
        """Whether other requests are handled between the read about this one and its handling."""
        delay_ms = self.world.check_delay_ms()
        if not delay_ms or exchange in self._facts:
            return False
        assert exchange.header is not None
        with suppress(ControlRequestRefusedError):
            if not self._is_admitted(exchange, None):
                self._facts[exchange] = self._read_facts(exchange.header)
                self.world.time.schedule(self, delay_ms, lambda: self.receive(exchange))
                return True
        return False

    # --- replication ---

    def _shrink_again_and_again(self) -> None:
        lag_ms = self.world.replication_settings.replica_lag_time_max_ms
        self.world.time.schedule(self, lag_ms // 2, self._shrink_again_and_again)
        self.replica_manager.shrink_isrs(self.now_ms)
        self.acted()

    def _checkpoint_again_and_again(self) -> None:
        self.world.time.schedule(self, CHECKPOINT_INTERVAL_MS, self._checkpoint_again_and_again)
        self.replica_manager.checkpoint_high_watermarks()
        self._note_how_far_zookeeper_is()

    def notice_failed_directory(self, directory: int = 0) -> None:
        """Handle the failure of a log directory."""
        self.disk.fail_directory(directory)
        self._log_care.give_up_offline_replicas()

    def _propose(self) -> None:
        """Send the pending proposals to the controller, one request at a time."""
        now_ms = self.now_ms
        if self._proposal is not None or now_ms < self._may_propose_from_ms:
            return
        request = self.replica_manager.alter_partition_request()
        if request is None:
            return
        if self.settings.isr_changes_through_zookeeper:
            self._on_proposal_answered(request, self._isr_writer.alter(request))
            return
        attempt = self._ask_controller(
            request, lambda answer: self._on_proposal_answered(request, answer)
        )
        if attempt is None:
            self._on_proposal_answered(request, None)
            return
        self._proposal = attempt
        self.world.time.schedule(self, REQUEST_TIMEOUT_MS, lambda: self._give_up(request, attempt))

    def _give_up(self, request: AlterPartitionRequest, attempt: Exchange) -> None:
        if attempt is self._proposal and not attempt.is_over:
            self._stop_waiting(attempt)
            self._on_proposal_answered(request, None)

    def _stop_waiting(self, attempt: Exchange) -> None:
        attempt.give_up()
        if isinstance(attempt.request, KafkaCall):  # the connection is closed
            self.world.network.drop_request(attempt)

    def _ask_controller(
        self,
        request: AlterPartitionRequest | ControlledShutdownRequest,
        on_answer: Callable[[AnswerBody], None],
    ) -> Exchange | None:
        """Send a request to the controller in its protocol; None: it is not known."""
        controller = self.cache.snapshot.controller
        if controller is None:
            return None
        if controller.control_endpoint is not None:
            return self.world.network.ask(self, controller.control_endpoint, request, on_answer)
        endpoint = kafka_endpoint(controller)
        call = controller_call(request, self._version_to_ask(request, endpoint))

        def on_call_answered(answer: AnswerBody) -> None:
            assert isinstance(answer, KafkaAnswer)
            on_answer(read_controller_answer(call, answer))

        return self.world.network.ask(self, endpoint, call, on_call_answered)

    def _version_to_ask(
        self, request: AlterPartitionRequest | ControlledShutdownRequest, endpoint: str
    ) -> int:
        if isinstance(request, ControlledShutdownRequest):
            return 3
        theirs = self.world.release_at(endpoint).alter_partition
        ours = self.release.alter_partition
        version = min(3 if ours is None else ours, 0 if theirs is None else theirs)
        has_ids = all(row.topic_id is not None for row in request.partitions)
        return version if has_ids else min(version, 1)

    def _on_proposal_answered(
        self, request: AlterPartitionRequest, answer: AnswerBody | None
    ) -> None:
        assert answer is None or isinstance(answer, AlterPartitionResponse)
        if answer is not None and answer.error_code is Errors.NOT_CONTROLLER:
            answer = None
        self._proposal = None
        now_ms = self.now_ms
        self._may_propose_from_ms = now_ms + PROPOSAL_BACKOFF_MS
        self.replica_manager.on_alter_partition_response(request, answer, now_ms)
        self.world.observer.on_acted(self)
        self.world.time.schedule(self, PROPOSAL_BACKOFF_MS, self._propose)

    def verify_logs(self) -> None:
        """Find damaged records."""
        self._log_care.verify()

    # --- the end ---

    def shut_down(self, attempts: int = SHUTDOWN_ATTEMPTS) -> None:
        """Let the controller move all leaderships away; then stop, or without a controller."""
        self.is_leaving = True
        self._begin_shutdown()
        if not attempts or not self.cache.snapshot.brokers:
            self.world.stop(self)
        else:
            self._ask_to_leave(attempts)

    def _begin_shutdown(self) -> None:
        self.replica_manager.begin_shutdown()

    def ask_to_leave_and_stay(self) -> None:
        """Request a controlled shutdown, but do not stop."""
        request = ControlledShutdownRequest(self.broker_id, self.replica_manager.broker_epoch)
        self._ask_controller(request, lambda answer: None)

    def _ask_to_leave(self, attempts: int) -> None:
        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ControlledShutdownResponse)
            if answer.error_code is Errors.NONE and not answer.remaining_partitions:
                self.world.stop(self)
            else:
                self._ask_again(attempts)

        def on_timeout() -> None:
            if exchange is not None and not exchange.is_over:
                self._stop_waiting(exchange)
                self._ask_again(attempts)

        request = ControlledShutdownRequest(self.broker_id, self.replica_manager.broker_epoch)
        exchange = self._ask_controller(request, on_answer)
        if exchange is None:
            self._ask_again(attempts)
            return
        # Longer than the controller waits for the new leaders.
        after_ms = REQUEST_TIMEOUT_MS + self.settings.controlled_shutdown_ack_timeout_ms
        self.world.time.schedule(self, after_ms, on_timeout)

    def _ask_again(self, attempts: int) -> None:
        self.world.time.schedule(self, SHUTDOWN_BACKOFF_MS, lambda: self.shut_down(attempts - 1))
