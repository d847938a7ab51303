"""A coordinator as an actor: requests, its log, leaderships and a timer.

The actors of groups and of transactions are made from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pykka import ActorDeadError, ActorRef

from regent.actors.coordinator_log import Appended, CoordinatorLog, Flush, Load, Loaded
from regent.actors.inbox import InboxFullError, MessageWithReply, Overflow, Reply
from regent.actors.runtime import RegentActor
from regent.actors.scheduler import OneShotTimer, Scheduler, monotonic_ms
from regent.core.coordinator.partition_for import AwaitedLeaderships, CoordinatorPartitions
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.coordinator import Question
from regent.core.replication.leader_partitions import Leadership


@dataclass(frozen=True, slots=True)
class Questions:
    """Requests of clients, in their sequence: a turn of a listener's loop has received them."""

    questions: Sequence[MessageWithReply]


@dataclass(frozen=True, slots=True)
class LeadershipsChanged:
    """Leaderships of internal topics have changed."""

    leaderships: Sequence[Leadership]


@dataclass(frozen=True, slots=True)
class PartitionsKnown:
    """More is known of the topic, perhaps the number of its partitions."""


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """Partitions do not exist any more."""

    partitions: Collection[TopicPartition]


@dataclass(frozen=True, slots=True)
class TimersDue:
    """A timer of the coordinator is due."""


class CoordinatorActor(RegentActor):
    """Handles the requests of one coordinator, one after the other.

    A full inbox refuses requests, which clients repeat. It takes all other messages: nobody repeats
    them, and there are only so many of them.
    """

    overflow = Overflow(lambda message: not isinstance(message, Questions))

    def __init__(
        self,
        name: str,
        partitions: CoordinatorPartitions,
        log: CoordinatorLog[Any],
        scheduler: Scheduler,
    ) -> None:
        """``log``: the ``partitions``; what it tells must come to ``tell_self``."""
        super().__init__(name)
        self._leaderships = AwaitedLeaderships(partitions, self.on_elected, self.on_resigned)
        self._log = log
        self._alarm = OneShotTimer(scheduler, lambda: self.tell_self(TimersDue()))
        self._alarm_ms: int | None = None

    @property
    def loads(self) -> deque[Load]:
        """The last partitions that were read; other threads may only copy it."""
        return self._log.loads

    # --- what a coordinator does ---

    @abstractmethod
    def answer(self, request: Any, respond: Callable[[Any], None]) -> None:
        """Answer a request, now or later."""

    @abstractmethod
    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """This broker leads a partition."""

    @abstractmethod
    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """This broker does not lead a partition any more; None: its replica was deleted."""

    @abstractmethod
    def on_loaded(self, partition: int, term: int, content: Any) -> None:
        """A partition was read; None: it could not be."""

    @abstractmethod
    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions do not exist any more."""

    @abstractmethod
    def handle_own(self, message: Any) -> None:
        """Handle a message that only this coordinator has."""

    @property
    @abstractmethod
    def next_timer_ms(self) -> int | None:
        """When ``run_timers`` must be called, by the monotonic clock; None: no timer runs."""

    @abstractmethod
    def run_timers(self) -> None:
        """Do what is due."""

    # --- messages ---

    def on_stop(self) -> None:
        """Stop the timer and the log."""
        self._alarm.cancel()
        self._log.stop()

    def handle(  # noqa: C901  one match over every message
        self, message: Any, reply: Reply | None
    ) -> None:
        """Handle one message."""
        match message:
            case Questions(questions):
                self.handle_each(questions, lambda asked, own: self.answer(asked, own.set))
            case Flush():
                self._log.flush()
            case Appended(error_code, base_offset, responds):
                with ExitStack() as calls:  # all of them, also if one fails
                    for position, respond in reversed(responds):
                        calls.callback(respond, error_code, base_offset + position)
            case LeadershipsChanged(leaderships):
                for leadership in leaderships:
                    self._leaderships.add(leadership)
            case PartitionsKnown():
                self._leaderships.on_metadata_changed()
            case Loaded(partition, term, content):
                self.on_loaded(partition, term, content)
            case PartitionsDeleted(partitions):
                self.on_partitions_deleted(partitions)
            case TimersDue():
                self._alarm_ms = None
                self.run_timers()
                self._log.expire()
            case _:
                self.handle_own(message)
        self._set_alarm()

    def on_preempted(self, message: Any) -> None:
        """Refuse the requests of a message that is not handled: this coordinator stops."""
        if isinstance(message, Questions):
            for asked in message.questions:
                asked.reply.fail(ActorDeadError(f"{self.name} has stopped"))

    def tell_self(self, message: Any) -> None:
        """Queue a message for this actor, unless it has stopped. Thread-safe."""
        with suppress(ActorDeadError):
            self.actor_ref.tell(message)

    def _set_alarm(self) -> None:
        for due_ms in (self.next_timer_ms, self._log.next_deadline_ms):
            if due_ms is not None and (self._alarm_ms is None or due_ms < self._alarm_ms):
                self._alarm_ms = due_ms
                self._alarm.set(max(due_ms - monotonic_ms(), 0))


class CoordinatorActorService:
    """Implements ``core.protocol.coordinator.CoordinatorService`` with an actor."""

    def __init__(self, actor: ActorRef[Any]) -> None:
        self._actor = actor

    def ask(self, questions: Sequence[Question[Any]]) -> None:
        """See ``CoordinatorService.ask``."""
        asked = [
            MessageWithReply(question.request, Reply.of(partial(_deliver, question)))
            for question in questions
        ]
        try:
            self._actor.tell(Questions(asked))
        except (ActorDeadError, InboxFullError) as gone:
            for message in asked:
                message.reply.fail(gone)


def _deliver(question: Question[Any], answer: object) -> None:
    if isinstance(answer, Exception):
        is_gone = isinstance(answer, ActorDeadError | InboxFullError)
        error = Errors.COORDINATOR_NOT_AVAILABLE if is_gone else Errors.UNKNOWN_SERVER_ERROR
        answer = question.request.refused(error)
    question.respond(answer)
