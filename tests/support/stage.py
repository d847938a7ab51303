"""Tests of actors: real actors, a fake ZooKeeper, and channels that record requests.

Three lines send any message to any actor::

    with Stage() as stage:
        controller = stage.controller(0)
        ask(controller, BrokerChange())  # returns when the event has been processed
        assert stage.sent == [...]
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar

from pykka import Actor, ActorDeadError, ActorRef

from regent.actors.broker import Broker, BrokerCallbacks, BrokerStatus
from regent.actors.control_request_check import ControlRequestReceived
from regent.actors.controller_event_manager import ControllerEventManager, ControllerListener
from regent.actors.event_journal import EventJournalReader, HandledEvent
from regent.actors.inbox import Reply
from regent.actors.request_send_thread import (
    DeliverySettings,
    OnResponse,
    RequestSendThread,
    SendStats,
)
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.core.controller.controller import Controller
from regent.core.controller.events import ControllerEvent, RegisterBrokerAndReelect
from regent.core.errors import Errors
from regent.core.model import NO_BROKER, BrokerId, BrokerInfo, BrokerRegistration
from regent.core.ports import ControlFacts
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    UpdateMetadataRequest,
)
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.control_request_handler import refusal
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import (
    DEFAULT_REPLICATION_SETTINGS,
    ReplicationSettings,
)
from regent.testing.waits import scaled
from regent.transport.control.client import RequestError, RequestFailedError
from regent.transport.control.codec import EncodedBody, decode_request_body
from regent.zk.client.operations import WatchEvent
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.watches import controller_event
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.memory_logs import MemoryLogs
from tests.support.world import TopicIds, World

A = TypeVar("A", bound=Actor)
TIMEOUT_S = scaled(20.0)


class Sent(NamedTuple):
    """One sent request."""

    broker_id: BrokerId
    header: ControlHeader
    request: ControlRequest


class Recorded(NamedTuple):
    """One event in the journal."""

    event: ControllerEvent
    changes: tuple[str, ...]
    controller_epoch: int


class RecordingChannel:
    """A channel to one broker: records requests and answers with the stage's ``answer``."""

    software = "kafka 3.9"

    def __init__(self, stage: Stage, broker_id: BrokerId) -> None:
        self._stage = stage
        self._broker_id = broker_id

    def request_each(
        self,
        requests: Sequence[tuple[EncodedBody, ControlHeader | None]],
        *,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> Iterator[tuple[int, ControlResponse | RequestFailedError]]:
        """Record each request as its receiver would decode it."""
        del timeout_ms, closing
        for place, (body, control_header) in enumerate(requests):
            assert control_header is not None
            request: Any = decode_request_body(body.api_key, *body.frames)
            try:
                yield place, self._stage.record(Sent(self._broker_id, control_header, request))
            except RequestFailedError as refused:
                yield place, refused

    def close(self) -> None:
        """Nothing to close."""


class StageFetchChannel:
    """Passes the fetches of one follower to the replication server on the same stage."""

    def __init__(self, stage: Stage, endpoint: str) -> None:
        self._stage = stage
        self._endpoint = endpoint

    def request(
        self, body: FetchRequest, *, timeout_ms: int, closing: threading.Event | None = None
    ) -> FetchResponse:
        """Send and wait, unless ``closing``."""
        server = self._stage.replication_servers.get(self._endpoint)
        if server is None:
            raise BrokenChannelError
        answer = server.fetch(body)
        deadline = monotonic() + timeout_ms / 1000
        while monotonic() < deadline and not (closing and closing.is_set()):
            with suppress(queue.Empty):
                return answer.get(timeout=0.02)
        raise BrokenChannelError

    def hurry(self) -> None:
        """Not passed on: a fetch here waits for as long as it asks for."""

    def close(self) -> None:
        """Nothing to close."""


class StageReplicationServer:
    """Answers the fetches of followers without a network."""

    def __init__(
        self, replica_manager: ReplicaManager, reaper: Scheduler, on_fetched: Callable[[], None]
    ) -> None:
        self._replica_manager = replica_manager
        self._reaper = reaper
        self._on_fetched = on_fetched

    def fetch(self, request: FetchRequest) -> queue.Queue[FetchResponse]:
        """Fetch; the queue gets the answer."""
        answers: queue.Queue[FetchResponse] = queue.Queue()
        manager = self._replica_manager
        held = manager.fetch(request, monotonic_ms(), answers.put)
        if held is not None:
            self._reaper.schedule(request.max_wait_ms, lambda: manager.expire(held, monotonic_ms()))
        self._on_fetched()
        return answers


class RecordingJournal:
    """Stores the recorded events."""

    def __init__(self) -> None:
        self.events: list[Recorded] = []

    def record(self, handled: HandledEvent) -> None:
        """Store one event."""
        changes = tuple(map(str, handled.changes.changes)) if handled.changes else ()
        self.events.append(Recorded(handled.event, changes, handled.controller_epoch))


def replication_endpoint(broker_id: BrokerId) -> str:
    """Return the replication endpoint of a broker on a stage."""
    return f"inproc://replication-{broker_id}"


def ask(actor: ActorRef[Any], message: object) -> Any:
    """Send to an actor and return its answer; for an event, after it has been processed."""
    return actor.ask(addressed(actor, message), timeout=TIMEOUT_S)


def addressed(actor: ActorRef[Any], message: object) -> object:
    """Return a message; a control request without a receiver is for this Broker actor."""
    if not isinstance(message, ControlRequestReceived) or message.header.broker_id != NO_BROKER:
        return message
    broker_id = actor_of(actor).replica_manager.broker_id
    return replace(message, header=message.header._replace(broker_id=broker_id))


def actor_of(ref: ActorRef[A]) -> A:
    """Return the actor itself, for a test that looks inside."""
    actor = ref._actor_weakref()
    assert actor is not None
    return actor


def facts_of(header: ControlHeader) -> ControlFacts:
    """Return what ZooKeeper says if the header is right."""
    return ControlFacts(header.controller_id, header.controller_epoch, header.broker_epoch)


def accept(sent: Sent) -> ControlResponse:
    """Answer without an error."""
    return refusal(sent.request, Errors.NONE)


class Stage(World):
    """A world in which a test starts actors; they are stopped at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = RecordingJournal()
        self.sent: list[Sent] = []
        self.answer: Callable[[Sent], ControlResponse] = accept
        self.unexpected: list[Exception] = []
        self.shutdown_requests: list[Reply | None] = []
        self.replication_servers: dict[str, StageReplicationServer] = {}
        self._changed = threading.Condition()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def info(self, broker_id: BrokerId, incarnation: int = 1) -> BrokerInfo:
        """Return what a broker registers with: the endpoints of channels on this stage."""
        return replace(
            super().info(broker_id, incarnation),
            control_endpoint=f"inproc://broker-{broker_id}",
            replication_endpoint=replication_endpoint(broker_id),
        )

    def controller(self, broker_id: BrokerId) -> ActorRef[ControllerEventManager]:
        """Start a broker's controller; it registers and is elected if there is no controller."""
        refs: list[ActorRef[ControllerEventManager]] = []

        def on_watch(watch: WatchEvent) -> None:
            event = controller_event(watch, broker_id)
            if event is not None and refs:
                with suppress(ActorDeadError):
                    refs[0].tell(event)

        session = self.sessions[broker_id] = FakeZooKeeper(self.zookeeper, on_watch)
        scheduler = Scheduler(f"scheduler-{broker_id}")
        self._undo.callback(scheduler.shutdown)
        store = ZkControllerStore(session)
        ref = start_actor(
            ControllerEventManager,
            broker_id,
            Controller(self.info(broker_id), store, TopicIds()),
            self.open_channel,
            scheduler=scheduler,
            journal=self.journal,
            listener=ControllerListener(),
            delivery=DeliverySettings(retry_backoff_ms=1),
            supervisor=lambda _name, _message, error: self.unexpected.append(error),
        )
        self._undo.callback(stop_actor, ref, TIMEOUT_S)
        refs.append(ref)
        ask(ref, RegisterBrokerAndReelect())
        return ref

    def scheduler(self, name: str) -> Scheduler:
        """Start a scheduler."""
        scheduler = Scheduler(name)
        self._undo.callback(scheduler.shutdown)
        return scheduler

    def broker(
        self,
        broker_id: BrokerId,
        *,
        logs: ReplicaLogs | None = None,
        settings: ReplicationSettings = DEFAULT_REPLICATION_SETTINGS,
        callbacks: BrokerCallbacks | None = None,
    ) -> ActorRef[Broker]:
        """Start a Broker actor; by default its logs are new."""
        ref = start_actor(
            Broker,
            broker_id,
            logs or MemoryLogs(),
            BrokerStatus(),
            callbacks or BrokerCallbacks(self.shutdown_requests.append, facts_of),
            open_fetch_channel=self.open_fetch_channel,
            scheduler=self.scheduler(f"scheduler-{broker_id}"),
            settings=settings,
        )
        self._undo.callback(stop_actor, ref, TIMEOUT_S)
        return ref

    def journal_reader(
        self, broker_id: BrokerId, directory: Path = Path("/no-journal")
    ) -> ActorRef[EventJournalReader]:
        """Start what reads the journal of a broker for others."""
        ref = start_actor(EventJournalReader, directory, broker_id)
        self._undo.callback(stop_actor, ref, TIMEOUT_S)
        return ref

    def request_send_thread(
        self,
        broker_id: BrokerId,
        on_response: OnResponse,
        *,
        may_announce: Callable[[], bool] = lambda: True,
        tell: Callable[[ControllerEvent], None] = lambda _: None,
    ) -> ActorRef[RequestSendThread]:
        """Start a RequestSendThread."""
        ref = start_actor(
            RequestSendThread,
            f"Controller-9-to-broker-{broker_id}-send-thread",
            BrokerRegistration(self.info(broker_id), 1),
            self.open_channel,
            on_response,
            tell=tell,
            may_announce=may_announce,
            settings=DeliverySettings(retry_backoff_ms=1),
            stats=SendStats(),
        )
        self._undo.callback(stop_actor, ref, TIMEOUT_S)
        return ref

    def replication_server(
        self, broker: ActorRef[Broker], on_fetched: Callable[[], None] = lambda: None
    ) -> StageReplicationServer:
        """Return the server for the fetches of a broker's followers."""
        actor = actor_of(broker)
        broker_id = actor.replica_manager.broker_id
        reaper = self.scheduler(f"expiration-reaper-{broker_id}")
        server = StageReplicationServer(actor.replica_manager, reaper, on_fetched)
        self.replication_servers[replication_endpoint(broker_id)] = server
        return server

    def open_fetch_channel(self, endpoint: str) -> StageFetchChannel:
        """Return the channel to the replication server at ``endpoint``."""
        return StageFetchChannel(self, endpoint)

    def open_channel(self, broker: BrokerInfo) -> RecordingChannel:
        """Return the channel to a broker."""
        return RecordingChannel(self, broker.broker_id)

    def record(self, sent: Sent) -> ControlResponse:
        """Record a request and return its answer."""
        with self._changed:
            self.sent.append(sent)
            self._changed.notify_all()
        return self.answer(sent)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; check it after each sent request."""
        deadline = monotonic() + TIMEOUT_S
        with self._changed:
            while not condition():
                assert monotonic() < deadline, f"the condition does not hold; sent: {self.sent}"
                self._changed.wait(0.02)

    def metadata_sent_to(self, broker_id: BrokerId) -> list[UpdateMetadataRequest]:
        """Return the UpdateMetadata requests a broker got."""
        return [
            sent.request
            for sent in list(self.sent)
            if sent.broker_id == broker_id and isinstance(sent.request, UpdateMetadataRequest)
        ]


class BrokenChannelError(RequestError):
    """The error of a channel whose broker cannot be reached."""

    def __init__(self) -> None:
        super().__init__("inproc://nobody", "not there")
