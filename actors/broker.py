"""The broker as an actor: carries out control requests and describes its metadata.

Control requests pass through here in the order they arrived; mirrors the control half of
``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic, time_ns
from typing import NamedTuple, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.control_request_check import (
    ControlRequestCheck,
    ControlRequestReceived,
    ReadControlFacts,
    pass_on,
    refuse,
)
from regent.actors.fair_lock import FairLock
from regent.actors.inbox import InboxFullError, Overflow, Reply
from regent.actors.replica_fetcher_manager import ReplicaFetcherManager
from regent.actors.replica_fetcher_thread import OpenFetchChannel
from regent.actors.runtime import RegentActor, Supervisor, launch, stop_actor
from regent.actors.scheduler import OneShotTimer, Scheduler, monotonic_ms
from regent.core.controller.events import ReplicasGivenUp, SuspectReplicasChanged
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    HoldDeletedLogsRequest,
    HoldDeletedLogsResponse,
    MetadataPartition,
    ShutdownBrokerRequest,
    Traffic,
)
from regent.core.protocol.control import (
    ControlRequest,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from regent.core.repeated_lines import RepeatedLines
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.all_partitions import RunBeside
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.core.replication.control_request_handler import refusal
from regent.core.replication.held_logs import hold_deleted_logs
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings

logger = logging.getLogger(__name__)

_CHECK_STOP_TIMEOUT_S = 2.0


class BrokerState(Enum):
    """The state of a broker process, with Kafka's names (``kafka.metadata.BrokerState``)."""

    NOT_RUNNING = "NotRunning"
    STARTING = "Starting"
    RUNNING_AS_BROKER = "RunningAsBroker"
    RUNNING_AS_CONTROLLER = "RunningAsController"
    PENDING_CONTROLLED_SHUTDOWN = "PendingControlledShutdown"
    BROKER_SHUTTING_DOWN = "BrokerShuttingDown"


class BrokerStatus:
    """The state of the broker and its warnings, for any thread to read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = BrokerState.NOT_RUNNING
        self._warners: list[Callable[[], Sequence[str]]] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """The current problems, one line each."""
        return tuple(line for warner in list(self._warners) for line in warner())

    def add_warner(self, warner: Callable[[], Sequence[str]]) -> None:
        """Add a source of warnings; it is called on any thread."""
        self._warners.append(warner)

    @property
    def state(self) -> BrokerState:
        """The current state."""
        return self._state

    def become(self, state: BrokerState) -> None:
        """Enter ``state``; a broker that is shutting down cannot return to a running state."""
        running = (BrokerState.RUNNING_AS_BROKER, BrokerState.RUNNING_AS_CONTROLLER)
        with self._lock:
            is_ending = self._state in (
                BrokerState.PENDING_CONTROLLED_SHUTDOWN,
                BrokerState.BROKER_SHUTTING_DOWN,
            )
            if not (is_ending and state in running):
                self._state = state


@dataclass(frozen=True, slots=True)
class Registered:
    """The broker has a new registration with this broker epoch."""

    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ShrinkIsrs:
    """Check for followers that are out of sync; sent twice per ``replica.lag.time.max.ms``."""


@dataclass(frozen=True, slots=True)
class UpdateFetchers:
    """Start the fetchers that could not be started."""


@dataclass(frozen=True, slots=True)
class LogDirectoryFailed:
    """A log directory has failed: its replicas are offline."""


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Stop all fetchers; answered when the last one has ended."""


BrokerMessage: TypeAlias = (
    ControlRequestReceived
    | Registered
    | ShrinkIsrs
    | UpdateFetchers
    | LogDirectoryFailed
    | StopFetching
    | DescribeMetadataRequest
    | ShutdownBrokerRequest
    | HoldDeletedLogsRequest
)


_NEVER_REFUSED = (Registered, ShrinkIsrs, UpdateFetchers, LogDirectoryFailed, StopFetching)
_FETCHERS_RETRY_MS = 1_000


@dataclass(frozen=True, slots=True)
class BrokerCallbacks:
    """Functions of the process that a Broker actor calls on its own thread."""

    request_shutdown: Callable[[Reply | None], None]
    """Begin a shutdown on another thread, because the actor must keep handling control requests."""
    read_control_facts: ReadControlFacts
    """Called on the thread of the ControlRequestCheck."""
    on_isrs_proposed: Callable[[], None] = lambda: None
    """There may be ISR proposals to send."""
    on_replicas_offline: Callable[[], None] = lambda: None
    """Replicas went offline because of log failures, or damaged logs can be replaced."""
    on_suspects_changed: Callable[[SuspectReplicasChanged | ReplicasGivenUp], None] = lambda _: None
    """The suspect replicas have changed, or a controller of Kafka has given some up."""
    on_metadata_changed: Callable[[], None] = lambda: None
    """The metadata cache has been updated."""
    catch_up_with_configs: Callable[[], None] = lambda: None
    """Return when the throttles that were set before a reassignment are applied.
    Raises ``SessionExpiredError``."""
    load_topic_configs: Callable[[Collection[str]], None] = lambda _: None
    """Load the configurations of these topics before their logs are created.
    Raises ``SessionExpiredError``."""


class BrokerView(NamedTuple):
    """The parts of a Broker actor that other threads may use; each is thread-safe."""

    ref: ActorRef[Broker]
    cache: MetadataCache
    replica_manager: ReplicaManager
    fetchers: ReplicaFetcherManager


class Broker(RegentActor):
    """Owns the ReplicaManager, which is thread-safe, and the fetchers."""

    overflow = Overflow(lambda message: isinstance(message, _NEVER_REFUSED))

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        status: BrokerStatus,
        callbacks: BrokerCallbacks,
        *,
        open_fetch_channel: OpenFetchChannel,
        scheduler: Scheduler,
        settings: ReplicationSettings,
        run_beside: RunBeside | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}", supervisor=supervisor)
        self.cache = MetadataCache()
        lock = FairLock(first=self.thread)
        self.replica_manager = ReplicaManager(
            broker_id, logs, self.cache, settings, lock, run_beside
        )
        self.fetchers = ReplicaFetcherManager(
            self.replica_manager,
            open_fetch_channel,
            scheduler=scheduler,
            backoff_ms=settings.replica_fetch_backoff_ms,
            supervisor=supervisor,
        )
        self._fetchers_retry = OneShotTimer(scheduler, self._tell_update_fetchers)
        self._logs = logs
        self.status = status
        self._callbacks = callbacks
        self._check = ControlRequestCheck(
            f"broker-{broker_id}-control-request-check",
            self.actor_ref,
            callbacks.read_control_facts,
            supervisor=supervisor,
        )
        self._lines = RepeatedLines()

    @property
    def view(self) -> BrokerView:
        """The parts that other threads may use."""
        return BrokerView(self.actor_ref, self.cache, self.replica_manager, self.fetchers)

    @staticmethod
    def collapse_key(message: BrokerMessage) -> Hashable | None:
        """One queued check of ISRs, of fetchers and of logs is enough."""
        is_check = isinstance(message, ShrinkIsrs | UpdateFetchers | LogDirectoryFailed)
        return message if is_check else None

    def handle(  # noqa: C901  one match over every message
        self, message: BrokerMessage, reply: Reply | None
    ) -> None:
        """Handle one message."""
        match message:
            case ControlRequestReceived():
                self._handle_control_request(message, reply)
            case ShrinkIsrs():
                self.replica_manager.shrink_isrs(monotonic_ms())
                self._callbacks.on_isrs_proposed()
            case UpdateFetchers():
                self._update_fetchers()
            case LogDirectoryFailed():
                self._give_up_offline_replicas()
            case StopFetching():
                self.fetchers.close()
                if reply is not None:
                    reply.set(None)
            case Registered(broker_epoch):
                self.replica_manager.broker_epoch = broker_epoch
                self._callbacks.on_isrs_proposed()  # earlier proposals may have been refused
            case DescribeMetadataRequest() | HoldDeletedLogsRequest():
                if reply is not None:
                    reply.set(self._answer(message))
            case ShutdownBrokerRequest():
                self._callbacks.request_shutdown(reply)

    def _answer(
        self, request: DescribeMetadataRequest | HoldDeletedLogsRequest
    ) -> DescribeMetadataResponse | HoldDeletedLogsResponse:
        if isinstance(request, DescribeMetadataRequest):
            return self._describe(request.topics)
        manager = self.replica_manager
        return hold_deleted_logs(manager.broker_id, manager.broker_epoch, self._logs, request)

    def on_start(self) -> None:
        """Start the actor that checks control requests."""
        launch(self._check)

    def on_stop(self) -> None:
        """Stop all fetchers."""
        self._fetchers_retry.cancel()
        self.fetchers.close()
        stop_actor(self._check.actor_ref, _CHECK_STOP_TIMEOUT_S)

    def preemption_answer(self, message: object) -> object:
        """Refuse queued control requests when the broker stops."""
        match message:
            case ControlRequestReceived(_, request) if request is not None:
                return refusal(request, Errors.UNKNOWN_SERVER_ERROR)
            case _:
                return super().preemption_answer(message)

    def _handle_control_request(
        self, received: ControlRequestReceived, reply: Reply | None
    ) -> None:
        header, request = received.header, received.request
        if not self._is_admitted(received, reply) or request is None:
            return
        try:
            self._load_configs(request)
        except SessionExpiredError as expired:
            # Carry out nothing: the controller sends the request again (KAFKA-9769).
            if self._lines.is_due("no session", monotonic_ms()):
                logger.warning("%s: cannot read the required configurations: %s", self, expired)
            if reply is not None:
                reply.fail(expired)
            return
        except Exception:  # logs with old settings are better than none
            logger.exception("%s: cannot apply topic configurations; keeping the old ones", self)
        response = self.replica_manager.handle(header, request, monotonic_ms())
        if reply is not None:
            reply.set(response)
        self._update_fetchers()
        self._callbacks.on_isrs_proposed()
        if isinstance(request, UpdateMetadataRequest):
            self._callbacks.on_metadata_changed()
            if self.replica_manager.replaceable_logs():
                self._callbacks.on_replicas_offline()
        self._report_suspects()

    def _update_fetchers(self) -> None:
        if not self.fetchers.update():
            self._fetchers_retry.set(_FETCHERS_RETRY_MS)

    def _tell_update_fetchers(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(UpdateFetchers())

    def _report_suspects(self) -> None:
        if self.replica_manager.take_suspect_changes():
            self._callbacks.on_suspects_changed(SuspectReplicasChanged())
        if self.replica_manager.take_given_up():
            self._callbacks.on_suspects_changed(ReplicasGivenUp(self.replica_manager.broker_epoch))

    def _load_configs(self, request: ControlRequest) -> None:
        """Load the settings that the request needs; raises ``SessionExpiredError``."""
        if isinstance(request, LeaderAndIsrRequest):
            if self.replica_manager.begins_copying(request):
                self._callbacks.catch_up_with_configs()
            self._callbacks.load_topic_configs(self._topics_to_create_logs_of(request))

    def _is_admitted(self, received: ControlRequestReceived, reply: Reply | None) -> bool:
        """Whether to handle a request now; if not, it is refused, or ZooKeeper is asked first."""
        is_metadata = isinstance(received.request, UpdateMetadataRequest)
        try:
            if self.replica_manager.fence.admit(
                received.header, received.facts, is_metadata=is_metadata
            ):
                self.replica_manager.fence.note_heard(received.header)
                return True
            pass_on(self._check.actor_ref, received, reply)
        except ControlRequestRefusedError as refused:
            if self._lines.is_due(refused.error_code, monotonic_ms()):
                what = "a large request"
                if received.request is not None:
                    what = type(received.request).__name__
                logger.warning("%s: %s is not carried out: %s", self, what, refused)
            if reply is not None:
                reply.fail(refused)
        except (ActorDeadError, InboxFullError) as error:
            refuse(reply, Errors.BROKER_NOT_AVAILABLE, error)
        return False

    def _topics_to_create_logs_of(self, request: LeaderAndIsrRequest) -> Collection[str]:
        missing = set()
        hosted = self.replica_manager.partitions
        for topic in request.topic_states:
            for state in topic.partition_states:
                topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                known = hosted.get(topic_partition)
                if known is not None and known.log is not None and known.topic_id == topic.topic_id:
                    continue
                log = self._logs.get(topic_partition)
                if log is None or log.topic_id != topic.topic_id:
                    missing.add(topic.topic_name)
                    break
        return sorted(missing)

    def _give_up_offline_replicas(self) -> None:
        offline = self.replica_manager.on_log_directory_failed()
        self._update_fetchers()
        self._callbacks.on_isrs_proposed()
        if offline:
            text = "%s: %d replicas are offline, the first: %s"
            logger.error(text, self, len(offline), offline[0])
        self._callbacks.on_replicas_offline()

    def _describe(self, topics: tuple[str, ...] | None) -> DescribeMetadataResponse:
        snapshot = self.cache.snapshot
        written = self.replica_manager.topic_stats.all_topics()
        return DescribeMetadataResponse(
            Errors.NONE,
            self.replica_manager.broker_id,
            self.status.state.value,
            snapshot.controller_id,
            snapshot.controller_epoch,
            tuple(snapshot.brokers[b] for b in sorted(snapshot.brokers)),
            tuple(
                MetadataPartition(
                    topic=topic,
                    topic_id=snapshot.topic_ids.get(topic),
                    partition=partition,
                    leader=row.leader,
                    leader_epoch=row.leader_epoch,
                    controller_epoch=row.controller_epoch,
                    isr=row.isr,
                    replicas=row.replicas,
                    offline_replicas=row.offline_replicas,
                    partition_epoch=row.partition_epoch,
                )
                for topic in sorted(snapshot.topics if topics is None else set(topics))
                for partition, row in sorted(snapshot.topics.get(topic, {}).items())
            ),
            self.status.warnings,
            self.replica_manager.follower_paces(monotonic()),
            Traffic(written.messages_in, written.bytes_in, written.bytes_out),
            time_ns() // 1_000_000,
        )
