"""Answers requests about topics, elections and reassignments, in every broker.

It forwards a request to the active controller's broker, which decides and writes, and repeats this
until it has an answer. Then it waits until this broker's own metadata cache shows the change, so
that a client that has created a topic can find it through the same broker. Reassignments have only
begun when they are answered. Mirrors
``kafka.server.ForwardingManager``, the purgatory of ``kafka.server.ZkAdminManager`` and
``kafka.server.AutoTopicCreationManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.alter_partition_sender import ControllerUnknownError
from regent.actors.broker_to_controller_channel import (
    BrokerToControllerChannel,
    ForwardedRequest,
    ForwardedResponse,
    refuse_forwarded,
)
from regent.actors.inbox import InboxFullError, MessageWithReply, Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import Scheduler
from regent.actors.timer import OneShotTimer, monotonic_ms
from regent.core.admin.admin_requests import PendingAnswer, done_before
from regent.core.admin.partition_requests import PendingElections
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import TopicIds
from regent.core.protocol.controller import ElectLeadersResponse, PartitionsRequest
from regent.core.protocol.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.transport.client import PeerUnreachableError

logger = logging.getLogger(__name__)

MAX_PENDING = 1_000
MAX_WAIT_MS = 300_000
MIN_PATIENCE_MS = 10_000  # minimum time for a decision, even if the request has a shorter timeout
CREATION_TIMEOUT_MS = 1_000  # of topics that are created on demand
MAX_MISSING = 1_000
RETRY_BACKOFF_MS = 100
MAX_RETRY_BACKOFF_MS = 1_000

_CREATED = (Errors.NONE, Errors.REQUEST_TIMED_OUT, Errors.TOPIC_ALREADY_EXISTS)


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata cache has changed; requests may be complete."""


@dataclass(frozen=True, slots=True)
class CreateMissing:
    """Clients asked about topics that do not exist."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Decided:
    """The answer of the controller's broker to request ``number``, or an error."""

    number: int
    answer: object


@dataclass(frozen=True, slots=True)
class _TryAgain:
    """Another attempt at request ``number`` is due."""

    number: int


_Message: TypeAlias = ForwardedRequest | MetadataChanged | CreateMissing | _Decided | _TryAgain


@dataclass(slots=True)
class _PendingRequest:
    """A request that is not answered yet; ``undone``: see ``done_before``."""

    request: ForwardedRequest
    reply: Reply
    undone: frozenset[str]
    deadline_ms: int
    decide_until_ms: int
    attempts: int = 0
    pending: PendingAnswer | PendingElections | None = None


class ForwardingManager(RegentActor):
    """Takes ``ForwardedRequest`` and ``CreateMissing`` on any thread; never blocks."""

    def __init__(
        self,
        broker_id: BrokerId,
        cache: MetadataCache,
        topic_ids: TopicIds,
        channel: ActorRef[BrokerToControllerChannel],
        scheduler: Scheduler,
        *,
        min_patience_ms: int = MIN_PATIENCE_MS,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}-forwarding-manager", supervisor=supervisor)
        self._min_patience_ms = min_patience_ms
        self._cache = cache
        self._topic_ids = topic_ids
        self._channel = channel
        self._scheduler = scheduler
        self._numbers = count(1)
        self._waiting: dict[int, _PendingRequest] = {}
        self._missing: dict[str, None] = {}  # in arrival order
        self._being_created: tuple[str, ...] = ()
        self._is_failing = False
        self._deadline = OneShotTimer(scheduler, lambda: self._tell(MetadataChanged()))

    @property
    def pending_count(self) -> int:
        """How many requests are not answered yet. Thread-safe."""
        return len(self._waiting)

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
                self._want(topics)
            case _Decided(number, answer):
                self._on_decided(number, answer)
            case _TryAgain(number):
                self._forward(number)
            case _:
                if reply is not None:
                    self._take(message, reply)

    def preemption_answer(self, message: object) -> object:
        """Send clients to another broker when this one stops."""
        if isinstance(message, ForwardedRequest):
            return refuse_forwarded(message, Errors.NOT_CONTROLLER, "the broker is shutting down")
        return super().preemption_answer(message)

    def on_stop(self) -> None:
        """Cancel the timer."""
        self._deadline.cancel()

    # --- from the request to the decision ---

    def _take(self, request: ForwardedRequest, reply: Reply) -> None:
        if len(self._waiting) >= MAX_PENDING:
            message = f"{MAX_PENDING} requests are already waiting"
            reply.set(refuse_forwarded(request, Errors.REQUEST_TIMED_OUT, message))
            return
        now_ms, timeout_ms = monotonic_ms(), min(request.timeout_ms, MAX_WAIT_MS)
        number = next(self._numbers)
        self._waiting[number] = _PendingRequest(
            self._with_topic_ids(request),
            reply,
            _undone(request, self._cache.snapshot),
            now_ms + timeout_ms,
            now_ms + max(timeout_ms, self._min_patience_ms),
        )
        self._forward(number)

    def _with_topic_ids(self, request: ForwardedRequest) -> ForwardedRequest:
        """Set the ids of new topics, so that a second attempt recognises what the first created."""
        if not isinstance(request, CreateTopicsRequest):
            return request
        topics = (
            topic._replace(topic_id=topic.topic_id or self._topic_ids.new_topic_id())
            for topic in request.topics
        )
        return replace(request, topics=tuple(topics))

    def _forward(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        waiting.attempts += 1
        reply = Reply.of(lambda answer: self._tell(_Decided(number, answer)))
        try:
            self._channel.tell(MessageWithReply(replace(waiting.request, timeout_ms=0), reply))
        except (ActorDeadError, InboxFullError) as error:
            self._on_decided(number, error)

    def _on_decided(self, number: int, answer: object) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        if isinstance(answer, ForwardedResponse) and answer.error_code is Errors.NONE:
            self._is_failing = False
            waiting.pending = _pending(waiting, answer)
            if waiting.pending is None:
                self._finish(number, answer)
            else:
                self._poll([number])
        elif monotonic_ms() >= waiting.decide_until_ms:
            self._finish(number, _given_up(waiting.request, answer))
        else:
            log = logger.debug if self._is_failing else logger.warning
            log("%s: %s; trying again", self.name, _reason(answer))
            self._is_failing = True
            backoff_ms = min(RETRY_BACKOFF_MS * waiting.attempts, MAX_RETRY_BACKOFF_MS)
            self._scheduler.schedule(backoff_ms, lambda: self._tell(_TryAgain(number)))

    # --- from the decision to the answer ---

    def _poll(self, numbers: Collection[int]) -> None:
        snapshot, now_ms = self._cache.snapshot, monotonic_ms()
        for number in numbers:
            pending = self._waiting[number].pending
            response = None if pending is None else pending.poll(snapshot, now_ms)
            if response is not None:
                self._finish(number, response)
        pendings = [waiting.pending for waiting in self._waiting.values() if waiting.pending]
        self._deadline.cancel()
        if pendings:
            first_ms = min(pending.deadline_ms for pending in pendings)
            self._deadline.set(max(first_ms - now_ms, 0))

    def _finish(self, number: int, response: ForwardedResponse) -> None:
        self._waiting.pop(number).reply.set(response)

    def _tell(self, message: _Message) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(message)

    # --- automatic creation ---

    def _want(self, topics: Collection[str]) -> None:
        """Create topics, together with those requested while an earlier creation is in flight."""
        for topic in topics:
            if len(self._missing) < MAX_MISSING and topic not in self._being_created:
                self._missing[topic] = None
        if not self._being_created:
            self._create_missing()

    def _create_missing(self) -> None:
        known = self._cache.snapshot.topic_ids
        wanted = tuple(topic for topic in self._missing if topic not in known)
        self._missing.clear()
        self._being_created = wanted
        if wanted:
            request = CreateTopicsRequest(tuple(map(CreatableTopic, wanted)), CREATION_TIMEOUT_MS)
            self._take(request, Reply.of(self._on_created))

    def _on_created(self, answer: Any) -> None:
        """Log, and create the next; runs on this actor's thread, which answers all its requests."""
        failed = [o for o in answer.outcomes if o.error_code not in _CREATED]
        created = len(answer.outcomes) - len(failed)
        if created:
            first = next(o.topic for o in answer.outcomes if o.error_code in _CREATED)
            logger.info("%s: created %d topics on demand, the first %s", self.name, created, first)
        if failed:
            logger.warning(
                "%s: cannot create %d topics on demand, the first %s: %s: %s",
                self.name,
                len(failed),
                failed[0].topic,
                failed[0].error_code.name,
                failed[0].message,
            )
        self._being_created = ()
        if self._missing:
            self._tell(CreateMissing(()))


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
        outcomes = tuple(done_before(request, o, waiting.undone) for o in answer.outcomes)
        answer = replace(answer, outcomes=outcomes)
    return PendingAnswer(request, answer, deadline_ms)


def _reason(answer: object) -> str:
    if isinstance(answer, ForwardedResponse):
        return "the broker is no longer the active controller"
    return str(answer)


def _given_up(request: ForwardedRequest, answer: object) -> ForwardedResponse:
    """Return the answer after the last attempt: it failed, or its outcome is unknown."""
    if isinstance(answer, ForwardedResponse):
        return answer
    was_not_sent = isinstance(answer, ControllerUnknownError | PeerUnreachableError)
    error_code = Errors.NOT_CONTROLLER if was_not_sent else Errors.REQUEST_TIMED_OUT
    return refuse_forwarded(request, error_code, str(answer))


def _undone(request: ForwardedRequest, snapshot: MetadataSnapshot) -> frozenset[str]:
    """Return the topics that are not deleted or extended yet; new topics are found by their id."""
    match request:
        case DeleteTopicsRequest(topics, _, topic_ids):
            known_ids = set(topic_ids).intersection(snapshot.topic_ids.values())
            return frozenset(snapshot.topic_ids.keys() & set(topics) | known_ids)
        case CreatePartitionsRequest(growing):
            known = snapshot.partitions
            return frozenset(
                row.topic
                for row in growing
                if row.total > 0
                and TopicPartition(row.topic, 0) in known
                and TopicPartition(row.topic, row.total - 1) not in known
            )
        case _:
            return frozenset()
