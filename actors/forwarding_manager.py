"""Answers requests about topics, elections and reassignments, in every broker.

It forwards a request to the active controller's broker, which decides and writes, and repeats this
until it has an answer. Then it waits until this broker's own metadata cache shows the change, and
for a moment until the controller has told the other brokers, so that a client that has created a
topic can find it through any broker. A broker that does not answer delays nothing for long.
Reassignments have only begun when they are answered.

While the placement service starts, a creation is repeated. When the time of its client is over, it
is told so, and the creation goes on in the background, as a creation of Kafka does. Mirrors
``kafka.server.ForwardingManager`` and the purgatory of ``kafka.server.ZkAdminManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.automatic_creation import AutomaticCreation, Creatable, CreationRefusal
from regent.actors.broker_to_controller_channel import (
    BrokerToControllerChannel,
    ControllerOfKafkaError,
    refuse_forwarded,
)
from regent.actors.inbox import InboxFullError, MessageWithReply, Reply
from regent.actors.request_channel import ControllerUnknownError
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import OneShotTimer, Scheduler, monotonic_ms
from regent.core.admin.admin_requests import (
    PendingAnswer,
    changes_topics,
    done_before,
    is_elsewhere,
    is_unplaced,
    refuse_elsewhere,
    refuse_unplaced,
    timeout_of,
)
from regent.core.admin.partition_requests import PendingElections
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import TopicIds
from regent.core.protocol.controller import AwaitBrokersRequest
from regent.core.protocol.envelope import EnvelopeRequest, ForwardedRequest, ForwardedResponse
from regent.core.protocol.messages.partitions import (
    ElectLeadersResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from regent.core.protocol.topics import TopicsResponse, error_of, results_of, topic_of
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.transport.control.client import PeerUnreachableError

logger = logging.getLogger(__name__)

MAX_PENDING = 1_000
MAX_WAIT_MS = 300_000
MIN_PATIENCE_MS = 10_000  # minimum time for a decision, even if the request has a shorter timeout
RETRY_BACKOFF_MS = 100
MAX_RETRY_BACKOFF_MS = 1_000
BACKGROUND_MS = 180_000
"""How long a creation goes on after its client was answered. The start of Spark may take 120 s."""
MAX_IN_BACKGROUND = 100
MIN_SPREAD_MS, MAX_SPREAD_MS = 300, 3_000
"""How long an answer waits for the other brokers: as long again as it took, within these limits."""

_DECIDED: Final = (
    Errors.NONE,
    Errors.CLUSTER_AUTHORIZATION_FAILED,
    Errors.INVALID_REQUEST,
)
"""Errors of whole requests about partitions after which nobody else needs to be asked."""

_NOT_SENT: Final = (
    ControllerUnknownError,
    PeerUnreachableError,
    ControllerOfKafkaError,
    ActorDeadError,
    InboxFullError,
)
"""Errors after which nobody has the request."""
_MAY_BE_DONE: Final = "an attempt was not answered, and may have been carried out"
_SHUTTING_DOWN: Final = "the broker is shutting down"

_OnDecided: TypeAlias = Callable[[Sequence[CreatableTopicResult]], None]


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata cache has changed; requests may be complete."""


@dataclass(frozen=True, slots=True)
class CreateMissing:
    """A client needs topics that do not exist; the answer: see ``AutomaticCreation.want``."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ClientsWaited:
    """Clients have waited long enough for topics."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """The other brokers know what these requests have changed, or took too long."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Decided:
    """The answer of the controller's broker to request ``number``, or an error."""

    number: int
    answer: object


@dataclass(frozen=True, slots=True)
class _TryAgain:
    """Another attempt at request ``number`` is due."""

    number: int


_Message: TypeAlias = (
    EnvelopeRequest
    | MetadataChanged
    | CreateMissing
    | _ClientsWaited
    | _Decided
    | _TryAgain
    | _Spread
)


@dataclass(slots=True)
class _PendingRequest:
    """A request that is not answered yet; ``undone``: see ``done_before``.

    ``unknown``: attempts that may have been carried out.
    ``response`` is set when this broker knows the change, and others may not.
    ``is_in_background``: the client was told that the time is over.
    """

    envelope: EnvelopeRequest
    reply: Reply
    undone: frozenset[str]
    began_ms: int
    deadline_ms: int
    decide_until_ms: int
    on_decided: _OnDecided | None = None
    attempts: int = 0
    unknown: int = 0
    pending: PendingAnswer | PendingElections | None = None
    response: ForwardedResponse | None = None
    is_in_background: bool = False

    @property
    def request(self) -> ForwardedRequest:
        """The request, without its envelope."""
        return self.envelope.request

    def tell_decision(self, answer: ForwardedResponse) -> None:
        """Tell who waits for the decision only, also of an attempt that failed."""
        if self.on_decided is not None and isinstance(answer, CreateTopicsResponse):
            self.on_decided(answer.topics)


class ForwardingManager(RegentActor):
    """Takes ``EnvelopeRequest`` and ``CreateMissing`` on any thread; never blocks."""

    def __init__(
        self,
        broker_id: BrokerId,
        cache: MetadataCache,
        topic_ids: TopicIds,
        channel: ActorRef[BrokerToControllerChannel],
        spread_channel: ActorRef[BrokerToControllerChannel],
        scheduler: Scheduler,
        *,
        creatable: Creatable = lambda topic: CreatableTopic(name=topic),
        min_patience_ms: int = MIN_PATIENCE_MS,
        supervisor: Supervisor | None = None,
    ) -> None:
        """``spread_channel`` is for questions that the controller does not answer at once."""
        super().__init__(f"broker-{broker_id}-forwarding-manager", supervisor=supervisor)
        self._min_patience_ms = min_patience_ms
        self._cache = cache
        self._topic_ids = topic_ids
        self._channel = channel
        self._spread_channel = spread_channel
        self._scheduler = scheduler
        self._numbers = count(1)
        self._waiting: dict[int, _PendingRequest] = {}
        self._is_spreading = False
        self._is_failing = False
        self._deadline = OneShotTimer(scheduler, lambda: self._tell(MetadataChanged()))
        self._creation = AutomaticCreation(
            self.name,
            cache,
            creatable,
            self._create,
            OneShotTimer(scheduler, lambda: self._tell(_ClientsWaited())),
        )

    @property
    def pending_count(self) -> int:
        """How many requests are not answered yet. Thread-safe."""
        return len(self._waiting)

    @property
    def refusals(self) -> Mapping[str, CreationRefusal]:
        """The latest refusals to create topics that clients needed. Thread-safe."""
        return self._creation.refusals.copy()

    @staticmethod
    def collapse_key(message: object) -> Hashable | None:
        """One queued message is enough for several changes of the metadata cache."""
        return message if isinstance(message, MetadataChanged) else None

    def handle(self, message: _Message, reply: Reply | None) -> None:
        """Accept a request, or continue the waiting ones."""
        match message:
            case MetadataChanged():
                self._poll(list(self._waiting))
            case CreateMissing(topics):
                self._creation.want(topics, reply or Reply.of(lambda _: None))
            case _ClientsWaited():
                self._creation.on_time()
            case _Spread(numbers):
                self._on_spread(numbers)
            case _Decided(number, answer):
                self._on_decided(number, answer)
            case _TryAgain(number):
                self._forward(number)
            case _:
                if reply is not None:
                    self._take(message, reply)

    def preemption_answer(self, message: object) -> object:
        """Send clients to another broker when this one stops."""
        if isinstance(message, EnvelopeRequest):
            return refuse_forwarded(message.request, Errors.NOT_CONTROLLER, _SHUTTING_DOWN)
        if isinstance(message, CreateMissing):
            return {}
        return super().preemption_answer(message)

    def on_stop(self) -> None:
        """Cancel the timers, and answer what is done here already, or may be done."""
        self._deadline.cancel()
        self._creation.stop()
        for waiting in list(self._waiting.values()):
            if waiting.response is not None:
                waiting.reply.set(waiting.response)
            elif waiting.unknown:
                waiting.reply.set(_refuse(waiting, _SHUTTING_DOWN))

    # --- from the request to the decision ---

    def _create(self, request: CreateTopicsRequest, reply: Reply) -> None:
        self._take(EnvelopeRequest.of(request), reply, self._creation.on_decided)

    def _take(
        self, envelope: EnvelopeRequest, reply: Reply, on_decided: _OnDecided | None = None
    ) -> None:
        request = envelope.request
        if len(self._waiting) >= MAX_PENDING:
            reason = f"{MAX_PENDING} requests are already waiting"
            reply.set(refuse_forwarded(request, Errors.REQUEST_TIMED_OUT, reason))
            return
        now_ms, timeout_ms = monotonic_ms(), min(timeout_of(request), MAX_WAIT_MS)
        number = next(self._numbers)
        self._waiting[number] = _PendingRequest(
            self._to_decide(envelope),
            reply,
            _undone(request, self._cache.snapshot),
            now_ms,
            now_ms + timeout_ms,
            now_ms + max(timeout_ms, self._min_patience_ms),
            on_decided,
        )
        self._forward(number)

    def _to_decide(self, envelope: EnvelopeRequest) -> EnvelopeRequest:
        """Return the request in the form that the controller's broker gets.

        New topics have ids, so that a second attempt recognises what the first created. The
        controller answers without a wait.
        """
        request = envelope.request
        if isinstance(request, CreateTopicsRequest):
            topics = (
                replace(topic, topic_id=topic.topic_id or self._topic_ids.new_topic_id())
                for topic in request.topics
            )
            request = replace(request, topics=tuple(topics))
        elif isinstance(request, PartitionsRequest):
            request = replace(request, timeout_ms=0)
        return EnvelopeRequest.of(request, envelope.requester, envelope.client)

    def _forward(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        waiting.attempts += 1
        waiting.unknown += 1
        reply = Reply.of(lambda answer: self._tell(_Decided(number, answer)))
        try:
            self._channel.tell(MessageWithReply(waiting.envelope, reply))
        except (ActorDeadError, InboxFullError) as error:
            self._on_decided(number, error)

    def _on_decided(self, number: int, answer: object) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        waiting.unknown -= _did_nothing(answer)
        if isinstance(answer, TopicsResponse) and is_unplaced(answer):
            self._await_placement(number, answer)
        elif isinstance(answer, ForwardedResponse) and not _is_elsewhere(answer):
            self._is_failing = False
            waiting.tell_decision(answer)
            waiting.pending = _pending(waiting, answer)
            if waiting.pending is None:
                self._finish(number, answer)
            else:
                self._poll([number])
        elif isinstance(answer, ControllerOfKafkaError):
            self._finish(number, _refuse(waiting, str(answer)))
        elif monotonic_ms() >= waiting.decide_until_ms:
            self._finish(number, _given_up(waiting, answer))
        else:
            log = logger.debug if self._is_failing else logger.warning
            log("%s: %s; trying again", self.name, _reason(answer))
            self._is_failing = True
            waiting.tell_decision(_given_up(waiting, answer))
            self._try_again_later(number)

    def _try_again_later(self, number: int, within_ms: int = MAX_RETRY_BACKOFF_MS) -> None:
        backoff_ms = min(RETRY_BACKOFF_MS * self._waiting[number].attempts, within_ms)
        self._scheduler.schedule(backoff_ms, lambda: self._tell(_TryAgain(number)))

    # --- while the placement service starts ---

    def _await_placement(self, number: int, answer: TopicsResponse) -> None:
        """Repeat the request within the time of its client, and then in the background.

        A command that awaits the service itself gets its answer at once, and nothing goes on. An
        automatic creation gets it at once, too, so that it can create others.
        """
        waiting = self._waiting[number]
        awaits_itself = _awaits_service(waiting.request)
        left_ms = waiting.deadline_ms - monotonic_ms()
        if left_ms > 0 and (waiting.is_in_background or not awaits_itself):
            self._try_again_later(number, min(left_ms, MAX_RETRY_BACKOFF_MS))
        elif waiting.is_in_background or (awaits_itself and waiting.on_decided is None):
            self._finish(number, answer)
        else:
            self._go_on(number, answer)

    def _go_on(self, number: int, answer: TopicsResponse) -> None:
        """Answer the client, and let its request go on unless one for the same topics does."""
        waiting = self._waiting[number]
        late = answer if waiting.on_decided is not None else refuse_unplaced(answer)
        others = [each for each in self._waiting.values() if each.is_in_background]
        created = {topic for other in others for topic in _topics(other.request)}
        if created.issuperset(_topics(waiting.request)):
            self._finish(number, late)
        elif len(others) >= MAX_IN_BACKGROUND:
            self._finish(number, answer)
        else:
            client, waiting.reply = waiting.reply, Reply.of(self._on_end_in_background)
            waiting.is_in_background = True
            waiting.deadline_ms = waiting.decide_until_ms = monotonic_ms() + BACKGROUND_MS
            self._try_again_later(number)
            client.set(late)

    def _on_end_in_background(self, response: object) -> None:
        assert isinstance(response, TopicsResponse)
        for row in results_of(response):
            code, message = error_of(row)
            if code is Errors.NONE:
                text = "%s: created %s, for a client whose time was over"
                logger.info(text, self.name, topic_of(row))
            else:
                text = "%s: %s is not created, for a client whose time was over: %s: %s"
                logger.warning(text, self.name, topic_of(row), code.name, message)

    # --- from the decision to the answer ---

    def _poll(self, numbers: Collection[int]) -> None:
        snapshot, now_ms = self._cache.snapshot, monotonic_ms()
        for number in numbers:
            pending = self._waiting[number].pending
            response = None if pending is None else pending.poll(snapshot, now_ms)
            if response is not None:
                self._waiting[number].pending = None
                self._waiting[number].response = response
        self._spread(now_ms)
        pendings = [waiting.pending for waiting in self._waiting.values() if waiting.pending]
        self._deadline.cancel()
        if pendings:
            first_ms = min(pending.deadline_ms for pending in pendings)
            self._deadline.set(max(first_ms - now_ms, 0))

    def _spread(self, now_ms: int) -> None:
        """Answer what changed nothing or is late; before other answers the brokers are awaited.

        One question to the controller is in flight: it holds for all that were done before it.
        """
        known_here: dict[int, int] = {}
        for number, waiting in list(self._waiting.items()):
            if waiting.response is None:
                continue
            if now_ms >= waiting.deadline_ms or not _changed_something(waiting):
                self._finish(number, waiting.response)
            else:
                known_here[number] = now_ms - waiting.began_ms
        if not known_here or self._is_spreading:
            return
        self._is_spreading = True
        patience_ms = min(max(MIN_SPREAD_MS, *known_here.values()), MAX_SPREAD_MS)
        done = _Spread(tuple(known_here))
        request = MessageWithReply(
            AwaitBrokersRequest(patience_ms), Reply.of(lambda _: self._tell(done))
        )
        try:
            self._spread_channel.tell(request)
        except (ActorDeadError, InboxFullError):
            self._tell(done)

    def _on_spread(self, numbers: Collection[int]) -> None:
        """Whatever the controller answered: a broker that is not told now will be told later."""
        self._is_spreading = False
        for number in numbers:
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.response is not None:
                self._finish(number, waiting.response)
        self._spread(monotonic_ms())

    def _finish(self, number: int, response: ForwardedResponse) -> None:
        self._waiting.pop(number).reply.set(response)

    def _tell(self, message: _Message) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(message)


def _pending(
    waiting: _PendingRequest, answer: ForwardedResponse
) -> PendingAnswer | PendingElections | None:
    """Return what waits until this broker knows the change; None: nothing must wait for it."""
    request, deadline_ms = waiting.request, waiting.deadline_ms
    if isinstance(answer, ElectLeadersResponse):
        return PendingElections(answer, deadline_ms)
    if not isinstance(answer, TopicsResponse) or isinstance(request, PartitionsRequest):
        return None
    if waiting.attempts > 1:
        answer = done_before(request, answer, waiting.undone)
    return PendingAnswer(request, answer, deadline_ms)


def _changed_something(waiting: _PendingRequest) -> bool:
    request, response = waiting.request, waiting.response
    if isinstance(response, ElectLeadersResponse):
        return bool(response.leaders)
    return (
        isinstance(response, TopicsResponse)
        and not isinstance(request, PartitionsRequest)
        and changes_topics(request)
        and any(not row.error_code for row in results_of(response))
    )


def _awaits_service(request: ForwardedRequest) -> bool:
    """Whether the sender of a creation awaits the placement service itself."""
    if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
        return request.placement is not None and request.placement.awaits_service
    return False


def _topics(request: ForwardedRequest) -> Collection[str]:
    """Return the topics that are created or grow."""
    if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
        return [topic.name for topic in request.topics]
    return ()


def _is_elsewhere(answer: ForwardedResponse) -> bool:
    """Whether the answer is that another broker is the active controller's."""
    if isinstance(answer, TopicsResponse):
        return is_elsewhere(answer)
    return answer.error_code not in _DECIDED


def _reason(answer: object) -> str:
    if isinstance(answer, ForwardedResponse):
        return "the broker is no longer the active controller"
    return str(answer)


def _did_nothing(answer: object) -> bool:
    """Whether it is certain that this attempt has changed nothing."""
    if isinstance(answer, TopicsResponse):
        elsewhere = Errors.NOT_CONTROLLER
        return is_unplaced(answer) or all(r.error_code == elsewhere for r in results_of(answer))
    if isinstance(answer, PartitionsResponse):
        return answer.error_code == Errors.NOT_CONTROLLER
    return isinstance(answer, _NOT_SENT)


def _given_up(waiting: _PendingRequest, answer: object) -> ForwardedResponse:
    """Return the answer after the last attempt: it failed, or an outcome is unknown."""
    if not isinstance(answer, ForwardedResponse):
        return _refuse(waiting, str(answer))
    if not waiting.unknown:
        return answer
    if isinstance(answer, TopicsResponse):
        return refuse_elsewhere(answer, _MAY_BE_DONE)
    is_elsewhere = answer.error_code == Errors.NOT_CONTROLLER
    return _refuse(waiting, _reason(answer)) if is_elsewhere else answer


def _refuse(waiting: _PendingRequest, why: str) -> ForwardedResponse:
    """Return NOT_CONTROLLER if nothing was done, which tells clients to ask again."""
    if waiting.unknown:
        return refuse_forwarded(waiting.request, Errors.REQUEST_TIMED_OUT, f"{why}; {_MAY_BE_DONE}")
    return refuse_forwarded(waiting.request, Errors.NOT_CONTROLLER, why)


def _undone(request: ForwardedRequest, snapshot: MetadataSnapshot) -> frozenset[str]:
    """Return the topics that are not deleted or extended yet; new topics are found by their id."""
    match request:
        case DeleteTopicsRequest():
            named = {row.name or row.topic_id or "" for row in request.topics}
            known_ids = named.intersection(snapshot.topic_ids.values())
            return frozenset(snapshot.topic_ids.keys() & named | known_ids)
        case CreatePartitionsRequest():
            known = snapshot.partitions
            return frozenset(
                row.name
                for row in request.topics
                if row.count > 0
                and TopicPartition(row.name, 0) in known
                and TopicPartition(row.name, row.count - 1) not in known
            )
        case _:
            return frozenset()
